package attach

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/internal/groupname"
)

// Protocol is the version of the attachment protocol, messages and pages, that this package
// speaks. It is defined by this project (docs/attach.md). Both sides refuse any other.
const Protocol = 2

// Type names a message.
type Type uint16

// The message types (docs/attach.md). Values below are defined by this project.
const (
	TypeHello   Type = 1 // process to pfd: the process and its request
	TypeWelcome Type = 2 // pfd to process: the process's configuration
	TypeRefused Type = 3 // either way: a message that was refused, and why
	TypeEnded   Type = 4 // pfd to process: the attachment has ended, and why

	// TypeMemory is pfd's first answer to a hello: a header with three descriptors.
	TypeMemory Type = 10
	// TypeMapped answers that: the process has mapped the memory. A header.
	TypeMapped Type = 11
)

// Sizes and offsets of the messages. Values below are defined by this project. The first 72 bytes
// are equal in all messages and versions, so that two versions can name each other.
const (
	headerSize  = 72
	offType     = 0 // u16
	offProtocol = 2 // u16
	offLength   = 4 // u32: bytes of the whole message
	offProduct  = 8 // 64 bytes: the sender's product and version

	HelloSize   = 232
	offNode     = 72 // u32
	offMethod   = 76 // u8
	offPolicy   = 77 // u8
	offAccepts  = 78 // u8: number of PDIDs that follow
	offFlags    = 79 // u8
	offAccept   = 80 // sixteen u16
	offGroup    = 112
	offProofVA  = 176 // u64
	offProof    = 184 // sixteen bytes
	offKey      = 200 // thirty-two bytes
	helloFlags  = flagAcceptGroup | flagThreads | flagPlace
	groupLength = groupname.Max + 1

	WelcomeSize = 112 // a header and a Grant

	RefusedSize = 512
	offCode     = 72 // u32
	offRefused  = 76 // u16 type
	offRefZero  = 78 // u16, zero
	offText     = 80
	textLength  = RefusedSize - offText

	EndedSize  = 512
	offReason  = 72 // u32
	offEndZero = 76 // u32, zero

	productLength = 64
	// MaxMessage is the size of the largest message.
	MaxMessage = 512
)

// The descriptors of a memory message, in their order, and their number.
const (
	MemoryPagesFD   = iota // memfd
	MemoryWakeFD           // eventfd
	MemoryNetlinkFD        // socket
	MemoryFDs
)

// Flags of a hello (docs/attach.md). Values below are defined by this project.
const (
	flagAcceptGroup = 1 << 0
	flagThreads     = 1 << 1
	flagPlace       = 1 << 2
)

// DefaultGroup is the group of a process that names none.
const DefaultGroup = "default"

// Errors of the codec and of the handshake.
var (
	// ErrMessage says that bytes are not a message of the expected type: wrong size, type, length
	// or padding.
	ErrMessage = errors.New("malformed attachment message")
	// ErrValue says that a field has an invalid value.
	ErrValue = errors.New("bad value in attachment message")
	// ErrVersion says that the two sides speak different protocol versions. The error is a
	// *VersionError.
	ErrVersion = errors.New("attachment protocol versions differ")
)

// VersionError is a handshake refused for its version. It matches ErrVersion.
type VersionError struct {
	Own, Peer               uint16 // protocol versions
	OwnProduct, PeerProduct string // product versions
}

// Error names both versions and says what to do.
func (e *VersionError) Error() string {
	return fmt.Sprintf("%v: this side (%s) speaks %d, the other (%s) speaks %d: install the library and pfd of one release, and restart the older of the two",
		ErrVersion, e.OwnProduct, e.Own, e.PeerProduct, e.Peer)
}

// Is reports that a VersionError matches ErrVersion.
func (e *VersionError) Is(target error) bool { return target == ErrVersion }

// Header is the start of every message of every version.
type Header struct {
	Type     Type
	Protocol uint16
	Length   uint32 // bytes of the whole message
	Product  string // the sender's product and version, for users
}

// DecodeHeader decodes the part of a message that all versions share. Errors match ErrMessage.
func DecodeHeader(b []byte) (Header, error) {
	if len(b) < headerSize {
		return Header{}, fmt.Errorf("%w: %d bytes, a header has %d", ErrMessage, len(b), headerSize)
	}
	h := Header{
		Type:     Type(binary.LittleEndian.Uint16(b[offType:])),
		Protocol: binary.LittleEndian.Uint16(b[offProtocol:]),
		Length:   binary.LittleEndian.Uint32(b[offLength:]),
	}
	if uint64(h.Length) != uint64(len(b)) {
		return Header{}, fmt.Errorf("%w: its length says %d, it has %d bytes", ErrMessage, h.Length, len(b))
	}
	var err error
	h.Product, err = getText(b[offProduct:offProduct+productLength], "product")
	return h, err
}

