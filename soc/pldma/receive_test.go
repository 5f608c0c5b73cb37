package pldma

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc/wire"
)

// Blocks of a transfer and packets of a block arrive in any order, in any pieces, more than once.
// The bytes arrive, no other memory is touched, and each block is acknowledged once, after its
// last byte is in memory (messages.md 5; 001 abstract: multi-pathing by block).
func TestOrderDoesNotMatter(t *testing.T) {
	const start, size = 5000, 60000 // blocks of 11384, 16384, 16384, 15848 bytes
	cuts := []int{5000, 16384, 32768, 49152, 65000}
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 3))
		r := newRig(t)
		var pieces []*wire.Frame
		for b := range 4 {
			from, n := cuts[b], cuts[b+1]-cuts[b]
			// Runs of packets, few enough that their accesses can wait.
			for left := wire.All(n); left != 0; {
				mask := left & (1<<uint(bits.TrailingZeros64(left)+17+rng.IntN(30)) - 1)
				left &^= mask
				for range 1 + rng.IntN(2) {
					pieces = append(pieces, r.frame(device.TransactionID(b), 1, from, n, func(f *wire.Frame) {
						f.Present, f.Block, f.Remaining, f.Last = mask, uint32(b), uint32(start+size-from), b == 3
						// The bytes of packets that did not arrive are undefined.
						for i := range f.Payload {
							if mask>>uint(i/device.MTU)&1 == 0 {
								f.Payload[i] = 0xee
							}
						}
					}))
				}
			}
		}
		rng.Shuffle(len(pieces), func(i, j int) { pieces[i], pieces[j] = pieces[j], pieces[i] })
		var acks []mailbox.Ack
		for _, f := range pieces {
			r.receive(f)
			// Memory accesses take time, too.
			for range rng.IntN(6) {
				switch {
				case len(r.walks) > 0 && rng.IntN(2) == 0:
					r.walk()
				case len(r.moves) > 0:
					r.move()
				}
			}
			for _, a := range r.answers() {
				acks = append(acks, a)
				if a.Code != device.CodeAck {
					t.Fatalf("seed %d: %+v", seed, a)
				}
				if b := int(a.Transaction); !r.holds(cuts[b], cuts[b+1]-cuts[b]) {
					t.Fatalf("seed %d: block %d is acknowledged before it is in memory", seed, b)
				}
			}
		}
		r.settle()
		acks = append(acks, r.answers()...)
		slices.SortFunc(acks, func(a, b mailbox.Ack) int { return int(a.Transaction) - int(b.Transaction) })
		want := []mailbox.Ack{{Transaction: 0, Sequence: 1}, {Transaction: 1, Sequence: 1}, {Transaction: 2, Sequence: 1}, {Transaction: 3, Sequence: 1}}
		if !slices.Equal(acks, want) {
			t.Fatalf("seed %d: answers %+v", seed, acks)
		}
		if !r.holds(start, size) || slices.ContainsFunc(r.mem[:start], nonzero) || slices.ContainsFunc(r.mem[start+size:], nonzero) {
			t.Fatalf("seed %d: wrong memory contents", seed)
		}
		if r.e.OpenContexts() != 0 {
			t.Fatalf("seed %d: %d contexts left", seed, r.e.OpenContexts())
		}
	}
}

func nonzero(b byte) bool { return b != 0 }

// Completion words follow the last byte of their block, and the acknowledgement follows the
// words.
func TestWordsComeLast(t *testing.T) {
	r := newRig(t)
	f := r.frame(0, 1, 0, 1000, func(f *wire.Frame) {
		f.HasWords, f.Completion = true, wire.Completion{VA: base + 8192, First: 0x1122334455667788, Last: 0x99aabbccddeeff00}
	})
	r.receive(f)
	for len(r.walks)+len(r.moves) > 0 {
		if len(r.answers()) > 0 {
			t.Error("acknowledged before the words are in memory")
		}
		if len(r.walks) > 0 {
			r.walk()
			continue
		}
		r.move()
	}
	last := r.order[len(r.order)-1]
	if !last.Ordered || last.VA != base+8192 || len(last.Data) != 16 || r.words != 1 {
		t.Errorf("the last access is %+v", last)
	}
	want := []byte{0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0x00, 0xff, 0xee, 0xdd, 0xcc, 0xbb, 0xaa, 0x99}
	if !slices.Equal(r.mem[8192:8208], want) {
		t.Errorf("words % x, want % x", r.mem[8192:8208], want)
	}
	if a := r.answers(); len(a) != 1 || a[0].Code != device.CodeAck {
		t.Errorf("answers %+v", a)
	}
}

