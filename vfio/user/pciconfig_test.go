package user

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
)

func goodBARs() [6]BAR {
	return [6]BAR{0: {Size: 4096}, 1: {Size: 16}, 2: {Size: 1 << 33, Is64: true, Prefetchable: true}, 4: {Size: 4096}}
}

func newTestConfig(t *testing.T) *pciConfig {
	t.Helper()
	c, err := newConfig(Identity{Vendor: 0x1234, Device: 0xe4a0, Class: 0x028000, Revision: 1}, goodBARs(), MSIX{4, 4, 0, 0x800})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *pciConfig) get(at, size int) uint32 {
	var w [4]byte
	c.read(w[:size], uint64(at))
	return binary.LittleEndian.Uint32(w[:])
}

func (c *pciConfig) set(at, size int, v uint32) configEvent {
	return c.store(binary.LittleEndian.AppendUint32(nil, v)[:size], uint64(at))
}

func TestConfigHeader(t *testing.T) {
	c := newTestConfig(t)
	for _, r := range []struct {
		at, size int
		want     uint32
	}{
		{0x00, 4, 0xe4a01234}, {0x04, 2, 0}, {0x06, 2, 0x10}, {0x08, 4, 0x02800001}, {0x0c, 4, 0},
		{0x10, 4, 0}, {0x14, 4, 0}, {0x18, 4, 0xc}, {0x1c, 4, 0}, {0x20, 4, 0}, {0x24, 4, 0},
		{0x2c, 4, 0xe4a01234}, {0x30, 4, 0}, {0x34, 1, 0x40}, {0x3d, 1, 0}, {0x100, 4, 0},
	} {
		if got := c.get(r.at, r.size); got != r.want {
			t.Errorf("%#x: %#x, want %#x", r.at, got, r.want)
		}
	}
}

// TestConfigCapabilities follows the list of capabilities as a guest does.
func TestConfigCapabilities(t *testing.T) {
	c := newTestConfig(t)
	var ids []uint32
	for at := c.get(0x34, 1); at != 0; at = c.get(int(at)+1, 1) {
		ids = append(ids, c.get(int(at), 1))
		if len(ids) > 48 {
			t.Fatal("the list has a loop")
		}
	}
	if !slices.Equal(ids, []uint32{1, 0x11, 0x10}) {
		t.Errorf("capabilities %#x", ids)
	}
	for _, r := range []struct {
		name     string
		at, size int
		want     uint32
	}{
		{"PM capabilities: version 3", 0x42, 2, 3},
		{"PM control: no soft reset", 0x44, 2, 8},
		{"MSI-X control: 4 vectors", 0x4a, 2, 3},
		{"MSI-X table: BAR 4", 0x4c, 4, 4},
		{"MSI-X pending bits", 0x50, 4, 0x804},
		{"PCI Express: version 2, endpoint", 0x62, 2, 2},
		{"device capabilities: FLR", 0x64, 4, 0x10008000},
		{"device control", 0x68, 2, 0x2810},
	} {
		if got := c.get(r.at, r.size); got != r.want {
			t.Errorf("%s: %#x, want %#x", r.name, got, r.want)
		}
	}
}

// TestConfigBARSize probes the sizes as a guest does, and sets an address.
func TestConfigBARSize(t *testing.T) {
	c := newTestConfig(t)
	for i, want := range []uint32{0xfffff000, 0xfffffff0, 0x0000000c, 0xfffffffe, 0xfffff000, 0} {
		at := 0x10 + 4*i
		c.set(at, 4, 0xffffffff)
		if got := c.get(at, 4); got != want {
			t.Errorf("BAR %d: %#x after all ones, want %#x", i, got, want)
		}
	}
	for i := range 6 {
		c.set(0x10+4*i, 4, 0)
	}
	for i := range 4 { // byte by byte
		c.set(0x10+i, 1, 0xfe)
	}
	if got := c.get(0x10, 4); got != 0xfefef000 {
		t.Errorf("address %#x", got)
	}
}

