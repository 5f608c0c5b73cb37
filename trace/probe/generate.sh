#!/bin/sh
# Makes the programs' objects, one for each architecture, and the Go types of what they share with pfd.
set -eu
command -v clang >/dev/null || {
	echo "trace/probe: no clang: the objects stay as they are (on Debian: apt-get install clang libbpf-dev)" >&2
	exit 1
}
[ -e /usr/include/bpf/bpf_helpers.h ] || {
	echo "trace/probe: no bpf/bpf_helpers.h: on Debian, apt-get install libbpf-dev" >&2
	exit 1
}
to=${1:-.}
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
GOPACKAGE=probe go tool bpf2go -output-dir "$made" -go-package probe -no-global-types -target amd64,arm64 -cflags "-O2 -g -Wall -Werror" \
	-type stage -type method -type kind -type counter -type record -type latency_key -type latency \
	-type domain_key -type domain -type fault_event -type settings -type half -type source -type source_state -type pfd \
	probe probe.c -- -I"/usr/include/$(uname -m)-linux-gnu"
# The types are those of both architectures; what loads the objects stands in sources_linux.go.
for arch in x86 arm64; do
	sed -e '/^\/\/go:build/d' -e '/^import (/,/^)/c\import "structs"' -e '/^\/\/ Names of all BPF objects/,$d' "$made/probe_${arch}_bpfel.go" |
		gofmt >"$made/$arch.go"
done
cmp "$made/x86.go" "$made/arm64.go"
mv "$made/x86.go" "$to/probe_bpfel.go"
mv "$made/probe_x86_bpfel.o" "$made/probe_arm64_bpfel.o" "$to"
