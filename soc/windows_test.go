package soc

import (
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc/wire"
)

// guestPDID is admitted by windows alone.
const guestPDID = 0x77

// windowed returns a node whose slot 2 opens some memory to guestPDID: windows 0, 1, and so on.
func windowed(t *testing.T, windows ...device.MemoryWindow) *bench {
	t.Helper()
	b := newBenchOf(t, Config{ID: 5, VABits: 48, SVA: true, Epoch: 9, Windows: true})
	for i, w := range windows {
		b.open(i, w)
	}
	return b
}

func (b *bench) open(i int, w device.MemoryWindow) {
	b.write32(device.PL, device.PLWinSelect, uint64(device.WinSelect(2, i)))
	b.write64(device.PL, device.PLWinVA, uint64(w.VA))
	b.write64(device.PL, device.PLWinBytes, w.Bytes)
	b.write64(device.PL, device.PLWinCtrl, device.WinCtrl(w.Peer, w.Rights))
}

// shut withdraws window i.
func (b *bench) shut(i int) {
	b.write32(device.PL, device.PLWinSelect, uint64(device.WinSelect(2, i)))
	b.write64(device.PL, device.PLWinCtrl, b.n.Load(device.PL, device.PLWinCtrl, 8)&^(device.CfgEnable|device.WinBusy))
}

func (b *bench) busy(i int) bool {
	b.write32(device.PL, device.PLWinSelect, uint64(device.WinSelect(2, i)))
	return b.n.Load(device.PL, device.PLWinCtrl, 8)&device.WinBusy != 0
}

// guest returns a block of guestPDID.
func guest(id int, va device.VA, length int) *wire.Frame {
	f := data(1, va, length)
	f.SrcPDID, f.ID = guestPDID, device.TransactionID(id)
	return f
}

// written passes a block to the node, and reports whether it begins to write the block; the only
// other answer is a NACK of code 5.
func (b *bench) written(f *wire.Frame) bool {
	b.t.Helper()
	b.out = nil
	b.step(Event{Kind: FrameArrived, Frame: f})
	for _, a := range b.out {
		switch {
		case a.Kind == Walk:
			b.out = nil
			return true
		case a.Kind == Transmit && a.Frame.Kind == wire.Ack && a.Frame.Code == device.CodeDomain:
			b.out = nil
			return false
		}
	}
	b.t.Fatalf("neither written nor refused: %+v", b.out)
	return false
}

// A block is written exactly if its first and last bytes are in the window: every byte before,
// behind and across both edges.
func TestWindowEdges(t *testing.T) {
	const va, size = device.VA(0x10005), 259
	id := 0
	try := func(peer device.PDID, from device.VA, n int, want bool) {
		t.Helper()
		b := windowed(t, device.MemoryWindow{VA: va, Bytes: size, Peer: peer, Rights: device.RightWrite})
		id++
		if got := b.written(guest(id%device.Transactions, from, n)); got != want {
			t.Errorf("%d bytes at %v, window of %d bytes at %v: written %v", n, from, size, va, got)
		}
	}
	for _, edge := range []device.VA{va, va + size} {
		for from := edge - 3; from <= edge+3; from++ {
			for n := 1; n <= 5; n++ {
				try(guestPDID, from, n, from >= va && from+device.VA(n) <= va+size)
			}
		}
	}
	try(guestPDID, va, size, true)
	try(guestPDID, va, size+1, false)
	try(guestPDID, va-1, size+1, false)
	try(0, va, size, true)            // every peer
	try(guestPDID+1, va, size, false) // another peer
	try(guestPDID, 1<<48, 1, false)
}

// A block's completion words need the right, too, whether they come with its data or later.
func TestWindowOfWords(t *testing.T) {
	const va, words = device.VA(0x10000), device.VA(0x20000)
	for _, tt := range []struct {
		at   device.VA
		want bool
	}{{words, true}, {words - 16, false}, {words + 16, false}, {words + 8, false}, {words - 8, false}, {va, true}} {
		for _, late := range []bool{false, true} {
			b := windowed(t, device.MemoryWindow{VA: va, Bytes: 4096, Rights: device.RightWrite}, device.MemoryWindow{VA: words, Bytes: 16, Rights: device.RightWrite})
			f := guest(1, va, 64)
			f.HasWords, f.WordsMissing, f.Completion = true, late, wire.Completion{VA: tt.at, First: 1, Last: 2}
			got := b.written(f)
			if late {
				if !got {
					t.Fatal("data in the window is refused")
				}
				f = guest(1, va, 64)
				f.HasWords, f.Completion, f.Present = true, wire.Completion{VA: tt.at, First: 1, Last: 2}, 0
				b.step(Event{Kind: FrameArrived, Frame: f})
				got = len(b.take(Transmit)) == 0
			}
			if got != tt.want {
				t.Errorf("words at %v, late %v: written %v", tt.at, late, got)
			}
		}
	}
	// Words without data need the right to write them, and others do not open a context.
	for peer, want := range map[device.PDID]bool{guestPDID: true, guestPDID + 1: false} {
		b := windowed(t, device.MemoryWindow{VA: words, Bytes: 16, Peer: guestPDID, Rights: device.RightWrite})
		f := guest(1, 0, 0)
		f.Kind, f.SrcPDID, f.Present, f.HasWords, f.Completion = wire.Words, peer, 0, true, wire.Completion{VA: words, First: 1, Last: 2}
		if got := b.written(f); got != want {
			t.Errorf("words of PDID %#x: written %v", peer, got)
		}
	}
}

