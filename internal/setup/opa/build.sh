#!/bin/sh
# Builds OPA's own command line, at the version that policies are evaluated with, and
# prints the path of the binary.
set -eu
cd "$(dirname "$0")"
. ../../../internal/setup/once.sh
once opa github.com/open-policy-agent/opa opa=github.com/open-policy-agent/opa
echo "$dir/opa"
