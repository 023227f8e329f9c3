#!/bin/sh
# Builds the program that renders the chart, and prints its path.
set -eu
cd "$(dirname "$0")"
. ../../../internal/setup/once.sh
once chart helm.sh/helm/v4 render=.
echo "$dir/render"
