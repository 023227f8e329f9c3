#!/bin/sh
# Builds gRPC's own interoperability client and server and prints the folder that has them.
set -eu
cd "$(dirname "$0")"
. ../../internal/setup/once.sh
once grpc-interop google.golang.org/grpc client=google.golang.org/grpc/interop/client server=google.golang.org/grpc/interop/server
echo "$dir"
