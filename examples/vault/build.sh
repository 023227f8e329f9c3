#!/bin/sh
# Builds the Vault server core and prints the path of the binary.
set -eu
cd "$(dirname "$0")"
. ../../internal/setup/once.sh
once vault-core github.com/hashicorp/vault vault=.
echo "$dir/vault"
