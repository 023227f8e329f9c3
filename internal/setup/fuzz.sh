#!/bin/sh
# Fuzzes every target, one after the other, each for FUZZTIME (10m), and prints
# what came of it. FUZZ limits that to the targets whose "package Name" it matches.
set -eu
cd "$(dirname "$0")/../.."
PATH=$PATH:/usr/local/go/bin
out=$(mktemp)
trap 'rm -f "$out"' EXIT
failed=0

targets=$(grep -roE --include='*_test.go' '^func Fuzz[A-Za-z0-9]+' . |
	sed -E 's|^\./(.*)/[^/]*:func (.*)|\1 \2|' | sort | grep -E "${FUZZ:-.}")
printf '%-32s%-20s%8s%14s%8s  %s\n' package target time executions new ''
echo "$targets" | {
	while read -r package name; do
		begun=$(date +%s) result=ok
		# One worker leaves the rest of the machine to others. Making an input
		# small may take it a minute else, in which it tries nothing new.
		if ! go test -run='^$' -fuzz="^$name\$" -parallel="${FUZZPARALLEL:-1}" -fuzztime="${FUZZTIME:-10m}" \
			-fuzzminimizetime=2s "./$package" >"$out" 2>&1; then
			# https://go.dev/issue/75804: until Go 1.27 the end of the time may be
			# reported as a failure. Nothing was found then.
			if grep -q 'context deadline exceeded$' "$out" && ! grep -qE 'Failing input|panic|fuzz_test|_test\.go:' "$out"; then
				result='ok (the end of the time was taken for a failure)'
			else
				result=FAILED failed=1
			fi
		fi
		execs=$(sed -nE 's/.*execs: ([0-9]+).*/\1/p' "$out" | tail -1)
		new=$(sed -nE 's/.*new interesting: ([0-9]+).*/\1/p' "$out" | tail -1)
		printf '%-32s%-20s%7ss%14s%8s  %s\n' "$package" "$name" $(($(date +%s) - begun)) "${execs:--}" "${new:--}" "$result"
		[ "${result#ok}" != "$result" ] || tail -40 "$out"
	done
	exit $failed
}
