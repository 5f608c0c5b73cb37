package view

import "github.com/exanet/pfd/device"

// Disarm stores 0 to the 32-bit word at va, which is aligned to 4, and reports whether it was not 0.
// It also returns true if the word is not shared for writing or its page is not present; it then
// enters the page again, if it is in memory. It may sleep as WriteV does.
func (v *View) Disarm(va device.VA) (armed bool) {
	armed, missed := v.disarm(va)
	if missed {
		v.again(va)
	}
	return armed
}

func (v *View) disarm(va device.VA) (armed, missed bool) {
	if !v.mu.TryRLock() {
		return true, false
	}
	defer v.mu.RUnlock()
	s, at := v.find(va, 4, true)
	if s == nil {
		return true, false
	}
	if !s.has(at, 4) || !s.try(func() {
		if w := s.b[at : at+4]; loadWord(w) != 0 {
			armed = true
			clearWord(w)
		}
	}) {
		return true, true
	}
	return armed, false
}

// again enters the page of va, if it is in memory.
func (v *View) again(va device.VA) {
	if !v.mu.TryRLock() {
		return
	}
	s, at := v.find(va.Page(), device.PageSize, false)
	there := uint64(0)
	if s != nil {
		there = s.inFile(at>>device.PageShift, 1)
	}
	v.mu.RUnlock()
	v.Enter(va, 1, there)
}
