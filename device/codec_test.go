package device_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/golden"
)

func TestFaultEntryGolden(t *testing.T) {
	for _, c := range golden.Read(t, "testdata/fifo.txt") {
		t.Run(c.Name, func(t *testing.T) {
			want := device.FaultEntry{
				Source:      device.NodeID(c.Uint(t, "source")),
				Transaction: device.TransactionID(c.Uint(t, "transaction")),
				Sequence:    device.Sequence(c.Uint(t, "sequence")),
				PDID:        device.PDID(c.Uint(t, "pdid")),
				Process:     uint8(c.Uint(t, "process")),
				Page:        c.Uint(t, "va") >> device.PageShift,
				Response:    uint8(c.Uint(t, "response")),
			}
			var words [4]uint32
			for i, w := range c.Words(t, "words") {
				words[i] = uint32(w)
			}
			if got := want.Words(); got != words {
				t.Errorf("encoded %08x, want %08x", got, words)
			}
			got, ok := device.DecodeFaultEntry(words)
			if !ok || got != want {
				t.Errorf("decoded %+v %v, want %+v", got, ok, want)
			}
			if got.VA() != device.VA(c.Uint(t, "va")) {
				t.Errorf("VA %v", got.VA())
			}
			c.Done(t)
		})
	}
}

func TestFaultEntryNotValid(t *testing.T) {
	whole := device.FaultEntry{Source: 1, Page: 2, Response: device.ResponseSlaveError}.Words()
	for i := range whole {
		torn := whole
		torn[i] &^= 1
		if e, ok := device.DecodeFaultEntry(torn); ok || e != (device.FaultEntry{}) {
			t.Errorf("without Valid in word %c: %+v %v", 'a'+i, e, ok)
		}
	}
	if _, ok := device.DecodeFaultEntry([4]uint32{}); ok {
		t.Error("an empty FIFO's head was taken for an entry")
	}
}

func TestSameFault(t *testing.T) {
	e := device.FaultEntry{Source: 1, Transaction: 2, Sequence: 3, PDID: 4, Process: 5, Page: 6, Response: 2}
	for name, change := range map[string]struct {
		f    func(*device.FaultEntry)
		same bool
	}{
		"nothing":     {func(*device.FaultEntry) {}, true},
		"source":      {func(e *device.FaultEntry) { e.Source++ }, false},
		"transaction": {func(e *device.FaultEntry) { e.Transaction++ }, false},
		"sequence":    {func(e *device.FaultEntry) { e.Sequence++ }, false},
		"page":        {func(e *device.FaultEntry) { e.Page++ }, false},
		"response":    {func(e *device.FaultEntry) { e.Response++ }, true},
		"pdid":        {func(e *device.FaultEntry) { e.PDID++ }, true},
	} {
		o := e
		change.f(&o)
		if got := e.SameFault(o); got != change.same {
			t.Errorf("%s changed: %v, want %v", name, got, change.same)
		}
	}
}

func FuzzFaultEntry(f *testing.F) {
	f.Add(uint32(0x01234501), uint32(0x3a712341), uint32(0xbeef53f5), uint32(0x12345001))
	f.Add(^uint32(0), ^uint32(0), ^uint32(0), ^uint32(0))
	f.Add(uint32(1), uint32(1), uint32(0), uint32(1))
	f.Fuzz(func(t *testing.T, a, b, c, d uint32) {
		w := [4]uint32{a, b, c, d}
		e, ok := device.DecodeFaultEntry(w)
		if ok != (a&b&c&d&1 == 1) {
			t.Fatalf("%08x: valid %v", w, ok)
		}
		if !ok {
			return
		}
		w[0] &= device.FIFOMaskA
		w[1] &= device.FIFOMaskB
		w[2] &= device.FIFOMaskC
		w[3] &= device.FIFOMaskD
		if got := e.Words(); got != w {
			t.Fatalf("%08x encoded as %08x", w, got)
		}
	})
}

