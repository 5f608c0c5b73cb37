package hostile

import (
	"testing"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
)

// The control interface shows stalled transfers: channels with class, window, paused blocks,
// sequence numbers and age, and each of their blocks.
func TestTransfersThatStandStill(t *testing.T) {
	w := start(t)
	// The target pages in by itself, and never does.
	w.raw(attach.Hello{Group: "deaf", Node: 1, Method: pagein.Touch})
	from := w.raw(attach.Hello{Group: "deaf"})
	const size = 1 << 20
	src, dst := memory(t, size), memory(t, 4*size)
	fill(src, 5)
	for ch, d := range []device.Descriptor{{Size: size}, {Size: 256 << 10}, {Size: 4096}, {Size: size, Urgent: true}} {
		d.Src, d.Dst, d.DstNode = va(src), va(dst)+device.VA(ch*size), 1
		from.ring(ch, d)
	}
	want := []struct {
		class          string
		window, paused int
	}{{"low", 8, 8}, {"medium", 8, 8}, {"high", 8, 1}, {"high", 8, 8}}
	var channels []control.Channel
	w.until("all blocks in flight are paused", func() bool {
		var err error
		if channels, err = w.Channels(w.ctx(), 0); err != nil {
			t.Fatal(err)
		}
		paused := 0
		for _, c := range channels {
			paused += c.Paused
		}
		return len(channels) == len(want) && paused == 25
	})
	// The blocks one by one: as many, paused, and of their channel's class.
	list, err := w.Transactions(w.ctx(), 0)
	if err != nil {
		t.Fatal(err)
	}
	sequences := map[int]map[uint16]bool{}
	for _, x := range list {
		if x.Channel >= len(want) {
			t.Fatalf("a block of channel %d", x.Channel)
		}
		if x.State != control.TransactionPaused || x.Class != want[x.Channel].class || x.LastCode != uint8(device.CodeSlaveError) ||
			x.AgeNS <= 0 || x.DueNS < 0 || x.LengthBytes == 0 || x.DstNode != 1 {
			t.Errorf("transaction %+v", x)
		}
		if sequences[x.Channel] == nil {
			sequences[x.Channel] = map[uint16]bool{}
		}
		sequences[x.Channel][x.Sequence] = true
	}
	if len(list) != 25 {
		t.Errorf("%d blocks in flight, want 25", len(list))
	}
	for i, c := range channels {
		x := want[i]
		if c.Channel != i || c.State != "ongoing" || c.Class != x.class || c.Window != x.window || c.InFlight != x.paused || c.Paused != x.paused || c.AgeNS <= 0 {
			t.Errorf("channel %+v, want %+v", c, x)
		}
		if seen := sequences[i]; !seen[c.OldestSequence] || !seen[c.NewestSequence] {
			t.Errorf("channel %d: sequence numbers %d and %d, of its blocks %v", i, c.OldestSequence, c.NewestSequence, seen)
		}
	}
}