// TestConfigReadOnly writes all ones and all zeros everywhere, in every width, and compares the
// bits that changed with the list of writable ones.
func TestConfigReadOnly(t *testing.T) {
	writable := map[int]byte{
		0x04: 0x46, 0x05: 0x05, 0x0c: 0xff, 0x3c: 0xff, 0x44: 3,
		0x10: 0, 0x11: 0xf0, 0x12: 0xff, 0x13: 0xff, 0x14: 0xf0, 0x15: 0xff, 0x16: 0xff, 0x17: 0xff,
		0x1c: 0xfe, 0x1d: 0xff, 0x1e: 0xff, 0x1f: 0xff, 0x21: 0xf0, 0x22: 0xff, 0x23: 0xff,
		0x4b: 0xc0, 0x68: 0xff, 0x69: 0x79, 0x70: 0xcb, 0x88: 0x1f, 0x90: 0x0f,
	}
	for _, size := range []int{1, 2, 4} {
		c := newTestConfig(t)
		for at := 0; at < configSize; at += size {
			c.set(at, size, 0)
		}
		zero := c.b
		for at := 0; at < configSize; at += size {
			c.set(at, size, 0xffffffff)
		}
		for at := range c.b {
			if got := c.b[at] ^ zero[at]; got != writable[at] {
				t.Errorf("byte %#x: bits %#x changed, want %#x", at, got, writable[at])
			}
		}
	}
}

func TestConfigPower(t *testing.T) {
	c := newTestConfig(t)
	c.set(0x04, 2, 6)
	if !c.memory() || !c.master() {
		t.Fatal("memory and bus master are on and not seen")
	}
	for _, s := range []uint32{1, 2} {
		c.set(0x44, 2, s)
		if got := c.get(0x44, 2); got != 8 {
			t.Errorf("after D%d: %#x", s, got)
		}
	}
	if e := c.set(0x44, 2, 3); e != configDelivery || c.memory() || c.master() {
		t.Errorf("D3hot: event %d, memory %v, master %v", e, c.memory(), c.master())
	}
	if e := c.set(0x44, 2, 0); e != configDelivery || !c.memory() || !c.master() {
		t.Errorf("D0: event %d, memory %v, master %v", e, c.memory(), c.master())
	}
}

func TestConfigFLR(t *testing.T) {
	c := newTestConfig(t)
	c.set(0x04, 2, 6)
	for _, w := range []struct {
		at, size int
		v        uint32
		want     configEvent
	}{
		{0x68, 2, 0x8000, configFLR}, {0x69, 1, 0x80, configFLR}, {0x68, 4, 0x8000, configFLR}, {0x64, 4, 0xffffffff, 0},
		{0x68, 2, 0x7fff, 0}, {0x6a, 2, 0x8000, 0},
	} {
		if got := c.set(w.at, w.size, w.v); got != w.want {
			t.Errorf("%#x to %#x: event %d, want %d", w.v, w.at, got, w.want)
		}
		if got := c.get(0x68, 2); got&0x8000 != 0 {
			t.Errorf("initiate-FLR reads as one: %#x", got)
		}
	}
	// One write may span it.
	if got := c.store(slices.Repeat([]byte{0xff}, configSize), 0); got&configFLR == 0 {
		t.Errorf("a write of everything: event %d", got)
	}
	c.restore()
	if c.get(0x04, 2) != 0 || c.get(0x10, 4) != 0 {
		t.Error("registers survive a reset")
	}
}

