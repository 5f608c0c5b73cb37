// Package mailbox defines the messages of the R5 firmware and the source that the hardware writes
// beside each, and a Box, which reads one mailbox through a device.Window.
//
// A message is one or more u64. The first one's low half is word0, its high half word1
// (spec/messages.md 2; 000 §3.2.3.3). A process may write hostile values: decoders check opcode,
// transaction ID and channel, and the caller checks the rest against the wired Source.
//
// docs/papers.md lists the papers that comments cite by number.
package mailbox

import (
	"errors"

	"github.com/exanet/pfd/device"
)

// Opcode is the type of an R5 message, word0[1:0] (spec/messages.md 2).
type Opcode uint8

// The opcodes. OpAck, OpRead and the restriction of OpDoorbell are defined by this project.
const (
	OpAck      Opcode = 0 // acknowledgement, mailbox 0
	OpRead     Opcode = 1 // read request, mailbox 2
	OpRAPF     Opcode = 2 // retransmission request after a page fault
	OpDoorbell Opcode = 3 // from the same node only
)

// OpRefused is, in a process's mailbox and from PDID 0, the refusal of a message that the process
// has sent. There its number is free: read requests go to mailbox 2 (defined by this project).
const OpRefused = OpRead

// OpcodeOf returns the opcode of a message's first u64.
func OpcodeOf(word uint64) Opcode { return Opcode(word & opcodeMask) }

// Reasons for dropping and counting a message (spec/messages.md 2). Decoders return them
// unwrapped, so that dropping does not allocate.
var (
	ErrOpcode      = errors.New("message has the wrong opcode")
	ErrTransaction = errors.New("transaction ID out of range (1024 or above)")
	ErrChannel     = errors.New("doorbell for a channel of the firmware (32..63 of a page)")
	ErrLength      = errors.New("message has the wrong length")
)

// The bits of the first u64 (spec/messages.md 2). Bit 32+i is word1[i]. Of the RAPF,
// sequence[13:12], fail and memory are defined by this project.
//
//	message   field                bits
//	all       opcode               [1:0]
//	ack       transaction id       [15:2]
//	ack       code                 [18:16]
//	ack       sequence number      [45:32]
//	read      wired PDID           [17:2]
//	read      tag                  [31:18]
//	read      size                 [63:32]
//	rapf      wired PDID           [17:2]
//	rapf      transaction id       [31:18]
//	rapf      sequence[11:0]       [43:32]
//	rapf      PDID as written      [59:44]
//	rapf      sequence[13:12]      [61:60]
//	rapf      fail                 [62]
//	rapf      memory               [63]
//	doorbell  wired PDID           [17:2]
//	doorbell  channel              [27:18]
//	refusal   number               [47:32]
//	process   kind                 [23:18], beside the wired PDID
const (
	opcodeMask = 3
	id14Mask   = 1<<14 - 1

	ackIDShift   = 2
	ackCodeShift = 16
	ackCodeMask  = 7
	ackSeqShift  = 32

	// PDIDShift is the position of the wired PDID in word0 of opcodes 1 to 3, where a packetizer
	// of form 0 stamps it (spec/hardware.md 3, PKTZ_CFG).
	PDIDShift = 2

	readTagShift  = 18
	readSizeShift = 32
	readGenShift  = 32 // in the seventh word, which has the target's PDID in [15:0]

	rapfIDShift      = 18
	rapfSeqLowShift  = 32
	rapfSeqLowBits   = 12
	rapfSeqLowMask   = 1<<rapfSeqLowBits - 1
	rapfClaimedShift = 44
	rapfSeqHighShift = 60
	rapfSeqHighMask  = 3
	rapfFail         = 1 << 62
	rapfMemory       = 1 << 63

	doorbellChannelShift = 18
	doorbellChannelMask  = 1<<10 - 1

	refusalShift = 32

	kindShift = 18
	kindMask  = 1<<6 - 1
)

// ReadRequestWords is the length of a read request in u64 (spec/messages.md 4).
const ReadRequestWords = 7

