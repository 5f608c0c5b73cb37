package pldma

import (
	"bytes"
	"slices"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/wire"
)

// block returns a block of n bytes from offset at of the memory, to be sent.
func block(id device.TransactionID, seq, first device.Sequence, at, n int) *wire.Block {
	return &wire.Block{
		Header: wire.Header{
			Kind: wire.Data, SrcNode: own, SrcPDID: mine, DstNode: peer, DstPDID: theirs,
			ID: id, Seq: seq, First: first, Length: uint16(n), VA: 0x1000, Remaining: uint32(n), Last: true,
		},
		Source: base + device.VA(at),
	}
}

// A block is read once for all its retransmissions: the bytes are held until Forget.
func TestReplay(t *testing.T) {
	r := newRig(t)
	for i := range r.mem {
		r.mem[i] = fill(i)
	}
	before := bytes.Clone(r.mem[100:1100])
	reads := func() int { return len(r.order) }
	send := func(seq, first device.Sequence) *wire.Frame {
		t.Helper()
		r.frames = nil
		r.e.Send(block(4, seq, first, 100, 1000))
		r.settle()
		if len(r.frames) != 1 {
			t.Fatalf("%d frames", len(r.frames))
		}
		f := r.frames[0]
		if f.Seq != seq || f.First != first || f.Epoch != 99 || f.Present != 0xf || f.ID != 4 || f.VA != 0x1000 {
			t.Errorf("frame %+v", f.Header)
		}
		return f
	}
	one := send(1, 1)
	copy(r.mem[100:], "the application writes while the transfer goes on")
	two := send(2, 1)
	if reads() != 1 || !bytes.Equal(two.Payload, before) {
		t.Errorf("%d reads; a retransmission has other bytes: %v", reads(), !bytes.Equal(two.Payload, before))
	}
	r.e.Forget(4)
	r.e.Forget(4) // a second call has no effect
	// Frames in flight keep their bytes.
	if !bytes.Equal(one.Payload, before) || !bytes.Equal(two.Payload, before) {
		t.Error("bytes on their way have changed")
	}
	if three := send(3, 1); reads() != 2 || bytes.Equal(three.Payload, before) {
		t.Errorf("%d reads: the bytes were released", reads())
	}
	// The next use of the ID shares nothing with the former one.
	if send(4, 4); reads() != 3 {
		t.Errorf("%d reads: the id has another block", reads())
	}
	if want := []device.TransactionID{4, 4, 4, 4}; !slices.Equal(r.sent, want) {
		t.Errorf("sent %v", r.sent)
	}
}

// An unreadable source: nothing is sent, and each page is reported once.
func TestSourceFault(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  func(*Config)
		entries int
	}{{"with a TXFIFO", func(*Config) {}, 2}, {"without", func(c *Config) { c.TX = nil }, 0}} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, c.change)
			r.absent[1], r.absent[3] = true, true
			r.e.Send(block(4, 9, 8, 100, 16000))
			r.settle()
			if len(r.frames) != 0 || len(r.sent) != 0 || !slices.Equal(r.faults, []device.TransactionID{4}) {
				t.Errorf("%d frames, sent %v, faults %v", len(r.frames), r.sent, r.faults)
			}
			if r.tx.Level() != c.entries || r.rx.Level() != 0 {
				t.Fatalf("%d entries in TXFIFO, %d in RXFIFO", r.tx.Level(), r.rx.Level())
			}
			for i, page := range []int{1, 3}[:c.entries] {
				e, ext, _ := r.tx.Peek(i)
				want := device.FaultEntry{Source: own, Transaction: 4, Sequence: 9, PDID: mine, Page: uint64(base)>>12 + uint64(page), Response: 2}
				// The remaining bytes of the transfer from the page on.
				if left := uint32(16000 - (page*4096 - 100)); e != want || ext != left {
					t.Errorf("entry %+v, %d left; want %+v, %d", e, ext, want, left)
				}
			}
			// The page becomes resident: the block is sent.
			r.absent = map[int]bool{}
			r.e.Send(block(4, 10, 8, 100, 16000))
			r.settle()
			if len(r.frames) != 1 || len(r.frames[0].Payload) != 16000 {
				t.Errorf("%d frames", len(r.frames))
			}
		})
	}
}

