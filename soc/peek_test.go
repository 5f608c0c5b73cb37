package soc

import (
	"testing"

	"github.com/exanet/pfd/device"
)

// peekAll reads every register of the peek windows, in both widths.
func (b *bench) peekAll() (sum uint64) {
	for _, r := range device.Registers() {
		if r.Cap&device.CapsPeek == 0 {
			continue
		}
		for i := range r.Count {
			v := b.n.Load(device.PL, r.At(i), r.Width)
			sum += v
			if r.Halves {
				if halves := b.n.Load(device.PL, r.At(i), 4) | b.n.Load(device.PL, r.At(i)+4, 4)<<32; halves != v {
					b.t.Fatalf("%s[%d]: %#x, by halves %#x", r.Name, i, v, halves)
				}
			}
		}
	}
	return sum
}

// faulted makes n blocks of 4 KiB fault, each on its own page.
func (b *bench) faulted(n int) {
	for i := range n {
		f := data(1+i, device.VA(0x7f0000000000+0x1000*i), 0x1000)
		f.ID, f.First = device.TransactionID(i), f.Seq
		b.step(Event{Kind: FrameArrived, Frame: f})
		for _, a := range b.take(Walk) {
			b.step(Event{Kind: Walked, Access: a.Access.ID, Absent: 1})
		}
		b.out = nil
	}
}

// entryAt reads an entry of the peek window; all zero past the last.
func (b *bench) entryAt(source bool, i int) (w [5]uint32) {
	for k := range w {
		w[k] = uint32(b.n.Load(device.PL, device.PeekEntry(source, i)+4*uint32(k), 4))
	}
	return w
}

// The peek window shows the same entries in the same order as the head, and reading it has no
// side effects, not even on a half-read head, the counters or the causes.
func TestPeekFIFO(t *testing.T) {
	b := newBench(t)
	const entries = 5
	b.faulted(entries)
	b.peekAll()
	var want [entries][5]uint32
	for i := range want {
		if want[i] = b.entryAt(false, i); want[i][0]&want[i][1]&want[i][2]&want[i][3]&1 == 0 || want[i][4] != 0x1000 {
			t.Fatalf("entry %d: %x", i, want[i])
		}
	}
	if w := b.entryAt(false, entries); w != [5]uint32{} {
		t.Errorf("past the last: %x", w)
	}
	if w := b.entryAt(true, 0); w != [5]uint32{} {
		t.Errorf("TXFIFO: %x", w)
	}
	counts, status := b.n.counts, b.n.Load(device.PL, device.PLIRQStatus, 4)
	for i := range want {
		if l := b.n.Load(device.PL, device.PLRXFIFOStatus, 4); l != uint64(entries-i) {
			t.Fatalf("level %d before entry %d", l, i)
		}
		got := [5]uint32{4: uint32(b.n.Load(device.PL, device.PLRXFIFOExt, 4))}
		for w := range 4 {
			b.peekAll() // between two words of one entry
			got[w] = uint32(b.n.Load(device.PL, device.PLRXFIFO+4*uint32(w), 4))
		}
		if got != want[i] {
			t.Errorf("entry %d: the head reads %x, the window %x", i, got, want[i])
		}
		if i+1 < entries && b.entryAt(false, 0) != want[i+1] {
			t.Errorf("after %d pops the window begins with %x, want %x", i+1, b.entryAt(false, 0), want[i+1])
		}
	}
	// Reading only d pops nothing, whatever was peeked at before.
	b.faulted(1)
	b.peekAll()
	b.n.Load(device.PL, device.PLRXFIFO+device.FIFOWordD, 4)
	if b.count(device.FIFOPush) > counts[device.FIFOPush] && b.n.rx.Level() != 1 {
		t.Errorf("level %d after a read of d alone", b.n.rx.Level())
	}
	if b.n.Load(device.PL, device.PLIRQStatus, 4) != status {
		t.Error("the causes have changed")
	}
	if b.count(device.BadAccess) != counts[device.BadAccess] {
		t.Error("reads of the peek windows count as bad accesses")
	}
}

