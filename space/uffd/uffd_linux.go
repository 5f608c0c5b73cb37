package uffd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// Errors.
var (
	// ErrForbidden says that this process may not have a userfaultfd; the text says why, and what
	// to do.
	ErrForbidden = errors.New("no userfaultfd for this user")
	// ErrNotOne says that a descriptor is not a userfaultfd.
	ErrNotOne = errors.New("not a userfaultfd")
	// ErrUnfit says that memory is of a kind whose missing pages cannot be filled.
	ErrUnfit = errors.New("memory that a userfaultfd cannot fill")
	// ErrNotRegistered says that the memory is not, or no longer, registered with the descriptor.
	ErrNotRegistered = errors.New("memory is not registered with the userfaultfd")
)

// Open creates a userfaultfd of this process, in full mode if the kernel allows it: by privilege
// or sysctl, else through /dev/userfaultfd. Without full mode it serves faults of user code only,
// and a system call on an absent page of registered memory fails with EFAULT. If the kernel
// allows neither, the error matches ErrForbidden.
//
// With events the server learns of pages that madvise, munmap or truncation discards
// (Region.Seen), and the discarding call blocks until the server has read the event.
func Open(events bool) (fd int, full bool, err error) {
	const flags = unix.O_CLOEXEC | unix.O_NONBLOCK
	full = true
	if fd, err = open(flags); err != nil {
		if fd, err = openDevice(flags); err != nil {
			full = false
			fd, err = open(flags | userModeOnly)
		}
	}
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		// In user mode the kernel requires no privilege (userfaultfd(2)).
		return -1, false, fmt.Errorf("%w: %w: a seccomp filter or a security module refuses it, as Docker's default profile does: attach with another method, such as gup, or allow userfaultfd there",
			ErrForbidden, os.NewSyscallError("userfaultfd", err))
	case errors.Is(err, unix.ENOSYS):
		return -1, false, fmt.Errorf("%w: this kernel has none (CONFIG_USERFAULTFD): %w", ErrForbidden, err)
	case err != nil:
		return -1, false, os.NewSyscallError("userfaultfd", err)
	}
	features := uint64(0)
	if events {
		features = featureRemove | featureUnmap
	}
	if err := handshake(fd, features); err != nil {
		return -1, false, errors.Join(os.NewSyscallError("UFFDIO_API", err), unix.Close(fd))
	}
	return fd, full, nil
}

// Register lets the server of fd fill missing pages in a range of this process's memory; pages
// that are present stay. The range is registered for write-protect faults and nothing is
// protected, so the kernel serves the process's own accesses. If the kernel has no such faults
// (arm64 before Linux 6.10), Register is Intercept.
func Register(fd int, va device.VA, size uint64) error {
	if _, err := register(fd, uint64(va), size, modeProtected); err == nil {
		return nil
	}
	return Intercept(fd, va, size)
}

// Intercept makes threads that touch a missing page wait for the server of fd.
func Intercept(fd int, va device.VA, size uint64) error {
	if _, err := register(fd, uint64(va), size, modeMissing); err != nil {
		return fmt.Errorf("register %d bytes at %v: %w", size, va, os.NewSyscallError("UFFDIO_REGISTER", err))
	}
	return nil
}

// Region is registered memory, and the descriptor that serves it.
type Region struct {
	Start, End device.VA
	f          *os.File
	raw        syscall.RawConn
	once       sync.Once

	invalidations, conflicts atomic.Uint64
}

// Seen returns how often the process discarded pages, as far as its descriptor reports that
// (Open), and how many fills met pages that were being discarded.
func (r *Region) Seen() (invalidations, conflicts uint64) {
	return r.invalidations.Load(), r.conflicts.Load()
}

// zeros returns memory of zeros that is never written: 64 pages, one slice.
var zeros = sync.OnceValues(func() ([]byte, error) {
	return unix.Mmap(-1, 0, maxFill, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
})

// maxFill is how many bytes one call fills at most.
const maxFill = 64 * device.PageSize

// Serve takes ownership of fd, which another process has created and registered, and serves its
// events: faults of that process's threads if it intercepts them. One goroutine serves the region
// and waits for nothing else; it calls ended, unless nil, when it ends. If Serve returns an error
// (ErrNotOne, ErrUnfit or an errno), the caller still owns fd.
func Serve(fd int, va device.VA, size uint64, ended func()) (*Region, error) {
	return serve(fd, va, size, []uint64{modeProtected, modeMissing}, ended)
}

// serve registers the range again, in the first mode that the kernel has.
func serve(fd int, va device.VA, size uint64, modes []uint64, ended func()) (*Region, error) {
	if err := check(fd); err != nil {
		return nil, err
	}
	// The runtime's poller reports an error for a blocking one.
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, os.NewSyscallError("fcntl O_NONBLOCK", err)
	}
	// Registering again returns the ioctls of the range. If it fails, the range is no longer
	// registered with fd, and nothing is served.
	for _, mode := range modes {
		ioctls, err := register(fd, uint64(va), size, mode)
		if err != nil {
			continue
		}
		if ioctls&rangeZeropage == 0 {
			return nil, fmt.Errorf("%w: %d bytes at %v: huge pages (hugetlb): do not register them", ErrUnfit, size, va)
		}
		break
	}
	r := &Region{Start: va, End: va + device.VA(size), f: os.NewFile(uintptr(fd), "userfaultfd")}
	var err error
	if r.raw, err = r.f.SyscallConn(); err != nil {
		return nil, fmt.Errorf("serve a userfaultfd: %w", err)
	}
	go func() {
		if ended != nil {
			defer ended()
		}
		r.serve()
	}()
	return r, nil
}

