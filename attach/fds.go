package attach

import "syscall"

// Descriptors are file descriptors that came with a message. Whoever receives
// them owns them: take the ones that are kept, close the rest.
type Descriptors []int

// Take gives descriptor i and leaves -1 in its place, so that Close does not
// close it. It gives -1 if there is none.
func (d Descriptors) Take(i int) int {
	if i < 0 || i >= len(d) {
		return -1
	}
	fd := d[i]
	d[i] = -1
	return fd
}

// Close closes what was not taken. It may be called again.
func (d Descriptors) Close() {
	for i, fd := range d {
		if fd >= 0 {
			_ = syscall.Close(fd) // nothing of ours is in it: no error matters
			d[i] = -1
		}
	}
}