func TestDescriptorGolden(t *testing.T) {
	for _, c := range golden.Read(t, "testdata/descriptor.txt") {
		t.Run(c.Name, func(t *testing.T) {
			want := device.Descriptor{
				Src: device.VA(c.Uint(t, "src")), Dst: device.VA(c.Uint(t, "dst")),
				Notify: device.VA(c.Uint(t, "notify")),
				First:  c.Uint(t, "first"), Last: c.Uint(t, "last"),
				Size: uint32(c.Uint(t, "size")), Done: uint32(c.Uint(t, "done")),
				DstNode: device.NodeID(c.Uint(t, "node")), DstPDID: device.PDID(c.Uint(t, "pdid")),
				Urgent: c.Bool(t, "urgent"), Status: uint8(c.Uint(t, "status")), Paused: uint8(c.Uint(t, "paused")),
				DstGeneration: device.Generation(c.Uint(t, "generation")),
			}
			b := c.Bytes(t, "bytes")
			c.Done(t)
			if got := descriptorOf(b); got != want {
				t.Errorf("decoded %+v, want %+v", got, want)
			}
			if out := bytesOf(&want); !bytes.Equal(out, b) {
				t.Errorf("encoded %x, want %x", out, b)
			}
		})
	}
}

// bytesOf returns the 64 bytes of a descriptor in btcm.
func bytesOf(d *device.Descriptor) []byte {
	var b []byte
	for _, w := range d.Words() {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// descriptorOf decodes the 64 bytes of a descriptor.
func descriptorOf(b []byte) device.Descriptor {
	var w [device.DescriptorWords]uint64
	for i := range w {
		w[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return device.DescriptorOf(&w)
}

// TestDescriptorOffsets checks the offset constants against the codec.
func TestDescriptorOffsets(t *testing.T) {
	for _, tt := range []struct {
		offset int
		set    func(*device.Descriptor)
	}{
		{device.DescSrc, func(d *device.Descriptor) { d.Src = 0x5a }},
		{device.DescDst, func(d *device.Descriptor) { d.Dst = 0x5a }},
		{device.DescNotify, func(d *device.Descriptor) { d.Notify = 0x5a }},
		{device.DescFirst, func(d *device.Descriptor) { d.First = 0x5a }},
		{device.DescLast, func(d *device.Descriptor) { d.Last = 0x5a }},
		{device.DescSize, func(d *device.Descriptor) { d.Size = 0x5a }},
		{device.DescDone, func(d *device.Descriptor) { d.Done = 0x5a }},
		{device.DescReserved0, func(d *device.Descriptor) { d.DstNode = 0x5a }},
		{device.DescReserved1, func(d *device.Descriptor) { d.Status = 0x5a }},
	} {
		var d device.Descriptor
		tt.set(&d)
		got := bytesOf(&d)
		want := make([]byte, device.DescriptorSize)
		want[tt.offset] = 0x5a
		if !bytes.Equal(got, want) {
			t.Errorf("offset %d: %x", tt.offset, got)
		}
	}
}

func FuzzDescriptor(f *testing.F) {
	f.Add(bytes.Repeat([]byte{0xff}, device.DescriptorSize))
	f.Add(make([]byte, device.DescriptorSize+1))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < device.DescriptorSize {
			return
		}
		d := descriptorOf(b)
		out := bytesOf(&d)
		if again := descriptorOf(out); again != d {
			t.Fatalf("%+v, then %+v", d, again)
		}
		if !bytes.Equal(out[:device.DescReserved0], b[:device.DescReserved0]) {
			t.Fatalf("%x, then %x", b, out)
		}
	})
}

func TestPDCfg(t *testing.T) {
	if v := device.PDCfg(0xbeef, 0xa1b2c3d4); v != 0x8000a1b2c3d4beef {
		t.Errorf("%#x", v)
	}
	for v, want := range map[uint64]bool{
		0x8000a1b2c3d4beef: true, 0x0000a1b2c3d4beef: false, 0x8000a1b2c3d40000: false, 0x800000000000beef: false,
	} {
		if p, g, on := device.SplitPDCfg(v); on != want || p != device.PDID(v) || g != device.Generation(v>>16) {
			t.Errorf("%#x: PDID %#x, generation %#x, enabled %v", v, p, g, on)
		}
	}
}
