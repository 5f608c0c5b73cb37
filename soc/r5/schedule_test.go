package r5

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/exanet/pfd/device"
)

// Blocks end at the 16 KiB boundaries of the destination (spec/firmware.md
// "Segmentation"; 001 §3.2.2).
func TestSegmentation(t *testing.T) {
	for _, c := range []struct {
		at   device.VA
		size uint32
		want []uint16
	}{
		{dst, 1, []uint16{1}},
		{dst, 16384, []uint16{16384}},
		{dst, 16385, []uint16{16384, 1}},
		{dst + 1, 16384, []uint16{16383, 1}},
		{dst + 16383, 1, []uint16{1}},
		{dst + 16383, 2, []uint16{1, 1}},
		{dst + 16000, 384, []uint16{384}},
		{dst + 0x2000, 40000, []uint16{8192, 16384, 15424}},
	} {
		t.Run(fmt.Sprintf("%v+%d", c.at, c.size), func(t *testing.T) {
			r := newRig(t)
			r.start(0, 0, c.at, c.size)
			var got []uint16
			at, left := c.at, c.size
			for i, b := range r.blocks() {
				got = append(got, b.Length)
				if b.VA != at || b.Remaining != left || int(b.Block) != i || b.Last != (i == len(c.want)-1) || b.Source != 0x10_0000+at-c.at {
					t.Errorf("block %d: %v, %d left, number %d, last %v", i, b.VA, b.Remaining, b.Block, b.Last)
				}
				at += device.VA(b.Length)
				left -= uint32(b.Length)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("blocks of %v bytes, want %v", got, c.want)
			}
			if n := blockCount(c.at, c.size); int(n) != len(c.want) {
				t.Errorf("%d blocks counted, want %d", n, len(c.want))
			}
		})
	}
	// The largest transfer at the worst place: 262,145 blocks.
	if n := blockCount(16383, 1<<32-1); n != 262145 {
		t.Errorf("%d blocks", n)
	}
}

// High: one block's size, or urgent; medium: 512 KiB; low: the rest; by the remaining size (001
// §3.2.4).
func TestClasses(t *testing.T) {
	for _, c := range []struct {
		size, issued uint32
		urgent       bool
		want         string
	}{
		{1, 0, false, "high"}, {16384, 0, false, "high"}, {16385, 0, false, "medium"},
		{524288, 0, false, "medium"}, {524289, 0, false, "low"}, {1<<32 - 1, 0, false, "low"},
		{1 << 20, 1<<20 - 524288, false, "medium"}, {1 << 20, 1<<20 - 16384, false, "high"},
		{1 << 20, 0, true, "high"},
	} {
		x := transfer{desc: device.Descriptor{Size: c.size, Urgent: c.urgent}, issued: c.issued}
		if got := x.classNow().String(); got != c.want {
			t.Errorf("%d bytes, %d issued, urgent %v: %s, want %s", c.size, c.issued, c.urgent, got, c.want)
		}
	}
}

// Strict priority, except for one issue in eight (spec/firmware.md; defined by this project).
func TestShares(t *testing.T) {
	const low, medium = uint32(4 << 20), uint32(256 << 10)
	// letters returns one letter per issue: h, m or l for its class. Issued blocks are sent at
	// once.
	letters := func(r *rig) string {
		var s []byte
		for {
			all := r.blocks()
			if len(all) == 0 {
				return string(s)
			}
			for _, b := range all {
				switch size := b.Remaining + uint32(b.VA-dst); size {
				case low:
					s = append(s, 'l')
				case medium:
					s = append(s, 'm')
				default:
					s = append(s, 'h')
				}
				r.sent(b)
			}
		}
	}
	for _, c := range []struct {
		name              string
		high, medium, low int
		want              string
	}{
		{"high and low", 30, 0, 1, "hhhhhhhlhhhhhhhlhhhhhhhlhhhhhhhlhhllllll"},
		{"high and medium", 9, 1, 0, "hhhhhhhmhhmmmmmm"},
		{"medium and low", 0, 1, 1, "mmmmmmmlmmmmmmmlm"}, // the medium one is in the high class at its end
		{"high alone", 9, 0, 0, "hhhhhhhhh"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, func(c *Config) { c.Options.NoBypass = true })
			r.fw.SetOutstanding(1024)
			ch := 0
			ring := func(n int, size uint32) {
				for range n {
					r.start(0, ch, dst, size)
					ch++
				}
			}
			ring(c.low, low)
			ring(c.medium, medium)
			ring(c.high, 16384)
			if got := letters(r); !strings.HasPrefix(got, c.want) {
				t.Errorf("issued\n%s, want\n%s", got, c.want)
			}
		})
	}
	t.Run("all three", func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.Options.NoBypass = true })
		r.fw.SetOutstanding(1024)
		r.start(0, 0, dst, low)
		r.start(0, 1, dst, medium)
		for ch := 2; ch < 32; ch++ {
			r.start(0, ch, dst, 16384)
		}
		got := letters(r)
		// No class waits for more than nine issues: eight, and one of the other class.
		for i := 0; i+9 <= len(got) && i < 30; i++ {
			for _, class := range "hml" {
				if !slices.Contains([]rune(got[i:i+9]), class) {
					t.Fatalf("no %c from issue %d on: %s", class, i, got)
				}
			}
		}
	})
}

