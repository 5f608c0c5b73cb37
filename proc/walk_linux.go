package proc

import (
	"errors"
	"math/bits"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// maxVA bounds the addresses that are looked at: no Linux machine gives a
// process more than 57 bits (x86-64 with five levels), and an offset in
// pagemap must not wrap.
const maxVA = 1 << 57

// Walk looks at 1..64 pages from the one of va on, as an SMMU's table walk
// would for a write or a read: it changes nothing and brings nothing in. It
// costs one read of pagemap, or none after Fresh.
//
// A page that is not present is Absent. Written to, a present page of a private
// mapping that is the zero page, the file's own or shared with a forked process
// is Denied, once: after that report it passes until it has been seen exclusive
// or absent, because a page may stay shared for reasons of the kernel's own and
// must not fault for ever. Whether the mapping permits the access is not looked
// at: the kernel judges that when the bytes move (ReadV, WriteV), and whatever
// was said before would be out of date.
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
	if va >= maxVA {
		return Walk{Absent: span(0, pages)}, nil
	}

	var entries [MaxPages]Entry
	page := uint64(va) >> device.PageShift
	n, errno := 1, unix.Errno(0)
	if e, ok := p.memo.entry(page, pages); ok {
		entries[0] = e
	} else if n, errno = preadEntries(p.pagemap, entries[:pages], page); errno != 0 {
		return Walk{}, p.fail("walk", va, errno)
	}
	if n == 0 && dead(p.keeperFD) {
		return Walk{}, p.fail("walk", va, unix.ESRCH)
	}
	// What is behind the end of the address space reads as nothing: absent.
	var absent, own uint64
	for i := range pages {
		bit := uint64(1) << i
		switch e := entries[i]; {
		case !e.Present():
			absent |= bit
		case e.Private():
			own |= bit
		}
	}
	all := span(0, pages)
	others := all &^ absent &^ own
	if absent != 0 {
		p.surprise()
	}
	if !write {
		others = 0
	}
	if absent|others == 0 && p.memo.idle.Load() {
		return Walk{}, nil
	}
	var cow, shared uint64
	if write {
		cow = all
	}
	// A page that is not its own is a private mapping's to be copied, or a
	// shared mapping's, where every page is like that.
	for i := 0; i < pages && others>>i != 0; {
		if i += bits.TrailingZeros64(others >> i); i >= pages {
			break
		}
		at := va.Page() + device.VA(i)<<device.PageShift
		m, err := p.behind(at)
		if err != nil {
			return Walk{}, err
		}
		end := i + max(m.Clip(at, pages-i), 1)
		if m.Shared {
			cow &^= span(i, end)
		}
		i = end
	}
	shared = others & cow
	if absent|shared == 0 && p.memo.idle.Load() {
		return Walk{}, nil
	}
	return Walk{
		Absent: absent,
		Denied: p.memo.walked(page, pages, entries[:], absent, shared, cow),
	}, nil
}

// behind returns the mapping of a page that is present, zero where there is none
// any more. It may be one that was looked up before: what depends on it is only
// whether a copy is reported or left to the kernel.
func (p *Process) behind(va device.VA) (Mapping, error) {
	if m := p.memo.last(); m.Contains(va) {
		return m, nil
	}
	var m Mapping
	switch errno := p.lookup(va, &m); {
	case errno == unix.ENOENT, errno == 0 && !m.Contains(va):
		return Mapping{}, nil
	case errno != 0:
		return Mapping{}, p.fail("walk", va, errno)
	}
	p.memo.keep(&m)
	return m, nil
}

// surprise drops what is known of the mappings.
func (p *Process) surprise() {
	p.memo.surprise()
	p.text.forget()
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

// Fresh tells the next walk what pagemap said just now of the page of va, which was paged in:
// if that walk is of this page alone and follows at once it reads nothing.
func (p *Process) Fresh(va device.VA, e Entry) {
	p.memo.keepEntry(uint64(va)>>device.PageShift, e)
}

// Hint returns, once for each page that a Walk reported, the pagemap entry that
// it saw at va. It may be out of date: it serves to name a fault's kind, and
// never to grant anything.
func (p *Process) Hint(va device.VA) (Entry, bool) {
	return p.memo.take(va.Page())
}

// PagedIn tells the walk that a write page-in has been made for the page of va,
// and what pagemap said afterwards: the walk reports its copy-on-write fault
// again only after the page has been seen exclusive or absent.
func (p *Process) PagedIn(va device.VA, e Entry) {
	p.memo.pagedIn(uint64(va)>>device.PageShift, e)
}
