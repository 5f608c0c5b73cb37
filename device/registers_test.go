package device_test

import (
	"strings"
	"testing"

	"github.com/exanet/pfd/device"
)

// TestRegisterMap checks the map's consistency: aligned, inside its window, without overlap,
// every bit named once, every register with a source.
func TestRegisterMap(t *testing.T) {
	type word struct {
		w  device.WindowID
		at uint32
	}
	owner := make(map[word]string)
	names := make(map[string]bool)
	for _, r := range device.Registers() {
		name := r.Window.String() + "/" + r.Name
		if names[name] {
			t.Errorf("%s: twice in the map", name)
		}
		names[name] = true
		if r.Width != 4 && r.Width != 8 {
			t.Fatalf("%s: width %d", name, r.Width)
		}
		if r.Count < 1 || r.Stride < uint32(r.Width) || r.Stride%uint32(r.Width) != 0 {
			t.Fatalf("%s: %d registers, stride 0x%x", name, r.Count, r.Stride)
		}
		if !strings.Contains(r.Source, "spec/") {
			t.Errorf("%s: no source: %q", name, r.Source)
		}
		for i := range r.Count {
			at := r.At(i)
			if at%uint32(r.Width) != 0 || at+uint32(r.Width) > r.Window.Size() {
				t.Errorf("%s[%d]: at 0x%x of a window of 0x%x", name, i, at, r.Window.Size())
			}
			for b := at; b < at+uint32(r.Width); b += 4 {
				if o := owner[word{r.Window, b}]; o != "" {
					t.Errorf("%s[%d] at 0x%x overlaps %s", name, i, b, o)
				}
				owner[word{r.Window, b}] = name
			}
		}
		checkMasks(t, name, r)
	}
	// Lookup agrees for every word of every window.
	for w := range device.Windows {
		for at := uint32(0); at < w.Size(); at += 4 {
			want := owner[word{w, at}]
			r, i, ok := device.Lookup(w, at)
			got := ""
			if ok {
				got = w.String() + "/" + r.Name
				if at < r.At(i) || at >= r.At(i)+uint32(r.Width) {
					t.Fatalf("%v 0x%x: index %d of %s is at 0x%x", w, at, i, r.Name, r.At(i))
				}
			}
			if got != want {
				t.Fatalf("%v 0x%x: Lookup returns %q, the map has %q", w, at, got, want)
			}
		}
	}
}

func checkMasks(t *testing.T, name string, r device.Register) {
	t.Helper()
	all := r.Read | r.Write | r.W1C | r.Act
	if all&^r.Bits() != 0 {
		t.Errorf("%s: masks exceed the width", name)
	}
	if r.Write&^r.Read != 0 || r.W1C&^r.Read != 0 {
		t.Errorf("%s: bits can be written but not read", name)
	}
	if r.Write&r.W1C|r.Act&(r.Read|r.W1C) != 0 && !r.Memory {
		t.Errorf("%s: a bit has two kinds", name)
	}
	if r.Reset&^r.Read != 0 {
		t.Errorf("%s: reset value 0x%x has bits that cannot be read", name, r.Reset)
	}
	if (r.Cap == 0) != (r.CapMask == 0) || r.CapMask&^all != 0 && r.CapMask != 1<<32-1 {
		t.Errorf("%s: capability 0x%x of bits 0x%x", name, r.Cap, r.CapMask)
	}
	var fields uint64
	for _, f := range r.Fields() {
		if f.Name == "" || f.Hi < f.Lo || int(f.Hi) >= 8*r.Width {
			t.Errorf("%s: field %+v", name, f)
			continue
		}
		if fields&f.Mask() != 0 {
			t.Errorf("%s: field %s overlaps another", name, f.Name)
		}
		fields |= f.Mask()
	}
	// Memory keeps bits without a name; elsewhere fields and masks describe the same bits.
	if fields&^all != 0 || fields != all && !r.Memory {
		t.Errorf("%s: fields have bits 0x%x, masks 0x%x", name, fields, all)
	}
}

