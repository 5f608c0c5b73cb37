package fault_test

import (
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/gup"
)

func TestRecord(t *testing.T) {
	r := newRig(t, nil)
	g := r.gup(4, fault.PI4)
	g.kind = gup.Permission
	r.n.Fault(4, 0x7f0000123456, true)
	r.n.Push(entry(4, 5, 6, 0x7f0000123), 4096)
	r.run()
	rec := r.d.Records(10)
	if len(rec) != 1 {
		t.Fatalf("%d records, want 1", len(rec))
	}
	got := rec[0]
	times := []int64{got.Interrupt, got.Drained, got.Started, got.Resident, got.Answered}
	for i, at := range times {
		if at == 0 || i > 0 && at <= times[i-1] {
			t.Errorf("stages %v are out of order", times)
			break
		}
	}
	got.Interrupt, got.Drained, got.Started, got.Resident, got.Answered = 0, 0, 0, 0, 0
	want := fault.Record{
		Page: 0x7f0000123000, Slot: 4, PDID: pdidOf(4), Source: 7, Transaction: 5, Sequence: 6, Write: true, Block: true,
		Method: fault.GUP, Policy: fault.PI4, Kind: gup.Permission, Outcome: fault.Resolved, Answers: true,
	}
	if got != want {
		t.Errorf("record\n got %+v\nwant %+v", got, want)
	}
	s := r.d.Stats()
	if c := s.Slots[4]; c.Permission != 1 || c.PageIns != 1 || c.Pages != 1 || c.Remote != 1 || s.Total != c {
		t.Errorf("counters %+v", c)
	}
}

func TestRecordsRing(t *testing.T) {
	r := newRig(t, nil)
	r.gup(0, fault.PIO)
	for i := range 1500 {
		r.n.Push(entry(0, device.TransactionID(i%1024), 1, uint64(i)), 4096)
		if i%100 == 0 {
			r.run()
		}
	}
	r.run()
	for _, n := range []int{0, 1, 3, 1024, 5000, -1} {
		want := n
		if n < 0 || n > 1024 {
			want = 1024
		}
		rec := r.d.Records(n)
		if len(rec) != want {
			t.Errorf("Records(%d) returned %d records, want %d", n, len(rec), want)
			continue
		}
		for i := range rec {
			if page := device.VA(1500-want+i) << 12; rec[i].Page != page || rec[i].Outcome != fault.Resolved {
				t.Errorf("Records(%d)[%d] is of %v, %v; want %v", n, i, rec[i].Page, rec[i].Outcome, page)
				break
			}
		}
	}
}

// A fault does not allocate once the tables have grown.
func TestNoAllocation(t *testing.T) {
	registersOnly(t) // the device's side of these tests allocates
	tests := []struct {
		name   string
		policy fault.Policy
		touch  bool
		ext    uint32
	}{
		{"gup p1", fault.PIO, false, 4096},
		{"gup p4", fault.PI4, false, 1 << 20},
		{"gup pa", fault.PIA, false, 1 << 20},
		{"touch pa", fault.PIA, true, 1 << 20},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, nil)
			if tt.touch {
				r.touch(0, tt.policy).quiet = true
			} else {
				r.gup(0, tt.policy).quiet = true
			}
			i := 0
			got := testing.AllocsPerRun(2000, func() {
				i++
				page := uint64(i%977) * 4
				r.n.Fault(0, device.VA(page<<12), true)
				for k := range uint64(4) {
					r.n.Push(entry(0, device.TransactionID(i%1024), 1, page+k), tt.ext)
				}
				e := entry(0, device.TransactionID(i%1024), 1, page)
				e.Source = ownNode
				r.n.PushTX(e, tt.ext)
				r.n.Run()
				r.n.Sent, r.n.Calls = r.n.Sent[:0], r.n.Calls[:0]
			})
			if got != 0 {
				t.Errorf("%v allocations a round", got)
			}
			if s := r.d.Stats().Total; s.Entries == 0 || s.RAPF+s.Delegated == 0 {
				t.Errorf("counters %+v: nothing was served", s)
			}
		})
	}
}

// BenchmarkFault serves one fault, from the vectors to the RAPF, without actual memory.
func BenchmarkFault(b *testing.B) {
	r := newRig(b, nil)
	r.gup(0, fault.PIO).quiet = true
	b.ReportAllocs()
	for i := range b.N {
		page := uint64(i % 977)
		r.n.Fault(0, device.VA(page<<12), true)
		r.n.Push(entry(0, device.TransactionID(i%1024), 1, page), 4096)
		r.n.Run()
		r.n.Sent, r.n.Calls = r.n.Sent[:0], r.n.Calls[:0]
	}
}
