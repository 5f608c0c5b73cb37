package gup

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/proc"
	"github.com/exanet/pfd/view"
)

// Pager pages memory of one process in. It is safe for concurrent use and
// allocates nothing where it succeeds.
type Pager struct {
	p     *proc.Process
	view  *view.View
	hangs hangs
}

// New makes a pager for p, which stays the caller's to close.
func New(p *proc.Process) *Pager { return &Pager{p: p} }

// NewShared is New where v, which stays the caller's too, has what p shares; nil: nothing.
func NewShared(p *proc.Process, v *view.View) *Pager { return &Pager{p: p, view: v} }

// forbidden gives the memory that may not be touched: one page, mapped when it
// is first needed and then kept for good. One page is enough however many
// remote pages there are: the kernel pins all of them before it copies the
// first byte.
var forbidden = sync.OnceValues(func() ([]byte, error) {
	return unix.Mmap(-1, 0, device.PageSize, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
})

// PageIn makes pages resident: 1..64 from the page of va on, writable for write
// and readable without. The range is clipped to the mapping of its first page;
// that page decides over success, the others are best effort. It may sleep in
// the kernel for as long as the process's memory makes it, so it belongs into
// device.Call.Run.
//
// The fault's kind comes from what the last proc.Walk saw at va where it saw a
// fault there; the verdict never does.
func (g *Pager) PageIn(va device.VA, pages int, write bool) Result {
	if pages < 1 || pages > MaxPages {
		return Result{Err: &Error{va, write, proc.ErrRange}}
	}
	va = va.Page()
	before, seen := g.p.Hint(va)
	if g.view != nil && (pages > 1 || seen && !before.Present()) {
		if r, ok := g.shared(va, pages, write, before); ok {
			return r
		}
	}
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
		// The kernel counts the faults of a remote page-in at the thread that
		// made it (mm_account_fault).
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
					// The kernel stopped here; what follows was there before.
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

// shared pages in memory that the process shares: by the userfaultfd that came with it, or
// one page by the process's table; what is there then is entered in the view. before is what a
// page that goes alone was seen as. False: it has to be done, or to fail, as with other memory.
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
		case e.Swapped(), e.Guard(): // a guard page would be filled, too
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
	// Those that were not filled the file had already.
	was := Ready(entries[:pages], write, true)
	r := Result{Resident: was | g.view.Enter(va, pages, was|absent)}
	r.Since(was)
	return r, r.Resident&1 != 0
}

// one pages in one page of shared memory by the process's table.
func (g *Pager) one(va device.VA, write bool) (Result, bool) {
	pid, err := g.p.Keeper()
	if err != nil {
		return Result{}, false
	}
	// To read shared memory brings in what is written, too: there is no page of zeros.
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

// Ready gives the pages that may be accessed without a fault.
func Ready(entries []proc.Entry, write, shared bool) (bits uint64) {
	for i, e := range entries {
		if e.Present() && (!write || shared || e.Private()) {
			bits |= 1 << i
		}
	}
	return bits
}

// call has the kernel pin the pages and let them go again.
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

// majorFaults returns how many major faults this thread has made.
func majorFaults() int64 {
	_, major := threadFaults()
	return major
}

// threadFaults returns how many faults this thread has made.
func threadFaults() (minor, major int64) {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &u) != nil {
		return 0, 0
	}
	return u.Minflt, u.Majflt
}

// comes reports whether the kernel brings a page in, be it there afterwards or taken
// away again at once. The kernel counts a fault at the thread that made it only where
// it was resolved (mm_account_fault).
func (g *Pager) comes(va device.VA, write bool) bool {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	minor, major := threadFaults()
	err := g.call(va, 1, write)
	minorNow, majorNow := threadFaults()
	return errors.Is(err, unix.EFAULT) && (minorNow != minor || majorNow != major)
}

// why returns the reason for a page that is not resident, from the process as it
// is now; nil where nothing but the process, which took it away again, is in the way.
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
	case g.comes(va, write):
		return nil
	default:
		err = Missing(g.p, va)
		if !errors.Is(errno, unix.EFAULT) && errno != nil {
			err = fmt.Errorf("%w: %w", err, errno)
		}
	}
	return &Error{va, write, err}
}

// Looker is a process's memory as it may be looked at; *proc.Process is one.
type Looker interface {
	Mapping(va device.VA) (proc.Mapping, error)
	Pagemap(va device.VA, dst []proc.Entry) (int, error)
	InFile(va device.VA) error
	PagedIn(va device.VA, e proc.Entry)
}

// Missing gives why a page is not there that its mapping permits and that was
// asked for: ErrPastEnd, ErrNoFilePage or ErrNotResident.
func Missing(p Looker, va device.VA) error {
	switch err := p.InFile(va); {
	case errors.Is(err, ErrPastEnd):
		return ErrPastEnd
	case errors.Is(err, proc.ErrUnknown):
		return ErrNoFilePage
	}
	return ErrNotResident
}
