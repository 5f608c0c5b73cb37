#!/bin/sh
# make loaded: each package's tests beside eight busy loops, and the packages of
# processes, timing and scheduling five times in a row: loaded.sh [PACKAGE...]
# A test that needs a quiet machine fails here. Not in CI: it takes an hour and more.
set -u
case ${1:-} in
-*)
	echo "loaded: unexpected argument \"$1\"; usage: loaded.sh [PACKAGE...]" >&2
	exit 2
	;;
esac
cd "$(dirname "$0")/../.."
GO=${GO:-go}

often="./attach ./cmd/... ./daemon/... ./emu/... ./examples/... ./gup ./internal/hostile ./internal/keeper
./internal/packaging ./internal/sockets ./internal/tracing ./libexanet/... ./vfio/mediate/... ./netlink ./space/proc/...
./rdma ./space/... ./vfio/... ./internal/workload/..."

loops=
trap 'kill $loops 2>/dev/null' EXIT
trap 'exit 130' INT TERM
for _ in 1 2 3 4 5 6 7 8; do
	sh -c 'while :; do :; done' &
	loops="$loops $!"
done

# run has packages tested one after the other, so that nothing runs beside a test but the loops.
run() {
	count=$1
	shift
	[ $# = 0 ] || CGO_ENABLED=0 $GO test -p 1 -count "$count" -timeout 2h "$@" || failed=1
}

failed=0
if [ $# -gt 0 ]; then
	run 5 "$@"
	exit $failed
fi
# Package patterns are words.
# shellcheck disable=SC2086
often=$($GO list $often 2>/dev/null)
once=$($GO list ./... | grep -vxF "$often" | grep -v /internal/guests$)
# shellcheck disable=SC2086
run 1 $once
# shellcheck disable=SC2086
run 5 $often
exit $failed