// The receiver's answers: one answer per sequence number, and nothing is written twice
// (spec/firmware.md "PLDMA").
func TestAnswers(t *testing.T) {
	const n = 1000
	ack := func(seq device.Sequence, code device.Code) mailbox.Ack { return mailbox.Ack{Code: code, Sequence: seq} }
	first := func(s device.Sequence) func(*wire.Frame) { return func(f *wire.Frame) { f.First = s } }
	present := func(m uint64) func(*wire.Frame) { return func(f *wire.Frame) { f.Present = m } }
	for _, c := range []struct {
		name    string
		absent  []int
		prepare func(*rig)
		frames  func(*rig) []*wire.Frame
		want    []mailbox.Ack
		written int // moves
		entries int // in the FIFO
	}{
		{name: "whole", frames: func(r *rig) []*wire.Frame { return []*wire.Frame{r.frame(0, 1, 0, n)} },
			want: []mailbox.Ack{ack(1, 0)}, written: 1},
		{name: "a duplicate after its acknowledgement", frames: func(r *rig) []*wire.Frame {
			return []*wire.Frame{r.frame(0, 1, 0, n), r.frame(0, 1, 0, n)}
		}, want: []mailbox.Ack{ack(1, 0)}, written: 1},
		{name: "retransmitted after its acknowledgement", frames: func(r *rig) []*wire.Frame {
			return []*wire.Frame{r.frame(0, 1, 0, n), r.frame(0, 2, 0, n), r.frame(0, 9, 0, n)}
		}, want: []mailbox.Ack{ack(1, 0), ack(2, 0), ack(9, 0)}, written: 1},
		{name: "the ID reused", frames: func(r *rig) []*wire.Frame {
			return []*wire.Frame{r.frame(0, 1, 0, n), r.frame(0, 2, 0, n, first(2))}
		}, want: []mailbox.Ack{ack(1, 0), ack(2, 0)}, written: 2},
		{name: "an old number", frames: func(r *rig) []*wire.Frame {
			return []*wire.Frame{r.frame(0, 5, 0, n), r.frame(0, 4, 0, n), r.frame(0, 4, 0, n, first(4))}
		}, want: []mailbox.Ack{ack(5, 0)}, written: 1},
		{name: "a newer number in the middle", frames: func(r *rig) []*wire.Frame {
			return []*wire.Frame{r.frame(0, 1, 0, n, present(3)), r.frame(0, 2, 0, n, present(12)), r.frame(0, 1, 0, n, present(12)), r.frame(0, 2, 0, n, present(3))}
		}, want: []mailbox.Ack{ack(2, 0)}, written: 3},
		{name: "a number past the wrap-around", frames: func(r *rig) []*wire.Frame {
			return []*wire.Frame{r.frame(0, 16383, 0, n, first(16383)), r.frame(0, 0, 0, n, first(0)), r.frame(0, 16383, 0, n, first(16383))}
		}, want: []mailbox.Ack{ack(16383, 0), ack(0, 0)}, written: 2},
		{name: "corrupted", frames: func(r *rig) []*wire.Frame {
			return []*wire.Frame{r.frame(0, 1, 0, n, func(f *wire.Frame) { f.Corrupt = 2 }), r.frame(0, 1, 0, n)}
		}, want: []mailbox.Ack{ack(1, 4)}, written: 1},
		{name: "an absent page", absent: []int{0}, frames: func(r *rig) []*wire.Frame { return []*wire.Frame{r.frame(0, 1, 0, n)} },
			want: []mailbox.Ack{ack(1, 1)}, entries: 1},
		{name: "three absent pages", absent: []int{0, 2, 3}, frames: func(r *rig) []*wire.Frame { return []*wire.Frame{r.frame(0, 1, 0, 16384)} },
			want: []mailbox.Ack{ack(1, 1)}, entries: 3},
		{name: "an absent page that becomes resident later", absent: []int{1}, frames: func(r *rig) []*wire.Frame {
			return []*wire.Frame{r.frame(0, 1, 0, 8192, present(1<<16-1)), r.frame(0, 1, 0, 8192, present((1<<16-1)<<16))}
		}, want: []mailbox.Ack{ack(1, 1)}, written: 1, entries: 1},
		{name: "no such domain", frames: func(r *rig) []*wire.Frame {
			return []*wire.Frame{r.frame(0, 1, 0, n, func(f *wire.Frame) { f.DstPDID = 55 })}
		}, want: []mailbox.Ack{ack(1, 5)}},
		{name: "of a domain that is not admitted", frames: func(r *rig) []*wire.Frame {
			return []*wire.Frame{r.frame(0, 1, 0, n, func(f *wire.Frame) { f.SrcPDID = 55 })}
		}, want: []mailbox.Ack{ack(1, 5)}},
		{name: "of the same domain", frames: func(r *rig) []*wire.Frame {
			return []*wire.Frame{r.frame(0, 1, 0, n, func(f *wire.Frame) { f.SrcPDID = mine })}
		}, want: []mailbox.Ack{ack(1, 0)}, written: 1},
		{name: "of a read that was not requested", frames: func(r *rig) []*wire.Frame {
			return []*wire.Frame{r.frame(0, 1, 0, n, func(f *wire.Frame) { f.Read = true })}
		}, want: []mailbox.Ack{ack(1, 5)}},
		{name: "past the width", frames: func(r *rig) []*wire.Frame {
			return []*wire.Frame{r.frame(0, 1, 0, n, func(f *wire.Frame) { f.VA = 1 << 48 })}
		}, want: []mailbox.Ack{ack(1, 2)}},
		{name: "across a block's end", frames: func(r *rig) []*wire.Frame {
			return []*wire.Frame{r.frame(0, 1, 16000, n)}
		}, want: []mailbox.Ack{ack(1, 6)}},
		{name: "empty", frames: func(r *rig) []*wire.Frame { return []*wire.Frame{r.frame(0, 1, 0, 0)} },
			want: []mailbox.Ack{ack(1, 6)}},
		{name: "longer than the rest of the transfer", frames: func(r *rig) []*wire.Frame {
			return []*wire.Frame{r.frame(0, 1, 0, n, func(f *wire.Frame) { f.Remaining = n - 1 })}
		}, want: []mailbox.Ack{ack(1, 6)}},
		{name: "an invalid ID", frames: func(r *rig) []*wire.Frame { return []*wire.Frame{r.frame(1024, 1, 0, n)} }},
		{name: "another block under the same number", frames: func(r *rig) []*wire.Frame {
			return []*wire.Frame{r.frame(0, 1, 0, n, present(1)), r.frame(0, 1, 4096, n), r.frame(0, 1, 0, n)}
		}, want: []mailbox.Ack{ack(1, 0)}, written: 2},
		{name: "a new epoch", frames: func(r *rig) []*wire.Frame {
			return []*wire.Frame{r.frame(0, 7, 0, n), r.frame(0, 1, 0, n, func(f *wire.Frame) { f.Epoch = epoch + 1 })}
		}, want: []mailbox.Ack{ack(7, 0), ack(1, 0)}, written: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			for _, p := range c.absent {
				r.absent[p] = true
			}
			for _, f := range c.frames(r) {
				r.receive(f)
				r.settle()
			}
			if got := r.answers(); !slices.Equal(got, c.want) {
				t.Errorf("answers %+v, want %+v", got, c.want)
			}
			if len(r.order) != c.written || r.rx.Level() != c.entries {
				t.Errorf("%d writes, %d entries; want %d, %d", len(r.order), r.rx.Level(), c.written, c.entries)
			}
		})
	}
}

