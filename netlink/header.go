package netlink

import (
	"encoding/binary"
	"fmt"
)

// The nlmsghdr around a fault message (linux/netlink.h, struct nlmsghdr), in
// the machine's byte order.
const (
	headerSize    = 16
	headerLength  = 0  // nlmsg_len u32: header and payload
	headerType    = 4  // nlmsg_type u16
	headerFlags   = 6  // nlmsg_flags u16
	headerSeq     = 8  // nlmsg_seq u32
	headerPort    = 12 // nlmsg_pid u32: the sender's port id
	headerAlign   = 4  // NLMSG_ALIGNTO
	messageSize   = (headerSize + WideSize + headerAlign - 1) &^ (headerAlign - 1)
	receiveBuffer = 256 // a longer datagram is not a fault message

	// MessageType is the nlmsg_type of a fault message: NLMSG_MIN_TYPE, the first that is not a
	// control message (spec/messages.md 3). Receivers accept any type from it upwards.
	MessageType = 0x10
)

// AppendMessage appends the netlink message of f: nlmsghdr, text, and padding to four bytes. If f
// does not fit, it returns b unchanged and ErrRange.
func AppendMessage(b []byte, f *Fault, seq, port uint32) ([]byte, error) {
	start := len(b)
	b = append(b, make([]byte, headerSize)...)
	b, err := f.AppendText(b)
	if err != nil {
		return b[:start], err
	}
	h := b[start:]
	binary.NativeEndian.PutUint32(h[headerLength:], uint32(len(h)))
	binary.NativeEndian.PutUint16(h[headerType:], MessageType)
	binary.NativeEndian.PutUint16(h[headerFlags:], 0)
	binary.NativeEndian.PutUint32(h[headerSeq:], seq)
	binary.NativeEndian.PutUint32(h[headerPort:], port)
	for (len(b)-start)%headerAlign != 0 {
		b = append(b, 0)
	}
	return b, nil
}

// ParseMessage parses a datagram of one netlink message with a fault, and returns ErrMessage for
// any other. It ignores the port id in the header: only the socket's own address identifies the
// sender.
func ParseMessage(b []byte) (Fault, error) {
	if len(b) < headerSize {
		return Fault{}, fmt.Errorf("%w: %d bytes, less than a header", ErrMessage, len(b))
	}
	length := uint64(binary.NativeEndian.Uint32(b[headerLength:]))
	if length < headerSize || length > uint64(len(b)) || uint64(len(b))-length >= headerAlign {
		return Fault{}, fmt.Errorf("%w: length %d in a datagram of %d bytes", ErrMessage, length, len(b))
	}
	if t := binary.NativeEndian.Uint16(b[headerType:]); t < MessageType {
		return Fault{}, fmt.Errorf("%w: control message type %d", ErrMessage, t)
	}
	return ParseFault(b[headerSize:length])
}

// number returns the nlmsg_seq of a datagram that ParseMessage has parsed.
func number(b []byte) uint32 { return binary.NativeEndian.Uint32(b[headerSeq:]) }
