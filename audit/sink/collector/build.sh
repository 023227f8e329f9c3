#!/bin/sh
# Builds an OpenTelemetry collector once into the user's cache and prints the path of the
# binary. The first build takes two to three minutes; later calls find it.
set -eu
cd "$(dirname "$0")"

version=$(sed -n 's|.*go.opentelemetry.io/collector/otelcol v||p' go.mod)
sum=$({ go version; cat go.mod go.sum ./*.go; } | sha256sum | cut -c1-12)
dir=${XDG_CACHE_HOME:-$HOME/.cache}/sallyport/collector-$version-$sum
bin=$dir/collector

if [ ! -x "$bin" ]; then
	mkdir -p "$dir"
	# One builds, the others wait for it; the rename makes it whole or absent.
	exec 9>"$dir/lock"
	flock 9
	if [ ! -x "$bin" ]; then
		echo "building the OpenTelemetry collector $version; the first time takes two to three minutes" >&2
		GOWORK=off GOFLAGS= CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags '-s -w' -o "$bin.new" . >&2
		mv "$bin.new" "$bin"
	fi
fi
echo "$bin"