// Each right permits its own access alone.
func TestWindowRights(t *testing.T) {
	const va = device.VA(0x50000)
	for rights := range device.AllRights + 1 {
		b := windowed(t, device.MemoryWindow{VA: va, Bytes: 4096, Peer: guestPDID, Rights: rights})
		if got, want := b.written(guest(1, va, 64)), rights&device.RightWrite != 0; got != want {
			t.Errorf("rights %v: written %v", rights, got)
		}
		if got, want := b.read(va, 4096), rights&device.RightRead != 0; got != want {
			t.Errorf("rights %v: read %v", rights, got)
		}
		m := &wire.Frame{MessageLen: 1, Header: wire.Header{
			Kind: wire.Message, SrcNode: 1, SrcPDID: guestPDID, SrcInterface: 17, DstNode: 5, DstMailbox: 18, DstGeneration: ownGen,
		}}
		b.step(Event{Kind: FrameArrived, Frame: m})
		if got, want := len(b.take(MailArrived)) == 1, rights&device.RightMessages != 0; got != want {
			t.Errorf("rights %v: message admitted %v", rights, got)
		}
	}
}

// read requests a read by guestPDID, and reports whether the node serves it; the only other answer
// is code 5.
func (b *bench) read(src device.VA, size uint32) bool {
	b.t.Helper()
	b.out = nil
	m := mailbox.ReadRequest{Tag: uint16(src) + uint16(size), Size: size, Src: src, Dst: 0x60000, Notify: 0x70000, First: 1, Last: 2, Target: ownPDID, TargetGeneration: ownGen}
	f := &wire.Frame{MessageLen: mailbox.ReadRequestWords, Header: wire.Header{
		Kind: wire.Message, Epoch: 3, SrcNode: 1, SrcPDID: guestPDID, SrcInterface: 17, SrcGeneration: peerGen, DstNode: 5, DstMailbox: device.MailboxRead,
	}}
	words := m.Encode()
	copy(f.Message[:], words[:])
	b.step(Event{Kind: FrameArrived, Frame: f})
	for _, a := range b.out {
		switch {
		case a.Kind == Walk:
			return true
		case a.Kind == Transmit && a.Frame.Kind == wire.Message:
			if ack, err := mailbox.DecodeAnswer(a.Frame.Message[0]); err != nil || ack.Code != device.CodeDomain {
				b.t.Fatalf("the read is answered %+v, %v", ack, err)
			}
			return false
		}
	}
	b.t.Fatalf("neither read nor refused: %+v", b.out)
	return false
}

// A read is served exactly if the whole of its source is in the window.
func TestWindowEdgesOfReads(t *testing.T) {
	const va, size = device.VA(0x10005), 20000
	for _, tt := range []struct {
		from device.VA
		n    uint32
		want bool
	}{
		{va, size, true}, {va, 1, true}, {va + size - 1, 1, true}, {va + 7, size - 7, true},
		{va - 1, 1, false}, {va - 1, 2, false}, {va + size, 1, false}, {va + size - 1, 2, false}, {va, size + 1, false}, {va - 1, size + 1, false},
	} {
		b := windowed(t, device.MemoryWindow{VA: va, Bytes: size, Peer: guestPDID, Rights: device.RightRead})
		if got := b.read(tt.from, tt.n); got != tt.want {
			t.Errorf("%d bytes at %v: read %v", tt.n, tt.from, got)
		}
	}
}

