package attach

import "syscall"

// Descriptors are file descriptors that came with a message. The receiver owns them: it takes
// those that it keeps and closes the rest.
type Descriptors []int

// Take returns descriptor i, or -1 if there is none, and leaves -1 in its place, so that Close
// does not close it.
func (d Descriptors) Take(i int) int {
	if i < 0 || i >= len(d) {
		return -1
	}
	fd := d[i]
	d[i] = -1
	return fd
}

// Close closes the descriptors that were not taken. It may be called again.
func (d Descriptors) Close() {
	for i, fd := range d {
		if fd >= 0 {
			_ = syscall.Close(fd) // nothing is written through it: no error matters
			d[i] = -1
		}
	}
}
