package limits

import "golang.org/x/sys/unix"

// Descriptors returns the smaller of most and a part-th of this process's limit of open
// descriptors (RLIMIT_NOFILE), but at least 1.
func Descriptors(most, part int) int {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil {
		return most
	}
	return int(max(1, min(uint64(most), l.Cur/uint64(part))))
}
