package pldma

import (
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc/fifo"
	"github.com/exanet/pfd/soc/smmu"
)

// Offsets and bits of Arm IHI 0062, restated.
const (
	fsr, far, fsynr0 = 0x58, 0x60, 0x68
	sctlr            = 0x0
	tf, multi        = 1 << 1, 1 << 31
	wnr, cfre        = 1 << 4, 1 << 5
)

// A move that ends at byte k of an access is a fault on k's page only: one FIFO entry, FAR on the
// byte, NACK 1; and the TLB has dropped exactly the pages that were not moved.
func TestMoveFails(t *testing.T) {
	const at, size = 1000, 4*4096 - 2000 // pages 0 to 3
	for _, source := range []bool{false, true} {
		for _, c := range []struct{ k, page int }{
			{0, 0}, {1, 0}, {3095, 0}, {3096, 1}, {5000, 1}, {3096 + 4096, 2}, {size - 1, 3},
		} {
			var s *smmu.SMMU
			r := newRig(t, func(cfg *Config) { s = cfg.SMMU })
			r.stop = map[int]bool{at + c.k: true}
			var q *fifo.FIFO
			want := device.FaultEntry{Page: uint64(base)>>12 + uint64(c.page), Response: 2}
			if source {
				q = &r.tx
				want.Source, want.Transaction, want.Sequence, want.PDID = own, 4, 9, mine
				r.e.Send(block(4, 9, 8, at, size))
			} else {
				q = &r.rx
				want.Source, want.Transaction, want.Sequence, want.PDID = peer, 3, 1, mine
				r.receive(r.frame(3, 1, at, size))
			}
			r.settle()
			e, ext, _ := q.Peek(0)
			left := uint32(size)
			if c.page > 0 {
				left -= uint32(c.page*4096 - at)
			}
			if q.Level() != 1 || e != want || ext != left {
				t.Errorf("source %v, byte %d: %d entries, %+v with %d left; want %+v, %d", source, c.k, q.Level(), e, ext, want, left)
			}
			if got := s.LoadBank(far, 0); got != uint64(base)+at+uint64(c.k) || s.LoadBank(fsr, 0) != tf || (s.LoadBank(fsynr0, 0) == wnr) == source {
				t.Errorf("source %v, byte %d: FSR %#x, FAR %#x, FSYNR0 %#x", source, c.k, s.LoadBank(fsr, 0), got, s.LoadBank(fsynr0, 0))
			}
			if source {
				if len(r.faults) != 1 || len(r.frames) != 0 {
					t.Errorf("byte %d: source faults %v, %d frames", c.k, r.faults, len(r.frames))
				}
			} else if got := r.answers(); len(got) != 1 || got[0] != (mailbox.Ack{Transaction: 3, Code: device.CodeSlaveError, Sequence: 1}) {
				t.Errorf("byte %d: answers %+v, want one NACK 1", c.k, got)
			}
			// Pages that were moved are still in the TLB, the others are walked.
			walks := r.counts[device.Walks]
			r.stop = nil
			if source {
				r.e.Send(block(4, 10, 8, at, size))
			} else {
				r.receive(r.frame(3, 2, at, size))
			}
			r.settle()
			if got := int(r.counts[device.Walks] - walks); got != 4-c.page {
				t.Errorf("source %v, byte %d: %d pages walked again, want %d", source, c.k, got, 4-c.page)
			}
			if !source && !r.holds(at, size) {
				t.Errorf("byte %d: the retransmission leaves other bytes", c.k)
			}
		}
	}
}

// With CFRE clear a failed move is recorded, its page is ignored and the others are moved, both
// in an access whose pages were all present and in parts of one.
func TestMoveFailsUnreported(t *testing.T) {
	const size = 4 * 4096
	for _, absent := range []int{-1, 0, 2} { // a page that the walk finds absent, too
		var s *smmu.SMMU
		r := newRig(t, func(cfg *Config) { s = cfg.SMMU })
		s.StoreBank(sctlr, 0, device.SCTLRDriver&^cfre)
		r.absent[absent] = true
		r.stop = map[int]bool{4096 + 7: true, 3 * 4096: true}
		r.receive(r.frame(3, 1, 0, size))
		r.settle()
		if got := r.answers(); len(got) != 1 || got[0].Code != device.CodeAck || r.rx.Level() != 0 {
			t.Errorf("absent %d: answers %+v, %d entries; want an ACK", absent, got, r.rx.Level())
		}
		for page := range 4 {
			if whole, want := r.holds(page*4096, 4096), page != absent && page != 1 && page != 3; whole != want {
				t.Errorf("absent %d: page %d written %v, want %v", absent, page, whole, want)
			}
		}
		first := uint64(base) + 4096 + 7
		if absent == 0 {
			first = uint64(base)
		} else if absent == 2 {
			first = uint64(base) + 2*4096 // the walk precedes all moves
		}
		if s.LoadBank(fsr, 0) != tf|multi || s.LoadBank(far, 0) != first {
			t.Errorf("absent %d: FSR %#x, FAR %#x, want TF and MULTI at %#x", absent, s.LoadBank(fsr, 0), s.LoadBank(far, 0), first)
		}

		// Read: the failed page is zeros.
		for i := range r.mem {
			r.mem[i] = fill(i)
		}
		r.e.Send(block(4, 9, 8, 0, size))
		r.settle()
		if len(r.frames) != 1 || len(r.faults) != 0 {
			t.Fatalf("absent %d: %d frames, source faults %v", absent, len(r.frames), r.faults)
		}
		for i, b := range r.frames[0].Payload {
			want := fill(i)
			if page := i / 4096; page == absent || page == 1 || page == 3 {
				want = 0
			}
			if b != want {
				t.Fatalf("absent %d: byte %d is %#x, want %#x", absent, i, b, want)
			}
		}
	}
}