func TestConfigRefusals(t *testing.T) {
	msix := MSIX{4, 4, 0, 0x800}
	for _, c := range []struct {
		name   string
		change func(b *[6]BAR, m *MSIX)
		want   string
	}{
		{"size 24", func(b *[6]BAR, _ *MSIX) { b[0].Size = 24 }, "power of two"},
		{"size 8", func(b *[6]BAR, _ *MSIX) { b[0].Size = 8 }, "power of two"},
		{"4 GiB in 32 bits", func(b *[6]BAR, _ *MSIX) { b[0].Size = 1 << 32 }, "64-bit"},
		{"64 bits over a taken BAR", func(b *[6]BAR, _ *MSIX) { b[0].Is64 = true }, "next BAR"},
		{"64 bits in BAR 5", func(b *[6]BAR, _ *MSIX) { b[5] = BAR{Size: 16, Is64: true} }, "next BAR"},
		{"area outside", func(b *[6]BAR, _ *MSIX) { b[0].Areas = []Area{{4096, 4096}} }, "inside the BAR"},
		{"area wraps", func(b *[6]BAR, _ *MSIX) { b[0].Areas = []Area{{^uint64(4095), 8192}} }, "inside the BAR"},
		{"area of half a page", func(b *[6]BAR, _ *MSIX) { b[0].Areas = []Area{{0, 2048}} }, "whole pages"},
		{"areas overlap", func(b *[6]BAR, _ *MSIX) { b[2].Areas = []Area{{0, 8192}, {4096, 4096}} }, "without overlap"},
		{"areas without a BAR", func(b *[6]BAR, _ *MSIX) { b[5].Areas = []Area{{0, 4096}} }, "without a size"},
		{"no vector", func(_ *[6]BAR, m *MSIX) { m.Vectors = 0 }, "vectors"},
		{"2049 vectors", func(_ *[6]BAR, m *MSIX) { m.Vectors = 2049 }, "vectors"},
		{"MSI-X in an absent BAR", func(_ *[6]BAR, m *MSIX) { m.BAR = 5 }, "does not exist"},
		{"MSI-X in BAR 6", func(_ *[6]BAR, m *MSIX) { m.BAR = 6 }, "does not exist"},
		{"table outside", func(_ *[6]BAR, m *MSIX) { m.Table = 4096 - 32 }, "table"},
		{"table not aligned", func(_ *[6]BAR, m *MSIX) { m.Table = 4 }, "multiples"},
		{"pending bits outside", func(_ *[6]BAR, m *MSIX) { m.PBA = 4096 }, "pending"},
		{"pending bits in the table", func(_ *[6]BAR, m *MSIX) { m.PBA = 8 }, "without overlap"},
	} {
		b, m := goodBARs(), msix
		c.change(&b, &m)
		if _, err := newConfig(Identity{}, b, m); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q in it", c.name, err, c.want)
		}
	}
}

func TestVectorTable(t *testing.T) {
	v := newVectorTable(MSIX{4, 4, 0x100, 0x800})
	for _, o := range []struct {
		offset uint64
		want   bool
	}{{0, false}, {0xff, false}, {0x100, true}, {0x13f, true}, {0x140, false}, {0x7ff, false}, {0x800, true}, {0x807, true}, {0x808, false}} {
		if got := v.owns(o.offset); got != o.want {
			t.Errorf("owns(%#x) = %v", o.offset, got)
		}
	}
	if got := v.read(0x11c, 4); got != 1 {
		t.Errorf("control of vector 1 after reset: %#x", got)
	}
	for _, w := range []struct {
		offset uint64
		size   int
		value  uint64
		vector int
		read   uint64
	}{
		{0x110, 8, 0xfedcba9876543217, -1, 0xfedcba9876543214}, // address 1:0 are zero
		{0x118, 4, 0x12345678, -1, 0x12345678},
		{0x11c, 4, 0xfffffffe, 1, 0}, // unmasked; reserved bits read as zero
		{0x11c, 4, 0xffffffff, 1, 1},
		{0x118, 8, 0xffffffff_00000000, -1, 1 << 32},
		{0x11c, 1, 0, 1, 0},
		{0x11d, 1, 0xff, -1, 0},
		{0x800, 8, ^uint64(0), -1, 0}, // pending bits are read-only
	} {
		if got := v.write(w.offset, w.size, w.value); got != w.vector {
			t.Errorf("write %#x to %#x: vector %d, want %d", w.value, w.offset, got, w.vector)
		}
		if got := v.read(w.offset, w.size); got != w.read {
			t.Errorf("read %#x: %#x, want %#x", w.offset, got, w.read)
		}
	}
	v.setPending(2, true)
	if v.read(0x800, 8) != 4 || v.read(0x800, 1) != 4 || v.read(0x801, 1) != 0 || v.read(0x804, 4) != 0 {
		t.Error("pending bit 2 is not read back")
	}
}