// appendBare appends a message that is only a header.
func appendBare(b []byte, t Type, product string) []byte {
	all, _ := begin(b, t, headerSize, product)
	return all
}

// decode checks that b is a message of type t, this protocol version and the given size.
func decode(b []byte, t Type, size int) (string, error) {
	h, err := DecodeHeader(b)
	switch {
	case err != nil:
		return "", err
	case h.Type != t:
		return "", fmt.Errorf("%w: type %d, not %d", ErrMessage, h.Type, t)
	case h.Protocol != Protocol:
		return "", fmt.Errorf("%w: protocol version %d, not %d", ErrMessage, h.Protocol, Protocol)
	case len(b) != size:
		return "", fmt.Errorf("%w: type %d of %d bytes, not %d", ErrMessage, t, len(b), size)
	}
	return h.Product, nil
}

// begin appends size zero bytes with the header of a message. It returns all of b, and the
// message.
func begin(b []byte, t Type, size int, product string) (all, m []byte) {
	all = append(b, make([]byte, size)...)
	m = all[len(b):]
	binary.LittleEndian.PutUint16(m[offType:], uint16(t))
	binary.LittleEndian.PutUint16(m[offProtocol:], Protocol)
	binary.LittleEndian.PutUint32(m[offLength:], uint32(size))
	putText(m[offProduct:offProduct+productLength], product)
	return all, m
}

// putText writes s into a fixed field, NUL-padded with at least one NUL. A text that does not fit
// is cut at a character.
func putText(f []byte, s string) {
	s = strings.Map(printable, strings.ToValidUTF8(s, "?"))
	for len(s) > len(f)-1 {
		_, n := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-n]
	}
	copy(f, s)
}

// printable drops characters that a terminal would interpret.
func printable(r rune) rune {
	if r < 0x20 || r >= 0x7f && r < 0xa0 {
		return '?'
	}
	return r
}

func getText(f []byte, what string) (string, error) {
	n := 0
	for n < len(f) && f[n] != 0 {
		n++
	}
	if n == len(f) {
		return "", fmt.Errorf("%w: %s without a NUL at its end", ErrMessage, what)
	}
	for _, c := range f[n:] {
		if c != 0 {
			return "", fmt.Errorf("%w: %s with bytes after its NUL", ErrMessage, what)
		}
	}
	s := string(f[:n])
	if !utf8.ValidString(s) || strings.Map(printable, s) != s {
		return "", fmt.Errorf("%w: %s is not printable UTF-8", ErrMessage, what)
	}
	return s, nil
}

// Hello is the first message of a process.
type Hello struct {
	Product     string        // the library's product and version
	Node        device.NodeID // the node to attach to, by its id
	Place       bool          // Node is the node's place among those of pfd, from 0; an older pfd refuses that (CodeProtocol)
	Group       string        // as groupname.Check allows
	Method      pagein.Method
	Policy      pagein.Policy
	Accept      []device.PDID // other domains that may access this one, at most 16
	AcceptGroup bool          // every member of the group may
	Threads     bool          // the memory has the Ports of threads; an older pfd refuses that (CodeProtocol)
	// Proof is sixteen random bytes at ProofVA in the process's memory. Another process that knows
	// them has shown that it may read that memory.
	Proof   [ProofSize]byte
	ProofVA device.VA
	// Key, if not zero, is the group's: processes of one group with the same key need no right
	// over each other's memory.
	Key [KeySize]byte
}

// Sizes of two fields of a Hello, bytes. Values below are defined by this project.
const (
	ProofSize = 16
	KeySize   = 32
)

// Append appends the message to b. Errors match ErrValue.
func (h *Hello) Append(b []byte) ([]byte, error) {
	if err := h.check(); err != nil {
		return b, err
	}
	all, m := begin(b, TypeHello, HelloSize, h.Product)
	binary.LittleEndian.PutUint32(m[offNode:], uint32(h.Node))
	m[offMethod], m[offPolicy] = uint8(h.Method), uint8(h.Policy)
	m[offAccepts] = uint8(len(h.Accept))
	if h.AcceptGroup {
		m[offFlags] |= flagAcceptGroup
	}
	if h.Threads {
		m[offFlags] |= flagThreads
	}
	if h.Place {
		m[offFlags] |= flagPlace
	}
	for i, p := range h.Accept {
		binary.LittleEndian.PutUint16(m[offAccept+2*i:], uint16(p))
	}
	putText(m[offGroup:offGroup+groupLength], h.Group)
	binary.LittleEndian.PutUint64(m[offProofVA:], uint64(h.ProofVA))
	copy(m[offProof:], h.Proof[:])
	copy(m[offKey:], h.Key[:])
	return all, nil
}

