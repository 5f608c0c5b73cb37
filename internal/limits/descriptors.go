package limits

import "golang.org/x/sys/unix"

// Descriptors returns most, or where that is less a part-th of the descriptors that this process
// may have open now (RLIMIT_NOFILE), and one at least.
func Descriptors(most, part int) int {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil {
		return most
	}
	return int(max(1, min(uint64(most), l.Cur/uint64(part))))
}