// Ack is an acknowledgement: positive with CodeAck, otherwise a NACK. The answer to a refused
// read request has the same form, with the tag as the transaction.
type Ack struct {
	Transaction device.TransactionID
	Code        device.Code
	Sequence    device.Sequence
}

// Encode returns the acknowledgement's word.
func (a Ack) Encode() uint64 {
	return uint64(OpAck) | uint64(a.Transaction)&id14Mask<<ackIDShift |
		uint64(a.Code)&ackCodeMask<<ackCodeShift |
		uint64(a.Sequence)&id14Mask<<ackSeqShift
}

// DecodeAnswer decodes the answer to a read request, whose tag may be any 14-bit number
// (spec/firmware.md, read path). The caller must trust it only if its Source has PDID 0. Error:
// ErrOpcode.
func DecodeAnswer(word uint64) (Ack, error) {
	if OpcodeOf(word) != OpAck {
		return Ack{}, ErrOpcode
	}
	return Ack{
		Transaction: device.TransactionID(word >> ackIDShift & id14Mask),
		Code:        device.Code(word >> ackCodeShift & ackCodeMask),
		Sequence:    device.Sequence(word >> ackSeqShift & id14Mask),
	}, nil
}

// RAPF is the explicit retransmission request after a page fault. Generation, Fail and Memory are
// defined by this project.
type RAPF struct {
	PDID        device.PDID       // wired: the packetizer stamps it
	Generation  device.Generation // wired, beside the word: of the packetizer's domain
	Transaction device.TransactionID
	Sequence    device.Sequence
	Claimed     device.PDID // as the sender wrote it; obeyed only if equal to PDID
	Fail        bool        // do not retransmit: end the transfer with code 2
	Memory      bool        // with Fail: with status 11, the memory cannot be made resident
}

// Encode returns the request's word.
func (r RAPF) Encode() uint64 {
	seq := uint64(r.Sequence)
	w := uint64(OpRAPF) | uint64(r.PDID)<<PDIDShift |
		uint64(r.Transaction)&id14Mask<<rapfIDShift |
		seq&rapfSeqLowMask<<rapfSeqLowShift |
		uint64(r.Claimed)<<rapfClaimedShift |
		seq>>rapfSeqLowBits&rapfSeqHighMask<<rapfSeqHighShift
	if r.Fail {
		w |= rapfFail
	}
	if r.Memory {
		w |= rapfMemory
	}
	return w
}

// DecodeRAPF decodes a retransmission request. Errors: ErrOpcode, ErrTransaction.
func DecodeRAPF(word uint64) (RAPF, error) {
	if OpcodeOf(word) != OpRAPF {
		return RAPF{}, ErrOpcode
	}
	r := RAPF{
		PDID:        device.PDID(word >> PDIDShift),
		Transaction: device.TransactionID(word >> rapfIDShift & id14Mask),
		Sequence: device.Sequence(word>>rapfSeqLowShift&rapfSeqLowMask |
			word>>rapfSeqHighShift&rapfSeqHighMask<<rapfSeqLowBits),
		Claimed: device.PDID(word >> rapfClaimedShift),
		Fail:    word&rapfFail != 0,
		Memory:  word&rapfMemory != 0,
	}
	if r.Transaction >= device.Transactions {
		return RAPF{}, ErrTransaction
	}
	return r, nil
}

// Doorbell announces a descriptor to the firmware of the local node.
type Doorbell struct {
	PDID    device.PDID // wired; the channel's slot must have it
	Channel uint16      // 0..1023 of the node: 64*slot + channel of the page
}

// Slot returns the protection-domain slot of the channel.
func (d Doorbell) Slot() int { return int(d.Channel) / device.ChannelsPerSlot }

// Encode returns the doorbell's word.
func (d Doorbell) Encode() uint64 {
	return uint64(OpDoorbell) | uint64(d.PDID)<<PDIDShift |
		uint64(d.Channel)&doorbellChannelMask<<doorbellChannelShift
}

