package rdma

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/uffd"
)

// Register has pfd fill missing pages of b by a userfaultfd (method uffd; Alloc
// does it by itself): whole pages of anonymous memory or of a shared mapping of a
// memfd, outside Go's heap. pfd refuses huge pages (hugetlb) and private mappings of
// files, whose missing pages are not zeros. Pages of memory that is not registered
// are brought in as by method gup, and so are those of memory that turns out not to
// be fillable: it is nobody's region then.
//
// What the process itself touches is the kernel's as before. But where that has no
// write-protect faults (arm64 before Linux 6.10) the first touch of a missing page
// waits for pfd, too, and goes on with zeros, which is what such a page holds, when pfd
// dies; and where this user has a userfaultfd for user code only a system call that is
// handed one fails with EFAULT: use Prefetch, or touch it first. Errors:
// uffd.ErrForbidden with the settings in the way, an errno, ErrGone, ErrClosed, or pfd's
// refusal.
func (e *Endpoint) Register(b []byte) error {
	if len(b) == 0 || (uint64(VAOf(b))|uint64(len(b)))%device.PageSize != 0 {
		return fmt.Errorf("%w: registering %d bytes at %v: whole pages are needed", ErrRequest, len(b), VAOf(b))
	}
	fd, _, err := uffd.Open(e.invalidations)
	if err != nil {
		return fmt.Errorf("registering memory: %w", err)
	}
	// pfd has its own: with one left here and no pfd a thread would wait for ever.
	defer unix.Close(fd)
	if err := uffd.Register(fd, VAOf(b), uint64(len(b))); err != nil {
		return err
	}
	m := attach.Range{Product: attach.Product(), Type: attach.TypeRegister, VA: VAOf(b), Size: uint64(len(b))}
	return e.ask(m.Append(nil), attach.Shared{VA: m.VA, Size: m.Size, Answered: m.Type}, fd)
}

// Unregister takes back what one Register gave, with exactly its bounds.
func (e *Endpoint) Unregister(b []byte) error {
	m := attach.Range{Product: attach.Product(), Type: attach.TypeUnregister, VA: VAOf(b), Size: uint64(len(b))}
	return e.ask(m.Append(nil), attach.Shared{VA: m.VA, Size: m.Size, Answered: m.Type})
}

// allocRegistered makes anonymous memory whose missing pages are pfd's to fill.
func (e *Endpoint) allocRegistered(size int) (*Buffer, error) {
	b, err := private(size)
	if err != nil {
		return nil, err
	}
	if err := e.Register(b); err != nil {
		return nil, errors.Join(err, os.NewSyscallError("munmap", unix.Munmap(b)))
	}
	if !e.dump {
		dump(VAOf(b), uint64(len(b)), false)
	}
	return &Buffer{b: b, size: size, ep: e, registered: true}, nil
}

// Prefetch brings pages of this process's own memory in before a transfer needs
// them: size bytes at va, to be written to, or only read. Of shared memory pfd enters
// them in the device's tables, too. It pins nothing: what
// was prefetched may go again, and then faults. It is best effort but for
// addresses at which nothing is mapped or nothing is permitted, which give
// EFAULT or ENOMEM. ctx ends it between two parts.
func (e *Endpoint) Prefetch(ctx context.Context, va device.VA, size uint64, write bool) error {
	end := (uint64(va) + size + device.PageSize - 1) &^ (device.PageSize - 1)
	if size == 0 || uint64(va)+size < uint64(va) || end < uint64(va) {
		return fmt.Errorf("%w: a prefetch of %d bytes at %v", ErrRequest, size, va)
	}
	advice := unix.MADV_POPULATE_READ
	if write {
		advice = unix.MADV_POPULATE_WRITE
	}
	for at := uint64(va.Page()); at < end; {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("prefetching: %w", err)
		}
		pages := min(int((end-at)/device.PageSize), maxFaultPages)
		if err := madvise(device.VA(at), pages, advice); err != nil {
			return fmt.Errorf("prefetching: %w", err)
		}
		at += uint64(pages) * device.PageSize
	}
	if !e.Info().SVA() {
		// The device has tables of its own. A pfd that does not enter the pages there, or
		// has no room, leaves that to their first fault.
		m := attach.Range{Product: attach.Product(), Type: attach.TypePrefetch, VA: va.Page(), Size: end - uint64(va.Page())}
		_ = e.ask(m.Append(nil), attach.Shared{VA: m.VA, Size: m.Size, Answered: m.Type})
	}
	e.prefetches.Add(1)
	return nil
}

// Caps says what a node can do with memory that is not there (ODP's
// ibv_query_odp_caps).
type Caps struct {
	SVA          bool // any memory of the process: no registration
	SourceFaults bool // faults of sources are told with their transaction (TXFIFO)
	VABits       int
	FIFODepth    int // faults that wait at once
	Write, Read  bool
}

// Caps gives what the endpoint's node can do.
func (e *Endpoint) Caps() Caps {
	c := e.welcome.Caps
	return Caps{
		SVA: c&device.CapsSVA != 0, SourceFaults: c&device.CapsTXFIFO != 0,
		VABits: int(c & device.CapsVABitsMask), FIFODepth: int(c >> 11 & 0x3ff),
		Write: true, Read: true,
	}
}
