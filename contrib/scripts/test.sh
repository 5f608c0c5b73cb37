#!/bin/sh
# Runs make targets one after the other, each even where one before it has failed, and
# prints what they took: test.sh TARGET... At the end stand the ten slowest packages and,
# last, each test that failed, by name. Fails if one of them did.
set -u
case ${1:-} in
'' | -*)
	echo "test: unexpected argument \"${1:-}\"; usage: test.sh TARGET..." >&2
	exit 2
	;;
esac
cd "$(dirname "$0")/../.."
MAKE=${MAKE:-make}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

failed=
for target; do
	# A pipe has no exit status of its first command in sh: the log has it.
	{ "$MAKE" --no-print-directory "$target" 2>&1 || echo "test: make $target failed"; } | tee -a "$log"
	grep -qx "test: make $target failed" "$log" && failed="$failed $target"
done

awk -v failed="$failed" '
	# A line of go test for a package: ok or FAIL, the package, the seconds.
	($1 == "ok" || $1 == "FAIL") && $3 ~ /^[0-9.]+s$/ { took[$2] += $3 }
	# Names of tests stand before the line of their package.
	$1 == "---" && $2 == "FAIL:" { names[++n] = $3 }
	$1 == "panic:" && /test timed out|running tests/ { names[++n] = "(timed out)" }
	$1 == "ok" { n = 0 }
	$1 == "FAIL" && NF > 1 {
		if (!n) bad[++b] = $2 " " ($3 ~ /^\[/ ? $3 " " $4 : "")
		for (i = 1; i <= n; i++) bad[++b] = $2 " " names[i]
		n = 0
	}
	END {
		print "test: slowest packages:"
		for (k = 0; k < 10; k++) {
			most = ""
			for (p in took) if (most == "" || took[p] > took[most]) most = p
			if (most == "") break
			printf "  %7.1fs %s\n", took[most], most
			delete took[most]
		}
		if (failed == "") { print "test: all passed"; exit }
		print "test: failed:" failed
		for (i = 1; i <= b; i++) print "  " bad[i]
	}' "$log"
[ -z "$failed" ]
