package gup

import (
	"testing"

	"github.com/exanet/pfd/device"
)

// If page-ins of a mapping hang, other mappings are still tried, and no more of this one. The
// page-ins of a process in flight are bounded.
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
	h.leave(enter(hanging, true)) // one still hangs, which is below the bound
	for range underWay - hangsMost + 1 {
		enter(other, true)
	}
	enter(other, false)
}