// DecodeDoorbell decodes a doorbell. Errors: ErrOpcode, ErrChannel.
func DecodeDoorbell(word uint64) (Doorbell, error) {
	if OpcodeOf(word) != OpDoorbell {
		return Doorbell{}, ErrOpcode
	}
	d := Doorbell{
		PDID:    device.PDID(word >> PDIDShift),
		Channel: uint16(word >> doorbellChannelShift & doorbellChannelMask),
	}
	if d.Channel%device.ChannelsPerSlot >= device.WriteChannels {
		return Doorbell{}, ErrChannel
	}
	return d, nil
}

// ReadRequest asks the target's firmware to write the target's memory to the initiator (001 §3.6;
// its layout is defined by this project).
type ReadRequest struct {
	PDID        device.PDID       // wired: the initiator's
	Generation  device.Generation // wired, beside the words: the initiator's
	Tag         uint16            // 14 bits, chosen by the initiator
	Size        uint32            // bytes
	Src         device.VA         // at the target
	Dst         device.VA         // at the initiator
	Notify      device.VA         // at the initiator; 0 for none
	First, Last uint64
	Target      device.PDID // 0: the same PDID on that node
	// TargetGeneration is that of the target's domain; a wrong one fails the read.
	TargetGeneration device.Generation
}

// Encode returns the request's seven u64.
func (r ReadRequest) Encode() [ReadRequestWords]uint64 {
	return [ReadRequestWords]uint64{
		uint64(OpRead) | uint64(r.PDID)<<PDIDShift |
			uint64(r.Tag)&id14Mask<<readTagShift | uint64(r.Size)<<readSizeShift,
		uint64(r.Src), uint64(r.Dst), uint64(r.Notify), r.First, r.Last,
		uint64(r.Target) | uint64(r.TargetGeneration)<<readGenShift,
	}
}

// DecodeReadRequest decodes a read request. Errors: ErrLength, ErrOpcode.
func DecodeReadRequest(words []uint64) (ReadRequest, error) {
	if len(words) != ReadRequestWords {
		return ReadRequest{}, ErrLength
	}
	if OpcodeOf(words[0]) != OpRead {
		return ReadRequest{}, ErrOpcode
	}
	return ReadRequest{
		PDID: device.PDID(words[0] >> PDIDShift),
		Tag:  uint16(words[0] >> readTagShift & id14Mask),
		Size: uint32(words[0] >> readSizeShift),
		Src:  device.VA(words[1]), Dst: device.VA(words[2]), Notify: device.VA(words[3]),
		First: words[4], Last: words[5],
		Target: device.PDID(words[6]), TargetGeneration: device.Generation(words[6] >> readGenShift),
	}, nil
}

// Refusal tells a process that another node has refused a message of its packetizer.
type Refusal struct{ Number uint16 } // as written to SEND with the message

// Encode returns the refusal's word.
func (r Refusal) Encode() uint64 { return uint64(OpRefused) | uint64(r.Number)<<refusalShift }

// DecodeRefusal decodes a refusal. The caller must trust it only if its Source has PDID 0. Error:
// ErrOpcode.
func DecodeRefusal(word uint64) (Refusal, error) {
	if OpcodeOf(word) != OpRefused {
		return Refusal{}, ErrOpcode
	}
	return Refusal{Number: uint16(word >> refusalShift)}, nil
}

// Kind says for which receiver in a process a message between processes is (docs/attach.md 3).
type Kind uint8

// The kinds. Values are defined by this project; the others are reserved.
const (
	KindProgram    Kind = 0 // the program's own
	KindStream     Kind = 12
	KindConnection Kind = 13
	KindMemory     Kind = 14
)

// Valid reports whether messages of the kind exist.
func (k Kind) Valid() bool { return k == KindProgram || k >= KindStream && k <= KindMemory }

// Bits of a message's first u64 that are not the sender's: the wired PDID, and the kind.
const (
	WiredBits = device.PDIDMask << PDIDShift
	KindBits  = kindMask << kindShift
)

// KindOf returns the kind in the first u64 of a message between processes.
func KindOf(word uint64) Kind { return Kind(word >> kindShift & kindMask) }

// Word returns the bits of a kind in a message's first u64.
func (k Kind) Word() uint64 { return uint64(k) << kindShift & KindBits }
