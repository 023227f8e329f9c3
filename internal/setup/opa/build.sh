#!/bin/sh
# Builds OPA's own command line, at the version that policies are evaluated with,
# once into the user's cache and prints where it is. The first build takes a
# minute or two; later calls find it.
set -eu
cd "$(dirname "$0")"

version=$(sed -n 's|.*github.com/open-policy-agent/opa v\([^ ]*\).*|\1|p' go.mod)
sum=$({ go version; cat go.mod go.sum; } | sha256sum | cut -c1-12)
dir=${XDG_CACHE_HOME:-$HOME/.cache}/sallyport/opa-$version-$sum

if [ ! -x "$dir/opa" ]; then
	mkdir -p "$dir"
	# One builds, the others wait for it; the rename makes it whole or absent.
	exec 9>"$dir/lock"
	flock 9
	if [ ! -x "$dir/opa" ]; then
		echo "building OPA $version; the first time takes a minute or two" >&2
		GOWORK=off CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags '-s -w' -o "$dir/opa.new" github.com/open-policy-agent/opa >&2
		mv "$dir/opa.new" "$dir/opa"
	fi
fi
echo "$dir/opa"
