package r5

import (
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc/wire"
)

func toOther(d *device.Descriptor) { d.DstNode = own }

// A full link stops the blocks to its nodes and no others, retransmissions too; when the link is ready the
// transfers go on, each once.
func TestLinkReady(t *testing.T) {
	r := newRig(t)
	r.fw.SetOutstanding(2)
	r.fw.LinkReady(target, wire.ReadyAll) // nothing was full
	r.start(0, 0, dst, 4*device.BlockSize)
	sent := r.blocks()
	r.fw.LinkReady(target, wire.NotReady)
	r.ack(sent[0])
	r.start(0, 1, dst, 64)
	r.start(0, 2, dst, 64, toOther)
	if b := r.one(); b.DstNode != own {
		t.Errorf("a block to node %d, whose link is full", b.DstNode)
	}
	r.sent(sent[1])
	r.expire()
	r.none()
	r.start(0, 1, dst, 64, func(d *device.Descriptor) { d.Abort = true })
	r.none()
	if d := r.done[1]; d.Done != device.DoneFailed || d.Status != device.StatusAborted {
		t.Errorf("an aborted transfer that waits for a link: done %d, status %d", d.Done, d.Status)
	}
	r.fw.LinkReady(target, wire.ReadyAll)
	for _, b := range r.blocks() {
		switch {
		case b.Block == 1 && b.Seq != sent[1].Seq:
			sent[1] = b
		case b.Block != 2:
			t.Errorf("block %d goes on", b.Block)
		}
	}
	// A reset forgets what waits, and not that the link is full.
	r.fw.LinkReady(target, wire.NotReady)
	r.ack(sent[1])
	r.none()
	r.fw.Reset()
	r.fw.SetDomain(0, pdid, gen, true)
	r.start(0, 3, dst, 64)
	r.none()
	r.fw.LinkReady(target, wire.ReadyAll)
	r.one()
}

// A link whose queue of long blocks is full takes short ones, also those that are due again; the others go on when
// it takes them.
func TestReadyShort(t *testing.T) {
	r := newRig(t)
	r.fw.SetOutstanding(1)
	r.fw.LinkReady(target, wire.NotReady)
	r.start(0, 0, dst, 4*device.BlockSize)
	r.start(0, 1, dst, 64)
	r.none()
	r.fw.LinkReady(target, wire.ReadyShort)
	short := r.one()
	if short.Length != 64 {
		t.Fatalf("%+v: a link that takes short blocks", short)
	}
	r.fw.LinkReady(target, wire.ReadyAll)
	long := r.one()
	for _, b := range []wire.Block{long, short} {
		r.sent(b)
	}
	r.fw.LinkReady(target, wire.NotReady)
	r.expire()
	r.none()
	r.fw.LinkReady(target, wire.ReadyShort)
	if again := r.one(); again.ID != short.ID {
		t.Errorf("block %d is sent again, want %d", again.ID, short.ID)
	}
	r.fw.LinkReady(target, wire.NotReady)
	r.fw.LinkReady(target, wire.ReadyAll)
	if again := r.one(); again.ID != long.ID {
		t.Errorf("block %d is sent again, want %d", again.ID, long.ID)
	}
}

