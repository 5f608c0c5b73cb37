package fault

import (
	"errors"
	"fmt"

	"github.com/exanet/pfd/device"
)

// Policy says how many pages a fault brings in (spec/faultpath.md "Policies";
// PART's names).
type Policy uint8

// The policies.
const (
	PIO Policy = iota // the page
	PI4               // to the end of its aligned 16 KiB; at a source four pages
	PIA               // all remaining pages of the transfer
)

// Method says who pages in, and how (spec/faultpath.md "Page-in methods").
type Method uint8

// The methods that this package serves.
const (
	GUP   Method = iota // the Pager, from outside
	Touch               // the Delegate: the process itself, which also sends the RAPF
)

// Errors of the two parsers.
var (
	ErrPolicy = errors.New("unknown policy")
	ErrMethod = errors.New("unknown page-in method")
)

// Caps of a policy's range (spec/faultpath.md, spec/hardware.md 3).
const (
	// MaxPages is the 16 MiB that one fault brings in at most, in pages.
	MaxPages = 16 << 20 >> device.PageShift
	// pi4Pages is the 16 KiB of PI4.
	pi4Pages = device.BlockSize >> device.PageShift
)

// String gives the flag's spelling: p1, p4 or pa.
func (p Policy) String() string {
	switch p {
	case PIO:
		return "p1"
	case PI4:
		return "p4"
	case PIA:
		return "pa"
	}
	return fmt.Sprintf("policy(%d)", uint8(p))
}

// ParsePolicy reads p1, p4 or pa. An error matches ErrPolicy.
func ParsePolicy(s string) (Policy, error) {
	switch s {
	case "p1":
		return PIO, nil
	case "p4":
		return PI4, nil
	case "pa":
		return PIA, nil
	}
	return 0, fmt.Errorf("%w %q; take p1 (the page), p4 (its 16 KiB) or pa (the rest of the transfer)", ErrPolicy, s)
}

// String gives the flag's spelling: gup or touch.
func (m Method) String() string {
	switch m {
	case GUP:
		return "gup"
	case Touch:
		return "touch"
	}
	return fmt.Sprintf("method(%d)", uint8(m))
}

// ParseMethod reads gup or touch. An error matches ErrMethod.
func ParseMethod(s string) (Method, error) {
	switch s {
	case "gup":
		return GUP, nil
	case "touch":
		return Touch, nil
	}
	return 0, fmt.Errorf("%w %q; take gup or touch", ErrMethod, s)
}

// pages gives how many pages a fault at page brings in: at least one, at most
// MaxPages, and none past limit (the first page beyond the address width). ext
// counts the bytes of the transfer from the faulting address on, offset is that
// address's place in its page where it is known (else 0: then the range ends a
// page early rather than beyond the transfer). known is false where the device
// states no remaining length (a source fault told by FAR alone): PIA then takes
// what PI4 does.
func (p Policy) pages(page, limit uint64, write bool, ext uint32, offset uint64, known bool) uint64 {
	if p == PIO {
		return 1
	}
	n := uint64(pi4Pages)
	if write {
		n -= page & (pi4Pages - 1)
	}
	if known {
		rest := (offset + uint64(ext) + device.PageSize - 1) >> device.PageShift
		if p == PIA {
			n = rest
		}
		n = min(n, rest)
	}
	return max(1, min(n, MaxPages, limit-page))
}
