package fault

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
)

// Policy and Method are package pagein's. If a Target does not choose, the driver uses the result
// of pagein's Chosen.
type (
	Policy = pagein.Policy
	Method = pagein.Method
)

// The policies and the methods that this package serves.
const (
	PIO = pagein.PIO
	PI4 = pagein.PI4
	PIA = pagein.PIA

	Adaptive = pagein.Adaptive

	GUP   = pagein.GUP   // the process's Space, from outside the process
	Touch = pagein.Touch // the Delegate: the process itself, which also sends the RAPF (Driver.Declined)
	UFFD  = pagein.UFFD  // its Space, through userfaultfds of the process
	// Populate: the process itself, asked by its Space, which waits for the answer (space.NewAsked).
	// The Space sends the question in one brief step; a long wait takes a thread of its own.
	Populate = pagein.Populate
)

// Limits of a policy's range (spec/faultpath.md, spec/hardware.md 3).
const (
	// MaxPages is the maximum that one fault pages in: 16 MiB, in pages.
	MaxPages = 16 << 20 >> device.PageShift
	// pi4Pages is the 16 KiB of PI4, in pages.
	pi4Pages = device.BlockSize >> device.PageShift
)

// rangeOf returns how many pages a fault at page pages in: at least one, at most MaxPages, and
// none at or past limit (the first page beyond the address width). ext is the number of bytes of
// the transfer from the faulting address on. offset is that address's offset in its page, or 0 if
// unknown: the range then ends a page early rather than beyond the transfer. known is false if
// the device reports no remaining length (a source fault reported only by FAR): PIA and Adaptive
// then use PI4's range.
func rangeOf(p Policy, page, limit uint64, write bool, ext uint32, offset uint64, known bool) uint64 {
	if p == PIO {
		return 1
	}
	n := uint64(pi4Pages)
	if write {
		n -= page & (pi4Pages - 1)
	}
	if known {
		rest := (offset + uint64(ext) + device.PageSize - 1) >> device.PageShift
		if p == PIA || p == Adaptive {
			n = rest
		}
		n = min(n, rest)
	}
	return max(1, min(n, MaxPages, limit-page))
}
