package proc

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// maxVA bounds the addresses that are looked at: no Linux machine gives a
// process more than 57 bits (x86-64 with five levels), and an offset in
// pagemap must not wrap.
const maxVA = 1 << 57

// Walk looks at 1..64 pages from the one of va on, as an SMMU's table walk
// would for a write or a read: it changes nothing and brings nothing in. It
// costs one PROCMAP_QUERY (one more for each further mapping in the range) and
// one read of pagemap.
//
// A page without a mapping or not present is Absent. A page whose mapping does
// not permit the access is Denied, present or not. Written to, a present page
// of a private mapping that is the zero page, the file's own or shared with a
// forked process is Denied too, once: after that report it passes until it has
// been seen exclusive or absent, because a page may stay shared for reasons of
// the kernel's own and must not fault for ever.
//
// Errors: ErrGone, ErrRange, ErrClosed, or an errno.
func (p *Process) Walk(va device.VA, pages int, write bool) (Walk, error) {
	if pages < 1 || pages > MaxPages {
		return Walk{}, &Error{"walk", p.pid, va, ErrRange}
	}
	if !p.enter() {
		return Walk{}, &Error{"walk", p.pid, va, ErrClosed}
	}
	defer p.leave()

	first := va.Page()
	var (
		w       Walk
		m, hint Mapping
		there   uint64 // pages with a mapping that permits the access
		cow     uint64 // those of a private mapping, written to
	)
	for i := 0; i < pages; {
		at := first + device.VA(i)<<device.PageShift
		errno := p.lookup(at, &m)
		if errno == unix.ENOENT {
			w.Absent |= span(i, pages)
			break
		}
		if errno != 0 {
			return Walk{}, p.fail("walk", va, errno)
		}
		if m.Start > at {
			n := pages - i
			if d := uint64(m.Start-at) >> device.PageShift; d < uint64(n) {
				n = int(d)
			}
			w.Absent |= span(i, i+n)
			if i += n; i == pages {
				break
			}
			at = m.Start
		}
		end := i + m.Clip(at, pages-i)
		bits := span(i, end)
		switch {
		case !m.Permits(write):
			w.Denied |= bits
		case write && !m.Shared:
			cow |= bits
			there |= bits
		default:
			there |= bits
		}
		if there&bits != 0 && hint.End == 0 {
			hint = m
		}
		i = end
	}
	if w.Absent|w.Denied != 0 {
		p.memo.surprise() // the mapping behind the last fault may be no more
	}
	if there == 0 {
		return w, nil
	}

	var entries [MaxPages]Entry
	page := uint64(first) >> device.PageShift
	n, errno := preadEntries(p.pagemap, entries[:pages], page)
	if errno != 0 {
		return Walk{}, p.fail("walk", va, errno)
	}
	if n == 0 {
		return Walk{}, p.fail("walk", va, unix.ESRCH)
	}
	var absent, shared uint64
	for i := 0; i < pages; i++ {
		bit := uint64(1) << i
		switch e := entries[i]; {
		case there&bit == 0:
		case !e.Present():
			absent |= bit
		case cow&bit != 0 && !e.Private():
			shared |= bit
		}
	}
	w.Absent |= absent
	if absent != 0 {
		p.text.forget()
	}
	if absent|shared == 0 && p.memo.idle.Load() {
		return w, nil
	}
	w.Denied |= p.memo.walked(page, pages, entries[:], absent, shared, cow, &hint)
	return w, nil
}

// span gives the bits i..end-1.
func span(i, end int) uint64 {
	if end >= 64 {
		return ^uint64(0) << i
	}
	return (1<<end - 1) &^ (1<<i - 1)
}

// lookup finds the mapping at va or the next one after it. ENOENT: there is
// none; ESRCH: the address space is gone.
func (p *Process) lookup(va device.VA, m *Mapping) unix.Errno {
	if va >= maxVA {
		return unix.ENOENT
	}
	if p.query {
		return procmap(p.maps, va, m)
	}
	return p.lookupText(va, m)
}

// fail makes the error of an operation; ESRCH says that the address space is
// gone.
func (p *Process) fail(op string, va device.VA, err error) error {
	if errors.Is(err, unix.ESRCH) {
		err = ErrGone
	}
	return &Error{op, p.pid, va, err}
}

// Mapping gives the mapping in which va lies, as it is now. Errors:
// ErrUnmapped, ErrGone, ErrClosed, or an errno.
func (p *Process) Mapping(va device.VA) (Mapping, error) {
	if !p.enter() {
		return Mapping{}, &Error{"mapping", p.pid, va, ErrClosed}
	}
	defer p.leave()
	var m Mapping
	errno := p.lookup(va, &m)
	if errno == unix.ENOENT || errno == 0 && !m.Contains(va) {
		return Mapping{}, &Error{"mapping", p.pid, va, ErrUnmapped}
	}
	if errno != 0 {
		return Mapping{}, p.fail("mapping", va, errno)
	}
	return m, nil
}

// Pagemap reads the entries of the pages from va on into dst and gives how many
// it read: fewer at the end of the address space. Errors: ErrGone (also for an
// address beyond the end), ErrClosed, or an errno.
func (p *Process) Pagemap(va device.VA, dst []Entry) (int, error) {
	if len(dst) == 0 || va >= maxVA {
		return 0, &Error{"pagemap", p.pid, va, ErrRange}
	}
	if !p.enter() {
		return 0, &Error{"pagemap", p.pid, va, ErrClosed}
	}
	defer p.leave()
	n, errno := preadEntries(p.pagemap, dst, uint64(va)>>device.PageShift)
	if errno != 0 {
		return 0, p.fail("pagemap", va, errno)
	}
	if n == 0 {
		return 0, p.fail("pagemap", va, unix.ESRCH)
	}
	return n, nil
}

// Hint gives, once for each page that a Walk reported, what that walk saw at
// va: the mapping, zero where it is not known, and the pagemap entry. Both may
// be out of date: they serve to choose a range and to name a fault's kind, and
// never to grant anything.
func (p *Process) Hint(va device.VA) (Mapping, Entry, bool) {
	return p.memo.take(va.Page())
}

// PagedIn tells the walk that a write page-in has been made for the page of va,
// and what pagemap said afterwards: the walk reports its copy-on-write fault
// again only after the page has been seen exclusive or absent.
func (p *Process) PagedIn(va device.VA, e Entry) {
	p.memo.pagedIn(uint64(va)>>device.PageShift, e)
}
