package r5

import (
	"testing"

	"github.com/exanet/pfd/device"
)

// An invalid descriptor is rejected at the doorbell (messages.md 1).
func TestDescriptors(t *testing.T) {
	const top = device.VA(1) << 48
	for _, c := range []struct {
		name   string
		change func(*device.Descriptor)
		ok     bool
	}{
		{"good", func(*device.Descriptor) {}, true},
		{"up to the last byte", func(d *device.Descriptor) { d.Dst = top - 10 }, true},
		{"words at the end", func(d *device.Descriptor) { d.Notify = top - 16 }, true},
		{"no bytes", func(d *device.Descriptor) { d.Size = 0 }, false},
		{"source past the width", func(d *device.Descriptor) { d.Src = top - 9 }, false},
		{"destination past the width", func(d *device.Descriptor) { d.Dst = top - 9 }, false},
		{"sum that overflows", func(d *device.Descriptor) { d.Dst = ^device.VA(0) - 4 }, false},
		{"words past the width", func(d *device.Descriptor) { d.Notify = top }, false},
		{"words misaligned", func(d *device.Descriptor) { d.Notify = 0x1008 }, false},
		{"no route", func(d *device.Descriptor) { d.DstNode = 77 }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, func(cfg *Config) { cfg.Route = func(n device.NodeID) bool { return n == target } })
			r.start(0, 0, dst, 10, c.change)
			b := r.blocks()
			if c.ok != (len(b) == 1) {
				t.Errorf("%d blocks", len(b))
			}
			if !c.ok && (r.done[0].Done != device.DoneFailed || r.done[0].Status != 2 || r.ends != 1) {
				t.Errorf("done %d, status %d, %d ends", r.done[0].Done, r.done[0].Status, r.ends)
			}
		})
	}
}

// Which doorbells start a transfer.
func TestDoorbells(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct{ slot, ch int }{{1, 0}, {0, 32}, {0, 63}, {0, -1}, {-1, 0}, {16, 0}} {
		r.start(c.slot, c.ch, dst, 10)
		r.none()
	}
	if r.counts[device.DoorbellDenied] != 6 {
		t.Errorf("%d denied", r.counts[device.DoorbellDenied])
	}
	for _, done := range []uint32{device.DoneReset, device.DoneCompleted, device.DoneOngoing, device.DoneFailed} {
		r.start(0, 0, dst, 10, func(d *device.Descriptor) { d.Done = done })
		r.none()
	}
	// Announced twice, it starts once.
	r.start(0, 0, dst, 10)
	r.start(0, 0, dst+100, 20)
	b := r.one()
	if b.Length != 10 {
		t.Errorf("%d bytes", b.Length)
	}
	r.start(0, 0, dst, 10)
	r.none()
	r.ack(b)
	r.none()
	if r.ends != 1 {
		t.Errorf("%d ends", r.ends)
	}
}

// Completion words go with the only block of a transfer, with the last block if all others are
// acknowledged, or separately after that.
func TestCompletionWords(t *testing.T) {
	r := newRig(t)
	r.start(0, 0, dst, 16384, words)
	b := r.one()
	if !b.HasWords || b.Completion.VA != dst+1<<30 || b.Completion.First != 1 || b.Completion.Last != 2 {
		t.Errorf("one block: %+v", b)
	}
	r.ack(b)
	r.none()

	// Window 2: the last of three is issued while one of the others is unacknowledged.
	r = newRig(t)
	r.fw.SetOutstanding(2)
	r.start(0, 0, dst, 3*16384, words)
	two := r.blocks()
	r.ack(two[0])
	last := r.one()
	if two[0].HasWords || two[1].HasWords || last.HasWords || !last.Last {
		t.Error("words before all others are acknowledged")
	}
	r.ack(last)
	r.none()
	r.ack(two[1])
	alone := r.one()
	if !alone.HasWords || alone.Length != 0 || alone.VA != alone.Completion.VA || alone.Seq == last.Seq && alone.ID == last.ID {
		t.Errorf("words alone: %+v", alone)
	}
	if r.ends != 0 {
		t.Error("done before the words are acknowledged")
	}
	// Paused and retransmitted like any other block.
	r.sent(alone)
	r.reply(alone, device.CodeSlaveError)
	r.none()
	r.rapf(alone)
	if alone = r.one(); !alone.HasWords || alone.Length != 0 {
		t.Errorf("retransmitted words: %+v", alone)
	}
	r.ack(alone)
	r.none()
	if r.done[0].Done != device.DoneCompleted {
		t.Errorf("done %d", r.done[0].Done)
	}

	// Window 1: the last is sent when the others are acknowledged, and carries the words.
	r = newRig(t)
	r.fw.SetOutstanding(1)
	r.start(0, 0, dst, 2*16384, words)
	r.ack(r.one())
	b = r.one()
	if !b.HasWords || b.Length != 16384 {
		t.Errorf("last of two: %+v", b)
	}
	// Its retransmission carries them, too.
	r.sent(b)
	r.expire()
	if b = r.one(); !b.HasWords {
		t.Error("the words are not retransmitted")
	}
	r.ack(b)
	r.none()
	if r.done[0].Done != device.DoneCompleted {
		t.Errorf("done %d", r.done[0].Done)
	}
}