// DecodeHello decodes a hello. Errors match ErrMessage or ErrValue.
func DecodeHello(b []byte) (Hello, error) {
	product, err := decode(b, TypeHello, HelloSize)
	if err != nil {
		return Hello{}, err
	}
	h := Hello{
		Product:     product,
		Node:        device.NodeID(binary.LittleEndian.Uint32(b[offNode:])),
		Method:      pagein.Method(b[offMethod]),
		Policy:      pagein.Policy(b[offPolicy]),
		AcceptGroup: b[offFlags]&flagAcceptGroup != 0,
		Threads:     b[offFlags]&flagThreads != 0,
		Place:       b[offFlags]&flagPlace != 0,
		ProofVA:     device.VA(binary.LittleEndian.Uint64(b[offProofVA:])),
		Proof:       [ProofSize]byte(b[offProof:]),
		Key:         [KeySize]byte(b[offKey:]),
	}
	if h.Group, err = getText(b[offGroup:offGroup+groupLength], "group"); err != nil {
		return Hello{}, err
	}
	n := int(b[offAccepts])
	if n > device.PeersPerSlot {
		return Hello{}, fmt.Errorf("%w: %d accepted PDIDs, at most %d", ErrValue, n, device.PeersPerSlot)
	}
	if b[offFlags]&^helloFlags != 0 {
		return Hello{}, fmt.Errorf("%w: flags %#x", ErrValue, b[offFlags])
	}
	for i := range device.PeersPerSlot {
		p := device.PDID(binary.LittleEndian.Uint16(b[offAccept+2*i:]))
		switch {
		case i < n:
			h.Accept = append(h.Accept, p)
		case p != 0:
			return Hello{}, fmt.Errorf("%w: an accepted PDID after the last", ErrMessage)
		}
	}
	return h, h.check()
}

func (h *Hello) check() error {
	if h.Node > device.NodeIDMask {
		return fmt.Errorf("%w: node %#x has more than %d bits", ErrValue, uint32(h.Node), device.NodeIDBits)
	}
	if !h.Method.Known() {
		return fmt.Errorf("%w: page-in method %d", ErrValue, h.Method)
	}
	if !h.Policy.Known() {
		return fmt.Errorf("%w: page-in policy %d", ErrValue, h.Policy)
	}
	if len(h.Accept) > device.PeersPerSlot {
		return fmt.Errorf("%w: %d accepted PDIDs, at most %d", ErrValue, len(h.Accept), device.PeersPerSlot)
	}
	for _, p := range h.Accept {
		if p == 0 {
			return fmt.Errorf("%w: accepted PDID 0, which no domain has", ErrValue)
		}
	}
	if err := groupname.Check(h.Group); err != nil {
		return fmt.Errorf("%w: %w", ErrValue, err)
	}
	return nil
}

// Welcome is pfd's answer to a hello, sent when the process has mapped the memory.
type Welcome struct {
	Product string // pfd's product and version
	Grant
}

// Grant is the configuration of a process, in the order of the message.
type Grant struct {
	Slot      uint8
	Interface uint8 // mailbox and packetizer of the process, 16..63
	Member    uint8 // the process's index in its group on this node, 0..15
	VABits    uint8 // width of the virtual addresses that the node accepts
	PDID      device.PDID
	Method    pagein.Method // as pfd chose
	Policy    pagein.Policy
	Node      device.NodeID
	PFDPort   uint32 // netlink port id that faults come from
	OwnPort   uint32 // netlink port id of the socket sent
	PFDPID    uint32 // pfd's pid in its own namespace: SCM_CREDENTIALS of its fault messages
	Caps      uint64 // the node's CAPS register
	// Generation is the domain's; peers name it with its PDID.
	Generation device.Generation
	// Page is the size of the pages in which memory must be shared, bytes; 0: no memory need be
	// shared.
	Page uint32
}

// Append appends the message to b. Errors match ErrValue.
func (w *Welcome) Append(b []byte) ([]byte, error) {
	if err := w.check(); err != nil {
		return b, err
	}
	all, m := begin(b, TypeWelcome, WelcomeSize, w.Product)
	_, err := binary.Encode(m[headerSize:], binary.LittleEndian, &w.Grant)
	return all, err
}

// DecodeWelcome decodes a welcome. Errors match ErrMessage or ErrValue.
func DecodeWelcome(b []byte) (Welcome, error) {
	product, err := decode(b, TypeWelcome, WelcomeSize)
	if err != nil {
		return Welcome{}, err
	}
	w := Welcome{Product: product}
	if _, err := binary.Decode(b[headerSize:], binary.LittleEndian, &w.Grant); err != nil {
		return Welcome{}, err
	}
	return w, w.check()
}