// The words alone are a block without bytes: nothing is read.
func TestWordsAlone(t *testing.T) {
	r := newRig(t)
	b := block(4, 1, 1, 0, 0)
	b.HasWords, b.Completion = true, wire.Completion{VA: 0x2000, First: 1, Last: 2}
	r.e.Send(b)
	if len(r.walks) != 0 || len(r.frames) != 1 || len(r.sent) != 1 {
		t.Fatalf("%d walks, %d frames", len(r.walks), len(r.frames))
	}
	if f := r.frames[0]; f.Kind != wire.Words || !f.HasWords || f.Completion != b.Completion {
		t.Errorf("%+v", f)
	}
}

// A reset drops everything: accesses in flight end without an effect.
func TestReset(t *testing.T) {
	r := newRig(t)
	r.e.Send(block(4, 1, 1, 0, 1000))
	r.receive(r.frame(0, 1, 8192, 1000))
	r.walk()
	r.e.Reset(100)
	r.settle()
	if len(r.frames) != 0 || len(r.sent) != 0 || len(r.faults) != 0 || r.e.OpenContexts() != 0 || r.e.InFlight(0) != 0 {
		t.Errorf("%d frames, sent %v, faults %v, %d contexts, %d accesses", len(r.frames), r.sent, r.faults, r.e.OpenContexts(), r.e.InFlight(0))
	}
	if r.e.Epoch() != 100 {
		t.Errorf("epoch %d", r.e.Epoch())
	}
}

// Accesses waiting at a reset release their buffers.
func TestResetKeepsNoBuffers(t *testing.T) {
	r := newRig(t)
	addresses := map[*byte]bool{}
	for range 200 {
		for id := range device.TransactionID(20) {
			r.e.Send(block(id, 1, 1, 0, 1000))
			r.receive(r.frame(id, 1, 8192, 1000))
		}
		for _, a := range r.e.accesses {
			if a.kind == readBlock {
				addresses[&a.Data[0]] = true
			}
		}
		r.e.Reset(100)
		r.e.domains[0] = Domain{PDID: mine, Generation: generation, Enabled: true, Peers: [device.PeersPerSlot]device.PDID{theirs}}
		r.settle()
		r.frames = nil
	}
	if len(addresses) > 64 {
		t.Errorf("%d buffers for 40 blocks at a time", len(addresses))
	}
}

func opens(r *rig, x OpenRead) bool {
	open, _ := r.e.OpenRead(0, x)
	return open
}

