package sim

import (
	"testing"

	"github.com/exanet/pfd/fault"
)

// Times of TestBoardByHand, ns: those of Board, and of a link that takes 0.8 ns a byte and 150
// ns a hop. A frame has 64 bytes in addition to its payload.
const (
	handFirmware = 3000
	handAccess   = 200 + 200 // a walk and a move
	handSmall    = 64 + 150  // a frame of 16 bytes
	handBlock    = 3328 + 150
	handAnswer   = 51 + 150 // without a payload
	handFault    = 8000 + 16_500 + 2500
	handRequest  = 1000 + handAnswer + handFirmware
)

// TestBoardByHand performs writes whose time is the sum of their parts.
func TestBoardByHand(t *testing.T) {
	for _, tt := range []struct {
		name  string
		trial Trial
		want  int64
		sent  uint64 // retransmitted
	}{
		{"16 bytes", Trial{Size: 16}, handFirmware + handAccess + handSmall + handAccess + handAnswer, 0},
		{"4 KiB", Trial{Size: 4096}, handFirmware + handAccess + handBlock + handAccess + handAnswer, 0},
		{"4 KiB, touched first", Trial{Size: 4096, Dst: 1, Touch: true}, 3000 + handFirmware + handAccess + handBlock + handAccess + handAnswer, 0},
		// The sender still has the bytes.
		{"4 KiB absent", Trial{Size: 4096, Dst: 1, Policy: fault.PIO},
			handFirmware + handAccess + handBlock + 200 + handFault + handRequest + handBlock + handAccess + handAnswer, 1},
		{"4 KiB, absent at the source", Trial{Size: 4096, Src: 1, Policy: fault.PIO},
			handFirmware + 200 + handFault + 1000 + handFirmware + handAccess + handBlock + handAccess + handAnswer, 1},
	} {
		got, err := Board().Write(tt.trial)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if d := got.Nanoseconds - tt.want; d < -2 || d > 2 || got.Retransmissions != tt.sent { // rounding errors of the link
			t.Errorf("%s: %+v, want %d ns", tt.name, got, tt.want)
		}
	}
}

// TestBoardBesidePapers compares the simulated board with the papers' measurements: figures of
// the board alone are close, and those of driver and device are better.
func TestBoardBesidePapers(t *testing.T) {
	us := func(tr Trial) float64 {
		t.Helper()
		tr.Seed = 1
		o, err := Board().Write(tr)
		if err != nil {
			t.Fatal(err)
		}
		return float64(o.Nanoseconds) / 1e3
	}
	const mib = 1 << 20
	present := us(Trial{Size: mib})
	for _, tt := range []struct {
		name     string
		got      float64
		low, top float64
	}{
		{"small write, 4 us (002 §V)", us(Trial{Size: 16}), 3.6, 4.4},
		{"4 KiB with a fault, 38 us (002 fig. 9)", us(Trial{Size: 4096, Dst: 1, Policy: fault.PIO}), 34, 43},
		{"source fault, a time-out of 1 ms (002 fig. 9)", us(Trial{Size: 4096, Src: 1, TimeoutUS: 1000}), 1000, 1020},
		{"1 MiB touched first by present, 2 (002 fig. 10)", us(Trial{Size: mib, Dst: 1, Touch: true}) / present, 1.7, 2.1},
		{"1 MiB by PIA by present, 2.6 (002 fig. 10)", us(Trial{Size: mib, Dst: 1, Policy: fault.PIA}) / present, 1, 2.6},
		{"1 MiB, 5 % absent, by PIA by present, 1.15 (002 fig. 11)", us(Trial{Size: mib, Dst: 0.05, Policy: fault.PIA}) / present, 1, 1.15},
		{"1 MiB, PIO by PIA, 6.7 (002 fig. 11)", us(Trial{Size: mib, Dst: 1, Policy: fault.PIO}) / us(Trial{Size: mib, Dst: 1, Policy: fault.PIA}), 1, 6.7},
		{"64 KiB, source, time-out of 1 ms, one page a fault by four, 4.7 (000 fig. 4.3)",
			us(Trial{Size: 64 << 10, Src: 1, Policy: fault.PIO, TimeoutUS: 1000}) / us(Trial{Size: 64 << 10, Src: 1, Policy: fault.PI4, TimeoutUS: 1000}), 3.5, 4.7},
	} {
		if t.Logf("%s: %.2f", tt.name, tt.got); tt.got < tt.low || tt.got > tt.top {
			t.Errorf("%s: %.2f, want %v to %v", tt.name, tt.got, tt.low, tt.top)
		}
	}
}

// The same trial has the same outcome; with another seed other pages are absent.
func TestBoardSeeds(t *testing.T) {
	tr := Trial{Size: 256 << 10, Dst: 0.4, Policy: fault.PIO}
	got := map[Outcome]int{}
	for seed := range uint64(6) {
		tr.Seed = seed / 2
		o, err := Board().Write(tr)
		if err != nil {
			t.Fatal(err)
		}
		got[o]++
	}
	for o, n := range got {
		if n != 2 {
			t.Errorf("%+v %d times of 6", o, n)
		}
	}
}
