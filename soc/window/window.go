// Package window decides what the memory windows of a domain admit (spec/hardware.md 3, WIN_CTRL).
package window

import (
	"math/bits"

	"github.com/exanet/pfd/device"
)

// Set is the windows of one slot. Its zero value has none.
type Set struct {
	all [device.WindowsPerSlot]device.MemoryWindow
	on  uint64 // a bit for each window that is enabled
}

// Put sets window i.
func (s *Set) Put(i int, w device.MemoryWindow, enabled bool) {
	s.all[i] = w
	s.on &^= 1 << i
	if enabled {
		s.on |= 1 << i
	}
}

// Window returns window i as Put has set it.
func (s *Set) Window(i int) (w device.MemoryWindow, enabled bool) {
	return s.all[i], s.on>>i&1 != 0
}

// Admits reports whether a PDID has a right to each byte of a range: windows that overlap or touch
// add up. For a range of 0 bytes it needs the right to any byte.
func (s *Set) Admits(peer device.PDID, right device.Rights, va device.VA, bytes uint64) bool {
	if s.on == 0 || bytes == 0 {
		return s.Grants(peer, right)
	}
	for {
		reach := uint64(0) // bytes from va on that one window admits
		for on := s.on; on != 0; on &= on - 1 {
			w := &s.all[bits.TrailingZeros64(on)]
			if grants(w, peer, right) && va >= w.VA && uint64(va-w.VA) < w.Bytes {
				if reach = max(reach, w.Bytes-uint64(va-w.VA)); reach >= bytes {
					return true
				}
			}
		}
		if reach == 0 {
			return false
		}
		va, bytes = va+device.VA(reach), bytes-reach
	}
}

// Grants reports whether a PDID has a right by any window.
func (s *Set) Grants(peer device.PDID, right device.Rights) bool {
	for on := s.on; on != 0; on &= on - 1 {
		if grants(&s.all[bits.TrailingZeros64(on)], peer, right) {
			return true
		}
	}
	return false
}

func grants(w *device.MemoryWindow, peer device.PDID, right device.Rights) bool {
	return w.Rights&right != 0 && (w.Peer == 0 || w.Peer == peer)
}

// Overlap reports whether two ranges have a byte in common.
func Overlap(a device.VA, an uint64, b device.VA, bn uint64) bool {
	if a > b {
		a, an, b, bn = b, bn, a, an
	}
	return bn > 0 && uint64(b-a) < an
}
