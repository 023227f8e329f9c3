#!/bin/sh
# Runs every test, after setup.sh has put in place what they need.
set -eu
cd "$(dirname "$0")/../.."
PATH=$PATH:/usr/local/go/bin
# Without the path of this clone, Go takes from its cache what another clone has compiled.
GOFLAGS="$(go env GOFLAGS) -trimpath"
export GOFLAGS

# The committed objects are what their sources say.
objects=sandbox/datapath
before=$(cat $objects/guard_bpfel.* | sha256sum)
go generate ./$objects
[ "$before" = "$(cat $objects/guard_bpfel.* | sha256sum)" ] || {
	echo "test: $objects/guard_bpfel.* were not what the C sources say; they are now: commit them" >&2
	exit 1
}

go vet ./...
# What the tests of Vault, gRPC, OTLP, Rego and the chart run: minutes the first time, then cached.
examples/vault/build.sh >/dev/null
gateway/interop/build.sh >/dev/null
audit/sink/collector/build.sh >/dev/null
internal/setup/opa/build.sh >/dev/null
examples/kubernetes/render/build.sh >/dev/null
exec go run ./internal/test/suite
