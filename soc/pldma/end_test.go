package pldma

import (
	"slices"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc/wire"
)

// packets keeps only some packets of a frame.
func packets(mask uint64) func(*wire.Frame) { return func(f *wire.Frame) { f.Present = mask } }

// A newer sequence number that meets a write in flight is refused with code 3, and none of its
// packets counts in the context of the older number, whether it is a retransmission or another
// use of the ID.
func TestContextComparesSequence(t *testing.T) {
	for _, first := range []device.Sequence{1, 2} {
		words := func(f *wire.Frame) {
			f.HasWords, f.Completion = true, wire.Completion{VA: base + 8192, First: 1, Last: 2}
		}
		use := func(f *wire.Frame) { f.First = first }
		r := newRig(t)
		r.receive(r.frame(0, 1, 0, 1000, packets(0b0011), words))
		r.receive(r.frame(0, 2, 0, 1000, packets(0b0011), words, use))
		r.receive(r.frame(0, 2, 0, 1000, packets(0b1100), words, use))
		r.settle()
		if a := r.answers(); !slices.Equal(a, []mailbox.Ack{{Code: device.CodeNoContext, Sequence: 2}}) || r.words != 0 {
			t.Errorf("first %d: answers %+v, %d writes of words", first, a, r.words)
		}
		if slices.ContainsFunc(r.mem[512:1000], nonzero) {
			t.Errorf("first %d: packets of a refused number are written", first)
		}
		r.receive(r.frame(0, 3, 0, 1000, words, use))
		r.settle()
		if a := r.answers(); !slices.Equal(a, []mailbox.Ack{{Sequence: 3}}) || !r.holds(0, 1000) || r.words != 1 {
			t.Errorf("first %d: afterwards answers %+v, %d writes of words", first, a, r.words)
		}
	}
}

// A block of a node's new life is refused while a write of its former life is in flight in the
// same domain, because the write could land later. Another domain does not wait.
func TestNewEpochWaits(t *testing.T) {
	next := func(f *wire.Frame) { f.Epoch = epoch + 1 }
	r := newRig(t)
	r.e.domains[1] = Domain{PDID: 70, Generation: generation, Enabled: true, Peers: [device.PeersPerSlot]device.PDID{theirs}}
	r.receive(r.frame(0, 1, 0, 1000))
	r.walk()
	r.receive(r.frame(9, 1, 0, 1000, next))
	r.receive(r.frame(8, 1, 4096, 1000, next, func(f *wire.Frame) { f.DstPDID = 70 }))
	if a := r.answers(); !slices.Equal(a, []mailbox.Ack{{Transaction: 9, Code: device.CodeNoContext, Sequence: 1}}) {
		t.Errorf("while a write of the former life is in flight: %+v", a)
	}
	r.settle()
	if a := r.answers(); !slices.Equal(a, []mailbox.Ack{{Transaction: 8, Sequence: 1}}) {
		t.Errorf("after it: %+v", a)
	}
	r.receive(r.frame(9, 2, 0, 1000, next))
	r.settle()
	if a := r.answers(); !slices.Equal(a, []mailbox.Ack{{Transaction: 9, Sequence: 2}}) || r.e.OpenContexts() != 0 {
		t.Errorf("later: %+v, %d contexts", a, r.e.OpenContexts())
	}
}

