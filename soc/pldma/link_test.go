package pldma

import (
	"slices"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc/wire"
)

// told returns the link numbers sent since the last call.
func (r *rig) told() (numbers []uint32) {
	for _, f := range r.frames {
		if f.Kind == wire.Link {
			numbers = append(numbers, f.Link)
		}
	}
	r.frames = nil
	return numbers
}

// A node that powers up again is accepted, whatever its successive epochs, and no packet of a
// former life is accepted any more.
func TestNewLifeIsHeard(t *testing.T) {
	for _, lives := range [][2]uint32{{5, 6}, {6, 5}, {1, 1<<31 + 1}, {1<<31 + 2, 1}, {1, 1<<32 - 1}, {0, 1 << 31}} {
		r := newRig(t)
		of := func(life int) func(*wire.Frame) { return func(f *wire.Frame) { f.Epoch = lives[life] } }
		late := r.frame(3, 9, 4096, 1000, of(0))
		late.Link = r.link(peer, lives[0])
		r.receive(r.frame(0, 1, 0, 1000, of(0)))
		r.settle()
		r.receive(r.frame(0, 1, 0, 1000, of(1)))
		r.settle()
		if a := r.answers(); !slices.Equal(a, []mailbox.Ack{{Sequence: 1}, {Sequence: 1}}) {
			t.Errorf("lives %#x: answers %+v", lives, a)
		}
		// Late packets of the former life are refused and have no effect.
		r.receive(late)
		r.settle()
		if slices.ContainsFunc(r.mem[4096:5096], nonzero) {
			t.Errorf("lives %#x: a block of the former one is written", lives)
		}
		clear(r.mem)
		r.receive(r.frame(0, 2, 0, 1000, of(1)))
		r.settle()
		if a := r.answers(); !slices.Equal(a, []mailbox.Ack{{Sequence: 2}}) || slices.ContainsFunc(r.mem, nonzero) {
			t.Errorf("lives %#x: a block that was acknowledged is answered with %+v, or written again", lives, a)
		}
	}
}

// Frames that a node sent before it knew its number have no effect when they arrive late, and are
// answered with the number again.
func TestLateFirstFrames(t *testing.T) {
	r := newRig(t)
	first := func() *wire.Frame { return r.frame(0, 1, 0, 1000) }
	r.e.Receive(0, first())
	r.e.Receive(0, first())
	numbers := r.told()
	if len(numbers) != 2 || numbers[0] == 0 || numbers[0] != numbers[1] || r.e.OpenContexts() != 0 {
		t.Fatalf("numbers %v, %d contexts", numbers, r.e.OpenContexts())
	}
	again := first()
	again.Link = numbers[0]
	r.e.Receive(0, again)
	r.settle()
	if a := r.answers(); len(a) != 1 {
		t.Fatalf("answers %+v", a)
	}
	clear(r.mem)
	r.e.Receive(0, first())
	if n := r.told(); !slices.Equal(n, numbers[:1]) {
		t.Errorf("numbers sent %v, want %v", n, numbers[:1])
	}
	again = first()
	again.Link = numbers[0]
	r.e.Receive(0, again)
	r.settle()
	if len(r.answers()) != 0 || slices.ContainsFunc(r.mem, nonzero) {
		t.Error("the block is written again")
	}
}

// The sender repeats a block that was sent without the number, and only that.
func TestSenderLearnsItsNumber(t *testing.T) {
	r := newRig(t)
	r.e.Send(block(4, 1, 1, 0, 1000))
	r.settle()
	sent := r.frames[0]
	if sent.Link != 0 {
		t.Fatalf("unexpected number %d", sent.Link)
	}
	r.frames = nil
	for _, c := range []struct {
		name   string
		change func(*wire.Frame)
		again  bool
	}{
		{"of another life", func(f *wire.Frame) { f.Epoch++ }, false},
		{"of an invalid ID", func(f *wire.Frame) { f.ID = 1024 }, false},
		{"of a former number", func(f *wire.Frame) { f.Seq-- }, false},
		{"of another node", func(f *wire.Frame) { f.SrcNode++ }, false},
		{"of the block", func(*wire.Frame) {}, true},
	} {
		f := &wire.Frame{Header: wire.Header{Kind: wire.Link, Epoch: sent.Epoch, Link: 77, SrcNode: peer, DstNode: own, ID: 4, Seq: 1}}
		c.change(f)
		r.e.Linked(f)
		if again := len(r.frames) == 1 && r.frames[0].Link == 77 && r.frames[0].Seq == 1; again != c.again {
			t.Errorf("a number %s: %d frames", c.name, len(r.frames))
		}
		r.frames = nil
	}
	r.e.Send(block(5, 1, 1, 0, 1000))
	r.settle()
	if len(r.frames) != 1 || r.frames[0].Link != 77 {
		t.Error("the next block goes without it")
	}
}

// The first fault of a node's new life is pushed even if it equals the last one of its former
// life; duplicates from others are still detected.
func TestFaultsOfANewLife(t *testing.T) {
	r := newRig(t)
	r.absent[0], r.absent[1] = true, true
	other := func(f *wire.Frame) { f.SrcNode = peer + 1 }
	r.receive(r.frame(0, 1, 0, 100))
	r.receive(r.frame(0, 1, 4096, 100, other))
	r.settle()
	r.receive(r.frame(0, 1, 0, 100, func(f *wire.Frame) { f.Epoch = epoch + 1 }))
	r.settle()
	if n := r.rx.Level(); n != 3 {
		t.Errorf("%d entries, want 3", n)
	}
	for _, a := range r.answers() {
		if a.Code != device.CodeSlaveError {
			t.Errorf("%+v", a)
		}
	}
}