// A transfer of at most one block's size bypasses an empty queue, and both its parts are sent if
// its destination is misaligned, whatever OUTSTANDING is.
func TestBypassAndWindow(t *testing.T) {
	r := newRig(t)
	r.fw.SetOutstanding(1)
	r.start(0, 0, dst+100, 16384)
	if n := len(r.fw.Commands()); n != 3 { // ongoing, and two blocks, before the scheduler has run
		t.Errorf("%d commands at the doorbell, want 3", n)
	}
	for _, c := range []struct {
		outstanding uint32
		size        uint32
		want        int
	}{{1, 10 * 16384, 1}, {3, 10 * 16384, 3}, {16, 10 * 16384, 10}, {0, 10 * 16384, 1}, {1, 16385, 1}, {1, 16384, 2}} {
		r := newRig(t)
		r.fw.SetOutstanding(c.outstanding)
		r.start(0, 0, dst+8192, c.size)
		b := r.blocks()
		if c.outstanding == 16 {
			c.want++ // a partial block at either end
		}
		if len(b) != c.want {
			t.Errorf("OUTSTANDING %d: %d blocks of %d bytes in flight, want %d", c.outstanding, len(b), c.size, c.want)
		}
		if c.want > 3 || c.size <= 16384 {
			continue
		}
		r.ack(b[0])
		r.one()
	}
}

// IDs are taken at the front and returned at the rear.
func TestTickets(t *testing.T) {
	var q tickets
	for i := range int16(4) {
		q.put(i)
	}
	var got []int16
	for _, back := range []int16{2, 0, -1, -1} { // an ID that is returned after each take
		got = append(got, q.take())
		if back >= 0 {
			q.put(back)
		}
	}
	if want := []int16{0, 1, 2, 3}; !slices.Equal(got, want) || q.count != 2 || q.take() != 2 || q.take() != 0 {
		t.Errorf("taken %v, %d left", got, q.count)
	}
	// Many laps of the ring: no ID is handed out twice.
	for i := range int16(1024) {
		q.put(i)
	}
	for i := range 5000 {
		id := q.take()
		if int(id) != i%1024 {
			t.Fatalf("take %d: id %d", i, id)
		}
		q.put(id)
	}
	// As used by the firmware: the ID of a block that ended is used last.
	r := newRig(t, func(c *Config) { c.IDs = 3 })
	r.fw.SetDomain(0, pdid, gen, false) // nothing is reserved for others
	r.fw.SetDomain(0, pdid, gen, true)
	var ids []device.TransactionID
	for ch := range 5 {
		r.start(0, ch, dst, 10)
		b := r.one()
		ids = append(ids, b.ID)
		r.ack(b)
	}
	if want := []device.TransactionID{0, 1, 2, 0, 1}; !slices.Equal(ids, want) {
		t.Errorf("ids %v, want %v", ids, want)
	}
}

// A domain has at most 256 IDs, of which the last 64 are one for each channel; 16 are reserved
// for every other slot.
func TestShareOfIDs(t *testing.T) {
	for _, c := range []struct{ ids, domains, want int }{
		{0, 1, 192 + 29}, {0, 2, 192 + 29}, {0, 16, 192 + 29}, {300, 1, 60}, {300, 3, 60}, {256, 2, 16},
	} {
		r := newRig(t, func(cfg *Config) { cfg.IDs = c.ids })
		r.fw.SetOutstanding(1024)
		for slot := 1; slot < c.domains; slot++ {
			r.fw.SetDomain(slot, device.PDID(100+slot), gen, true)
		}
		for ch := range 32 {
			r.start(0, ch, dst, 1<<20, urgent)
		}
		if n := len(r.blocks()); n != c.want {
			t.Errorf("%d ids, %d domains: one domain takes %d, want %d", c.ids, c.domains, n, c.want)
		}
		// Every other domain still gets its own.
		for slot := 1; slot < c.domains; slot++ {
			r.start(slot, 0, dst, 1<<20, urgent)
			if n := len(r.blocks()); n < keptIDs {
				t.Errorf("%d ids, %d domains: domain %d takes %d", c.ids, c.domains, slot, n)
			}
		}
	}
}

// Domains that hold as many IDs as they may leave 16 for each slot, even for a slot whose domain
// is created later.
func TestIDsKeptForSlotsWithoutDomain(t *testing.T) {
	r := newRig(t)
	r.fw.SetOutstanding(1024)
	for slot := range device.Slots - 2 {
		r.fw.SetDomain(slot, device.PDID(100+slot), gen, true)
		for ch := range 32 {
			r.start(slot, ch, dst, 1<<20, urgent)
		}
		r.blocks()
	}
	for slot := device.Slots - 2; slot < device.Slots; slot++ {
		r.fw.SetDomain(slot, device.PDID(100+slot), gen, true)
		r.start(slot, 0, dst, 1<<20, urgent)
		if n := len(r.blocks()); n != keptIDs {
			t.Errorf("slot %d takes %d ids, want %d", slot, n, keptIDs)
		}
	}
}