// A domain whose contexts are held by unserved faults or by memory that does not respond takes
// none from others: contexts that only report more pages are ended, and some are reserved for
// each slot.
func TestContextsOfOthers(t *testing.T) {
	const victim = 15
	for name, c := range map[string]struct {
		hold         func(r *rig, f *wire.Frame)
		blocks, want int // of the victim
	}{
		"faults, aborts": {func(r *rig, f *wire.Frame) { r.receive(f); r.settle() }, 4 * keptOfSlot, 3 * keptOfSlot},
		"memory hangs":   {func(r *rig, f *wire.Frame) { r.receive(f) }, keptOfSlot, keptOfSlot},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			for slot := range device.Slots {
				r.e.domains[slot] = Domain{PDID: device.PDID(100 + slot), Generation: generation, Enabled: true}
			}
			r.absent[0] = true
			id := device.TransactionID(0)
			block := func(slot, at int) *wire.Frame {
				id++
				return r.frame(id, 1, at, 256, func(f *wire.Frame) {
					f.SrcPDID, f.DstPDID = device.PDID(100+slot), device.PDID(100+slot)
					f.Block, f.Remaining, f.Last = 3, 1<<20, false
				})
			}
			for slot := range victim {
				for range maxDomainContexts {
					c.hold(r, block(slot, 0))
				}
			}
			r.answers()
			for range c.blocks {
				r.receive(block(victim, 8192))
			}
			r.settle()
			n := 0
			for _, a := range r.answers() {
				if a.Code == device.CodeAck {
					n++
				}
			}
			if n < c.want {
				t.Errorf("%d blocks of the victim are received, want %d", n, c.want)
			}
		})
	}
}

// If a read's completion words meet a page fault, the block is admitted again, even if its pieces
// arrive without the words at first.
func TestPiecesOfAReadAfterAFault(t *testing.T) {
	r := newRig(t)
	if !opens(r, OpenRead{Node: peer, PDID: theirs, Dst: base, Size: 1000, Notify: base + 8192, First: 1, Last: 2}) {
		t.Fatal("a read cannot be opened")
	}
	r.absent[2] = true
	for seq := range device.Sequence(2) {
		w := func(f *wire.Frame) {
			f.Read, f.HasWords, f.Completion = true, true, wire.Completion{VA: base + 8192, First: 1, Last: 2}
		}
		r.receive(r.frame(0, 1+seq, 0, 1000, w, packets(0b0011), func(f *wire.Frame) { f.WordsMissing, f.Completion = true, wire.Completion{} }))
		r.receive(r.frame(0, 1+seq, 0, 1000, w, packets(0b1100)))
		r.settle()
		delete(r.absent, 2)
	}
	if a := r.answers(); !slices.Equal(a, []mailbox.Ack{{Code: device.CodeSlaveError, Sequence: 1}, {Sequence: 2}}) || r.words != 1 {
		t.Errorf("answers %+v, %d writes of words", a, r.words)
	}
}

// A duplicate of a received packet has no effect, even if corrupt: the completion words may be in
// flight, and after a NACK the block would be written again over the application's later changes.
func TestCorruptDouble(t *testing.T) {
	r := newRig(t)
	words := func(f *wire.Frame) {
		f.HasWords, f.Completion = true, wire.Completion{VA: base + 8192, First: 1, Last: 2}
	}
	r.receive(r.frame(0, 1, 0, 1000, words))
	r.walk()
	r.move() // the words are in flight
	r.receive(r.frame(0, 1, 0, 1000, words, func(f *wire.Frame) { f.Present, f.Corrupt = 0b11, 0b10 }))
	r.settle()
	if a := r.answers(); !slices.Equal(a, []mailbox.Ack{{Sequence: 1}}) || r.words != 1 || !r.holds(0, 1000) || r.counts[device.CRCPayload] != 1 {
		t.Errorf("answers %+v, %d writes of words", a, r.words)
	}
}