// Writes are ignored and are not bad accesses, because the registers exist.
func TestPeekReadOnly(t *testing.T) {
	b := newBench(t)
	b.faulted(2)
	sum, counts := b.peekAll(), b.n.counts
	for _, r := range device.Registers() {
		if r.Cap&device.CapsPeek == 0 {
			continue
		}
		for i := range r.Count {
			if r.Width == 4 {
				b.write32(device.PL, r.At(i), 1<<32-1)
			} else {
				b.write64(device.PL, r.At(i), ^uint64(0))
			}
		}
	}
	if len(b.take(Transmit)) != 0 || b.n.counts != counts || b.peekAll() != sum {
		t.Error("a write has changed something")
	}
}

// channelAt reads a channel of the peek window.
func (b *bench) channelAt(slot, ch int) device.ChannelState {
	var w [device.PeekChannelWords]uint64
	for k := range w {
		w[k] = b.n.Load(device.PL, device.PeekChannel(slot, ch)+8*uint32(k), 8)
	}
	return device.DecodeChannelState(&w)
}

// The window of a channel shows the progress of its transfer, block by block.
func TestPeekChannel(t *testing.T) {
	b := newBench(t)
	if s := b.channelAt(2, 3); s != (device.ChannelState{}) {
		t.Errorf("never used: %+v", s)
	}
	b.write32(device.PL, device.PLOutstanding, 2)
	d := device.Descriptor{Src: 0x10000, Dst: 0x20000, Size: 5 * device.BlockSize, DstNode: 5, DstPDID: peerPDID}
	b.now = 1e6
	b.step(Event{Kind: DoorbellRung, Slot: 2, Channel: 3, Words: d.Words()})
	want := device.ChannelState{
		PDID: ownPDID, DstPDID: peerPDID, Generation: ownGen, Live: true,
		Blocks: 5, InFlight: 2, Issued: 2 * device.BlockSize, Window: 2, Class: 1,
	}
	s := b.channelAt(2, 3)
	if want.Oldest, want.Newest = s.Oldest, s.Newest; s != want || s.Oldest == 0 {
		t.Errorf("after the doorbell %+v\nwant %+v", s, want)
	}
	if other := b.channelAt(2, 4); other != (device.ChannelState{}) {
		t.Errorf("its neighbour: %+v", other)
	}
	// Its source faults: the block pauses, and the guard retransmits it.
	for _, a := range b.take(Walk) {
		b.step(Event{Kind: Walked, Access: a.Access.ID, Absent: 1})
	}
	if s = b.channelAt(2, 3); s.Paused == 0 || s.Retransmitted != 0 {
		t.Errorf("after a source fault %+v", s)
	}
	b.peekAll()
	b.now = b.n.Deadline()
	for range 4 {
		b.step(Event{Kind: Tick})
		b.now = max(b.now, b.n.Deadline())
	}
	if s = b.channelAt(2, 3); s.Retransmitted == 0 || s.AgeNS == 0 || uint64(s.Retransmitted) != b.count(device.Retransmits) {
		t.Errorf("after the guard %+v, %d retransmissions counted", s, b.count(device.Retransmits))
	}
	// An aborted transfer shows no window, class or age.
	b.step(Event{Kind: DoorbellRung, Slot: 2, Channel: 3, Words: (&device.Descriptor{Abort: true}).Words()})
	if s = b.channelAt(2, 3); s.Live && !s.Failing {
		t.Errorf("after the abort %+v", s)
	}
	if err := b.n.Audit(); err != nil {
		t.Error(err)
	}
	b.write32(device.PL, device.PLCtrl, device.CtrlReset)
	if s = b.channelAt(2, 3); s != (device.ChannelState{}) {
		t.Errorf("after a reset %+v", s)
	}
}
