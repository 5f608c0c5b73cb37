package mediate

import (
	"math/rand/v2"
	"testing"

	"github.com/exanet/pfd/device"
)

// TestTreePages: what the driver has written to GSAS_PAGE, GSAS_BACK and GSAS_ENTRY is known for each page,
// and the device is told that no page is present. Runs that continue each other are one.
func TestTreePages(t *testing.T) {
	type entry struct{ entry, offset uint64 }
	const pages = 64
	random := rand.New(rand.NewPCG(32, 5))
	p := &treePages{mapped: map[uint64]*treePage{}}
	model := map[uint64]entry{}
	write := func(off uint32, v uint64) uint64 { return p.store(off, 8, v) }
	for range 20_000 {
		first, count := uint64(random.IntN(pages)), 1+random.IntN(8)
		e := device.GSASEntry{Protection: 1 + uint32(random.IntN(2)), Present: random.IntN(4) > 0, Valid: random.IntN(3) > 0}
		back := (first + uint64(random.IntN(2))*1000) * device.PageSize
		write(device.PLGSASPage, device.GSASRun(first, count))
		write(device.PLGSASBack, back)
		if m := p.mapped[first]; m == nil {
			p.mapped[first] = &treePage{number: first}
		} else {
			m.entered = true
		}
		if got := device.SplitGSASEntry(write(device.PLGSASEntry, e.Encode())); e.Valid && got.Present || got.Valid != e.Valid || got.Protection != e.Protection {
			t.Fatalf("%+v is written as %+v", e, got)
		}
		for i := range uint64(count) {
			delete(model, first+i)
			if e.Valid && e.Present {
				model[first+i] = entry{device.GSASEntry{Protection: e.Protection, Valid: true}.Encode(), back + i*device.PageSize}
			}
			if m := p.mapped[first+i]; m != nil && m.entered {
				t.Fatalf("page %d is still entered", first+i)
			}
		}
		for page := range uint64(pages + 8) {
			want, ok := model[page]
			o := p.find(page)
			if ok != (o != nil) || ok && (o.entry != want.entry || o.offset+(page-o.first)*device.PageSize != want.offset) {
				t.Fatalf("page %d: %+v, want %+v", page, o, want)
			}
		}
	}
	write(device.PLGSASPage, device.GSASRun(0, pages+8))
	write(device.PLGSASEntry, 0)
	for i := range uint64(pages) {
		write(device.PLGSASPage, device.GSASRun(i, 1))
		write(device.PLGSASBack, i*device.PageSize)
		write(device.PLGSASEntry, device.GSASEntry{Protection: 1, Present: true, Valid: true}.Encode())
	}
	if len(p.owned) != 1 {
		t.Errorf("%d runs of pages in order", len(p.owned))
	}
	if p.store(device.PLCtrl, 4, device.CtrlReset); len(p.owned) != 0 {
		t.Errorf("after a reset: %+v", p.owned)
	}
}
