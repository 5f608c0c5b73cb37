package uffd

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Entries makes mappings of shared memory in this process into which no page comes by
// itself: those that Enter has entered are there, until the kernel takes them away
// (swapped out, punched out of the file). To touch another one is a SIGBUS at once, which
// debug.SetPanicOnFault makes a panic: nothing is brought in, and nothing sleeps.
type Entries struct{ fd int }

// NewEntries opens a userfaultfd for that. It needs no right: it serves nobody's faults.
// Without one (a kernel before 5.14) the error matches ErrForbidden.
func NewEntries() (*Entries, error) {
	fd, err := open(unix.O_CLOEXEC | unix.O_NONBLOCK | userModeOnly)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrForbidden, os.NewSyscallError("userfaultfd", err))
	}
	if err := handshake(fd, featureSigbus|featureMinorShmem); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrForbidden, os.NewSyscallError("UFFDIO_API", err)), unix.Close(fd))
	}
	return &Entries{fd}, nil
}

// Add takes a mapping of a memfd, whole pages of it. It ends with its munmap.
func (e *Entries) Add(b []byte) error {
	if err := registerOwn(e.fd, b); err != nil {
		return fmt.Errorf("registering %d bytes: %w", len(b), os.NewSyscallError("UFFDIO_REGISTER", err))
	}
	return nil
}

// Enter enters whole pages of such a mapping that the file has, and gives how many until
// one that it has not (EFAULT), or that is entered already (EEXIST). A page in swap is
// read from there.
func (e *Entries) Enter(b []byte) (bytes int, err error) {
	return enter(e.fd, b)
}

// Close closes the descriptor: the mappings are like any others then. It may be called again.
func (e *Entries) Close() error {
	if e.fd < 0 {
		return nil
	}
	fd := e.fd
	e.fd = -1 // its number may be another file's at once
	return os.NewSyscallError("close", unix.Close(fd))
}
