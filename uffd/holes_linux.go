package uffd

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// Holes fills missing pages of a process's shared memory from outside. The process makes
// it, adds its mappings and hands the descriptor over; who holds that fills pages without
// entering the process's address space, charged to the process and mapped by it.
//
// The mappings are registered for write-protect faults, and nothing is protected: what the
// process itself touches is the kernel's, as if nothing were registered. An munmap of it, a
// mapping over it or an mremap waits until who holds the descriptor has learned of that, or
// nobody has it any more (UFFD_FEATURE_EVENT_UNMAP). Its methods may be called on any goroutine.
type Holes struct {
	mu sync.RWMutex // held to close: a descriptor's number is another file's after that
	fd int          // -1 once closed
	f  *os.File     // of fd, where it was taken
}

// NewHoles makes one for this process. It needs no right: it serves nobody's faults.
// Without userfaultfd the error matches ErrForbidden.
func NewHoles() (*Holes, error) {
	fd, err := open(unix.O_CLOEXEC | unix.O_NONBLOCK | userModeOnly)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrForbidden, os.NewSyscallError("userfaultfd", err))
	}
	if err := handshake(fd, featureUnmap); err != nil {
		return nil, errors.Join(os.NewSyscallError("UFFDIO_API", err), unix.Close(fd))
	}
	return &Holes{fd: fd}, nil
}

// Protects tells whether the kernel has write-protect faults.
func Protects() bool {
	fd, err := open(unix.O_CLOEXEC | unix.O_NONBLOCK | userModeOnly)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	has, err := featuresOf(fd, 0)
	return err == nil && has&featureProtect != 0
}

// TakeHoles makes one of a duplicate of fd, which a process has sent and which stays the
// caller's. With another file the error matches ErrNotOne.
func TakeHoles(fd int) (*Holes, error) {
	if err := check(fd); err != nil {
		return nil, err
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl F_DUPFD_CLOEXEC", err)
	}
	if err := unix.SetNonblock(own, true); err != nil { // else it is polled as broken
		return nil, errors.Join(os.NewSyscallError("fcntl O_NONBLOCK", err), unix.Close(own))
	}
	return &Holes{fd: own, f: os.NewFile(uintptr(own), "userfaultfd")}, nil
}

// AwaitUnmap waits until the process unmaps some of the memory, which goes on after Close, or
// reports false: it was closed. A process that breaks the descriptor counts as one that unmaps.
// It is for what TakeHoles gave.
func (h *Holes) AwaitUnmap() bool {
	raw, err := h.f.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
	return err == nil
}

// Release lets the process go on that AwaitUnmap has seen, and closes: it may have kept its own
// descriptor, or a child of it has a copy.
func (h *Holes) Release() error {
	h.mu.RLock()
	var buf [16 * msgSize]byte
	for h.fd >= 0 {
		// Without RWF_NOWAIT a process could make the read wait.
		if n, err := unix.Preadv2(h.fd, [][]byte{buf[:]}, -1, unix.RWF_NOWAIT); n <= 0 && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	h.mu.RUnlock()
	return h.Close()
}

// check refuses what is no userfaultfd.
func check(fd int) error {
	name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil || name != "anon_inode:[userfaultfd]" {
		return fmt.Errorf("%w: descriptor %q", ErrNotOne, name)
	}
	return nil
}

// Add adds a mapping of this process's, whole pages of it. It ends with its munmap.
// Where the kernel has no write-protect faults (arm64 before Linux 6.10), or the memory is
// registered with another userfaultfd, that is an error.
func (h *Holes) Add(va device.VA, size uint64) error {
	if _, err := register(h.fd, uint64(va), size, modeProtected); err != nil {
		return fmt.Errorf("registering %d bytes at %v: %w", size, va, os.NewSyscallError("UFFDIO_REGISTER", err))
	}
	return nil
}

// FD gives the descriptor, to be sent; it stays open until Close.
func (h *Holes) FD() int { return h.fd }

// Fill fills missing pages from va on, and gives how many bytes until one that is not
// missing (EEXIST: there, or swapped out) or not the process's (ENOENT), or until the
// mapping changes (EAGAIN). It may sleep while the process changes its mappings. A marker of
// a guard page is replaced: the caller looks for those.
func (h *Holes) Fill(va device.VA, size uint64) (bytes int, err error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if h.fd < 0 {
		return 0, os.ErrClosed
	}
	return zero(h.fd, uint64(va), size)
}

// Close gives the descriptor up. It does not wait for a Fill that sleeps: that one's end
// closes it.
func (h *Holes) Close() error {
	if h.mu.TryLock() {
		return h.closeLocked()
	}
	go func() {
		h.mu.Lock()
		_ = h.closeLocked() // nothing is written by it: no error matters
	}()
	return nil
}

func (h *Holes) closeLocked() error {
	defer h.mu.Unlock()
	fd := h.fd
	if h.fd = -1; fd < 0 {
		return nil
	}
	if h.f != nil {
		return h.f.Close()
	}
	return os.NewSyscallError("close", unix.Close(fd))
}
