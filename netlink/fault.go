// Package netlink has the fault message, which asks a process to page in a page of its own, and the
// sockets that carry it (spec/messages.md 3; 000 table 3.1). The message code is pure and builds
// everywhere; the sockets are Linux's NETLINK_USERSOCK.
//
// The message is text. The nlmsghdr around it is in the machine's byte order, as the kernel's
// interface requires.
//
// The sockets call golang.org/x/sys/unix. The Conn of github.com/mdlayher/netlink cannot carry
// these messages: its Receive returns neither the sender's address nor its credentials, and its
// Send waits for a full receiver. A receiver on github.com/mdlayher/socket passes the tests with 34
// lines fewer of 367, and at the same speed, but allocates 10 times a message instead of twice and
// starts a goroutine for each: a page fault in the middle of a transfer waits for that.
//
// docs/papers.md lists the papers that comments cite by number.
package netlink

import (
	"errors"
	"fmt"

	"github.com/exanet/pfd/device"
)

// Fault is the fault message (spec/messages.md 3; 000 table 3.1).
type Fault struct {
	Source      device.NodeID        // 22 bits: the block's sender
	Transaction device.TransactionID // 14 bits
	Sequence    device.Sequence      // 14 bits
	// VA is the faulting page's address. Its offset in the page is not sent.
	VA      device.VA
	Process uint8 // 4 bits: process index in the domain
	PDID    device.PDID
	// Write says that the fault is at the destination, else at the source. At a source without a
	// TXFIFO, Source, Transaction, Sequence and PDID are 0.
	Write bool
	// Pages is the number of pages requested from VA on, at least 1. Defined by this project.
	Pages uint16
}

// The text forms (spec/messages.md 3): hexadecimal digits, most significant first. The narrow form
// is the thesis's; the wide form is defined by this project.
//
//	field            narrow  wide
//	"2:"             -       2 characters
//	Src_ID           6       6   22 bits
//	Tr_ID            4       4   14 bits
//	Seq_Num          4       4   14 bits
//	process index    1       1   IOVA[31:28]
//	page             7       12  IOVA[27:0] = VA[39:12]; VA[59:12]
//	PDID             4       4
//	R/W              1       1   0 source (read), 1 destination (write)
//	pages            -       4
//	all              27      38
const (
	NarrowSize = 27
	WideSize   = 38

	widePrefix       = "2:"
	narrowPageDigits = 7
	widePageDigits   = 12
	// A VA of 39 bits or more needs the wide form: in the thesis's IOVA bit 27, VA[39], is zero.
	narrowVALimit = 1 << device.MinVABits
	wideVALimit   = 1 << 60
)

// ErrMessage says that a text is not a fault message.
var ErrMessage = errors.New("netlink: not a fault message")

// ErrRange says that a field of a Fault does not fit the message.
var ErrRange = errors.New("netlink: a field of the fault does not fit the message")

// Check returns ErrRange, with the field's name, if the fault does not fit.
func (f *Fault) Check() error {
	switch {
	case f.Source > device.NodeIDMask:
		return fmt.Errorf("%w: source node 0x%x exceeds 22 bits", ErrRange, uint32(f.Source))
	case f.Transaction >= 1<<14:
		return fmt.Errorf("%w: transaction 0x%x exceeds 14 bits", ErrRange, uint16(f.Transaction))
	case f.Sequence > device.SequenceMask:
		return fmt.Errorf("%w: sequence number 0x%x exceeds 14 bits", ErrRange, uint16(f.Sequence))
	case f.Process > 0xf:
		return fmt.Errorf("%w: process index %d exceeds 4 bits", ErrRange, f.Process)
	case f.VA >= wideVALimit:
		return fmt.Errorf("%w: address %v exceeds 60 bits", ErrRange, f.VA)
	case f.Pages == 0:
		return fmt.Errorf("%w: no pages", ErrRange)
	}
	return nil
}

// AppendText appends the message to b: in the thesis's narrow form if the address is below 2^39 and
// one page is requested, else in the wide form. If a field does not fit, it returns b unchanged and
// ErrRange. It allocates nothing if b has room for WideSize more bytes.
func (f *Fault) AppendText(b []byte) ([]byte, error) {
	if err := f.Check(); err != nil {
		return b, err
	}
	wide := f.VA >= narrowVALimit || f.Pages != 1
	pageDigits := narrowPageDigits
	if wide {
		pageDigits = widePageDigits
		b = append(b, widePrefix...)
	}
	b = appendHex(b, uint64(f.Source), 6)
	b = appendHex(b, uint64(f.Transaction), 4)
	b = appendHex(b, uint64(f.Sequence), 4)
	b = appendHex(b, uint64(f.Process), 1)
	b = appendHex(b, uint64(f.VA>>device.PageShift), pageDigits)
	b = appendHex(b, uint64(f.PDID), 4)
	rw := byte('0')
	if f.Write {
		rw = '1'
	}
	b = append(b, rw)
	if wide {
		b = appendHex(b, uint64(f.Pages), 4)
	}
	return b, nil
}

func appendHex(b []byte, v uint64, digits int) []byte {
	for i := digits - 1; i >= 0; i-- {
		b = append(b, "0123456789abcdef"[v>>(4*i)&0xf])
	}
	return b
}

// ParseFault parses a fault message in either form. It accepts digits of both cases and one NUL at
// the end, as in a kernel's string. For any other text it returns ErrMessage; it allocates only
// that error.
func ParseFault(b []byte) (Fault, error) {
	if n := len(b); n > 0 && b[n-1] == 0 {
		b = b[:n-1]
	}
	wide, pageDigits := false, narrowPageDigits
	switch {
	case len(b) == NarrowSize:
	case len(b) == WideSize && string(b[:len(widePrefix)]) == widePrefix:
		wide, pageDigits = true, widePageDigits
		b = b[len(widePrefix):]
	default:
		return Fault{}, fmt.Errorf("%w: %d bytes, not %d or %d that begin with %q",
			ErrMessage, len(b), NarrowSize, WideSize, widePrefix)
	}
	r := reader{b: b}
	f := Fault{
		Source:      device.NodeID(r.hex(6, device.NodeIDMask)),
		Transaction: device.TransactionID(r.hex(4, 1<<14-1)),
		Sequence:    device.Sequence(r.hex(4, device.SequenceMask)),
		Process:     uint8(r.hex(1, 0xf)),
		VA:          device.VA(r.hex(pageDigits, 1<<48-1) << device.PageShift),
		PDID:        device.PDID(r.hex(4, 0xffff)),
		Write:       r.hex(1, 1) == 1,
		Pages:       1,
	}
	if wide {
		if f.Pages = uint16(r.hex(4, 0xffff)); f.Pages == 0 {
			r.bad = true
		}
	}
	if r.bad {
		return Fault{}, fmt.Errorf("%w: a digit that is not hexadecimal, or a field out of its range", ErrMessage)
	}
	return f, nil
}

// reader parses fixed numbers of hexadecimal digits from b, which is long enough.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) hex(digits int, limit uint64) uint64 {
	var v uint64
	for _, c := range r.b[:digits] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			r.bad = true
		}
		v = v<<4 | uint64(c&0xf)
	}
	r.b = r.b[digits:]
	if v > limit {
		r.bad = true
	}
	return v
}
