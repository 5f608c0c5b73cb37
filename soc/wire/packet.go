package wire

import (
	"encoding/binary"
	"errors"
	"hash/crc32"

	"github.com/exanet/pfd/device"
)

// A packet is the header, the header's CRC-32C and, if there is a payload, the payload and its
// CRC-32C (spec/messages.md 5). All is little-endian. Fields with the source "here" are defined
// by this project.
//
// The header is seven u64. A field's position is word, bits, width:
//
//	field          word  bits     width  source
//	kind           0     [3:0]    4      messages.md 5
//	last           0     [4]      1      messages.md 5, flags: last of the transfer
//	words          0     [5]      1      here, flags: completion words belong to the block
//	refused        0     [6]      1      here, flags: answers a message, not a block
//	read           0     [7]      1      here, flags: of a transfer that serves a read request
//	block number   0     [42:24]  19     messages.md 5; hardware.md 1
//	block length   0     [57:43]  15     messages.md 5: 0..16384
//	source node    1     [21:0]   22     hardware.md 1
//	interface      1     [27:22]  6      messages.md 5
//	source PDID    1     [43:28]  16     hardware.md 1
//	transaction    1     [57:44]  14     000 table 3.2
//	code           1     [60:58]  3      001 table 3.2
//	dest. node     2     [21:0]   22     hardware.md 1
//	mailbox        2     [27:22]  6      messages.md 5
//	dest. PDID     2     [43:28]  16     hardware.md 1
//	sequence       2     [57:44]  14     000 table 3.2
//	dest. VA       3     [47:0]   48     messages.md 5; hardware.md 1
//	offset         3     [61:48]  14     messages.md 5: bytes in the block
//	remaining      4     [31:0]   32     messages.md 5: bytes of the transfer
//	first sequence 4     [45:32]  14     messages.md 5
//	payload length 4     [54:46]  9      messages.md 5: 0..256
//	dest. generat. 5     [31:0]   32     here: of the domain that is meant
//	source generat. 5    [63:32]  32     here: of the sender's domain, wired
//	epoch          6     [31:0]   32     messages.md 5
//	link           6     [63:32]  32     here: the number of the link
//
// The other bits are zero.
const (
	HeaderWords = 7
	HeaderSize  = 8 * HeaderWords
	CRCSize     = 4
	// MaxPacket is the longest packet: header, payload of an MTU, two CRCs.
	MaxPacket = HeaderSize + CRCSize + device.MTU + CRCSize

	completionSize = 16 // bytes: first, last
)

// field is a row of the header's table.
type field struct {
	word, lo, bits uint
}

// The header's table, as printed above.
var (
	fKind      = field{0, 0, 4}
	fLast      = field{0, 4, 1}
	fWords     = field{0, 5, 1}
	fRefused   = field{0, 6, 1}
	fRead      = field{0, 7, 1}
	fBlock     = field{0, 24, 19}
	fLength    = field{0, 43, 15}
	fSrcNode   = field{1, 0, 22}
	fInterface = field{1, 22, 6}
	fSrcPDID   = field{1, 28, 16}
	fID        = field{1, 44, 14}
	fCode      = field{1, 58, 3}
	fDstNode   = field{2, 0, 22}
	fMailbox   = field{2, 22, 6}
	fDstPDID   = field{2, 28, 16}
	fSeq       = field{2, 44, 14}
	fVA        = field{3, 0, 48}
	fOffset    = field{3, 48, 14}
	fRemaining = field{4, 0, 32}
	fFirst     = field{4, 32, 14}
	fPayload   = field{4, 46, 9}
	fDstGen    = field{5, 0, 32}
	fSrcGen    = field{5, 32, 32}
	fEpoch     = field{6, 0, 32}
	fLink      = field{6, 32, 32}
)

