#!/bin/sh
# Builds libexanet into a directory: libexanet.sh DIR [PREFIX LIBDIR]. CC and CFLAGS are
# taken from the environment. exanet.pc names PREFIX/include and LIBDIR, where the files are
# going to be installed, and without them the directory that it lies in.
set -eu
case "$#:${1:-}" in
1:[!-]* | 3:[!-]*) ;;
*)
	echo "libexanet: unexpected arguments \"$*\"; usage: libexanet.sh DIR [PREFIX LIBDIR]" >&2
	exit 2
	;;
esac
here='${pcfiledir}'
dir=$1 prefix=${2:-$here} includedir=${2:+'${prefix}/include'} libdir=${3:-$here}
cd "$(dirname "$0")/../.."
mkdir -p "$dir"
version=$(sed -n 's/^#define EXANET_VERSION "\(.*\)"$/\1/p' libexanet/exanet.h)
objects=
for source in rules keeper uffd folio attach transfer message ring window stream_wire stream_end stream_host stream_io stream_wait stream gsas dht_record dht; do
	# CFLAGS is a list of words.
	# shellcheck disable=SC2086
	"${CC:-gcc}" -std=gnu11 -Wall -Wextra -Werror -O2 -g -fPIC -fvisibility=hidden -pthread ${CFLAGS:-} -c "libexanet/$source.c" -o "$dir/$source.o"
	objects="$objects $dir/$source.o"
done
# shellcheck disable=SC2086
"${CC:-gcc}" -shared -Wl,-soname,libexanet.so.1 -Wl,-z,now,-z,relro,-z,defs,-z,nodelete ${CFLAGS:-} -pthread -o "$dir/libexanet.so.1" $objects
ln -sf libexanet.so.1 "$dir/libexanet.so"
rm -f "$dir/libexanet.a"
# shellcheck disable=SC2086
ar rcsD "$dir/libexanet.a" $objects
# shellcheck disable=SC2086
rm -f $objects
cp libexanet/exanet.h libexanet/exanet_stream.h libexanet/exanet_gsas.h libexanet/exanet_dht.h "$dir/"
sed -e "s|@PREFIX@|$prefix|; s|@INCLUDEDIR@|${includedir:-$here}|; s|@LIBDIR@|$libdir|; s|@VERSION@|$version|" libexanet/exanet.pc.in >"$dir/exanet.pc"