// However long a link is down, and however often, no transfer over it fails. Blocks that are due meanwhile are
// retransmitted once, as soon as the link is ready, but not those that are acknowledged meanwhile.
func TestLinkDown(t *testing.T) {
	r := newRig(t)
	for ch := range 4 {
		r.start(0, ch, dst, 64)
	}
	sent := r.blocks()
	for round := range 3 * maxAttempts {
		for _, b := range sent {
			r.sent(b)
		}
		r.reply(sent[1], device.CodeSlaveError) // paused: its guard runs
		r.reply(sent[2], device.CodeBufferFull)
		for range backoffFromRow {
			for _, b := range r.blocks() { // at once: refused again, and at last backing off
				sent[2] = b
				r.sent(b)
				r.reply(b, device.CodeBufferFull)
			}
		}
		r.fw.LinkReady(target, wire.NotReady)
		r.rapf(sent[3])
		r.none()
		for r.fw.Deadline() < 1<<60 {
			r.expire()
			r.none()
		}
		r.fw.LinkReady(target, wire.NotReady)
		r.none()
		r.fw.LinkReady(target, wire.ReadyAll)
		r.fw.LinkReady(target, wire.ReadyAll)
		again := r.blocks()
		if len(again) != len(sent) {
			t.Fatalf("round %d: %d blocks are retransmitted, want %d", round, len(again), len(sent))
		}
		for _, b := range again {
			for i := range sent {
				if sent[i].ID == b.ID {
					sent[i] = b
				}
			}
		}
	}
	for _, b := range sent {
		r.sent(b)
	}
	r.fw.LinkReady(target, wire.NotReady)
	for r.fw.Deadline() < 1<<60 {
		r.expire()
	}
	r.reply(sent[0], device.CodeAck) // late
	r.fw.LinkReady(target, wire.ReadyAll)
	for _, b := range r.blocks() {
		if b.ID == sent[0].ID {
			t.Error("a block that was acknowledged while it waited is sent again")
		}
		r.ack(b)
	}
	r.none()
	for ch := range uint8(4) {
		if r.done[ch].Done != device.DoneCompleted {
			t.Errorf("channel %d: done %d, status %d", ch, r.done[ch].Done, r.done[ch].Status)
		}
	}
}

// A block to another host has a longer time-out than one to its own; over a new link all blocks that wait
// for an answer are sent again at once, paused ones too, but not those that wait for their source.
func TestLinkUp(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Base, c.Nodes = own, 1 })
	r.start(0, 0, dst, 64, toOther)
	near := r.one()
	r.sent(near)
	if d := r.expire(); d != 10*ms {
		t.Errorf("a block to the own node times out after %d ns", d)
	}
	r.ack(r.one())
	var sent []wire.Block
	for ch := range 3 {
		r.start(0, ch, dst, 64)
		sent = append(sent, r.one())
	}
	r.sent(sent[0])
	r.sent(sent[1])
	r.reply(sent[1], device.CodeSlaveError)
	r.fw.SourceFault(r.now, sent[2].ID)
	r.fw.LinkUp(target)
	again := r.blocks()
	if len(again) != 2 || again[0].ID == sent[2].ID || again[1].ID == sent[2].ID {
		t.Fatalf("%d blocks are sent again, want the first two", len(again))
	}
	for _, b := range again {
		r.ack(b)
	}
	r.none()
	r.start(0, 4, dst, 64)
	r.sent(r.one())
	r.fw.RAPF(r.now, own, mailbox.RAPF{Generation: gen, PDID: pdid, Claimed: pdid, Transaction: sent[2].ID, Sequence: sent[2].Seq})
	r.ack(r.one())
	r.none()
	if d := r.expire(); d != 10*ms { // measured by the refusal
		t.Errorf("a block to another host times out after %d ns", d)
	}
	r.ack(r.one())
}

// An acknowledgement of any number under which a block was sent to another host ends it, but not one of
// before or after, nor a refusal. Between nodes of one pfd only the present number counts (001 §4.4).
func TestFormerNumbers(t *testing.T) {
	for _, c := range []struct {
		name  string
		near  bool
		seq   device.Sequence // more than the first
		code  device.Code
		stale uint64
	}{
		{name: "first"}, {name: "second", seq: 1}, {name: "present", seq: 2},
		{name: "of a former use", seq: device.SequenceMask, stale: 1}, {name: "of later", seq: 3, stale: 1},
		{name: "refusal", code: device.CodeDecode, stale: 1}, {name: "near", near: true, stale: 1},
	} {
		r := newRig(t, func(cfg *Config) {
			if cfg.Base, cfg.Nodes = own, 1; c.near {
				cfg.Nodes = 2
			}
		})
		r.start(0, 0, dst, 64)
		r.ack(r.one()) // a former use
		r.start(0, 0, dst, 64, func(d *device.Descriptor) { d.Done = device.DoneInitialized })
		b := r.one()
		for range 2 {
			r.sent(b)
			r.expire()
			b = r.one()
		}
		r.sent(b)
		if b.Seq != b.First+2 {
			t.Fatalf("%s: sent as %d, first as %d", c.name, b.Seq, b.First)
		}
		done := uint32(device.DoneCompleted)
		if c.stale > 0 {
			done = device.DoneOngoing
		}
		answer := b
		answer.Seq = (b.First + c.seq) & device.SequenceMask
		r.reply(answer, c.code)
		r.none()
		if r.counts[device.AckStale] != c.stale || r.done[0].Done != done {
			t.Errorf("%s: %d stale, done %d", c.name, r.counts[device.AckStale], r.done[0].Done)
		}
	}
}