// A duplicate of an acknowledged block overwrites nothing that the application has written since.
func TestAcknowledgedBlockIsLeftAlone(t *testing.T) {
	r := newRig(t)
	r.receive(r.frame(0, 1, 0, 100))
	r.settle()
	copy(r.mem, "mine")
	r.receive(r.frame(0, 1, 0, 100)) // duplicated
	r.receive(r.frame(0, 2, 0, 100)) // its ACK was lost
	r.settle()
	if string(r.mem[:4]) != "mine" {
		t.Error("overwritten")
	}
}

// A retransmission while a write of the former number is in flight is refused, because the old
// write could land after the acknowledgement.
func TestWriteUnderWay(t *testing.T) {
	r := newRig(t)
	r.receive(r.frame(0, 1, 0, 100))
	r.walk() // the move is not answered yet
	r.receive(r.frame(0, 2, 0, 100))
	if a := r.answers(); !slices.Equal(a, []mailbox.Ack{{Code: device.CodeNoContext, Sequence: 2}}) {
		t.Errorf("answers %+v", a)
	}
	r.settle()
	// Each number has one answer: 2 was refused, and the next one is acknowledged.
	if a := r.answers(); !slices.Equal(a, []mailbox.Ack{{Code: device.CodeAck, Sequence: 1}}) {
		t.Errorf("answers %+v", a)
	}
	r.receive(r.frame(0, 3, 0, 100))
	r.settle()
	if a := r.answers(); !slices.Equal(a, []mailbox.Ack{{Code: device.CodeAck, Sequence: 3}}) || len(r.order) != 1 {
		t.Errorf("answers %+v, %d writes", a, len(r.order))
	}
}

