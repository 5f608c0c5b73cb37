package gsas

import (
	"slices"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
)

// The entries of a run of pages, some of them set before.
func TestRuns(t *testing.T) {
	r := newRig(t)
	r.page(1000, 3, 0x1000, other)
	r.page(500, 600, 1<<30, own)
	r.page(1001, 1, 0x5000, other)
	entry := func(page uint64) (uint32, uint64) {
		r.u.Store(r.now, device.PLGSASPage, device.GSASRun(page, 1))
		return device.SplitGSASEntry(r.u.Load(device.PLGSASEntry)).Protection, r.u.Load(device.PLGSASBack)
	}
	for _, c := range []struct {
		page uint64
		p    atomics.Protection
		back uint64
	}{{499, 0, 0}, {500, own, 1 << 30}, {1000, own, 1<<30 + 500*4096}, {1001, other, 0x5000}, {1002, own, 1<<30 + 502*4096}, {1099, own, 1<<30 + 599*4096}, {1100, 0, 0}} {
		if p, back := entry(c.page); p != uint32(c.p) || back != c.back {
			t.Errorf("page %d: tree %x at 0x%x, want %x at 0x%x", c.page, p, back, c.p, c.back)
		}
	}
	if got := r.u.Stats().Pages; got != 600 {
		t.Errorf("%d pages", got)
	}
	r.u.Store(r.now, device.PLGSASPage, device.GSASRun(0, device.GSASMaxRun))
	r.u.Store(r.now, device.PLGSASEntry, 0)
	if got := r.u.Stats().Pages; got != 0 || len(r.u.pages.chunks) != 0 {
		t.Errorf("%d pages, %d chunks are left", got, len(r.u.pages.chunks))
	}
	r.page(atomics.Pages-2, device.GSASMaxRun, 0, own) // a run ends with the partition
	if got := r.u.Stats().Pages; got != 2 {
		t.Errorf("%d pages", got)
	}
}

// A page that is taken away: nothing begins on it any more, and busy says until when it is in use.
func TestTakenAway(t *testing.T) {
	r := newRig(t)
	r.page(8, 4, 0, own)
	r.ask(thread(32, 1), 0, own, atomics.Swap, atomics.At(node, 10<<12), 1)
	a := r.begun()
	for page, want := range map[uint64]bool{9: false, 10: true, 11: false} {
		if r.busy(page, 1) != want {
			t.Errorf("page %d is not busy: %v", page, want)
		}
	}
	r.enter(0, 100, 0, device.GSASEntry{})
	if !r.busy(0, 100) || r.busy(0, 10) || r.busy(11, 100) {
		t.Error("busy is of another page")
	}
	r.ask(thread(33, 1), 0, own, atomics.Swap, atomics.At(node, 10<<12), 1)
	r.wants("a page that was taken away", atomics.BadAddress)
	r.u.Done(r.now, a.ID, atomics.OK, []uint64{3})
	if a := r.said(); a == nil || a.Values[0] != 3 || r.busy(0, 100) {
		t.Errorf("%+v, still busy: %v", a, r.busy(0, 100))
	}
}

// Requests for pages that are not present: the driver learns of each page once.
func TestWant(t *testing.T) {
	r := newRig(t)
	absent := device.GSASEntry{Protection: uint32(own), Valid: true}
	r.enter(4, 4, 0, absent)
	read := func(iface int, number uint16, page uint64) {
		r.ask(thread(iface, number), 0, own, atomics.Read64, atomics.At(node, page<<12|8))
	}
	want := func(pages ...uint64) {
		t.Helper()
		var got []uint64
		for v := r.u.Load(device.PLGSASWant); v != device.GSASNoPage; v = r.u.Load(device.PLGSASWant) {
			got = append(got, v)
		}
		if !slices.Equal(got, pages) || r.u.Wanted() {
			t.Errorf("wants %d, want %d", got, pages)
		}
	}
	read(32, 1, 6)
	read(33, 1, 5)
	read(34, 1, 6)
	if !r.u.Wanted() || r.begun() != nil || r.busy(4, 4) {
		t.Error("an access to a page that is absent")
	}
	want(6, 5)
	read(35, 1, 6) // the driver knows
	want()
	read(32, 1, 6)
	r.wants("asked again", atomics.Waiting)
	r.page(6, 1, 0x9000, own)
	if len(r.performs) != 3 || r.performs[0].Back != 0x9008 {
		t.Fatalf("%d begun", len(r.performs))
	}
	for _, a := range r.performs {
		r.u.Done(r.now, a.ID, atomics.OK, []uint64{1})
	}
	if r.performs = nil; len(r.answers) != 3 {
		t.Fatalf("%d answers", len(r.answers))
	}
	r.answers = nil
	r.enter(5, 1, 0, absent)
	r.wants("a page that cannot be brought in", atomics.NoMemory)
	for _, c := range []struct {
		e device.GSASEntry
		s atomics.Status
	}{{device.GSASEntry{}, atomics.BadAddress}, {device.GSASEntry{Protection: uint32(other), Valid: true, Present: true}, atomics.Denied}} {
		r.enter(7, 1, 0, absent)
		read(40, uint16(c.s), 7)
		r.enter(7, 1, 0, c.e)
		r.wants("a page that is taken away", c.s)
		want()
	}
}
