package tally

import (
	"testing"

	"github.com/exanet/pfd/device"
)

func TestOver(t *testing.T) {
	var n Node
	for _, c := range []struct {
		dir    Direction
		size   uint32
		urgent bool
		status uint8
		ns     int64
		class  device.Class
		bucket int // -1: longer than all bounds
	}{
		{Write, 1, false, 0, 1000, device.High, 0},
		{Write, 16 << 10, false, 1, 1001, device.High, 1},
		{Write, 16<<10 + 1, false, 0, -1, device.Medium, 0}, // the clock went back
		{Read, 512 << 10, false, 9, 1e6, device.Medium, 9},
		{Write, 512<<10 + 1, false, 0, 10e9, device.Low, 16},
		{Read, 1<<32 - 1, false, 11, 1e12, device.Low, -1},
		{Write, 1 << 20, true, 8, 3000, device.High, 2},
	} {
		before := n
		n.Over(3, c.dir, device.ClassOf(c.size, c.urgent), c.status, c.size, c.ns)
		for d := range n.Ways {
			for class := range n.Ways[d] {
				for status := range n.Ways[d][class] {
					was, is := before.Ways[d][class][status], n.Ways[d][class][status]
					if Direction(d) != c.dir || device.Class(class) != c.class || uint8(status) != c.status {
						if was != is {
							t.Errorf("%+v counts in %d %d %d", c, d, class, status)
						}
						continue
					}
					was.Bytes += uint64(c.size)
					was.Time.Count++
					was.Time.Sum += max(c.ns, 0)
					if c.bucket >= 0 {
						was.Time.In[c.bucket]++
					}
					if was != is {
						t.Errorf("%+v: %+v, want %+v", c, is, was)
					}
				}
			}
		}
	}
	// The slot's sum includes all bytes that arrived, whatever the result of their transfer.
	n.Arrived(3, 16<<10)
	n.Arrived(3, 5)
	want := Sum{Completed: 3, Failed: 4, Bytes: 16<<10 + 5}
	if n.Slots[3] != want || n.Sum() != want {
		t.Errorf("slot 3 %+v, all %+v, want %+v", n.Slots[3], n.Sum(), want)
	}
	n.Over(15, Write, device.High, 0, 7, 1)
	n.Arrived(15, 7)
	if got := n.Sum().Less(want); got != (Sum{Completed: 1, Bytes: 7}) {
		t.Errorf("slot 15 adds %+v", got)
	}
	before := n
	n.Over(0, Write, device.High, device.Statuses, 1, 1)
	n.Over(0, Write, device.Classes, 0, 1, 1)
	n.Over(0, Directions, device.High, 0, 1, 1)
	n.Over(device.Slots, Write, device.High, 0, 1, 1)
	n.Over(-1, Write, device.High, 0, 1, 1)
	n.Arrived(device.Slots, 1)
	n.Arrived(-1, 1)
	if n != before {
		t.Error("an invalid status, class, slot or direction is counted")
	}
}
