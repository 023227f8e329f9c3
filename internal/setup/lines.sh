#!/bin/sh
# Counts lines of Go, as they stand (comments and blank lines too) and of code alone:
# the product, its tests, and the benches and tooling of tests. Generated files count in none.
#
#   internal/setup/lines.sh [REVISION]    of a commit; without one, of the work tree's index
set -eu
cd "$(dirname "$0")/../.."
rev=${1-}
tooling='^(bench|examples)/|^internal/(test|bench|e2e|lab|page|house|model|setup)/|^policy/oracle/|/testdata/'
generated='_bpfe[lb]\.go$|_generated\.go$|\.gen\.go$'
if [ -n "$rev" ]; then files=$(git ls-tree -r --name-only "$rev"); else files=$(git ls-files); fi
# Modules of their own are servers and clients that tests build.
tooling="$tooling|^($(echo "$files" | sed -n 's,/go\.mod$,,p' | paste -sd'|' -))/"
files=$(echo "$files" | grep '\.go$' | grep -vE "$generated")
count() { # NAME FILE...
	name=$1
	shift
	[ $# -gt 0 ] || set -- /dev/null
	if [ -n "$rev" ]; then
		printf "$rev:%s\n" "$@" | git cat-file --batch | sed -E '/^[0-9a-f]{40} blob [0-9]+$/d'
	else
		cat "$@"
	fi | awk -v name="$name" -v files=$# '
		{ all++ }
		!/^[[:space:]]*(\/\/.*)?$/ { code++ }
		END { printf "%-28s %5d files %7d lines %7d of code\n", name, files, all, code }'
}
# shellcheck disable=SC2046 # names without spaces
count "product" $(echo "$files" | grep -v '_test\.go$' | grep -vE "$tooling")
# shellcheck disable=SC2046
count "tests" $(echo "$files" | grep '_test\.go$')
# shellcheck disable=SC2046
count "benches, examples, tooling" $(echo "$files" | grep -v '_test\.go$' | grep -E "$tooling" || true)
