#!/bin/sh
# Builds the OAuth 2.0 provider of the tests and prints the path of the binary.
set -eu
cd "$(dirname "$0")"
. ../../../../internal/setup/once.sh
once oauth-provider github.com/zitadel/oidc/v3 provider=.
echo "$dir/provider"
