package uffd

import (
	"encoding/binary"
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
	// registered is what Close unregisters, where fd was taken: the process or a child of it may
	// have a copy.
	registered []span
}

// span is memory from start to end.
type span struct{ start, end uint64 }

// maxEvents bounds the events that one Close reads twice (ours): more than one unmap for each
// thread that may wait. A process that keeps a copy can have new ones come for ever.
const maxEvents = 4096

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
// caller's. The process has registered size bytes at va with it. With another file the error
// matches ErrNotOne.
func TakeHoles(fd int, va device.VA, size uint64) (*Holes, error) {
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
	return &Holes{fd: own, f: os.NewFile(uintptr(own), "userfaultfd"), registered: []span{{uint64(va), uint64(va) + size}}}, nil
}

// Unregister ends the registration of size bytes at va with fd, which a process has sent and which
// is not taken: a child of the process may have a copy.
func Unregister(fd int, va device.VA, size uint64) error {
	if err := check(fd); err != nil {
		return err
	}
	return os.NewSyscallError("UFFDIO_UNREGISTER", unregister(fd, uint64(va), size))
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

// drain reads the events that wait, so that the process goes on, and forgets what it has unmapped:
// another userfaultfd may have it by now, and older kernels would end that registration, too.
func (h *Holes) drain() {
	var buf [16 * msgSize]byte
	for range maxEvents / 16 {
		// Without RWF_NOWAIT a process could make the read wait. Kernels before Linux 6.10 have it
		// not: there the process waits for the last close.
		n, err := unix.Preadv2(h.fd, [][]byte{buf[:]}, -1, unix.RWF_NOWAIT)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return
		}
		for m := buf[:n]; len(m) >= msgSize; m = m[msgSize:] {
			if m[0] == eventUnmap {
				h.registered = without(h.registered, span{binary.NativeEndian.Uint64(m[msgStart:]), binary.NativeEndian.Uint64(m[msgEnd:])})
			}
		}
	}
}

// without gives what of a list of memory is outside of gone.
func without(list []span, gone span) []span {
	var left []span
	for _, s := range list {
		for _, part := range []span{{s.start, min(s.end, gone.start)}, {max(s.start, gone.end), s.end}} {
			if part.start < part.end {
				left = append(left, part)
			}
		}
	}
	return left
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

// Close gives the descriptor up. What was registered with one that was taken is so no more, and a
// process that waits in an unmap of it goes on, also where it or a child of its has a copy. It does
// not wait for a Fill that sleeps: that one's end closes it.
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
	if h.fd < 0 {
		return nil
	}
	defer func() { h.fd = -1 }()
	if h.f == nil {
		return os.NewSyscallError("close", unix.Close(h.fd))
	}
	h.drain()
	for _, s := range h.registered {
		_ = unregister(h.fd, s.start, s.end-s.start) // it fails where something else is mapped there by now, or the process is gone
	}
	h.drain() // of an unmap that was under way
	return h.f.Close()
}
