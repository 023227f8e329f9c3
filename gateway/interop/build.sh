#!/bin/sh
# Builds gRPC's own interoperability client and server once into the user's cache
# and prints the folder that has them. The first build takes a minute or two;
# later calls find it.
set -eu
cd "$(dirname "$0")"

version=$(sed -n 's|.*google.golang.org/grpc v\([^ ]*\).*|\1|p' go.mod)
sum=$({ go version; cat go.mod go.sum; } | sha256sum | cut -c1-12)
dir=${XDG_CACHE_HOME:-$HOME/.cache}/sallyport/grpc-interop-$version-$sum

if [ ! -x "$dir/server" ]; then
	mkdir -p "$dir"
	# One builds, the others wait for it; the rename makes it whole or absent.
	exec 9>"$dir/lock"
	flock 9
	if [ ! -x "$dir/server" ]; then
		echo "building gRPC's interoperability tests $version; the first time takes a minute or two" >&2
		for program in client server; do
			GOWORK=off GOFLAGS= CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags '-s -w' -o "$dir/$program.new" "google.golang.org/grpc/interop/$program" >&2
			mv "$dir/$program.new" "$dir/$program"
		done
	fi
fi
echo "$dir"
