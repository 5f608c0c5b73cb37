package gup

import (
	"math/bits"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/space/proc"
	"github.com/exanet/pfd/space/view"
)

// folios pages in shared memory that comes in by folios, and enters all pages that have come in the
// view, as far as the mapping of va permits the access. It returns false if the pages must be paged
// in, or fail, as other memory does.
func (g *Pager) folios(f *view.Folios, va device.VA, write bool) (r Result, ok bool) {
	start, permitted := g.permitted(f, va, write)
	hangs := false
	if touch := f.Touch & permitted; touch != 0 {
		call, ok := g.hangs.enter(start)
		if hangs = !ok; ok {
			r.Kind = g.touch(f.VA, touch)
			g.hangs.leave(call)
		}
	}
	entered := g.view.Enter(f.VA, f.Pages, permitted)
	r.Entered(f, entered)
	if hangs && r.Resident&1 == 0 {
		r.Err = &Error{va, write, ErrHangs}
		return r, true
	}
	return r, r.Resident&1 != 0 && entered&f.Asked == permitted&f.Asked
}

// permitted returns the pages of f that the mapping of va permits to access, without guard pages,
// and the start of the mapping.
func (g *Pager) permitted(f *view.Folios, va device.VA, write bool) (start device.VA, pages uint64) {
	m, err := g.p.Mapping(va)
	if err != nil || !m.Permits(write) {
		return 0, 0
	}
	var entries [MaxPages]proc.Entry
	if _, err := g.p.Pagemap(f.VA, entries[:f.Pages]); err != nil {
		return 0, 0
	}
	for i, e := range entries[:f.Pages] {
		if m.Contains(f.VA+device.VA(i)<<device.PageShift) && !e.Guard() {
			pages |= 1 << i
		}
	}
	return m.Start, pages
}

// Touch brings in pages, one bit each from the page of va on, by reading a byte of each through the
// process's mapping, so that they are charged to the process. Reading shared memory makes it
// present for a write, too. The Result says only the kind of the faults, or why there were none:
// which pages have come can be seen in the file.
func (g *Pager) Touch(va device.VA, touch uint64, write bool) Result {
	at := va.Page() + device.VA(bits.TrailingZeros64(touch))<<device.PageShift
	m, err := g.p.Mapping(at)
	if err == nil && !m.Permits(write) {
		err = ErrDenied
	}
	if err != nil {
		return Result{Err: &Error{at, write, err}}
	}
	call, ok := g.hangs.enter(m.Start)
	if !ok {
		return Result{Err: &Error{at, write, ErrHangs}}
	}
	defer g.hangs.leave(call)
	return Result{Kind: g.touch(va, touch)}
}

func (g *Pager) touch(va device.VA, touch uint64) Kind {
	pid, err := g.p.Keeper()
	if err != nil {
		return Minor
	}
	var b [MaxPages]byte
	var remote [MaxPages]unix.RemoteIovec
	n := 0
	for ; touch != 0; touch &= touch - 1 {
		remote[n] = unix.RemoteIovec{Base: uintptr(va) + uintptr(bits.TrailingZeros64(touch))<<device.PageShift, Len: 1}
		n++
	}
	local := [1]unix.Iovec{{Base: &b[0], Len: uint64(n)}}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	faults := majorFaults()
	_, _ = unix.ProcessVMReadv(pid, local[:], remote[:n], 0) // which pages it has read does not matter
	if majorFaults() != faults {
		return Major
	}
	return Minor
}
