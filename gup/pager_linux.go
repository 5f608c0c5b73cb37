package gup

import (
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/space/proc"
	"github.com/exanet/pfd/space/view"
)

// Pager pages in memory of one process. It is safe for concurrent use and does not allocate when
// it succeeds, but for proc.Process.FreshCounts.
type Pager struct {
	p     *proc.Process
	view  *view.View
	hangs hangs
}

// New returns a pager for p. The caller still closes p.
func New(p *proc.Process) *Pager { return &Pager{p: p} }

// NewShared is like New. v is a view of what p shares, or nil; the caller still closes it.
func NewShared(p *proc.Process, v *view.View) *Pager { return &Pager{p: p, view: v} }

// forbidden returns memory that may not be touched: one page, mapped at the first use and never
// unmapped. One page is enough for any number of remote pages, because the kernel pins all of
// them before it copies the first byte.
var forbidden = sync.OnceValues(func() ([]byte, error) {
	return unix.Mmap(-1, 0, device.PageSize, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
})

// PageIn makes 1..64 pages resident from the page of va on, writable if write is set, else
// readable. The range is clipped to the mapping of its first page. That page decides whether
// PageIn succeeds; the others are best effort. PageIn may sleep in the kernel for as long as the
// process's memory makes it, so call it where that hurts nobody.
//
// If the last proc.Walk saw a fault at va, the result's Kind, New and There may come from that;
// Resident never does.
func (g *Pager) PageIn(va device.VA, pages int, write bool) Result {
	if pages < 1 || pages > MaxPages {
		return Result{Err: &Error{va, write, proc.ErrRange}}
	}
	g.p.FreshCounts()
	va = va.Page()
	before, seen := g.p.Hint(va)
	if g.view != nil && (pages > 1 || seen && !before.Present()) {
		if f, ok := g.view.Folios(va, pages, write); ok {
			r, ok := g.folios(&f, va, write)
			if !ok {
				r = g.byTable(va, pages, write, before, seen)
				g.view.Enter(va, bits.OnesCount64(f.Asked), r.Resident)
			}
			r.Came(&f, g.view.EndFolios(&f))
			return r
		}
		if r, ok := g.shared(va, pages, write, before); ok {
			return r
		}
	}
	return g.byTable(va, pages, write, before, seen)
}

// byTable pages in through the process's page table. before is the entry of va, if it was seen.
func (g *Pager) byTable(va device.VA, pages int, write bool, before proc.Entry, seen bool) Result {
	m, err := g.p.Mapping(va)
	if err != nil {
		return Result{Err: &Error{va, write, err}}
	}
	if !m.Permits(write) {
		return Result{Kind: Permission, Err: &Error{va, write, ErrDenied}}
	}
	if !seen {
		var e [1]proc.Entry
		if _, err := g.p.Pagemap(va, e[:]); err != nil {
			return Result{Err: &Error{va, write, err}}
		}
		before = e[0]
	}
	pages = m.Clip(va, pages)
	var entries [MaxPages]proc.Entry
	was := Ready([]proc.Entry{before}, write, m.Shared)
	if pages > 1 {
		if _, err := g.p.Pagemap(va, entries[:pages]); err != nil {
			return Result{Err: &Error{va, write, err}}
		}
		was = Ready(entries[:pages], write, m.Shared)
	}

	call, ok := g.hangs.enter(m.Start)
	if !ok {
		return Result{Err: &Error{va, write, ErrHangs}}
	}
	defer g.hangs.leave(call)
	kind := Minor
	var errno error
	switch {
	case before.Present():
		if write && !m.Shared && !before.Private() {
			kind = Permission
		}
		errno = g.call(va, pages, write)
	case m.File || before.Swapped():
		// The kernel counts the faults of a remote page-in in the calling thread
		// (mm_account_fault).
		runtime.LockOSThread()
		faults := majorFaults()
		errno = g.call(va, pages, write)
		if majorFaults() != faults {
			kind = Major
		}
		runtime.UnlockOSThread()
	default:
		errno = g.call(va, pages, write)
	}

	n, err := g.p.Pagemap(va, entries[:pages])
	if err != nil {
		return Result{Kind: kind, Err: &Error{va, write, err}}
	}
	r := Result{Kind: kind}
	if errors.Is(errno, unix.EFAULT) {
		for i, e := range entries[:n] {
			if !e.Present() {
				if write {
					// The kernel stopped here: the pages that follow were resident before.
					r.Resident |= Ready(entries[i:n], true, m.Shared) << i
					break
				}
				continue
			}
			if write && !m.Shared && e.File() {
				r.Resident |= Ready(entries[i:n], true, false) << i
				break
			}
			r.Resident |= 1 << i
			if write && !m.Shared {
				g.p.PagedIn(va+device.VA(i)<<device.PageShift, e)
			}
		}
	}
	r.Since(was)
	switch {
	case r.Resident&1 == 0:
		if r.Err = g.why(va, write, entries[0], errno); r.Err == nil {
			r.Resident, r.New = r.Resident|1, r.New|1
		}
	case pages == 1:
		g.p.Fresh(va, entries[0])
	}
	return r
}

// shared pages in memory that the process shares, and enters the resident pages in the view. It
// uses the userfaultfd that came with the memory, or pages in one page through the process's page
// table. before is the entry that the walk saw of a page that is paged in alone. It returns false
// if the page must be paged in, or fail, as other memory does.
func (g *Pager) shared(va device.VA, pages int, write bool, before proc.Entry) (Result, bool) {
	start, pages := g.view.Shares(va, pages, write)
	if pages == 0 {
		return Result{}, false
	}
	call, ok := g.hangs.enter(start)
	if !ok {
		return Result{Err: &Error{va, write, ErrHangs}}, true
	}
	defer g.hangs.leave(call)
	entries := [MaxPages]proc.Entry{before}
	if pages > 1 {
		if _, err := g.p.Pagemap(va, entries[:pages]); err != nil {
			return Result{Err: &Error{va, write, err}}, true
		}
	}
	var absent uint64
	plain := true
	for i, e := range entries[:pages] {
		switch {
		case e.Swapped(), e.Guard(): // filling would replace a guard page
			plain = false
		case !e.Present():
			absent |= 1 << i
		}
	}
	if !plain || absent != 0 && g.view.Fill(va, pages, absent) == 0 {
		if pages == 1 && !before.Guard() {
			return g.one(va, write)
		}
		return Result{}, false
	}
	// The file already had the pages that were not filled.
	was := Ready(entries[:pages], write, true)
	r := Result{Resident: was | g.view.Enter(va, pages, was|absent)}
	r.Since(was)
	return r, r.Resident&1 != 0
}

// one pages in one page of shared memory through the process's page table.
func (g *Pager) one(va device.VA, write bool) (Result, bool) {
	pid, err := g.p.Keeper()
	if err != nil {
		return Result{}, false
	}
	// Reading shared memory maps it writable, too: there is no zero page.
	var b [1]byte
	local := [1]unix.Iovec{{Base: &b[0], Len: 1}}
	remote := [1]unix.RemoteIovec{{Base: uintptr(va), Len: 1}}
	runtime.LockOSThread()
	faults := majorFaults()
	n, err := unix.ProcessVMReadv(pid, local[:], remote[:], 0)
	r := Result{Resident: 1, New: 1}
	if majorFaults() != faults {
		r.Kind = Major
	}
	runtime.UnlockOSThread()
	if err != nil || n != 1 {
		return Result{}, false
	}
	return r, g.view.Enter(va, 1, 1) != 0
}

// Ready returns a bitmap of the pages that can be accessed without a fault.
func Ready(entries []proc.Entry, write, shared bool) (bits uint64) {
	for i, e := range entries {
		if e.Present() && (!write || shared || e.Private()) {
			bits |= 1 << i
		}
	}
	return bits
}

// call makes the kernel pin and unpin the pages.
func (g *Pager) call(va device.VA, pages int, write bool) error {
	f, err := forbidden()
	if err != nil {
		return fmt.Errorf("map memory that may not be touched: %w", err)
	}
	pid, err := g.p.Keeper()
	if err != nil {
		return unix.ESRCH
	}
	local := [1]unix.Iovec{{Base: &f[0], Len: 1}}
	remote := [1]unix.RemoteIovec{{Base: uintptr(va), Len: pages << device.PageShift}}
	if write {
		_, err = unix.ProcessVMWritev(pid, local[:], remote[:], 0)
	} else {
		_, err = unix.ProcessVMReadv(pid, local[:], remote[:], 0)
	}
	return err
}

// majorFaults returns how many major faults this thread has had.
func majorFaults() int64 {
	_, major := threadFaults()
	return major
}

// threadFaults returns how many faults this thread has had.
func threadFaults() (minor, major int64) {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &u) != nil {
		return 0, 0
	}
	return u.Minflt, u.Majflt
}

