package gup

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/space/proc"
	"github.com/exanet/pfd/space/uffd"
)

// Regions is a Pager for a process that has sent userfaultfds. It fills pages of their ranges
// that were never present through them, without entering the process's address space; all other
// pages it leaves to the Pager. It is safe for concurrent use.
type Regions struct {
	*Pager
	p *proc.Process

	mu   sync.Mutex
	list []*uffd.Region
	// Counts of closed regions.
	invalidations, conflicts uint64
}

// Seen returns the sum of the counts of all regions (uffd.Region.Seen).
func (g *Regions) Seen() (invalidations, conflicts uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	invalidations, conflicts = g.invalidations, g.conflicts
	for _, r := range g.list {
		i, c := r.Seen()
		invalidations, conflicts = invalidations+i, conflicts+c
	}
	return invalidations, conflicts
}

// take removes the matching regions from the list. The caller closes them without the lock,
// because closing may block.
func (g *Regions) take(match func(*uffd.Region) bool) (out []*uffd.Region) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.list = slices.DeleteFunc(g.list, func(r *uffd.Region) bool {
		if !match(r) {
			return false
		}
		i, c := r.Seen()
		g.invalidations, g.conflicts = g.invalidations+i, g.conflicts+c
		out = append(out, r)
		return true
	})
	return out
}

func closeAll(list []*uffd.Region) error {
	var errs []error
	for _, r := range list {
		errs = append(errs, r.Close())
	}
	return errors.Join(errs...)
}

// NewRegions returns a pager for p, without regions.
func NewRegions(p *proc.Process) *Regions { return &Regions{Pager: New(p), p: p} }

// Fits returns nil if the missing pages of a range hold zeros, with which a userfaultfd would
// fill them. Those of a private mapping of a file hold the file's bytes: the error then matches
// uffd.ErrUnfit.
func (g *Regions) Fits(start, end device.VA) error {
	for va := start; va < end; {
		m, err := g.p.Mapping(va)
		if err != nil {
			return nil // unmapped: no page to fill
		}
		if m.File && !m.Shared {
			return fmt.Errorf("%w: a private mapping of a file at %v: do not register it, and its pages are paged in as with method gup", uffd.ErrUnfit, m.Start)
		}
		va = m.End
	}
	return nil
}

// ErrNoRegion says that no region has the bounds that are to be removed.
var ErrNoRegion = errors.New("no such range is registered")

// Add adds a region; the pager closes it. The newest registration of a range wins, since a
// process may unmap or move a range without notice and register what it maps there next. The
// kernel lets memory be registered only once.
func (g *Regions) Add(r *uffd.Region) error {
	covered := g.take(func(o *uffd.Region) bool { return r.Start <= o.Start && o.End <= r.End })
	g.mu.Lock()
	g.list = append(g.list, r)
	g.mu.Unlock()
	return closeAll(covered)
}

// Remove closes the region with exactly these bounds.
func (g *Regions) Remove(start, end device.VA) error {
	found := g.take(func(r *uffd.Region) bool { return r.Start == start && r.End == end })
	if len(found) == 0 {
		return ErrNoRegion
	}
	return closeAll(found)
}

// Close closes all regions.
func (g *Regions) Close() error {
	return closeAll(g.take(func(*uffd.Region) bool { return true }))
}

func (g *Regions) at(va device.VA) *uffd.Region {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range slices.Backward(g.list) { // the newest one wins
		if r.Start <= va && va < r.End {
			return r
		}
	}
	return nil
}

// PageIn is like Pager.PageIn. It leaves to the Pager every page that a userfaultfd does not
// serve: present pages (copy-on-write, the zero page), swapped pages, and missing pages of a
// private mapping of a file, which hold the file's bytes. The range ends at a page that is
// neither missing nor present: UFFDIO_COPY would replace the marker of a guard page or a poisoned
// page (pte_none_mostly, mm/userfaultfd.c).
func (g *Regions) PageIn(va device.VA, pages int, write bool) Result {
	va = va.Page()
	r := g.at(va)
	if r == nil || pages < 1 || pages > MaxPages {
		return g.Pager.PageIn(va, pages, write)
	}
	m, err := g.p.Mapping(va)
	switch {
	case err != nil:
		return Result{Err: &Error{va, write, err}}
	case !m.Permits(write):
		return Result{Kind: Permission, Err: &Error{va, write, ErrDenied}}
	case m.File && !m.Shared:
		return g.Pager.PageIn(va, pages, write)
	}
	pages = min(m.Clip(va, pages), int(uint64(r.End-va)>>device.PageShift))
	var entries [MaxPages]proc.Entry
	if _, err := g.p.Pagemap(va, entries[:pages]); err != nil {
		return Result{Err: &Error{va, write, err}}
	}
	missing := func(e proc.Entry) bool { return !e.Present() && !e.Swapped() }
	pages = run(entries[:pages], func(e proc.Entry) bool { return e.Present() || missing(e) })
	was := Ready(entries[:pages], write, m.Shared)
	switch {
	case pages == 0:
		return g.Pager.PageIn(va, 1, write)
	case entries[0].Present() && was&1 == 0:
		// The Pager would enter the address space for the whole range, and would block on missing
		// pages in it until the region's goroutine fills them.
		return g.Pager.PageIn(va, run(entries[:pages], proc.Entry.Present), write)
	}
	var ferr error
	filled := false // the first page was filled or present
	for i := 0; i < pages && ferr == nil; {
		n := run(entries[i:pages], missing)
		if n > 0 {
			var done int
			done, ferr = r.Fill(va+device.VA(i)<<device.PageShift, n, write)
			filled = filled || i == 0 && done > 0
		}
		i += max(n, 1)
	}
	if errors.Is(ferr, uffd.ErrNotRegistered) {
		return g.Pager.PageIn(va, pages, write) // remapped, and no longer registered
	}
	n, err := g.p.Pagemap(va, entries[:pages])
	if err != nil {
		return Result{Err: &Error{va, write, err}}
	}
	var res Result
	for i, e := range entries[:n] {
		if e.Present() && (!write || m.Shared || e.Private()) {
			res.Resident |= 1 << i
			if write && !m.Shared {
				g.p.PagedIn(va+device.VA(i)<<device.PageShift, e)
			}
		}
	}
	res.Since(was)
	switch {
	case res.Resident&1 != 0:
	case ferr == nil && m.File:
		// The file has the page and the process has not mapped it yet: the userfaultfd does not
		// serve it.
		return g.Pager.PageIn(va, 1, write)
	case filled:
		// The process has discarded it again.
		res.Resident, res.New = res.Resident|1, res.New|1
	default:
		res.Err = &Error{va, write, g.missing(va, ferr)}
	}
	return res
}

// run returns how many of the first entries match kind.
func run(entries []proc.Entry, kind func(proc.Entry) bool) int {
	for i, e := range entries {
		if !kind(e) {
			return i
		}
	}
	return len(entries)
}

// missing returns why a page that was to be filled is absent.
func (g *Regions) missing(va device.VA, err error) error {
	if errors.Is(err, unix.ESRCH) {
		return ErrGone
	}
	why := Missing(g.p.InFile, va)
	if err != nil {
		return fmt.Errorf("%w: %w", why, err)
	}
	return why
}
