package fault

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/pagein"
)

// Policy and Method are package pagein's. Where a Target leaves them open the
// driver takes what pagein's Chosen gives.
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

	GUP   = pagein.GUP   // the Pager, from outside
	Touch = pagein.Touch // the Delegate: the process itself, which also sends the RAPF (Driver.Declined)
	UFFD  = pagein.UFFD  // the Pager, through userfaultfds of the process
	// Populate is a Pager that waits for the process: it never runs on the owning
	// goroutine.
	Populate = pagein.Populate
)

// Caps of a policy's range (spec/faultpath.md, spec/hardware.md 3).
const (
	// MaxPages is the 16 MiB that one fault brings in at most, in pages.
	MaxPages = 16 << 20 >> device.PageShift
	// pi4Pages is the 16 KiB of PI4.
	pi4Pages = device.BlockSize >> device.PageShift
)

// rangeOf gives how many pages a fault at page brings in: at least one, at most
// MaxPages, and none past limit (the first page beyond the address width). ext
// counts the bytes of the transfer from the faulting address on, offset is that
// address's place in its page where it is known (else 0: then the range ends a
// page early rather than beyond the transfer). known is false where the device
// states no remaining length (a source fault told by FAR alone): PIA and Adaptive then
// take what PI4 does.
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
