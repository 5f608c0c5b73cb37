package soc

import (
	"math/rand/v2"
	"testing"

	"github.com/exanet/pfd/device"
)

// A place that is kept is the one that the register map names, also where places take each other's
// entries, and a bad access is counted each time.
func TestPlaces(t *testing.T) {
	for _, cfg := range []Config{
		{ID: 5, VABits: 48, SVA: true, Stall: true, Queues: true},
		{ID: 5, VABits: 39, NoTXFIFO: true},
	} {
		n := New(cfg)
		random := rand.New(rand.NewPCG(1, 2))
		r := device.Registers()
		for range 200_000 {
			reg := &r[random.IntN(len(r))]
			offset := reg.At(random.IntN(min(reg.Count, 8))) + uint32(random.IntN(3))*4 // of a neighbour or a hole, too
			width := []int{4, 8}[random.IntN(2)]
			want, ok := device.Resolve(reg.Window, offset, width)
			got := n.places.find(n.caps(), reg.Window, offset, width)
			if (got != nil) != ok {
				t.Fatalf("window %v offset 0x%x width %d: found %v, want %v", reg.Window, offset, width, got != nil, ok)
			}
			if !ok {
				continue
			}
			read, write, w1c := want.Masks(n.caps())
			if got.target != want || got.read != read || got.write != write || got.w1c != w1c {
				t.Fatalf("window %v offset 0x%x width %d: %+v, want %+v, masks 0x%x 0x%x 0x%x", reg.Window, offset, width, *got, want, read, write, w1c)
			}
		}
	}
	n := New(Config{ID: 5, VABits: 48})
	for i := range uint64(3) {
		n.Load(device.PL, device.PLWords-8, 8) // a hole
		n.Store(0, device.PL, device.PLNodeID, 2, 0, nil)
		if got := n.Count(device.BadAccess); got != 2*(i+1) {
			t.Fatalf("BAD_ACCESS is %d after %d bad accesses", got, 2*(i+1))
		}
	}
}

func BenchmarkLoad(b *testing.B) {
	n := New(Config{ID: 5, VABits: 48})
	for b.Loop() {
		n.Load(device.SMMU, device.Bank(2, device.FSR), 4)
	}
}
