package rdma

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/space/uffd"
)

// Register makes pfd fill missing pages of b through a userfaultfd (method uffd; Alloc does it by
// itself). b is whole pages of anonymous memory or of a shared mapping of a memfd, outside Go's
// heap. pfd refuses huge pages (hugetlb) and private mappings of files, whose missing pages are
// not zeros. Memory that is not registered, or that turns out not to be fillable and so is
// deregistered, is paged in as with method gup.
//
// The kernel still serves the process's own accesses. But without write-protect faults (arm64
// before Linux 6.10) the first touch of a missing page waits for pfd, too; if pfd dies, it
// continues with zeros, which such a page holds. If this user has a userfaultfd for user code
// only, a system call with a missing page then fails with EFAULT: use Prefetch, or touch the page
// first. Errors are uffd.ErrForbidden with the settings that prevent it, an errno, ErrGone,
// ErrClosed, or pfd's refusal.
func (e *Endpoint) Register(b []byte) error {
	if len(b) == 0 || (uint64(VAOf(b))|uint64(len(b)))%device.PageSize != 0 {
		return fmt.Errorf("%w: register %d bytes at %v: give whole pages", ErrRequest, len(b), VAOf(b))
	}
	fd, _, err := uffd.Open(e.invalidations)
	if err != nil {
		return fmt.Errorf("register memory: %w", err)
	}
	// pfd has its own descriptor: with one left open here, a thread would wait for ever if pfd
	// died.
	defer unix.Close(fd)
	if err := uffd.Register(fd, VAOf(b), uint64(len(b))); err != nil {
		return err
	}
	m := attach.Range{Product: attach.Product(), Type: attach.TypeRegister, VA: VAOf(b), Size: uint64(len(b))}
	return e.ask(m.Append(nil), attach.Shared{VA: m.VA, Size: m.Size, Answered: m.Type}, fd)
}

// Unregister undoes one Register, with exactly its bounds.
func (e *Endpoint) Unregister(b []byte) error {
	m := attach.Range{Product: attach.Product(), Type: attach.TypeUnregister, VA: VAOf(b), Size: uint64(len(b))}
	return e.ask(m.Append(nil), attach.Shared{VA: m.VA, Size: m.Size, Answered: m.Type})
}

// allocRegistered returns anonymous memory whose missing pages pfd fills.
func (e *Endpoint) allocRegistered(size int, folios bool) (*Buffer, error) {
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
	m := &Buffer{b: b, size: size, ep: e, registered: true, folio: 1}
	if folios {
		m.single = e.single()
	}
	return m, nil
}

// Prefetch pages in size bytes of this process's memory at va before a transfer needs them, for
// writing or only for reading. pfd also enters shared pages in the device's tables. It pins
// nothing: a prefetched page may be evicted and then faults. It is best effort, except that an
// address that is unmapped or not permitted returns EFAULT or ENOMEM. ctx may end it between two
// parts.
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
		// The device has its own tables. If pfd does not enter the pages there, or has no room,
		// they fault at their first use.
		m := attach.Range{Product: attach.Product(), Type: attach.TypePrefetch, VA: va.Page(), Size: end - uint64(va.Page())}
		_ = e.ask(m.Append(nil), attach.Shared{VA: m.VA, Size: m.Size, Answered: m.Type})
	}
	e.prefetches.Add(1)
	return nil
}

// Caps describes a node's support of absent memory (ODP's ibv_query_odp_caps).
type Caps struct {
	SVA          bool // any memory of the process, without registration
	SourceFaults bool // faults of sources are reported with their transaction (TXFIFO)
	VABits       int
	FIFODepth    int // faults that may be pending at once
	Write, Read  bool
}

// Caps returns the capabilities of the endpoint's node.
func (e *Endpoint) Caps() Caps {
	c := e.welcome.Caps
	return Caps{
		SVA: c&device.CapsSVA != 0, SourceFaults: c&device.CapsTXFIFO != 0,
		VABits: int(c & device.CapsVABitsMask), FIFODepth: int(c >> 11 & 0x3ff),
		Write: true, Read: true,
	}
}