// Data of a read is accepted only while that read is open, from the requested source and to the
// requested destination; its words close it.
func TestOpenReads(t *testing.T) {
	read := OpenRead{Interface: 20, Tag: 3, Node: peer, PDID: theirs, Dst: base, Size: 1000, Notify: base + 8192, First: 1, Last: 2}
	w := func(f *wire.Frame) {
		f.Read, f.HasWords, f.Completion = true, true, wire.Completion{VA: base + 8192, First: 1, Last: 2}
	}
	for _, c := range []struct {
		name   string
		change func(*wire.Frame)
		code   device.Code
	}{
		{"as requested", w, device.CodeAck},
		{"of another node", func(f *wire.Frame) { w(f); f.SrcNode = 9 }, device.CodeDomain},
		{"of another domain", func(f *wire.Frame) { w(f); f.SrcPDID = 55 }, device.CodeDomain},
		{"behind its end", func(f *wire.Frame) { w(f); f.VA++ }, device.CodeDomain},
		{"before its beginning", func(f *wire.Frame) { w(f); f.VA -= 4096 }, device.CodeDomain},
		{"other words", func(f *wire.Frame) { w(f); f.Completion.Last++ }, device.CodeDomain},
		{"words elsewhere", func(f *wire.Frame) { w(f); f.Completion.VA += 16 }, device.CodeDomain},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			for range 2 { // requested twice
				if open, served := r.e.OpenRead(0, read); !open || served {
					t.Fatal("a read cannot be opened")
				}
			}
			r.receive(r.frame(0, 1, 0, 1000, c.change))
			r.settle()
			if a := r.answers(); len(a) != 1 || a[0].Code != c.code {
				t.Errorf("answers %+v, want code %d", a, c.code)
			}
			if c.code != device.CodeAck {
				return
			}
			// It has ended: the buffer belongs to the application again.
			copy(r.mem, "mine")
			r.receive(r.frame(1, 1, 0, 1000, c.change))
			r.settle()
			if a := r.answers(); len(a) != 1 || a[0].Code != device.CodeDomain || string(r.mem[:4]) != "mine" {
				t.Errorf("after its end: %+v, %q", a, r.mem[:4])
			}
			// A late request opens nothing, and its tag is free.
			if open, served := r.e.OpenRead(0, read); !open || !served {
				t.Error("a request for a completed read opens it again")
			}
			next := read
			next.First, next.Last = 3, 4
			if open, served := r.e.OpenRead(0, next); !open || served {
				t.Error("the next read of the same tag is refused")
			}
		})
	}
	t.Run("limits", func(t *testing.T) {
		r := newRig(t)
		for tag := range uint16(OpenReads) {
			if x := read; !func() bool { x.Tag = tag; return opens(r, x) }() {
				t.Fatalf("read %d is refused", tag)
			}
		}
		more, other := read, read
		more.Tag, other.Size = OpenReads, 999
		if opens(r, more) || opens(r, other) {
			t.Error("one read too many, or another read with an open tag, is accepted")
		}
		if !r.e.CloseRead(0, 20, 5, peer) || !opens(r, more) {
			t.Error("no place although one was closed")
		}
	})
	t.Run("served to the domain before", func(t *testing.T) {
		r := newRig(t)
		if !opens(r, read) {
			t.Fatal("a read cannot be opened")
		}
		r.receive(r.frame(0, 1, 0, 1000, w))
		r.settle()
		r.e.SetDomain(0, mine, generation, false)
		r.e.SetDomain(0, mine, generation+1, true)
		// A process that runs the same program makes the same first request as the one before it.
		if open, served := r.e.OpenRead(0, read); !open || served {
			t.Errorf("the next domain's read: open %v, served %v", open, served)
		}
	})
	t.Run("not closed while it is written", func(t *testing.T) {
		r := newRig(t)
		r.e.OpenRead(0, read)
		r.receive(r.frame(0, 1, 0, 500, func(f *wire.Frame) { f.Read, f.Remaining, f.Last = true, 1000, false }))
		if r.e.CloseRead(0, 20, 3, peer) {
			t.Error("closed while its data is being written")
		}
		r.settle()
		if r.e.CloseRead(0, 20, 3, peer+1) {
			t.Error("closed by the answer of another node")
		}
		if !r.e.CloseRead(0, 20, 3, peer) {
			t.Error("cannot be closed")
		}
	})
	t.Run("not closed while its words are written", func(t *testing.T) {
		r := newRig(t)
		r.e.OpenRead(0, read)
		r.receive(r.frame(0, 1, 0, 1000, w))
		for len(r.moves) == 0 || r.moves[0].kind == writeData {
			if len(r.moves) > 0 {
				r.move()
			} else {
				r.walk()
			}
		}
		// A failure in the meantime, of the block's acknowledgement for instance: the process would
		// use the words for its next read, and these would land later.
		if r.e.CloseRead(0, 20, 3, peer) {
			t.Error("closed while its completion words are being written")
		}
		r.settle()
		if open, served := r.e.OpenRead(0, read); !open || !served {
			t.Errorf("after its words: open %v, served %v", open, served)
		}
	})
}