// Close closes the descriptor. Waiting threads continue with zeros, which is what memory holds
// that was never written. Close waits closeTime at most: before Linux 6.10 a process that has
// made its descriptor blocking keeps the goroutine in a read, and os.File.Close waits for that.
// Serve calls ended when it returns.
func (r *Region) Close() error {
	r.once.Do(func() {
		closed := make(chan struct{})
		go func() {
			_ = r.f.Close() // nothing is buffered: no error matters
			close(closed)
		}()
		select {
		case <-closed:
		case <-time.After(closeTime):
		}
	})
	return nil
}

// closeTime is long enough to close a descriptor whose goroutine does not block in a read.
// Defined here.
const closeTime = 100 * time.Millisecond

// retryPause is how long a fault is parked while its mapping changes (EAGAIN).
const retryPause = 100 * time.Microsecond

// serve closes the descriptor when it ends: otherwise a thread whose fault nobody reads would
// wait for ever.
func (r *Region) serve() {
	defer r.Close() // returns no error
	var buf [16 * msgSize]byte
	for {
		n := 0
		err := r.raw.Read(func(fd uintptr) bool {
			var rerr error
			for {
				n, rerr = readNow(int(fd), buf[:])
				if !errors.Is(rerr, unix.EINTR) {
					break
				}
			}
			return !errors.Is(rerr, unix.EAGAIN)
		})
		if err != nil || n <= 0 {
			return // closed, or the process is gone
		}
		for m := buf[:n]; len(m) >= msgSize; m = m[msgSize:] {
			if m[0] == eventRemove || m[0] == eventUnmap {
				r.invalidations.Add(1)
			}
			if m[0] != eventPagefault {
				continue
			}
			at := device.VA(binary.NativeEndian.Uint64(m[msgAddress:])).Page()
			// The zero page serves a write, too: that needs no copy of a page here and does not
			// replace a guard page made meanwhile.
			if _, err := r.Fill(at, 1, false); errors.Is(err, unix.EAGAIN) {
				// Wait until the event of the change is read. Reading it must not depend on this
				// thread, which faults again.
				time.Sleep(retryPause)
			}
			// The page is present or no longer registered: wake the thread, which tries again.
			_ = r.control(func(fd int) error { return wake(fd, uint64(at), device.PageSize) })
		}
	}
}

// readNow reads without blocking (EAGAIN), even if the process has made its descriptor blocking:
// a read that blocks would outlive the process. Kernels before Linux 6.10 lack RWF_NOWAIT here.
func readNow(fd int, b []byte) (int, error) {
	n, err := unix.Preadv2(fd, [][]byte{b}, -1, unix.RWF_NOWAIT)
	if err == nil || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return n, err
	}
	return unix.Read(fd, b)
}

// control calls f with the descriptor, which stays open during the call.
func (r *Region) control(f func(fd int) error) error {
	var err error
	if cerr := r.raw.Control(func(fd uintptr) { err = f(int(fd)) }); cerr != nil {
		return fmt.Errorf("%w: %w", ErrNotRegistered, cerr)
	}
	return err
}

// Fill makes at most 64 pages from va on present that were never present: for a write, pages of
// their own; for a read, the shared zero page. Present pages stay as they are. It returns how
// many pages it processed before an error: ErrNotRegistered, EAGAIN while the mapping changes, or
// ESRCH if the process is gone. After any other error the memory cannot be filled: the region is
// closed, so that the kernel serves it, and the error matches ErrNotRegistered.
func (r *Region) Fill(va device.VA, pages int, write bool) (int, error) {
	z, err := zeros()
	if err != nil {
		return 0, fmt.Errorf("memory of zeros: %w", err)
	}
	size := min(pages*device.PageSize, maxFill)
	at := 0
	err = r.control(func(fd int) error {
		for at < size {
			var n int
			var err error
			if write {
				n, err = copyZeros(fd, uint64(va)+uint64(at), z[:size-at])
			} else if n, err = zero(fd, uint64(va)+uint64(at), uint64(size-at)); errors.Is(err, unix.EINVAL) {
				// The memory has no zero page: it is a file's.
				n, err = copyZeros(fd, uint64(va)+uint64(at), z[:size-at])
			}
			at += n
			switch {
			case err == nil:
			case errors.Is(err, unix.EEXIST):
				at += device.PageSize // another thread was first
			case errors.Is(err, unix.EAGAIN) && n > 0: // a short fill: continue
			case errors.Is(err, unix.EAGAIN):
				r.conflicts.Add(1)
				return err
			case errors.Is(err, unix.ENOENT):
				return ErrNotRegistered
			default:
				return err
			}
		}
		return nil
	})
	switch {
	case err == nil, errors.Is(err, ErrNotRegistered), errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ESRCH):
	default:
		_ = r.Close() // returns no error
		err = fmt.Errorf("%w any more, because filling it failed: %w", ErrNotRegistered, err)
	}
	return at / device.PageSize, err
}
