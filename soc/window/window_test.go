package window_test

import (
	"math/rand/v2"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/window"
)

// A range is admitted exactly if some window admits each of its bytes: sets of random windows are
// compared with a map of bytes.
func TestAdmits(t *testing.T) {
	const space = 48
	const base = device.VA(1<<64 - space/2) // the addresses wrap in the middle
	rng := rand.New(rand.NewPCG(1, 2))
	admitted, refused := 0, 0
	for range 2000 {
		var s window.Set
		var may [space]bool
		for range rng.IntN(6) {
			i, va, n := rng.IntN(device.WindowsPerSlot), rng.IntN(space/2), rng.IntN(space/2)
			w := device.MemoryWindow{VA: base + device.VA(va), Bytes: uint64(min(n, space/2-va)), Peer: []device.PDID{0, 7, 8}[rng.IntN(3)], Rights: device.Rights(rng.IntN(16))}
			s.Put(i, w, rng.IntN(5) > 0)
		}
		for i := range device.WindowsPerSlot {
			if w, on := s.Window(i); on && w.Peer != 8 && w.Rights&device.RightWrite != 0 {
				for k := range w.Bytes {
					may[uint64(w.VA-base)+k] = true
				}
			}
		}
		for from := range space {
			all := true
			for to := from + 1; to <= space; to++ {
				all = all && may[to-1]
				if got := s.Admits(7, device.RightWrite, base+device.VA(from), uint64(to-from)); got != all {
					t.Fatalf("bytes %d to %d: admitted %v, want %v: %v", from, to, got, all, may)
				}
				if all {
					admitted++
				} else {
					refused++
				}
			}
		}
	}
	if admitted < 1000 || refused < 1000 {
		t.Errorf("%d ranges were admitted and %d refused: too few", admitted, refused)
	}
}

// A range of no bytes needs the right to some byte, and a window may be set again.
func TestGrants(t *testing.T) {
	var s window.Set
	if s.Admits(7, device.RightRead, 0, 0) || s.Grants(7, device.AllRights) {
		t.Error("no window grants a right")
	}
	s.Put(63, device.MemoryWindow{Peer: 7, Rights: device.RightMessages}, true)
	if !s.Grants(7, device.RightMessages) || s.Grants(8, device.RightMessages) || s.Grants(7, device.RightRead) || s.Admits(7, device.RightRead, 0, 0) {
		t.Error("a window of no bytes grants messages to its peer alone, and nothing else")
	}
	s.Put(63, device.MemoryWindow{Peer: 7, Rights: device.RightMessages}, false)
	if s.Grants(7, device.RightMessages) {
		t.Error("a disabled window grants a right")
	}
}

func TestOverlap(t *testing.T) {
	for a := range device.VA(5) {
		for an := range uint64(5) {
			for b := range device.VA(5) {
				for bn := range uint64(5) {
					want := false
					for i := range device.VA(12) {
						want = want || i >= a && uint64(i-a) < an && i >= b && uint64(i-b) < bn
					}
					if got := window.Overlap(a, an, b, bn); got != want {
						t.Errorf("Overlap(%d, %d, %d, %d) = %v", a, an, b, bn, got)
					}
				}
			}
		}
	}
}
