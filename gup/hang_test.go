package gup

import (
	"testing"

	"github.com/exanet/pfd/device"
)

// Where page-ins of a mapping hang no more of it is tried, and other mappings are. A
// process has so many under way at a time.
func TestHangs(t *testing.T) {
	const hanging, other = device.VA(0x1000), device.VA(0x2000)
	var h hangs
	enter := func(m device.VA, want bool) (call int) {
		t.Helper()
		call, ok := h.enter(m)
		if ok != want {
			t.Errorf("mapping %v: tried %v, want %v", m, ok, want)
		}
		return call
	}
	first := 0
	for range hangsMost {
		first = enter(hanging, true)
		h.calls[first].began = h.calls[first].began.Add(-2 * hangTime)
	}
	enter(hanging, false)
	h.leave(enter(other, true))
	h.leave(first)
	h.leave(enter(hanging, true)) // one hangs still, and is no reason yet
	for range underWay - hangsMost + 1 {
		enter(other, true)
	}
	enter(other, false)
}