// Transfers to a node that is gone end with status 10, those that wait for its link too, and later ones
// until it is back; one to a node that drains is not begun. Transfers to others go on.
func TestGone(t *testing.T) {
	r := newRig(t)
	r.fw.SetOutstanding(1)
	r.start(0, 0, dst, 2*device.BlockSize)
	r.start(0, 1, dst, 2*device.BlockSize)
	sent := r.blocks()
	r.sent(sent[0])
	r.expire() // retransmitted: channel 0 is being sent, too
	r.blocks()
	r.fw.LinkReady(target, wire.NotReady)
	r.start(0, 2, dst, 64)
	r.start(0, 3, dst, 64, toOther)
	other := r.one()
	if n := r.fw.Underway(target, target); n != 3 {
		t.Errorf("%d transfers to the node, want 3", n)
	}
	r.fw.Gone(target)
	r.fw.LinkReady(target, wire.NotReady) // its connection, last
	r.start(0, 4, dst, 64)
	r.none()
	for _, b := range sent {
		r.sent(b)
	}
	r.none()
	for _, ch := range []uint8{0, 1, 2, 4} {
		if d := r.done[ch]; d.Done != device.DoneFailed || d.Status != device.StatusGone {
			t.Errorf("channel %d: done %d, status %d", ch, d.Done, d.Status)
		}
	}
	r.ack(other)
	r.none()
	if r.done[3].Done != device.DoneCompleted || r.fw.Underway(target, target) != 0 {
		t.Errorf("channel 3: done %d; %d transfers to the node", r.done[3].Done, r.fw.Underway(target, target))
	}
	r.fw.LinkReady(target, wire.ReadyAll)
	r.start(0, 0, dst, 64)
	first := r.one()
	r.fw.Drain(target, true)
	r.start(0, 1, dst, 64)
	r.none()
	r.ack(first)
	r.none()
	if r.done[0].Done != device.DoneCompleted || r.done[1].Status != device.StatusGone {
		t.Errorf("channels 0 and 1: %+v %+v", r.done[0], r.done[1])
	}
	r.fw.Drain(target, false)
	r.start(0, 1, dst, 64)
	r.one()
}

// With path feedback the window of a node grows by round trips as short as the shortest, and shrinks by
// longer ones to less than a block: then there are pauses between blocks. Short blocks do not wait.
func TestPathFeedback(t *testing.T) {
	r := newRig(t, func(c *Config) { c.PathFeedback = true })
	r.start(0, 0, dst, 1<<30)
	pauses := 0
	trip := func(ns int64) (blocks int) {
		t.Helper()
		list := r.blocks()
		for ; len(list) == 0; list = r.blocks() {
			pauses++
			r.start(0, 1, dst, 64)
			r.ack(r.one())
			r.expire()
		}
		for _, b := range list {
			r.sent(b)
		}
		r.now += ns
		r.fw.Clock(r.now)
		for _, b := range list {
			r.reply(b, device.CodeAck)
		}
		return len(list)
	}
	trips := 0
	for trip(1000) < 3 {
		if trips++; trips > 4*device.BlockSize/windowStep {
			t.Fatal("the window does not grow")
		}
	}
	if pauses > 0 {
		t.Errorf("%d pauses while the window grew", pauses)
	}
	for range 20 {
		trip(3000)
	}
	if n, window := trip(3000), r.fw.paths[target].window; n != 1 || pauses == 0 || window >= device.BlockSize {
		t.Errorf("%d blocks at a time, %d pauses, a window of %d bytes after long round trips", n, pauses, window)
	}
}