// A failed transfer ends when none of its source is being read any more; then its IDs are free.
func TestEndWaitsForTheSource(t *testing.T) {
	for _, c := range []struct {
		name   string
		status uint8
		end    func(*rig, device.TransactionID)
	}{
		{"aborted", device.StatusAborted, func(r *rig, _ device.TransactionID) {
			r.start(0, 0, dst, 0, func(d *device.Descriptor) { d.Abort = true })
		}},
		{"domain gone", device.StatusGone, func(r *rig, _ device.TransactionID) { r.fw.SetDomain(0, pdid, gen, false) }},
		{"domain of another", device.StatusGone, func(r *rig, _ device.TransactionID) { r.fw.SetDomain(0, 99, gen, true) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.start(0, 0, dst, 3*16384)
			b := r.blocks()
			r.sent(b[0])
			r.sent(b[1])
			c.end(r, b[0].ID)
			r.none()
			if r.ends != 0 || len(r.fw.Transactions()) != 1 {
				t.Errorf("%d ends, %d blocks remain while one is being read", r.ends, len(r.fw.Transactions()))
			}
			if c.status == device.StatusGone {
				r.fw.SourceFault(r.now, b[2].ID)
			} else {
				r.sent(b[2])
			}
			r.none()
			if r.ends != 1 || r.done[0].Status != c.status || len(r.fw.Transactions()) != 0 || r.fw.Deadline() < 1<<62 {
				t.Errorf("%d ends, status %d, %d blocks left", r.ends, r.done[0].Status, len(r.fw.Transactions()))
			}
			r.reply(b[0], device.CodeAck) // late
			r.none()
			if r.ends != 1 || r.counts[device.AckStale] != 1 {
				t.Error("a late acknowledgement counts")
			}
		})
	}
}

// Reset drops everything and restarts no sequence number.
func TestReset(t *testing.T) {
	r := newRig(t, func(c *Config) { c.IDs = 1 })
	r.start(0, 0, dst, 10)
	b := r.one()
	r.fw.Reset()
	r.fw.SetDomain(0, pdid, gen, true)
	r.none()
	r.start(0, 0, dst, 10)
	if again := r.one(); again.ID != b.ID || !again.Seq.Newer(b.Seq) {
		t.Errorf("sequence number %d after %d", again.Seq, b.Seq)
	}
}

// An abort before the transfer has begun ends it, and a second doorbell for it has no effect; an
// abort without a transfer has no effect.
func TestAbortBeforeTheStart(t *testing.T) {
	r := newRig(t)
	early := func(d *device.Descriptor) { d.Abort = true }
	r.start(0, 3, dst, 100, early)
	r.none()
	if r.ends != 1 || r.done[3].Done != device.DoneFailed || r.done[3].Status != device.StatusAborted {
		t.Errorf("%d ends, done %d, status %d", r.ends, r.done[3].Done, r.done[3].Status)
	}
	for _, done := range []uint32{device.DoneFailed, device.DoneCompleted, device.DoneReset} {
		r.start(0, 3, dst, 100, early, func(d *device.Descriptor) { d.Done = done })
		r.none()
	}
	if r.ends != 1 {
		t.Errorf("%d ends after aborts of no transfer", r.ends)
	}
	r.start(0, 3, dst, 100)
	r.ack(r.one())
	r.none()
	if r.ends != 2 || r.done[3].Done != device.DoneCompleted {
		t.Errorf("the next transfer: %d ends, done %d", r.ends, r.done[3].Done)
	}
}

// Bytes count once, when their block is acknowledged, not when the transfer ends; if the transfer
// then fails, they stay counted. Completion words are not bytes of the transfer.
func TestArrivedBytes(t *testing.T) {
	r := newRig(t)
	arrived := func(want uint64) {
		t.Helper()
		if s := r.fw.Ended().Sum(); s.Bytes != want {
			t.Errorf("%+v, want %d bytes", s, want)
		}
	}
	r.start(0, 0, dst, 2*16384+5, words)
	b := r.blocks()
	arrived(0)
	r.ack(b[0])
	arrived(16384)
	r.reply(b[0], device.CodeAck) // again: stale
	arrived(16384)
	r.ack(b[1])
	r.ack(b[2])
	r.ack(r.one()) // the words
	r.none()
	arrived(2*16384 + 5)

	r.start(0, 1, dst, 2*16384)
	b = r.blocks()
	r.ack(b[0])
	r.sent(b[1])
	r.reply(b[1], device.CodeDecode)
	r.none()
	arrived(3*16384 + 5)
	if s := r.fw.Ended().Sum(); s.Completed != 1 || s.Failed != 1 {
		t.Errorf("%+v, want one that completed and one that failed", s)
	}
}
