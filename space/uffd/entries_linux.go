package uffd

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Entries makes mappings of shared memory in this process in which only Enter makes pages
// present. A page that Enter has entered stays until the kernel takes it away (swapped out, or
// punched out of the file). Touching another page raises SIGBUS at once, which
// debug.SetPanicOnFault turns into a panic: nothing is paged in, and nothing sleeps.
type Entries struct{ fd int }

// NewEntries opens the userfaultfd of an Entries. It needs no privilege, because it serves no
// faults. On a kernel before 5.14 the error matches ErrForbidden.
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

// Add registers whole pages of a mapping of a memfd, until they are unmapped.
func (e *Entries) Add(b []byte) error {
	if err := registerOwn(e.fd, b); err != nil {
		return fmt.Errorf("register %d bytes: %w", len(b), os.NewSyscallError("UFFDIO_REGISTER", err))
	}
	return nil
}

// Enter enters whole pages of such a mapping and returns how many bytes it entered before a page
// that the file does not have (EFAULT) or that is entered already (EEXIST). It reads a swapped
// page from swap.
func (e *Entries) Enter(b []byte) (bytes int, err error) {
	return enter(e.fd, b)
}

// Make makes whole pages of such a mapping that the file does not have, and enters them. It returns how
// many bytes it made before a page that the file has, in memory or in swap (EEXIST). Unlike
// fallocate(2) it does not wait for a write(2) to the file.
func (e *Entries) Make(b []byte) (bytes int, err error) {
	return zero(e.fd, address(b), uint64(len(b)))
}

// Close closes the descriptor; the mappings become ordinary ones. It may be called again.
func (e *Entries) Close() error {
	if e.fd < 0 {
		return nil
	}
	fd := e.fd
	e.fd = -1 // the number may be reused at once
	return os.NewSyscallError("close", unix.Close(fd))
}
