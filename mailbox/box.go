package mailbox

import (
	"fmt"

	"github.com/exanet/pfd/device"
)

// Source is written by the hardware beside each message and identifies the sender. The sender
// cannot change it (spec/hardware.md 3, window mbox).
type Source struct {
	Node      device.NodeID
	Interface uint8       // packetizer, 6 bits
	PDID      device.PDID // wired; 0 for an R5
	Words     int         // number of u64 in the message, 0..15; 0: no message
}

// The bits of register SOURCE (spec/hardware.md 3; defined by this project).
//
//	node       [21:0]
//	interface  [29:24]
//	PDID       [47:32]
//	u64s       [59:56]
const (
	sourceInterfaceShift = 24
	sourceInterfaceMask  = 0x3f
	sourcePDIDShift      = 32
	sourceWordsShift     = 56
	sourceWordsMask      = 0xf

	statusMessages = 0xffff  // STATUS [15:0]
	statusOverflow = 1 << 16 // STATUS [16], W1C
)

// Encode returns the value of register SOURCE.
func (s Source) Encode() uint64 {
	return uint64(s.Node)&device.NodeIDMask |
		uint64(s.Interface)&sourceInterfaceMask<<sourceInterfaceShift |
		uint64(s.PDID)<<sourcePDIDShift |
		uint64(s.Words)&sourceWordsMask<<sourceWordsShift
}

// DecodeSource decodes the value of register SOURCE.
func DecodeSource(v uint64) Source {
	return Source{
		Node:      device.NodeID(v & device.NodeIDMask),
		Interface: uint8(v >> sourceInterfaceShift & sourceInterfaceMask),
		PDID:      device.PDID(v >> sourcePDIDShift),
		Words:     int(v >> sourceWordsShift & sourceWordsMask),
	}
}

// Box is one mailbox, accessed through window mbox. It is used on the goroutine that owns the
// window and does not allocate.
type Box struct {
	w    device.Window
	base uint32
}

// NewBox returns mailbox n, 3..63, of window mbox; 0..2 belong to the firmware and read as empty
// (spec/hardware.md 3).
func NewBox(w device.Window, n int) *Box {
	return &Box{w: w, base: uint32(n) % device.Interfaces * device.PageSize}
}

// Status returns the number of waiting messages, and whether messages were refused because the
// mailbox was full.
func (b *Box) Status() (messages int, overflow bool, err error) {
	v, err := b.w.Read32(b.base + device.MboxStatus)
	if err != nil {
		return 0, false, fmt.Errorf("mailbox status: %w", err)
	}
	return int(v & statusMessages), v&statusOverflow != 0, nil
}

// Source returns the source of the head message; Source.Words is 0 if the mailbox is empty.
func (b *Box) Source() (Source, error) {
	v, err := b.w.Read64(b.base + device.MboxSource)
	if err != nil {
		return Source{}, fmt.Errorf("mailbox source: %w", err)
	}
	return DecodeSource(v), nil
}

// Receive moves the head message into words and returns its source; Source.Words is 0 if the
// mailbox is empty. Words after the eighth, which no packetizer can send, are dropped.
func (b *Box) Receive(words *[device.PktzMaxWords]uint64) (Source, error) {
	s, err := b.Source()
	if err != nil {
		return s, err
	}
	for i := range s.Words {
		w, err := b.w.Read64(b.base + device.MboxData)
		if err != nil {
			return Source{}, fmt.Errorf("mailbox data: %w", err)
		}
		if i < len(words) {
			words[i] = w
		}
	}
	s.Words = min(s.Words, len(words))
	return s, nil
}
