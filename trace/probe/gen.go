package probe

// Needs clang: on Debian, apt-get install clang libbpf-dev.
//
//go:generate sh generate.sh
