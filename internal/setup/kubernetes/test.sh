#!/bin/sh
# Runs the tests that have a cluster of their own: those of the packages that have files with
# the build tag kubernetes. As for -trimpath, see ../test.sh.
set -eu
cd "$(dirname "$0")/../../.."
PATH=$PATH:/usr/local/go/bin
export GOFLAGS="$(go env GOFLAGS) -trimpath -tags=kubernetes"
packages=$(grep -rl --include='*_test.go' '^//go:build kubernetes$' . | xargs -n 1 dirname | sort -u)
# shellcheck disable=SC2086 # names without spaces
go vet $packages
only=$(echo "$packages" | sed 's|^\./|/|; s|$|$|' | paste -sd '|')
exec go run ./internal/test/suite -workers 2 -only "$only"