// A write whose right ends while its completion words are in flight completes nevertheless:
// neither a late duplicate of its frame nor a retransmission writes it again once the right is
// restored. If only its data was in flight, it does not complete.
func TestRightEndsUnderTheWords(t *testing.T) {
	words := func(f *wire.Frame) {
		f.HasWords, f.Completion = true, wire.Completion{VA: base + 8192, First: 1, Last: 2}
	}
	admit := [device.PeersPerSlot]device.PDID{theirs}
	for _, c := range []struct {
		name   string
		moves  int // of the data, before the right ends
		seq    device.Sequence
		first  device.Sequence
		want   []mailbox.Ack
		writes bool
	}{
		{"a duplicate", 1, 1, 1, nil, false},
		{"a retransmission", 1, 2, 1, []mailbox.Ack{{Sequence: 2}}, false},
		{"a new use", 1, 2, 2, []mailbox.Ack{{Sequence: 2}}, true},
		{"only data, a duplicate", 0, 1, 1, []mailbox.Ack{{Sequence: 1}}, true},
		{"only data, a retransmission", 0, 2, 1, []mailbox.Ack{{Sequence: 2}}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.receive(r.frame(0, 1, 0, 1000, words))
			r.walk()
			for range c.moves {
				r.move()
				r.walk() // for the words
			}
			r.e.SetPeers(0, new([device.PeersPerSlot]device.PDID))
			r.settle()
			r.e.SetPeers(0, &admit)
			if a := r.answers(); a != nil || r.words != c.moves {
				t.Fatalf("answers %+v, %d writes of words", a, r.words)
			}
			clear(r.mem[:1000]) // the application uses it
			r.receive(r.frame(0, c.seq, 0, 1000, words, func(f *wire.Frame) { f.First = c.first }))
			r.settle()
			if a := r.answers(); !slices.Equal(a, c.want) {
				t.Errorf("answers %+v, want %+v", a, c.want)
			}
			if got := slices.ContainsFunc(r.mem[:1000], nonzero); got != c.writes {
				t.Errorf("written again: %v, want %v", got, c.writes)
			}
		})
	}
}

// The outcome of words in flight of a slot's former domain does not affect the next domain's
// read, even an identical one: those words do not close it, nor admit more data while its own
// words are in flight.
func TestWordsOfTheFormerDomain(t *testing.T) {
	const next = generation + 1
	read := OpenRead{Node: peer, PDID: theirs, Dst: base, Size: 1000, Notify: base + 8192, First: 1, Last: 2}
	data := func(f *wire.Frame) { f.Read = true }
	words := func(f *wire.Frame) {
		f.Read, f.HasWords, f.Completion = true, true, wire.Completion{VA: base + 8192, First: 1, Last: 2}
	}
	own := func(f *wire.Frame) { f.DstGeneration = next }
	// underWay returns the move of a block's words in flight.
	underWay := func(r *rig, f *wire.Frame) uint32 {
		r.receive(f)
		r.walk()
		r.move()
		r.walk()
		a := r.moves[0]
		r.moves = nil
		return a.ID
	}
	begin := func(t *testing.T) (*rig, uint32) {
		r := newRig(t)
		opens(r, read)
		former := underWay(r, r.frame(0, 1, 0, 1000, words))
		r.e.SetDomain(0, mine, next, true)
		if !opens(r, read) {
			t.Fatal("the next domain's read cannot be opened")
		}
		return r, former
	}
	t.Run("written", func(t *testing.T) {
		r, former := begin(t)
		r.e.Moved(former, 16)
		if open, served := r.e.OpenRead(0, read); !open || served {
			t.Errorf("open %v, served %v", open, served)
		}
		r.receive(r.frame(1, 1, 0, 1000, words, own))
		r.settle()
		if a := r.answers(); !slices.Equal(a, []mailbox.Ack{{Transaction: 1, Sequence: 1}}) {
			t.Errorf("its own data: %+v", a)
		}
	})
	t.Run("refused", func(t *testing.T) {
		r, former := begin(t)
		underWay(r, r.frame(1, 1, 0, 1000, words, own))
		r.e.Moved(former, 0)
		r.receive(r.frame(2, 1, 0, 500, data, own))
		if a := r.answers(); !slices.Equal(a, []mailbox.Ack{{Transaction: 2, Code: device.CodeDomain, Sequence: 1}}) {
			t.Errorf("a block beside its words: %+v", a)
		}
	})
}