// A withdrawn window is busy until its blocks, which have begun, are written, and those in no other
// window; nothing is written after that.
func TestWithdrawal(t *testing.T) {
	const va = device.VA(0x10000)
	b := windowed(t, device.MemoryWindow{VA: va, Bytes: 0x8000, Rights: device.RightWrite},
		device.MemoryWindow{VA: va + 0x4000, Bytes: 0x1000, Rights: device.RightWrite},
		device.MemoryWindow{VA: va + 0x100000, Bytes: 0x1000, Rights: device.RightWrite})
	begin := func(id int, at device.VA) uint32 {
		b.out = nil
		b.step(Event{Kind: FrameArrived, Frame: guest(id, at, 64)})
		w := b.take(Walk)
		if len(w) != 1 {
			t.Fatalf("%d walks", len(w))
		}
		return w[0].Access.ID
	}
	moving, walking, other := begin(1, va), begin(2, va+0x40), begin(3, va+0x4000)
	b.step(Event{Kind: Walked, Access: moving})
	if len(b.take(Move)) != 1 || b.busy(0) {
		t.Fatal("the block does not begin to be written, or an open window is busy")
	}
	b.shut(0)
	if !b.busy(0) || b.busy(1) || b.busy(2) {
		t.Errorf("busy: %v, %v, %v; want the withdrawn window alone", b.busy(0), b.busy(1), b.busy(2))
	}
	b.step(Event{Kind: Walked, Access: walking})
	if len(b.take(Move)) != 0 {
		t.Error("a block whose right was withdrawn during its walk is written")
	}
	if !b.busy(0) {
		t.Error("not busy while a block is being written")
	}
	b.step(Event{Kind: Moved, Access: moving, OK: true})
	if b.busy(0) {
		t.Error("busy with nothing in flight")
	}
	for _, a := range b.take(Transmit) {
		t.Errorf("a withdrawn block is answered: %+v", a.Frame.Header)
	}
	b.step(Event{Kind: Walked, Access: other})
	if len(b.take(Move)) != 1 {
		t.Error("a block in another window ends, too")
	}
	if b.written(guest(4, va, 64)) || !b.written(guest(5, va+0x4000, 64)) {
		t.Error("the windows admit other blocks than they should after the withdrawal")
	}
}

// A withdrawal ends reads with status 5, and the window is busy until their source is not read.
func TestWithdrawalOfReads(t *testing.T) {
	b := windowed(t, device.MemoryWindow{VA: 0x50000, Bytes: 4096, Peer: guestPDID, Rights: device.RightRead})
	if !b.read(0x50000, 4096) {
		t.Fatal("not served")
	}
	walk := b.take(Walk)[0].Access.ID
	b.shut(0)
	if !b.busy(0) {
		t.Error("not busy while the source is read")
	}
	b.out = nil
	b.step(Event{Kind: Walked, Access: walk})
	for _, a := range b.take(Move) {
		b.step(Event{Kind: Moved, Access: a.Access.ID, OK: true})
	}
	if b.busy(0) {
		t.Error("busy with nothing in flight")
	}
	if b.read(0x50000, 4096) {
		t.Error("read after the withdrawal")
	}
}

// Windows belong to a generation: PD_CFG clears them, and a reset does.
func TestWindowsEndWithTheirDomain(t *testing.T) {
	const va = device.VA(0x10000)
	open := device.MemoryWindow{VA: va, Bytes: 4096, Rights: device.AllRights}
	for name, end := range map[string]func(*bench){
		"next generation":       renew,
		"same domain set again": func(b *bench) { b.write64(device.PL, pdCfg2, device.PDCfg(ownPDID, ownGen)) },
		"reset":                 func(b *bench) { b.write32(device.PL, device.PLCtrl, device.CtrlReset) },
	} {
		b := windowed(t, open)
		b.step(Event{Kind: FrameArrived, Frame: guest(1, va, 64)})
		walk := b.take(Walk)[0].Access.ID
		end(b)
		for _, r := range []uint32{device.PLWinVA, device.PLWinBytes, device.PLWinCtrl} {
			if v := b.n.Load(device.PL, r, 8) &^ device.WinBusy; v != 0 {
				t.Errorf("%s: register %#x reads %#x", name, r, v)
			}
		}
		b.step(Event{Kind: Walked, Access: walk})
		if len(b.take(Move)) != 0 {
			t.Errorf("%s: a block is still written", name)
		}
		if name == "reset" {
			continue
		}
		f := guest(2, va, 64)
		f.DstGeneration = ownGen
		if name == "next generation" {
			f.DstGeneration = nextGen
		}
		if b.written(f) {
			t.Errorf("%s: the window admits a block", name)
		}
	}
}

// A node without windows has no such registers.
func TestNoWindows(t *testing.T) {
	b := newBench(t)
	b.open(0, device.MemoryWindow{VA: 0, Bytes: 1 << 48, Rights: device.AllRights})
	if b.n.Load(device.PL, device.PLWinCtrl, 8) != 0 || b.n.Load(device.PL, device.PLCaps, 8)&device.CapsWindows != 0 || b.written(guest(1, 0x1000, 64)) {
		t.Error("a node without CAPS[30] has windows")
	}
}

// WIN_VA and WIN_BYTES take effect with WIN_CTRL.
func TestWindowTakenOver(t *testing.T) {
	b := windowed(t, device.MemoryWindow{VA: 0x10000, Bytes: 64, Rights: device.RightWrite})
	b.write64(device.PL, device.PLWinVA, 0x20000)
	if !b.written(guest(1, 0x10000, 64)) || b.written(guest(2, 0x20000, 64)) {
		t.Error("WIN_VA takes effect at once")
	}
	b.write32(device.PL, device.PLWinSelect, uint64(device.WinSelect(2, 0)))
	if v := b.n.Load(device.PL, device.PLWinVA, 8); v != 0x10000 {
		t.Errorf("the selected window is at %#x", v)
	}
}