// undefined has, for each word, the bits that belong to no field.
var undefined = [HeaderWords]uint64{^uint64(1<<58-1) | 0xffff<<8, ^uint64(1<<61 - 1), ^uint64(1<<58 - 1), ^uint64(1<<62 - 1), ^uint64(1<<55 - 1)}

func (f field) put(w *[HeaderWords]uint64, v uint64) { w[f.word] |= v & (1<<f.bits - 1) << f.lo }
func (f field) get(w *[HeaderWords]uint64) uint64    { return w[f.word] >> f.lo & (1<<f.bits - 1) }

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// Packet is one packet. Its header's VA is the destination of the packet's own first byte, and
// Remaining counts from there; in a Frame both count from the block's first byte.
type Packet struct {
	Header
	Words   bool   // completion words belong to the block
	Refused bool   // Ack: a mailbox refused a message; no block is answered
	Offset  uint16 // Data: bytes in the block, a multiple of the MTU
	// Payload has 0 to 256 bytes. DecodePacket's is a slice of its input.
	Payload []byte
	// Corrupt: the payload's CRC is wrong.
	Corrupt bool
}

// Errors of DecodePacket. All but ErrHeaderCRC come from a peer that computes correct CRCs over
// wrong fields.
var (
	ErrHeaderCRC = errors.New("wire: wrong header CRC")
	ErrSize      = errors.New("wire: packet size differs from its header's")
	ErrField     = errors.New("wire: invalid header field for the packet's kind")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// AppendTo appends the packet's bytes. A Corrupt packet gets a wrong payload CRC. Values are
// truncated to their field's width.
func (p *Packet) AppendTo(b []byte) []byte {
	var w [HeaderWords]uint64
	fKind.put(&w, uint64(p.Kind))
	fLast.put(&w, bit(p.Last))
	fWords.put(&w, bit(p.Words))
	fRefused.put(&w, bit(p.Refused))
	fRead.put(&w, bit(p.Read))
	fEpoch.put(&w, uint64(p.Epoch))
	fBlock.put(&w, uint64(p.Block))
	fLength.put(&w, uint64(p.Length))
	fSrcNode.put(&w, uint64(p.SrcNode))
	fInterface.put(&w, uint64(p.SrcInterface))
	fSrcPDID.put(&w, uint64(p.SrcPDID))
	fID.put(&w, uint64(p.ID))
	fCode.put(&w, uint64(p.Code))
	fDstNode.put(&w, uint64(p.DstNode))
	fMailbox.put(&w, uint64(p.DstMailbox))
	fDstPDID.put(&w, uint64(p.DstPDID))
	fSeq.put(&w, uint64(p.Seq))
	fVA.put(&w, uint64(p.VA))
	fOffset.put(&w, uint64(p.Offset))
	fRemaining.put(&w, uint64(p.Remaining))
	fFirst.put(&w, uint64(p.First))
	fPayload.put(&w, uint64(len(p.Payload)))
	fDstGen.put(&w, uint64(p.DstGeneration))
	fSrcGen.put(&w, uint64(p.SrcGeneration))
	fLink.put(&w, uint64(p.Link))
	start := len(b)
	for _, v := range w {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
	if len(p.Payload) == 0 {
		return b
	}
	b = append(b, p.Payload...)
	crc := crc32.Checksum(p.Payload, castagnoli)
	if p.Corrupt {
		crc = ^crc
	}
	return binary.LittleEndian.AppendUint32(b, crc)
}

// DecodePacket decodes one packet, all of b. It returns ErrHeaderCRC if the header CRC is wrong
// (the packet is dropped and counted in CRC_HEADER), ErrSize if the length is wrong, and ErrField
// if a field is invalid for the packet's kind. A wrong payload CRC is not an error: the packet is
// Corrupt. It allocates nothing, and no input makes it panic.
func DecodePacket(b []byte) (Packet, error) {
	var p Packet
	n, err := p.DecodeHeader(b)
	if err != nil {
		return Packet{}, err
	}
	rest := b[HeaderSize+CRCSize:]
	if n > 0 && len(rest) != n+CRCSize || n == 0 && len(rest) != 0 {
		return Packet{}, ErrSize
	}
	if n > 0 {
		p.Payload = rest[:n:n]
		p.Corrupt = crc32.Checksum(p.Payload, castagnoli) != binary.LittleEndian.Uint32(rest[n:])
	}
	if !p.sound() {
		return Packet{}, ErrField
	}
	return p, nil
}

// DecodeHeader decodes the header and its CRC at the beginning of b into p and returns the length of
// the payload. It checks the CRC and the undefined bits, but not whether the fields are valid for
// the kind: DecodePacket does.
func (p *Packet) DecodeHeader(b []byte) (payload int, err error) {
	if len(b) < HeaderSize+CRCSize {
		return 0, ErrSize
	}
	if crc32.Checksum(b[:HeaderSize], castagnoli) != binary.LittleEndian.Uint32(b[HeaderSize:]) {
		return 0, ErrHeaderCRC
	}
	var w [HeaderWords]uint64
	for i := range w {
		w[i] = binary.LittleEndian.Uint64(b[8*i:])
		if w[i]&undefined[i] != 0 {
			return 0, ErrField
		}
	}
	*p = Packet{
		Header: Header{
			Kind:          Kind(fKind.get(&w)),
			Last:          fLast.get(&w) != 0,
			Read:          fRead.get(&w) != 0,
			Epoch:         uint32(fEpoch.get(&w)),
			Link:          uint32(fLink.get(&w)),
			Block:         uint32(fBlock.get(&w)),
			Length:        uint16(fLength.get(&w)),
			SrcNode:       device.NodeID(fSrcNode.get(&w)),
			SrcInterface:  uint8(fInterface.get(&w)),
			SrcPDID:       device.PDID(fSrcPDID.get(&w)),
			ID:            device.TransactionID(fID.get(&w)),
			Code:          device.Code(fCode.get(&w)),
			DstNode:       device.NodeID(fDstNode.get(&w)),
			DstMailbox:    uint8(fMailbox.get(&w)),
			DstPDID:       device.PDID(fDstPDID.get(&w)),
			Seq:           device.Sequence(fSeq.get(&w)),
			VA:            device.VA(fVA.get(&w)),
			Remaining:     uint32(fRemaining.get(&w)),
			First:         device.Sequence(fFirst.get(&w)),
			SrcGeneration: device.Generation(fSrcGen.get(&w)),
			DstGeneration: device.Generation(fDstGen.get(&w)),
		},
		Words:   fWords.get(&w) != 0,
		Refused: fRefused.get(&w) != 0,
		Offset:  uint16(fOffset.get(&w)),
	}
	return int(fPayload.get(&w)), nil
}

// sound reports whether the fields are valid for a packet of its kind.
func (p *Packet) sound() bool {
	n := len(p.Payload)
	if p.Length > device.BlockSize || p.Kind != Data && p.Offset != 0 ||
		p.Kind != Ack && (p.Refused || p.Code != 0) || p.Kind > Words && (p.Words || p.Read) {
		return false
	}
	switch p.Kind {
	case Data:
		left := int(p.Length) - int(p.Offset)
		// The transfer extends at least to the block's end; from the block's start it is less
		// than 4 GiB long, and that start is not below address 0.
		return p.Offset%device.MTU == 0 && left > 0 && n == min(left, device.MTU) &&
			uint64(p.Remaining) >= uint64(left) && p.Remaining <= ^uint32(0)-uint32(p.Offset) &&
			p.VA >= device.VA(p.Offset)
	case Words:
		return n == completionSize && p.Words
	case Ack, Link:
		return n == 0
	case Message:
		return n > 0 && n%8 == 0 && n <= 8*device.PktzMaxWords
	}
	return false
}