// TestMemoryThatDoesNotAnswer: while a write to a slot's memory hangs, blocks for which the slot
// lacks contexts or room are refused as if their page were absent: the hanging block's
// retransmission, a later use of its ID, and further blocks. A slot whose memory responds is not
// affected.
func TestMemoryThatDoesNotAnswer(t *testing.T) {
	r := newRig(t)
	r.receive(r.frame(0, 1, 0, 100))
	r.walk() // the move is not answered yet
	for seq, want := range []device.Code{2: device.CodeNoContext, device.CodeSlaveError, device.CodeSlaveError} {
		if seq < 2 {
			continue
		}
		r.receive(r.frame(0, device.Sequence(seq), 0, 100))
		if a := r.answers(); !slices.Equal(a, []mailbox.Ack{{Code: want, Sequence: device.Sequence(seq)}}) {
			t.Errorf("answers %+v, want code %d", a, want)
		}
		r.now += hangTime + 1
	}
	r.receive(r.frame(0, 5, 8192, 100, func(f *wire.Frame) { f.First = 5 })) // another block
	if a := r.answers(); !slices.Equal(a, []mailbox.Ack{{Code: device.CodeSlaveError, Sequence: 5}}) {
		t.Errorf("answers %+v", a)
	}
	r.settle()
	r.answers()
	r.receive(r.frame(0, 6, 8192, 100, func(f *wire.Frame) { f.First = 5 }))
	r.settle()
	if a := r.answers(); !slices.Equal(a, []mailbox.Ack{{Code: device.CodeAck, Sequence: 6}}) {
		t.Errorf("answers %+v", a)
	}
}

// A write that stays in flight until its ID's numbers have wrapped around does not acknowledge
// the block that then has its first number.
func TestWriteUnderWayForLong(t *testing.T) {
	r := newRig(t)
	r.receive(r.frame(0, 1, 0, 100))
	r.walk() // the move is not answered yet
	for _, seq := range []device.Sequence{8000, 16000, 1} {
		r.receive(r.frame(0, seq, 8192, 100, func(f *wire.Frame) { f.First = seq }))
	}
	r.settle()
	r.answers()
	r.receive(r.frame(0, 2, 8192, 100))
	r.settle()
	if a := r.answers(); !slices.Equal(a, []mailbox.Ack{{Code: device.CodeAck, Sequence: 2}}) || !r.holds(8192, 100) {
		t.Errorf("answers %+v, written %v", a, r.holds(8192, 100))
	}
}

