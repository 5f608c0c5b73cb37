#!/bin/sh
# Looks for Go, which is all that the build needs. As `setup.sh test` it installs the
# Debian packages that the tests need and that are missing: as root, or with sudo. It
# asks nothing, says what it did, and does nothing when all is there.
#   gcc, libc6-dev  the race detector, and the clients in C
#   valgrind        the clients in C, without a memory error (examples)
#   git             the house rules
#   systemd         a machine of its own for the service (internal/packaging)
#   bpftool         another reader of the probe's maps (internal/tracing)
#   tshark          the dissector (daemon)
#   prometheus      promtool: rules and metrics (daemon); with CI set alone, for on a
#                   machine of somebody's the package starts a server
#   buildah, busybox-static  the image (internal/packaging); with CI set alone: 24 MB to
#                   fetch, 91 MB on disk
#   lintian         the packages (internal/packaging)
#   tmux            a terminal for exanetctl top
#   ucx-utils, libfabric-bin, stress-ng
#                   what exanetctl bench peers measures beside ours
#   libfabric-dev, openmpi-bin, libopenmpi-dev, lammps
#                   the libfabric provider, and MPI programs that use it (internal/mpi):
#                   40 MB to fetch
#   munge, slurmctld, slurmd, slurm-client
#                   a Slurm of a test's own (internal/mpi); with CI set, or as setup.sh mpi,
#                   for on a machine of somebody's munge starts a server
#   iproute2        networks of several hosts (internal/netns, internal/hosts)
#   redis-tools     clients for exanetctl dht serve (cmd/exanetctl)
#   chromium-headless-shell  a browser for exanetctl ui: 64 MB to fetch and 220 MB on
#                   disk, half of what the one with a screen takes; any Chromium does
# As `setup.sh mpi` it installs hpcc and netpipe-openmpi besides (make mpi), and fetches nothing.
# And it fetches QEMU and a kernel for internal/guests into the user's cache; as
# `setup.sh guests` Debian, arm64, what is built from the kernel's sources, and a kernel with
# rdma_rxe, too, for which it installs libibverbs-dev and libnl-route-3-dev.
# Where that fails it says why, and so do the tests that need them.
set -eu

usage='usage: setup.sh [test|guests|mpi]
  (none)  looks for Go, which is all that the build needs
  test    installs the packages that the tests need, and fetches QEMU and a kernel
  guests  the same for all tests with virtual machines
  mpi     installs the packages of test, and those of make mpi'
case "$#:${1:-}" in
0: | 1:test | 1:guests | 1:mpi) ;;
1:-h | 1:--help)
	echo "$usage"
	exit
	;;
*)
	printf 'setup: unexpected argument "%s"\n%s\n' "$*" "$usage" >&2
	exit 2
	;;
esac

# Nothing is fetched twice. Tests look for it in the same place.
fetch() {
	CGO_ENABLED=0 go run -C "$(dirname "$0")/../.." ./cmd/exanetctl qemu setup --fetch ${EXANET_QEMU_CACHE:+--cache "$EXANET_QEMU_CACHE"} "$@"
}

