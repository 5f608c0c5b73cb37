package r5

import (
	"testing"

	"github.com/exanet/pfd/device"
)

func toOther(d *device.Descriptor) { d.DstNode = own }

// A full link stops the blocks to its nodes and no others; retransmissions go on, and when the link is
// ready the transfers do, each once.
func TestLinkReady(t *testing.T) {
	r := newRig(t)
	r.fw.SetOutstanding(2)
	r.fw.LinkReady(target, true) // nothing was full
	r.start(0, 0, dst, 4*device.BlockSize)
	sent := r.blocks()
	r.fw.LinkReady(target, false)
	r.ack(sent[0])
	r.start(0, 1, dst, 64)
	r.start(0, 2, dst, 64, toOther)
	if b := r.one(); b.DstNode != own {
		t.Errorf("a block to node %d, whose link is full", b.DstNode)
	}
	r.sent(sent[1])
	r.expire()
	if b := r.one(); b.Block != 1 || b.Seq == sent[1].Seq {
		t.Errorf("retransmitted block %d", b.Block)
	} else {
		sent[1] = b
	}
	r.start(0, 1, dst, 64, func(d *device.Descriptor) { d.Abort = true })
	r.none()
	if d := r.done[1]; d.Done != device.DoneFailed || d.Status != device.StatusAborted {
		t.Errorf("an aborted transfer that waits for a link: done %d, status %d", d.Done, d.Status)
	}
	r.fw.LinkReady(target, true)
	if b := r.one(); b.Block != 2 {
		t.Errorf("block %d goes on", b.Block)
	}
	// A reset forgets what waits, and not that the link is full.
	r.fw.LinkReady(target, false)
	r.ack(sent[1])
	r.none()
	r.fw.Reset()
	r.fw.SetDomain(0, pdid, gen, true)
	r.start(0, 3, dst, 64)
	r.none()
	r.fw.LinkReady(target, true)
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
