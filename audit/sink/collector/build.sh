#!/bin/sh
# Builds an OpenTelemetry collector and prints the path of the binary.
set -eu
cd "$(dirname "$0")"
. ../../../internal/setup/once.sh
once collector go.opentelemetry.io/collector/otelcol collector=.
echo "$dir/collector"