guests() {
	case "$1" in
	test) set -- ;;
	guests) set -- --debian --iommufd ;;
	*) return 0 ;;
	esac
	fetch "$@" || {
		echo "setup: no guests: the tests that need them fail under STRICT=1 and are skipped otherwise" >&2
		return 0
	}
	[ $# = 0 ] || fetch --arm64 ||
		echo "setup: no guests for arm64: their tests fail under STRICT=1 and are skipped otherwise" >&2
	[ $# = 0 ] || fetch --kernel 7.2-amd64 ||
		echo "setup: no guests with rdma_rxe: their test fails under STRICT=1 and is skipped otherwise" >&2
	# The kernels of docs/tracing.md, beside the newest, where all are asked for.
	[ "${EXANET_KERNELS:-}" = all ] || return 0
	for k in 6.12 6.18 7.2; do
		fetch --kernel "$k" || echo "setup: no guests with kernel $k" >&2
	done
}

remedy="install any Go from 1.21 on, which fetches the one that go.mod names: from https://go.dev/dl/, or on Debian 12 as root
  echo deb http://deb.debian.org/debian bookworm-backports main >/etc/apt/sources.list.d/backports.list
  apt-get update && apt-get install -y -t bookworm-backports golang-go"
if ! command -v go >/dev/null 2>&1; then
	echo "setup: go is missing: $remedy" >&2
	exit 1
fi
minor=$(go env GOVERSION | sed -n 's/^go1\.\([0-9][0-9]*\).*/\1/p')
if [ -n "$minor" ] && [ "$minor" -lt 21 ]; then
	echo "setup: Go 1.$minor is too old: $remedy" >&2
	exit 1
fi

need=
if [ -n "${1:-}" ]; then
	command -v gcc >/dev/null 2>&1 || need="$need gcc"
	[ -e /usr/include/stdlib.h ] || need="$need libc6-dev"
	command -v git >/dev/null 2>&1 || need="$need git"
	[ -x /usr/lib/systemd/systemd ] || [ -x /lib/systemd/systemd ] || need="$need systemd"
	command -v tshark >/dev/null 2>&1 || need="$need tshark"
	[ -z "${CI:-}" ] || command -v promtool >/dev/null 2>&1 || need="$need prometheus"
	[ -z "${CI:-}" ] || command -v buildah >/dev/null 2>&1 || need="$need buildah"
	[ -z "${CI:-}" ] || command -v busybox >/dev/null 2>&1 || need="$need busybox-static"
	command -v valgrind >/dev/null 2>&1 || need="$need valgrind"
	command -v lintian >/dev/null 2>&1 || need="$need lintian"
	command -v tmux >/dev/null 2>&1 || need="$need tmux"
	command -v bpftool >/dev/null 2>&1 || [ -x /usr/sbin/bpftool ] || need="$need bpftool"
	command -v ucx_perftest >/dev/null 2>&1 || need="$need ucx-utils"
	command -v fi_pingpong >/dev/null 2>&1 || need="$need libfabric-bin"
	command -v stress-ng >/dev/null 2>&1 || need="$need stress-ng"
	[ -z "${CI:-}" ] || command -v qemu-aarch64 >/dev/null 2>&1 || need="$need qemu-user"
	[ -e /usr/include/rdma/providers/fi_prov.h ] || need="$need libfabric-dev"
	command -v mpirun >/dev/null 2>&1 || need="$need openmpi-bin"
	command -v mpicc >/dev/null 2>&1 || need="$need libopenmpi-dev"
	command -v lmp >/dev/null 2>&1 || need="$need lammps"
	command -v ip >/dev/null 2>&1 || [ -x /usr/sbin/ip ] || need="$need iproute2"
	command -v redis-benchmark >/dev/null 2>&1 || need="$need redis-tools"
fi
if [ "${1:-}" = mpi ]; then
	command -v hpcc >/dev/null 2>&1 || need="$need hpcc"
	command -v NPopenmpi >/dev/null 2>&1 || need="$need netpipe-openmpi"
fi
if [ "${1:-}" = mpi ] || [ -n "${1:+${CI:-}}" ]; then
	command -v munged >/dev/null 2>&1 || [ -x /usr/sbin/munged ] || need="$need munge"
	command -v slurmctld >/dev/null 2>&1 || [ -x /usr/sbin/slurmctld ] || need="$need slurmctld"
	command -v slurmd >/dev/null 2>&1 || [ -x /usr/sbin/slurmd ] || need="$need slurmd"
	command -v srun >/dev/null 2>&1 || need="$need slurm-client"
fi
if [ "${1:-}" = guests ]; then
	[ -e /usr/include/infiniband/verbs.h ] || need="$need libibverbs-dev"
	ls /usr/lib/*/libnl-route-3.a >/dev/null 2>&1 || need="$need libnl-route-3-dev"
fi

# install installs packages.
install() {
	if ! command -v apt-get >/dev/null 2>&1; then
		echo "setup: missing: $*; this is not Debian: install them with your package manager" >&2
		return 1
	fi
	if [ "$(id -u)" = 0 ]; then
		run() { "$@"; }
	elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
		run() { sudo -n "$@"; }
	else
		echo "setup: missing: $*; run as root: apt-get install -y $*" >&2
		return 1
	fi
	log=$(mktemp)
	if ! run env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >"$log" 2>&1; then
		# The package lists may be old or absent.
		if ! { run apt-get update -qq && run env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"; } >"$log" 2>&1; then
			cat "$log" >&2
			rm -f "$log"
			echo "setup: apt-get could not install: $*" >&2
			return 1
		fi
	fi
	rm -f "$log"
	echo "setup: installed $* (apt-get)"
}

# $need is a list of words.
# shellcheck disable=SC2086
[ -z "$need" ] || install $need
# Not every system has a browser as a package: one test goes without.
[ -z "${1:-}" ] || command -v chromium-headless-shell >/dev/null 2>&1 || command -v chromium >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1 ||
	install chromium-headless-shell ||
	echo "setup: no Chromium: the tests of exanetctl ui in a browser fail under STRICT=1 and are skipped otherwise" >&2
guests "${1:-}"