// Contexts are limited in total and per source domain; they end with the ACK, with a newer
// number, or after twice the time-out without a packet.
func TestContexts(t *testing.T) {
	part := func(r *rig, id device.TransactionID, from device.PDID) {
		r.receive(r.frame(id, 1, int(id%16)*1000, 1000, func(f *wire.Frame) { f.SrcPDID, f.Present = from, 1 }))
		r.settle()
	}
	refused := func(r *rig) (n int) {
		for _, a := range r.answers() {
			if a.Code == device.CodeNoContext {
				n++
			}
		}
		return n
	}
	for _, c := range []struct {
		contexts, mine, theirs int // blocks of each domain
		refused, open          int
	}{
		{0, 32, 32, 0, 64}, {0, 33, 32, 1, 64}, {0, 40, 40, 16, 64},
		{1, 2, 0, 1, 1}, {8, 5, 5, 2, 8},
	} {
		r := newRig(t, func(cfg *Config) { cfg.Contexts = c.contexts })
		id := device.TransactionID(0)
		for range c.mine {
			part(r, id, mine)
			id++
		}
		for range c.theirs {
			part(r, id, theirs)
			id++
		}
		if n := refused(r); n != c.refused || r.e.OpenContexts() != c.open {
			t.Errorf("%d contexts, %d and %d blocks: %d refused, %d open; want %d, %d", c.contexts, c.mine, c.theirs, n, r.e.OpenContexts(), c.refused, c.open)
		}
	}

	r := newRig(t, func(cfg *Config) { cfg.Contexts = 1 })
	part(r, 0, mine)
	r.now += 2*timeout - 1
	r.e.Expire(r.now)
	if part(r, 1, mine); refused(r) != 1 {
		t.Error("a context ends before twice the time-out")
	}
	if r.e.Deadline() != 2*timeout {
		t.Errorf("deadline %d", r.e.Deadline())
	}
	r.now++
	r.e.Expire(r.now)
	if r.e.OpenContexts() != 0 {
		t.Error("a context outlives twice the time-out")
	}
	// A NACK keeps it, for later pages of the block; the next number takes it over.
	r.absent[0] = true
	r.receive(r.frame(2, 1, 0, 100))
	r.settle()
	if r.e.OpenContexts() != 1 {
		t.Error("a NACK ends the context")
	}
	delete(r.absent, 0)
	r.receive(r.frame(2, 2, 0, 100))
	r.settle()
	if a := r.answers(); len(a) != 2 || a[1].Code != device.CodeAck || r.e.OpenContexts() != 0 {
		t.Errorf("answers %+v, %d contexts", a, r.e.OpenContexts())
	}
}

// Accesses in flight are limited per slot, and some are reserved for short transfers. Waiting
// writes are limited, too; then a block is refused with code 7.
func TestAccesses(t *testing.T) {
	large := func(f *wire.Frame) { f.Block, f.Remaining = 3, 1<<20 }
	r := newRig(t)
	for id := range device.TransactionID(20) {
		r.receive(r.frame(id, 1, int(id)*4096, 100, large))
	}
	if len(r.walks) != maxAccesses-keptHigh {
		t.Errorf("%d accesses of large transfers begin, want %d", len(r.walks), maxAccesses-keptHigh)
	}
	for id := device.TransactionID(20); id < 30; id++ {
		r.receive(r.frame(id, 1, int(id)*4096, 100))
	}
	if len(r.walks) != maxAccesses || r.e.InFlight(0) != maxAccesses {
		t.Errorf("%d accesses begin, want %d", len(r.walks), maxAccesses)
	}
	r.settle()
	if n := len(r.answers()); n != 30 {
		t.Errorf("%d answers, want 30", n)
	}

	r = newRig(t)
	for id := range device.TransactionID(32) {
		// Pieces with gaps: each run of packets is an access.
		r.receive(r.frame(id, 1, 0, 16384, func(f *wire.Frame) { f.Present = 0x5555_5555 }))
	}
	full := 0
	for _, a := range r.answers() {
		if a.Code != device.CodeBufferFull {
			t.Errorf("%+v", a)
		}
		full++
	}
	// The first takes the 16 accesses in flight; two more reach 32 that wait.
	if full != 29 {
		t.Errorf("%d blocks refused, want 29", full)
	}
	r.settle()
}