// TestMapAgainstSpec compares rows of the map with the tables printed in the spec.
func TestMapAgainstSpec(t *testing.T) {
	tests := []struct {
		w      device.WindowID
		offset uint32
		name   string
		index  int
	}{
		{device.PL, 0x000, "ID", 0}, {device.PL, 0x004, "VERSION", 0}, {device.PL, 0x008, "CAPS", 0}, {device.PL, 0x00c, "CAPS", 0},
		{device.PL, 0x010, "NODE_ID", 0}, {device.PL, 0x014, "", 0}, {device.PL, 0x018, "CTRL", 0},
		{device.PL, 0x020, "IRQ_STATUS", 0}, {device.PL, 0x024, "IRQ_MASK", 0}, {device.PL, 0x030, "TIMEOUT_US", 0},
		{device.PL, 0x038, "GUARD_US", 0}, {device.PL, 0x040, "OUTSTANDING", 0},
		{device.PL, 0x100, "COUNTER", 0}, {device.PL, 0x100 + 8*34, "COUNTER", 34}, {device.PL, 0x100 + 8*35, "", 0},
		{device.PL, 0x1000, "RXFIFO_A", 0}, {device.PL, 0x1004, "RXFIFO_B", 0}, {device.PL, 0x1008, "RXFIFO_C", 0}, {device.PL, 0x100c, "RXFIFO_D", 0},
		{device.PL, 0x1010, "RXFIFO_STATUS", 0}, {device.PL, 0x1020, "RXFIFO_EXT", 0},
		{device.PL, 0x1100, "TXFIFO_A", 0}, {device.PL, 0x1110, "TXFIFO_STATUS", 0}, {device.PL, 0x1120, "TXFIFO_EXT", 0},
		{device.PL, 0x2000 + 8*63, "PKTZ_CFG", 63}, {device.PL, 0x2200, "", 0}, {device.PL, 0x2400, "MBOX_CFG", 0},
		{device.PL, 0x3000 + 8*15, "PD_CFG", 15}, {device.PL, 0x3400 + 32*15 + 8*3, "PD_PEERS", 63}, {device.PL, 0x3600, "", 0},
		{device.SMMU, 0x0, "SCR0", 0}, {device.SMMU, 0x20, "IDR0", 0}, {device.SMMU, 0x3c, "IDR7", 0}, {device.SMMU, 0x48, "GFSR", 0},
		{device.SMMU, 0x800 + 4*15, "SMR", 15}, {device.SMMU, 0x840, "", 0}, {device.SMMU, 0xc04, "S2CR", 1},
		{device.SMMU, 0x1000, "CBAR", 0}, {device.SMMU, 0x1400, "CBFRSYNRA", 0}, {device.SMMU, 0x183c, "CBA2R", 15}, {device.SMMU, 0x2000, "", 0},
		{device.SMMU, 0x10000, "CB_SCTLR", 0}, {device.SMMU, 0x1f058, "CB_FSR", 15}, {device.SMMU, 0x13064, "CB_FAR", 3}, {device.SMMU, 0x107f4, "CB_TLBSTATUS", 0},
		{device.BTCM, 0x0ffc, "DESC_RESERVED1", 63}, {device.BTCM, 0x102c, "DESC_DONE", 64}, {device.BTCM, 0x1f000, "DOORBELL", 15}, {device.BTCM, 0x10008, "", 0},
		{device.PKTZ, 0x3f000 + 0xc48, "SEND", 255}, {device.PKTZ, 0x450, "STATUS", 1}, {device.PKTZ, 0x40, "PAYLOAD7", 0}, {device.PKTZ, 0x58, "", 0},
		{device.MBOX, 0x3000, "DATA", 0}, {device.MBOX, 0x3f010, "SOURCE", 60}, {device.MBOX, 0x2000, "", 0},
	}
	for _, tt := range tests {
		r, i, _ := device.Lookup(tt.w, tt.offset)
		if r.Name != tt.name || i != tt.index {
			t.Errorf("%v 0x%x: %s[%d], want %s[%d]", tt.w, tt.offset, r.Name, i, tt.name, tt.index)
		}
	}
	if _, _, ok := device.Lookup(device.Windows, 0); ok {
		t.Error("a window that does not exist has a register")
	}
	if _, _, ok := device.Lookup(device.PL, device.PL.Size()); ok {
		t.Error("a register past the window's end")
	}
}

