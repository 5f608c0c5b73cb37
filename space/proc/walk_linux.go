package proc

import (
	"errors"
	"math/bits"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// maxVA bounds the addresses: Linux grants a process at most 57 bits (x86-64 with five levels),
// and an offset in pagemap must not wrap.
const maxVA = 1 << 57

// Walk looks up 1..64 pages from the one of va on, as an SMMU's table walk would for a write or a
// read. It changes nothing and pages nothing in. It costs one read of pagemap, or none after
// Fresh.
//
// A page that is not present is Absent. For a write, a present page of a private mapping is
// Denied if it is the zero page, the file's own or shared with a forked process. It is Denied
// only once: after that report it passes until a walk has seen it exclusive or absent, because
// the kernel may keep a page shared for its own reasons, and the page must not fault for ever.
// Walk does not check whether the mapping permits the access: the kernel checks that when the
// bytes move (ReadV, WriteV), and an earlier answer would be out of date.
//
// Errors are ErrGone, ErrRange, ErrClosed, or an errno.
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
	// Beyond the end of the address space pagemap reads nothing: absent.
	var absent, own, guard uint64
	for i := range pages {
		bit := uint64(1) << i
		switch e := entries[i]; {
		case !e.Present():
			absent |= bit
			if e.Guard() {
				guard |= bit
			}
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
	// A page that is not exclusive belongs to a private mapping, and must be copied, or to a
	// shared mapping, in which no page is exclusive.
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
		Absent: absent, Guard: guard,
		Denied: p.memo.walked(page, pages, entries[:], absent, shared, cow),
	}, nil
}

// behind returns the mapping of a present page, or a zero Mapping if it has none any more. It may
// return the remembered mapping: only whether a copy is reported or left to the kernel depends on
// it.
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

// surprise forgets what is remembered of the mappings.
func (p *Process) surprise() {
	p.memo.surprise()
	p.text.forget()
}

// span returns a bitmap of the bits i..end-1.
func span(i, end int) uint64 {
	if end >= 64 {
		return ^uint64(0) << i
	}
	return (1<<end - 1) &^ (1<<i - 1)
}

// lookup returns in m the mapping at va or the next one after it. It returns ENOENT if there is
// none and ESRCH if the address space is gone.
func (p *Process) lookup(va device.VA, m *Mapping) unix.Errno {
	if va >= maxVA {
		return unix.ENOENT
	}
	if p.query {
		return procmap(p.maps, va, m)
	}
	return p.lookupText(va, m)
}

// fail returns the error of an operation; ESRCH becomes ErrGone.
func (p *Process) fail(op string, va device.VA, err error) error {
	if errors.Is(err, unix.ESRCH) {
		err = ErrGone
	}
	return &Error{op, p.pid, va, err}
}

// Mapping returns the mapping that now contains va. Errors are ErrUnmapped, ErrGone, ErrClosed,
// or an errno.
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

// Pagemap reads the entries of the pages from va on into dst and returns how many it read: fewer
// at the end of the address space. Errors are ErrGone (also for an address beyond the end),
// ErrClosed, or an errno.
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

// Fresh records the pagemap entry, read just now, of the page of va after a page-in. If the next
// walk is of this page alone and follows at once, it reads nothing.
func (p *Process) Fresh(va device.VA, e Entry) {
	p.memo.keepEntry(uint64(va)>>device.PageShift, e)
}

// Hint returns, once for each page that a Walk reported, the pagemap entry that the walk saw at
// va. The entry may be out of date: it serves to name a fault's kind and never to grant access.
func (p *Process) Hint(va device.VA) (Entry, bool) {
	return p.memo.take(va.Page())
}

// PagedIn records that a write page-in was made for the page of va, and the page's pagemap entry
// after it. Walk then reports the page's copy-on-write fault again only after it has seen the
// page exclusive or absent.
func (p *Process) PagedIn(va device.VA, e Entry) {
	p.memo.pagedIn(uint64(va)>>device.PageShift, e)
}
