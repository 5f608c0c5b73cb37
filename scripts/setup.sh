#!/bin/sh
# Installs the Debian packages that the build and the tests need and that are
# missing: as root, or with sudo. It asks nothing, says what it did, and does
# nothing when all is there.
#   gcc, libc6-dev  the race detector of `make test`
#   git             go.mod and version information
# and, as `setup.sh test`:
#   systemd         a machine of its own for the service (internal/packaging)
# and fetches QEMU and a kernel for internal/guests into the user's cache. Where that
# fails it says why, and so do the tests that need them.
set -eu

# Nothing is fetched twice.
guests() {
	[ "$1" = test ] || return 0
	{
		CGO_ENABLED=0 go run -C "$(dirname "$0")/.." ./cmd/exanetctl qemu setup --fetch --iommufd &&
			CGO_ENABLED=0 go run -C "$(dirname "$0")/.." ./cmd/exanetctl qemu setup --fetch --arm64
	} ||
		echo "setup: no guests: the tests that need them fail under STRICT=1 and are skipped otherwise" >&2
}

need=
command -v gcc >/dev/null 2>&1 || need="$need gcc"
[ -e /usr/include/stdlib.h ] || need="$need libc6-dev"
command -v git >/dev/null 2>&1 || need="$need git"
if [ "${1:-}" = test ]; then
	[ -x /usr/lib/systemd/systemd ] || [ -x /lib/systemd/systemd ] || need="$need systemd"
fi

if ! command -v go >/dev/null 2>&1; then
	echo "setup: go is missing: install Go as go.mod names it (https://go.dev/dl/) and put it on PATH" >&2
	exit 1
fi
mode=${1:-}
if [ -z "$need" ]; then
	guests "$mode"
	exit 0
fi

# $need is a list of words.
# shellcheck disable=SC2086
set -- $need
if ! command -v apt-get >/dev/null 2>&1; then
	echo "setup: missing: $*; this is not Debian: install them with your package manager" >&2
	exit 1
fi
if [ "$(id -u)" = 0 ]; then
	run() { "$@"; }
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
	run() { sudo -n "$@"; }
else
	echo "setup: missing: $*; run as root: apt-get install -y $*" >&2
	exit 1
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! run env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >"$log" 2>&1; then
	# The package lists may be old or absent.
	if ! { run apt-get update -qq && run env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"; } >"$log" 2>&1; then
		cat "$log" >&2
		echo "setup: apt-get could not install: $*" >&2
		exit 1
	fi
fi
echo "setup: installed $* (apt-get)"
guests "$mode"
