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
	// ErrForbidden says that this process gets no userfaultfd; the text says why, and
	// what to do.
	ErrForbidden = errors.New("no userfaultfd for this user")
	// ErrNotOne says that a descriptor is no userfaultfd.
	ErrNotOne = errors.New("not a userfaultfd")
	// ErrUnfit says that memory is of a kind whose missing pages cannot be filled.
	ErrUnfit = errors.New("memory that a userfaultfd cannot fill")
	// ErrNotRegistered says that no memory there is the descriptor's (any more).
	ErrNotRegistered = errors.New("memory is not registered with the userfaultfd")
)

// Open makes a userfaultfd of this process, in full mode where the kernel lets
// it: by privilege or sysctl, else by /dev/userfaultfd. full false: it serves
// faults of user code only, and a system call on an absent page of registered
// memory fails with EFAULT. Without any the error matches ErrForbidden.
//
// With events who serves it is told when pages go by madvise, munmap or truncation
// (Region.Seen), and the call that has them go waits until he has read that.
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
		// In user mode the kernel asks for no right (userfaultfd(2)).
		return -1, false, fmt.Errorf("%w: %w: a seccomp filter or a security module refuses it, as Docker's default profile does: attach with another method, as gup, or allow userfaultfd there",
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

// Register has missing pages of whole pages of this process's memory filled by who serves
// fd. Memory that is there stays. The range is registered for write-protect faults, and nothing
// is protected: what the process itself touches is the kernel's. Where the kernel has no such
// faults (arm64 before Linux 6.10) it is Intercept.
func Register(fd int, va device.VA, size uint64) error {
	if _, err := register(fd, uint64(va), size, modeProtected); err == nil {
		return nil
	}
	return Intercept(fd, va, size)
}

// Intercept has threads that touch a missing page wait for who serves fd.
func Intercept(fd int, va device.VA, size uint64) error {
	if _, err := register(fd, uint64(va), size, modeMissing); err != nil {
		return fmt.Errorf("registering %d bytes at %v: %w", size, va, os.NewSyscallError("UFFDIO_REGISTER", err))
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

// Seen gives how often the process had pages go, as far as its descriptor tells of it
// (Open), and how many fills met pages that were just going.
func (r *Region) Seen() (invalidations, conflicts uint64) {
	return r.invalidations.Load(), r.conflicts.Load()
}

// zeros gives memory of zeros that is never written: 64 pages, one slice's.
var zeros = sync.OnceValues(func() ([]byte, error) {
	return unix.Mmap(-1, 0, maxFill, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
})

// maxFill is what one call fills at most, bytes.
const maxFill = 64 * device.PageSize

// Serve takes over fd, which another process has made and registered, and serves what it
// tells from then on, faults of that process's own threads where it intercepts them: one
// goroutine, which waits for nothing else. ended is called when it has ended; it may be nil.
// With an error, ErrNotOne, ErrUnfit or an errno, fd stays the caller's.
func Serve(fd int, va device.VA, size uint64, ended func()) (*Region, error) {
	return serve(fd, va, size, []uint64{modeProtected, modeMissing}, ended)
}

// serve registers the range once more, in the first mode that the kernel has.
func serve(fd int, va device.VA, size uint64, modes []uint64, ended func()) (*Region, error) {
	if err := check(fd); err != nil {
		return nil, err
	}
	// A blocking one would be polled as broken.
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, os.NewSyscallError("fcntl O_NONBLOCK", err)
	}
	// Registering once more tells what may be done there. Where it fails the range is none
	// of fd's by now, and nothing is served.
	for _, mode := range modes {
		ioctls, err := register(fd, uint64(va), size, mode)
		if err != nil {
			continue
		}
		if ioctls&rangeZeropage == 0 {
			return nil, fmt.Errorf("%w: %d bytes at %v: huge pages (hugetlb): leave them unregistered", ErrUnfit, size, va)
		}
		break
	}
	r := &Region{Start: va, End: va + device.VA(size), f: os.NewFile(uintptr(fd), "userfaultfd")}
	var err error
	if r.raw, err = r.f.SyscallConn(); err != nil {
		return nil, fmt.Errorf("serving a userfaultfd: %w", err)
	}
	go func() {
		if ended != nil {
			defer ended()
		}
		r.serve()
	}()
	return r, nil
}

// Close gives the descriptor up. Threads that wait go on with zeros, which is
// what memory holds that was never written. It waits closeTime at most: before Linux 6.10 a
// process that has made its descriptor blocking holds the goroutine in a read, and
// os.File.Close waits for that; Serve's ended tells when it is over.
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

// closeTime is long after a descriptor is closed that nobody holds (ours).
const closeTime = 100 * time.Millisecond

// retryPause is how long a fault is parked while its mapping changes (EAGAIN).
const retryPause = 100 * time.Microsecond

// serve ends with the descriptor: a thread that waits for a fault that nobody
// reads would wait for ever.
func (r *Region) serve() {
	defer r.Close() // gives no error
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
			// The page of zeros also for who writes: that needs no page's copy
			// here, and does not replace a guard page made meanwhile.
			if _, err := r.Fill(at, 1, false); errors.Is(err, unix.EAGAIN) {
				// Until the event that says why is read, which the thread must not hold
				// up: it faults again.
				time.Sleep(retryPause)
			}
			// Whatever there is now, or nobody's any more: the thread looks again.
			_ = r.control(func(fd int) error { return wake(fd, uint64(at), device.PageSize) })
		}
	}
}

// readNow reads what is there, and does not wait (EAGAIN) though the process has made its
// descriptor blocking: a read that waits outlives the process. Kernels before Linux 6.10 cannot be
// asked so.
func readNow(fd int, b []byte) (int, error) {
	n, err := unix.Preadv2(fd, [][]byte{b}, -1, unix.RWF_NOWAIT)
	if err == nil || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return n, err
	}
	return unix.Read(fd, b)
}

// control calls f with the descriptor, which stays open meanwhile.
func (r *Region) control(f func(fd int) error) error {
	var err error
	if cerr := r.raw.Control(func(fd uintptr) { err = f(int(fd)) }); cerr != nil {
		return fmt.Errorf("%w: %w", ErrNotRegistered, cerr)
	}
	return err
}

// Fill makes pages from va on present, at most 64, that have never been there:
// to be written, pages of their own; to be read, the shared page of zeros. Pages
// that are there stay as they are. It gives how many pages it looked at before
// an error: ErrNotRegistered, EAGAIN while the mapping changes, ESRCH when the
// process is gone. With any other one the memory cannot be filled: the region is
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
				// Memory that has no zero page: a file's.
				n, err = copyZeros(fd, uint64(va)+uint64(at), z[:size-at])
			}
			at += n
			switch {
			case err == nil:
			case errors.Is(err, unix.EEXIST):
				at += device.PageSize // somebody was first
			case errors.Is(err, unix.EAGAIN) && n > 0: // short: go on
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
		_ = r.Close() // gives no error
		err = fmt.Errorf("%w any more: it could not be filled: %w", ErrNotRegistered, err)
	}
	return at / device.PageSize, err
}
