#!/bin/sh
# Runs every test, after setup.sh has put in place what they need.
set -eu
cd "$(dirname "$0")/../.."
PATH=$PATH:/usr/local/go/bin

# The committed objects are what their sources say.
objects=sandbox/datapath
before=$(cat $objects/guard_bpfel.* | sha256sum)
go generate ./$objects
[ "$before" = "$(cat $objects/guard_bpfel.* | sha256sum)" ] || {
	echo "test: $objects/guard_bpfel.* were not what the C sources say; they are now: commit them" >&2
	exit 1
}

go vet ./...
# What the tests of Vault, gRPC and Rego run: minutes the first time, then cached.
examples/vault/build.sh >/dev/null
gateway/interop/build.sh >/dev/null
internal/setup/opa/build.sh >/dev/null
# Tests with an engine of their own are the heavy ones: two at a time. The end-to-end
# tests take half of it all, so that they are in both lanes.
lane() { # PACKAGES OPTION...: the end-to-end tests that the options name, then these
	packages=$1
	shift
	status=0
	go test -json -count=1 -p 1 -timeout 40m ./internal/e2e "$@" || status=1
	go test -json -count=1 -p 1 -timeout 25m $packages || status=1
	return $status
}
all=$(go list ./... | grep -v /internal/e2e\$)
below='/(sandbox|policy|internal)(/|$)'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -o "$work/slowest" ./internal/setup/slowest
mkfifo "$work/first" "$work/second"
"$work/slowest" "$work/first" "$work/second" &
report=$!
lane "$(echo "$all" | grep -E "$below")" -run '^Test[A-L]' >"$work/first" &
first=$!
failed=0
lane "$(echo "$all" | grep -Ev "$below")" -skip '^Test[A-L]' >"$work/second" || failed=1
wait $first || failed=1
wait $report || failed=1
exit $failed
