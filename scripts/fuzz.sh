#!/bin/sh
# Runs every fuzz target for a while: fuzz.sh [TIME], 20s each by default.
set -eu
cd "$(dirname "$0")/.."
GO=${GO:-go}
time=${1:-20s}

for pkg in $($GO list ./...); do
	for target in $($GO test -list '^Fuzz' "$pkg" | grep '^Fuzz' || true); do
		echo "fuzz: $pkg $target ($time)"
		$GO test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$pkg"
	done
done
