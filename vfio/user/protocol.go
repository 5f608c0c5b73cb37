package user

import (
	"encoding/binary"
	"fmt"
)

// order is the byte order of all messages: the host's (spec, "Protocol Specification").
var order = binary.NativeEndian

// Major and Minor are the protocol version of this package. The specification names no number;
// QEMU and libvfio-user send 0.0 to 0.1. A minor version is lowered to the peer's (spec,
// "VFIO_USER_VERSION").
const (
	Major = 0
	Minor = 1
)

// Command names a message (spec, "Commands").
type Command uint16

// The commands. 14 is unassigned.
const (
	CmdVersion      Command = 1
	CmdDMAMap       Command = 2
	CmdDMAUnmap     Command = 3
	CmdDeviceInfo   Command = 4
	CmdRegionInfo   Command = 5
	CmdRegionIOFDs  Command = 6
	CmdIRQInfo      Command = 7
	CmdSetIRQs      Command = 8
	CmdRegionRead   Command = 9
	CmdRegionWrite  Command = 10
	CmdDMARead      Command = 11 // server to client
	CmdDMAWrite     Command = 12 // server to client
	CmdReset        Command = 13
	CmdWriteMulti   Command = 15
	CmdFeature      Command = 16
	CmdMigDataRead  Command = 17
	CmdMigDataWrite Command = 18
)

var commandNames = [...]string{1: "VERSION", 2: "DMA_MAP", 3: "DMA_UNMAP", 4: "DEVICE_GET_INFO", 5: "DEVICE_GET_REGION_INFO",
	6: "DEVICE_GET_REGION_IO_FDS", 7: "DEVICE_GET_IRQ_INFO", 8: "DEVICE_SET_IRQS", 9: "REGION_READ", 10: "REGION_WRITE",
	11: "DMA_READ", 12: "DMA_WRITE", 13: "DEVICE_RESET", 15: "REGION_WRITE_MULTI", 16: "DEVICE_FEATURE",
	17: "MIG_DATA_READ", 18: "MIG_DATA_WRITE"}

// String returns the command's name in the specification, without VFIO_USER_.
func (c Command) String() string {
	if int(c) < len(commandNames) && commandNames[c] != "" {
		return commandNames[c]
	}
	return fmt.Sprintf("command %d", uint16(c))
}

// HeaderSize is the size of the header before every message (spec, "Header").
const HeaderSize = 16

// Flags of a header (spec, "Header").
const (
	flagTypeMask = 0xf
	flagCommand  = 0x0
	flagReply    = 0x1
	flagNoReply  = 1 << 4
	flagError    = 1 << 5
)

// Header precedes every message (spec, "Header"):
//
//	 0 message ID   2   echoed in the reply
//	 2 command      2
//	 4 message size 4   of the whole message, this header included
//	 8 flags        4   3:0 type (0 command, 1 reply), 4 no reply, 5 error
//	12 error        4   an errno, in a reply with the error flag
type Header struct {
	ID      uint16
	Command Command
	Size    uint32
	Flags   uint32
	Error   uint32
}

// Append appends the header's 16 bytes.
func (h Header) Append(b []byte) []byte {
	b = order.AppendUint16(b, h.ID)
	b = order.AppendUint16(b, uint16(h.Command))
	b = order.AppendUint32(b, h.Size)
	b = order.AppendUint32(b, h.Flags)
	return order.AppendUint32(b, h.Error)
}

// DecodeHeader decodes a header. It refuses fewer than 16 bytes and a message size that does not
// cover the header.
func DecodeHeader(b []byte) (Header, error) {
	if len(b) < HeaderSize {
		return Header{}, fmt.Errorf("vfio-user header of %d bytes: %w", len(b), ErrShort)
	}
	h := Header{
		ID:      order.Uint16(b),
		Command: Command(order.Uint16(b[2:])),
		Size:    order.Uint32(b[4:]),
		Flags:   order.Uint32(b[8:]),
		Error:   order.Uint32(b[12:]),
	}
	if h.Size < HeaderSize {
		return h, fmt.Errorf("vfio-user message size %d below the header's 16: %w", h.Size, ErrMalformed)
	}
	return h, nil
}

func (h Header) isCommand() bool { return h.Flags&flagTypeMask == flagCommand }
func (h Header) isReply() bool   { return h.Flags&flagTypeMask == flagReply }
func (h Header) noReply() bool   { return h.Flags&flagNoReply != 0 }
func (h Header) isError() bool   { return h.Flags&flagError != 0 }

// Regions of a PCI device (linux/vfio.h, VFIO_PCI_*_REGION_INDEX).
const (
	RegionBAR0   = 0 // to 5
	RegionROM    = 6
	RegionConfig = 7
	RegionVGA    = 8
	numRegions   = 9
)

// Interrupt indexes of a PCI device (linux/vfio.h, VFIO_PCI_*_IRQ_INDEX).
const (
	IRQINTx = 0
	IRQMSI  = 1
	IRQMSIX = 2
	IRQErr  = 3
	IRQReq  = 4
	numIRQs = 5
)

// Defaults of the capabilities (spec, "VFIO_USER_VERSION").
const (
	defaultMaxFDs      = 1
	defaultMaxTransfer = 1 << 20
	defaultMaxMaps     = 65535
	defaultPageSizes   = 4096
)
