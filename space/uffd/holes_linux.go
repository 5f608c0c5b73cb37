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

// Holes fills missing pages of a process's shared memory from outside. The process creates it,
// adds its mappings and sends the descriptor. The receiver fills pages without entering the
// process's address space; they are charged to the process and mapped in it.
//
// The mappings are registered for write-protect faults and nothing is protected, so the kernel
// serves the process's own accesses as if nothing were registered. An munmap, a mapping over the
// memory or an mremap blocks until the holder of the descriptor has read the event, or until
// nobody holds the descriptor any more (UFFD_FEATURE_EVENT_UNMAP). Holes is safe for concurrent
// use.
type Holes struct {
	mu sync.RWMutex // held to close: the descriptor's number may be reused after that
	fd int          // -1 once closed
	f  *os.File     // of fd, if it was taken
	// registered are the ranges that Close unregisters if fd was taken: the process or a child of
	// it may have a copy.
	registered []span
}

// span is memory from start to end.
type span struct{ start, end uint64 }

// maxEvents bounds the events that one Close reads twice. Defined here: more than one unmap for
// each thread that may wait. A process that keeps a copy can cause new events for ever.
const maxEvents = 4096

// NewHoles creates one for this process. It needs no privilege, because it serves no faults.
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

// Protects reports whether the kernel has write-protect faults.
func Protects() bool {
	fd, err := open(unix.O_CLOEXEC | unix.O_NONBLOCK | userModeOnly)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	has, err := featuresOf(fd, 0)
	return err == nil && has&featureProtect != 0
}

// TakeHoles creates one from a duplicate of fd, which a process has sent; the caller still closes
// fd. The process has registered size bytes at va with it. If fd is not a userfaultfd, the error
// matches ErrNotOne.
func TakeHoles(fd int, va device.VA, size uint64) (*Holes, error) {
	if err := check(fd); err != nil {
		return nil, err
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl F_DUPFD_CLOEXEC", err)
	}
	if err := unix.SetNonblock(own, true); err != nil { // else the runtime's poller reports an error
		return nil, errors.Join(os.NewSyscallError("fcntl O_NONBLOCK", err), unix.Close(own))
	}
	return &Holes{fd: own, f: os.NewFile(uintptr(own), "userfaultfd"), registered: []span{{uint64(va), uint64(va) + size}}}, nil
}

// Unregister ends the registration of size bytes at va with fd, which a process has sent and
// TakeHoles has not taken: a child of the process may have a copy.
func Unregister(fd int, va device.VA, size uint64) error {
	if err := check(fd); err != nil {
		return err
	}
	return os.NewSyscallError("UFFDIO_UNREGISTER", unregister(fd, uint64(va), size))
}

// AwaitUnmap waits until the process unmaps some of the memory; Close lets that unmap continue.
// It returns false if the Holes was closed. A process that breaks the descriptor counts as one
// that unmaps. AwaitUnmap is for a Holes of TakeHoles.
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

// drain reads the pending events, so that the process continues, and removes the unmapped memory
// from registered: another userfaultfd may have registered it by now, and older kernels would end
// that registration, too.
func (h *Holes) drain() {
	var buf [16 * msgSize]byte
	for range maxEvents / 16 {
		// Without RWF_NOWAIT a process could make the read block. Kernels before Linux 6.10 lack
		// it: there the process waits for the last close.
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

// without returns the parts of list that are outside of gone.
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

// check returns an error that matches ErrNotOne if fd is not a userfaultfd.
func check(fd int) error {
	name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil || name != "anon_inode:[userfaultfd]" {
		return fmt.Errorf("%w: descriptor %q", ErrNotOne, name)
	}
	return nil
}

// Add registers whole pages of a mapping of this process, until they are unmapped. It returns an
// error if the kernel has no write-protect faults (arm64 before Linux 6.10) or if another
// userfaultfd has registered the memory.
func (h *Holes) Add(va device.VA, size uint64) error {
	if _, err := register(h.fd, uint64(va), size, modeProtected); err != nil {
		return fmt.Errorf("register %d bytes at %v: %w", size, va, os.NewSyscallError("UFFDIO_REGISTER", err))
	}
	return nil
}

// FD returns the descriptor, to be sent; it stays open until Close.
func (h *Holes) FD() int { return h.fd }

// Fill fills missing pages from va on. It returns how many bytes it filled before a page that is
// present or swapped (EEXIST) or not the process's (ENOENT), or before the mapping changed
// (EAGAIN). It may sleep while the process changes its mappings. It replaces the marker of a
// guard page: the caller must check for those.
func (h *Holes) Fill(va device.VA, size uint64) (bytes int, err error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if h.fd < 0 {
		return 0, os.ErrClosed
	}
	return zero(h.fd, uint64(va), size)
}

// Close closes the descriptor. It ends the registrations of a taken one, and a process that
// blocks in an unmap of the memory continues, even if it or a child of it has a copy. Close does
// not wait for a Fill that sleeps: that Fill closes the descriptor when it returns.
func (h *Holes) Close() error {
	if h.mu.TryLock() {
		return h.closeLocked()
	}
	go func() {
		h.mu.Lock()
		_ = h.closeLocked() // nothing is written through it: no error matters
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
		_ = unregister(h.fd, s.start, s.end-s.start) // fails if something else is mapped there by now, or the process is gone
	}
	h.drain() // the event of an unmap in progress
	return h.f.Close()
}
