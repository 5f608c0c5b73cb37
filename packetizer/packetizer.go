// Package packetizer defines the payloads of packetizers and the bits that the hardware wires
// into them, and a Port, which drives one packetizer through a device.Window (spec/messages.md 4,
// spec/hardware.md 3; 000 §3.2.1, 001 §3.6, 003 fig. 9).
//
// docs/papers.md lists the papers that comments cite by number.
package packetizer

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/mailbox"
)

// Config is the value of PKTZ_CFG[n]: the fields that packetizer n stamps on all it sends
// (spec/hardware.md 3; defined by this project). Only pfd writes it.
type Config struct {
	PDID      device.PDID   // [15:0]
	Node      device.NodeID // [33:16]: the thread and node id's low 18 bits
	Interface uint8         // [39:34]: the thread and node id's high 6 bits
	GSAS      bool          // [62]: form 1, of threads; form 0 are the R5 words
	Enable    bool          // [63]
}

// The bits of PKTZ_CFG (spec/hardware.md 3). The thread and node ID, [39:16], has the node in its
// bits [17:0] and the interface in [23:18].
const (
	threadBits      = 24
	threadMask      = 1<<threadBits - 1
	threadNodeBits  = 18
	threadNodeMask  = 1<<threadNodeBits - 1
	threadIfaceMask = 0x3f
)

// Encode returns the register's value.
func (c Config) Encode() uint64 {
	v := uint64(c.PDID) | uint64(c.thread())<<device.PktzThreadShift
	if c.GSAS {
		v |= device.PktzFormGSAS
	}
	if c.Enable {
		v |= device.CfgEnable
	}
	return v
}

func (c Config) thread() uint32 {
	return uint32(c.Node)&threadNodeMask | uint32(c.Interface)&threadIfaceMask<<threadNodeBits
}

// DecodeConfig decodes the register's value.
func DecodeConfig(v uint64) Config {
	thread := v >> device.PktzThreadShift & threadMask
	return Config{
		PDID:      device.PDID(v & device.PDIDMask),
		Node:      device.NodeID(thread & threadNodeMask),
		Interface: uint8(thread >> threadNodeBits),
		GSAS:      v&device.PktzFormGSAS != 0,
		Enable:    v&device.CfgEnable != 0,
	}
}

// wiredR5 are the wired bits of form 0 in a payload's first u64 (spec/messages.md 2); those of form 1
// are atomics.WiredBits.
const wiredR5 = device.PDIDMask << mailbox.PDIDShift

// Stamp writes the wired bits of form 0 over the payload's first u64, as the hardware does on SEND,
// overwriting the sender's bits: the PDID of PKTZ_CFG value cfg goes into word0[17:2].
func Stamp(cfg uint64, payload []uint64) {
	if len(payload) > 0 {
		payload[0] = payload[0]&^wiredR5 | cfg&device.PDIDMask<<mailbox.PDIDShift
	}
}

// StampThread writes the wired bits of form 1: the thread of PKTZ_CFG value cfg, the protection ID
// of PKTZ_PROT value prot, and the tag of a message that channel sends with a number.
func StampThread(cfg, prot uint64, channel int, number uint16, payload []uint64) {
	if len(payload) == 0 {
		return
	}
	protection, _ := device.SplitPktzProt(prot)
	payload[0] = payload[0]&^atomics.WiredBits | atomics.Wired(
		atomics.Thread(cfg>>device.PktzThreadShift&threadMask), atomics.Protection(protection), atomics.TagOf(channel, number))
}

// The bits of a channel's destination word (spec/messages.md 4).
const (
	destMailboxShift = 24
	destMailboxMask  = 0xff
	destGenShift     = 32
)

// Destination returns a channel's destination word: mailbox, 0..63, of node. A process's mailbox,
// 16..63, accepts only messages for its domain's generation.
func Destination(node device.NodeID, mailbox uint8, g device.Generation) uint64 {
	return uint64(node)&device.NodeIDMask | uint64(mailbox)<<destMailboxShift | uint64(g)<<destGenShift
}

// SplitDestination decodes a destination word. The mailbox may be 64 or more: such a message is
// refused.
func SplitDestination(v uint64) (device.NodeID, uint8, device.Generation) {
	return device.NodeID(v & device.NodeIDMask), uint8(v >> destMailboxShift & destMailboxMask), device.Generation(v >> destGenShift)
}

// The bits of a channel's SEND word (spec/hardware.md 7; defined by this project).
const sendNumberShift = 16

// Send returns a channel's SEND word: the number of u64, and the sender's own number of the
// message, which a refusal by another node repeats (mailbox.Refusal).
func Send(words int, number uint16) uint64 {
	return uint64(uint16(words)) | uint64(number)<<sendNumberShift
}

// SplitSend decodes a SEND word. words is 0 if the word is invalid: such a message is refused.
func SplitSend(v uint64) (words int, number uint16) {
	if words = int(uint16(v)); v>>32 != 0 || words > device.PktzMaxWords {
		words = 0
	}
	return words, uint16(v >> sendNumberShift)
}