func TestResolve(t *testing.T) {
	tests := []struct {
		name   string
		w      device.WindowID
		offset uint32
		width  int
		ok     bool
		shift  int
		pair   bool
	}{
		{"32 bits of a 32-bit register", device.PL, 0x000, 4, true, 0, false},
		{"64 bits of one", device.PL, 0x000, 8, false, 0, false},
		{"16 bits", device.PL, 0x000, 2, false, 0, false},
		{"unaligned", device.PL, 0x002, 4, false, 0, false},
		{"64 bits of a counter", device.PL, 0x108, 8, true, 0, false},
		{"its low half", device.PL, 0x108, 4, true, 0, false},
		{"its high half", device.PL, 0x10c, 4, true, 32, false},
		{"64 bits across two counters", device.PL, 0x10c, 8, false, 0, false},
		{"words a and b", device.PL, 0x1000, 8, true, 0, true},
		{"words b and c", device.PL, 0x1004, 8, false, 0, false},
		{"words c and d", device.PL, 0x1008, 8, true, 0, true},
		{"half of PKTZ_CFG", device.PL, 0x2000, 4, false, 0, false},
		{"half of DATA", device.MBOX, 0x3004, 4, false, 0, false},
		{"half of STATUS", device.MBOX, 0x3008, 4, true, 0, false},
		{"a hole", device.PL, 0x014, 4, false, 0, false},
		{"past the end", device.PL, 0x20000, 4, false, 0, false},
	}
	for _, tt := range tests {
		got, ok := device.Resolve(tt.w, tt.offset, tt.width)
		if ok != tt.ok || ok && (got.Shift != tt.shift || got.Pair != tt.pair) {
			t.Errorf("%s: %v, shift %d, pair %v", tt.name, ok, got.Shift, got.Pair)
		}
	}
}

func TestResetAt(t *testing.T) {
	done, _, _ := device.Lookup(device.BTCM, device.DescDone)
	for i, want := range map[int]uint64{0: 0xffffffff, 31: 0xffffffff, 32: 2, 63: 2, 64: 0xffffffff, 1023: 2} {
		if got := done.ResetAt(i); got != want {
			t.Errorf("done of channel %d: 0x%x, want 0x%x", i, got, want)
		}
	}
}

func TestRegistersIsACopy(t *testing.T) {
	device.Registers()[0].Name = "changed"
	if name := device.Registers()[0].Name; name != "ID" {
		t.Errorf("a caller changed the map: %s", name)
	}
	r, _, _ := device.Lookup(device.PL, device.PLID)
	r.Fields()[0].Name = "changed"
	if name := r.Fields()[0].Name; name != "id" {
		t.Errorf("a caller changed a field: %s", name)
	}
}

func TestMasksWithCaps(t *testing.T) {
	sctlr, _, _ := device.Lookup(device.SMMU, device.Bank(0, device.SCTLR))
	for caps, want := range map[uint64]uint64{0: 0, device.CapsStall: device.SCTLRCFCFG} {
		if read, write, _ := sctlr.Masks(caps); read&device.SCTLRCFCFG != want || write&device.SCTLRCFCFG != want {
			t.Errorf("caps 0x%x: CFCFG reads 0x%x, writes 0x%x", caps, read, write)
		}
	}
}

func BenchmarkResolve(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := device.Resolve(device.SMMU, 0x13058, 4); !ok {
			b.Fatal("no FSR")
		}
	}
}
