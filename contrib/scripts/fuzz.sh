#!/bin/sh
# Runs every fuzz target for a while: fuzz.sh [TIME], 20s each by default. One that fails
# does not keep the others from running; the last line names those that did.
set -eu
case "$#:${1:-}" in
0: | 1:[0-9]*[smhx]) ;;
*)
	echo "fuzz: unexpected argument \"$*\"; usage: fuzz.sh [TIME], as 5s or 2m" >&2
	exit 2
	;;
esac
cd "$(dirname "$0")/../.."
GO=${GO:-go}
time=${1:-20s}
failed=

for pkg in $($GO list ./...); do
	for target in $($GO test -list '^Fuzz' "$pkg" | grep '^Fuzz' || true); do
		echo "fuzz: $pkg $target ($time)"
		$GO test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$pkg" || failed="$failed $pkg:$target"
	done
done
[ -z "$failed" ] || {
	echo "fuzz: failed:$failed" >&2
	exit 1
}