// comes reports whether the kernel pages the page in, even if the process discards it at once.
// The kernel counts a fault in the calling thread only if it was resolved (mm_account_fault). It
// also counts the thread's own faults, which do not occur in two calls one after the other.
func (g *Pager) comes(va device.VA, write bool) bool {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for range 2 {
		minor, major := threadFaults()
		err := g.call(va, 1, write)
		minorNow, majorNow := threadFaults()
		if !errors.Is(err, unix.EFAULT) {
			return false
		}
		if minorNow == minor && majorNow == major {
			var e [1]proc.Entry
			n, err := g.p.Pagemap(va, e[:])
			return err == nil && n == 1 && e[0].Present()
		}
	}
	return true
}

// why returns why a page is not resident, from the process's present state. It returns nil if the
// only reason is that the process discarded it.
func (g *Pager) why(va device.VA, write bool, e proc.Entry, errno error) error {
	m, err := g.p.Mapping(va)
	switch {
	case err != nil:
	case !m.Permits(write):
		err = ErrDenied
	case e.Guard():
		err = fmt.Errorf("%w: a guard page", ErrUnmapped)
	case errors.Is(errno, unix.ESRCH):
		err = ErrGone
	case errors.Is(errno, unix.EPERM):
		err = ErrPermission
	default:
		err = Missing(g.p.InFile, va)
		if !errors.Is(err, ErrPastEnd) && g.comes(va, write) {
			return nil
		}
		if !errors.Is(errno, unix.EFAULT) && errno != nil {
			err = fmt.Errorf("%w: %w", err, errno)
		}
	}
	return &Error{va, write, err}
}

// Missing returns why a page that its mapping permits is absent after a page-in: ErrPastEnd,
// ErrNoFilePage or ErrNotResident. inFile is proc.Process.InFile, or does the same.
func Missing(inFile func(device.VA) error, va device.VA) error {
	switch err := inFile(va); {
	case errors.Is(err, ErrPastEnd):
		return ErrPastEnd
	case errors.Is(err, proc.ErrUnknown):
		return ErrNoFilePage
	}
	return ErrNotResident
}
