#!/bin/sh
# Makes the programs' objects and the Go that embeds them, for each architecture.
set -eu
command -v clang >/dev/null || {
	echo "trace/probe: no clang: the objects stay as they are (on Debian: apt-get install clang libbpf-dev)" >&2
	exit 1
}
[ -e /usr/include/bpf/bpf_helpers.h ] || {
	echo "trace/probe: no bpf/bpf_helpers.h: on Debian, apt-get install libbpf-dev" >&2
	exit 1
}
GOPACKAGE=probe exec go tool bpf2go -output-dir "${1:-.}" -go-package probe -target amd64,arm64 -cflags "-O2 -g -Wall -Werror" \
	-type stage -type method -type kind -type counter -type record -type latency_key -type latency \
	-type domain_key -type domain -type fault_event -type settings -type source -type source_state -type pfd \
	probe probe.c -- -I"/usr/include/$(uname -m)-linux-gnu"
