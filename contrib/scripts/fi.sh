#!/bin/sh
# Builds the libfabric provider into a directory in which libexanet.sh has built the library:
# fi.sh DIR. CC and CFLAGS are taken from the environment. Without libfabric's headers it
# says so and makes nothing.
set -eu
case "$#:${1:-}" in
1:[!-]*) ;;
*)
	echo "fi: unexpected arguments \"$*\"; usage: fi.sh DIR" >&2
	exit 2
	;;
esac
dir=$1
cd "$(dirname "$0")/../.."
if ! echo '#include <rdma/providers/fi_prov.h>' | "${CC:-gcc}" -E - >/dev/null 2>&1; then
	echo "fi: no headers of libfabric: libexanet-fi.so is not made; install them (apt-get install libfabric-dev)" >&2
	exit 0
fi
# The library is part of the file, so that the provider needs no other of the same version. It
# stays in the process (nodelete): it has threads and keepers.
# CFLAGS is a list of words.
# shellcheck disable=SC2086
"${CC:-gcc}" -std=gnu11 -Wall -Wextra -Werror -O2 -g -fPIC -fvisibility=hidden -pthread ${CFLAGS:-} -I "$dir" -shared \
	-Wl,-z,now,-z,relro,-z,nodelete -Wl,--exclude-libs,ALL -o "$dir/libexanet-fi.so" libexanet/fi/*.c "$dir/libexanet.a" -lfabric