func (w *Welcome) check() error {
	switch {
	case w.Slot >= device.Slots:
		return fmt.Errorf("%w: slot %d", ErrValue, w.Slot)
	case w.Interface < device.MailboxProcess || w.Interface >= device.Interfaces:
		return fmt.Errorf("%w: interface %d", ErrValue, w.Interface)
	case w.VABits < device.MinVABits || w.VABits > device.MaxVABits:
		return fmt.Errorf("%w: %d bits of virtual address", ErrValue, w.VABits)
	case w.PDID == 0:
		return fmt.Errorf("%w: PDID 0, which no domain has", ErrValue)
	case w.Generation == 0:
		return fmt.Errorf("%w: generation 0, which no domain has", ErrValue)
	case w.Page != 0 && (w.Page < device.PageSize || w.Page&(w.Page-1) != 0):
		return fmt.Errorf("%w: pages of %d bytes", ErrValue, w.Page)
	case w.Node > device.NodeIDMask:
		return fmt.Errorf("%w: node %#x has more than %d bits", ErrValue, uint32(w.Node), device.NodeIDBits)
	case w.Method == pagein.MethodDefault || !w.Method.Known():
		return fmt.Errorf("%w: page-in method %d", ErrValue, w.Method)
	case w.Policy == pagein.PolicyDefault || !w.Policy.Known():
		return fmt.Errorf("%w: page-in policy %d", ErrValue, w.Policy)
	}
	return nil
}

// Code is why a message was refused. Its values are defined by this project.
type Code uint32

// The codes.
const (
	CodeProtocol    Code = 1 // malformed or unexpected message
	CodeVersion     Code = 2 // another protocol version
	CodeUnknownType Code = 3 // a message type that this version does not have
	CodeNoNode      Code = 4 // no such node here
	CodeNoSlot      Code = 5 // all 16 slots of the node are taken
	CodeQuota       Code = 6 // the user has used its share of slots
	CodeGroupFull   Code = 7 // the group has its maximum of processes on the node
	CodePermission  Code = 8 // pfd may not access the process's memory
	CodeUnsupported Code = 9 // method or policy not offered here
	CodeBusy        Code = 10
	CodeInternal    Code = 11
)

// RefusedError is a refusal, as a message and as an error. Its text ends with what to do.
type RefusedError struct {
	Product string // of the side that refuses
	Code    Code
	Refused Type // the message that was refused
	Text    string
}

// Error returns the other side's text.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("refused by %s (code %d): %s", e.Product, e.Code, e.Text)
}

// Is reports whether target is ErrVersion and the refusal is for its version.
func (e *RefusedError) Is(target error) bool {
	return target == ErrVersion && e.Code == CodeVersion
}

// Append appends the message to b. It cuts a text longer than the field.
func (e *RefusedError) Append(b []byte) []byte {
	all, m := begin(b, TypeRefused, RefusedSize, e.Product)
	binary.LittleEndian.PutUint32(m[offCode:], uint32(e.Code))
	binary.LittleEndian.PutUint16(m[offRefused:], uint16(e.Refused))
	putText(m[offText:], e.Text)
	return all
}

// DecodeRefused decodes a refusal. Errors match ErrMessage.
func DecodeRefused(b []byte) (*RefusedError, error) {
	product, err := decode(b, TypeRefused, RefusedSize)
	if err != nil {
		return nil, err
	}
	if binary.LittleEndian.Uint16(b[offRefZero:]) != 0 {
		return nil, fmt.Errorf("%w: reserved bytes are not zero", ErrMessage)
	}
	e := &RefusedError{
		Product: product,
		Code:    Code(binary.LittleEndian.Uint32(b[offCode:])),
		Refused: Type(binary.LittleEndian.Uint16(b[offRefused:])),
	}
	e.Text, err = getText(b[offText:], "text")
	if err != nil {
		return nil, err
	}
	return e, nil
}

// Ended is pfd's last message.
type Ended struct {
	Product string
	Reason  Reason
	Text    string
}

// Append appends the message to b. It cuts a text longer than the field.
func (e *Ended) Append(b []byte) []byte {
	all, m := begin(b, TypeEnded, EndedSize, e.Product)
	binary.LittleEndian.PutUint32(m[offReason:], uint32(e.Reason))
	putText(m[offText:], e.Text)
	return all
}

// DecodeEnded decodes an end. Errors match ErrMessage.
func DecodeEnded(b []byte) (Ended, error) {
	product, err := decode(b, TypeEnded, EndedSize)
	if err != nil {
		return Ended{}, err
	}
	if binary.LittleEndian.Uint32(b[offEndZero:]) != 0 {
		return Ended{}, fmt.Errorf("%w: reserved bytes are not zero", ErrMessage)
	}
	e := Ended{Product: product, Reason: Reason(binary.LittleEndian.Uint32(b[offReason:]))}
	if e.Text, err = getText(b[offText:], "text"); err != nil {
		return Ended{}, err
	}
	return e, nil
}
