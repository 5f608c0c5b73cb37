package record

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/queue"
	"github.com/exanet/pfd/soc/r5"
	"github.com/exanet/pfd/soc/wire"
)

// magic starts a recording (defined by this project).
const magic = "exanrec\n"

// The header's layout, little-endian (docs/record.md). Values are defined by this project.
const (
	offVersion = 8  // u16
	offFlags   = 10 // u16
	offNodes   = 12 // u16
	offVABits  = 14 // u16
	offEpoch   = 16 // u32
	offOptions = 20 // u16, r5.Options.Bits
	offStarted = 24 // u64
	offBase    = 32 // u32
	headerSize = 64 // the rest is zero

	flagNoTXFIFO = 1 << 0
	flagSVA      = 1 << 1
	flagQueues   = 1 << 2
	flagStall    = 1 << 3
	flagWindows  = 1 << 4
	flagGSAS     = 1 << 5
)

const (
	// maxNodes limits a header's nodes (defined by this project; emu has the same limit).
	maxNodes = 64
	// maxTime limits a record's time to 146 years, because machines add time-outs to it (defined
	// by this project).
	maxTime = 1 << 62
)

// AppendHeader appends the header's 64 bytes.
func AppendHeader(b []byte, h Header) []byte {
	var m [headerSize]byte
	copy(m[:], magic)
	flags := uint16(0)
	if h.NoTXFIFO {
		flags |= flagNoTXFIFO
	}
	if h.SVA {
		flags |= flagSVA
	}
	if h.Stall {
		flags |= flagStall
	}
	if h.Queues {
		flags |= flagQueues
	}
	if h.Windows {
		flags |= flagWindows
	}
	if h.GSAS {
		flags |= flagGSAS
	}
	le := binary.LittleEndian
	le.PutUint16(m[offVersion:], Version)
	le.PutUint16(m[offFlags:], flags)
	le.PutUint16(m[offNodes:], uint16(h.Nodes))
	le.PutUint16(m[offVABits:], uint16(h.VABits))
	le.PutUint32(m[offEpoch:], h.Epoch)
	le.PutUint16(m[offOptions:], h.Firmware.Bits())
	le.PutUint64(m[offStarted:], uint64(h.Started))
	le.PutUint32(m[offBase:], uint32(h.Base))
	return append(b, m[:]...)
}

// DecodeHeader reads a header. Its errors match ErrFormat or ErrVersion.
func DecodeHeader(b []byte) (Header, error) {
	if len(b) < headerSize || string(b[:len(magic)]) != magic {
		return Header{}, fmt.Errorf("%w: it does not start with the magic number", ErrFormat)
	}
	le := binary.LittleEndian
	if version := le.Uint16(b[offVersion:]); version != Version {
		return Header{}, fmt.Errorf("%w: %d, this program reads %d: use the pfd and the simulator of one release", ErrVersion, version, Version)
	}
	flags := le.Uint16(b[offFlags:])
	h := Header{
		Nodes: int(le.Uint16(b[offNodes:])), VABits: int(le.Uint16(b[offVABits:])), Epoch: le.Uint32(b[offEpoch:]),
		Base:     device.NodeID(le.Uint32(b[offBase:])),
		NoTXFIFO: flags&flagNoTXFIFO != 0, SVA: flags&flagSVA != 0, Queues: flags&flagQueues != 0, Stall: flags&flagStall != 0, Windows: flags&flagWindows != 0, GSAS: flags&flagGSAS != 0, Started: int64(le.Uint64(b[offStarted:])),
	}
	const reserved = offOptions + 2
	for i, c := range b[:headerSize] {
		if c != 0 && (i >= reserved && i < offStarted || i >= offBase+4) {
			return Header{}, fmt.Errorf("%w: byte %d of its header is reserved and not zero", ErrFormat, i)
		}
	}
	options := le.Uint16(b[offOptions:])
	var ok bool
	if h.Firmware, ok = r5.OptionsOf(options); !ok {
		return Header{}, fmt.Errorf("%w: its firmware's options are %#x", ErrFormat, options)
	}
	if flags&^(flagNoTXFIFO|flagSVA|flagQueues|flagStall|flagWindows|flagGSAS) != 0 || h.Nodes < 1 || h.Nodes > maxNodes || uint64(h.Base)+uint64(h.Nodes) > device.NodeIDMask+1 || h.VABits < device.MinVABits || h.VABits > device.MaxVABits {
		return Header{}, fmt.Errorf("%w: %d nodes of %d bits, flags %#x", ErrFormat, h.Nodes, h.VABits, flags)
	}
	return h, nil
}

// state is the state of the encoder and the decoder between records.
type state struct {
	at     int64
	frames uint64 // transmitted so far, the base of the numbers in arrivals
}

// appendRecord appends one record: kind, node, time, fields, all but the first
// byte as variable-length integers (encoding/binary).
func (s *state) appendRecord(b []byte, r *Record) []byte {
	b = append(b, byte(r.Kind))
	u := func(vs ...uint64) {
		for _, v := range vs {
			b = binary.AppendUvarint(b, v)
		}
	}
	if r.Kind == Check || r.Kind == End {
		u(r.Count)
		return binary.LittleEndian.AppendUint64(b, r.Digest)
	}
	if r.Kind == Route {
		u(r.Event.Destination, bit(r.Event.OK))
		return b
	}
	u(uint64(r.Node))
	if r.Kind == Load {
		u(uint64(r.Window), uint64(r.Offset), uint64(r.Width))
		return b
	}
	b = binary.AppendVarint(b, r.At-s.at)
	s.at = r.At
	ev := &r.Event
	switch r.Kind {
	case FrameArrived:
		b = binary.AppendVarint(b, int64(r.Frame-s.frames))
		s.frames = r.Frame + 1
	case Walked:
		u(uint64(ev.Access), ev.Absent, ev.Denied, ev.Unused, ev.External)
	case Moved:
		u(uint64(ev.Access), bit(ev.OK))
		if !ev.OK {
			u(uint64(ev.Bytes))
		}
	case DoorbellRung, DescriptorCopied:
		u(uint64(ev.Slot), uint64(ev.Channel))
		u(ev.Words[:]...)
	case MessageSent:
		u(uint64(ev.Interface), uint64(ev.Channel), ev.Destination, uint64(ev.N), uint64(ev.Number))
		u(ev.Words[:]...)
	case QueueAccessed:
		u(uint64(ev.Access), bit(ev.OK), uint64(len(r.Data)))
		b = append(b, r.Data...)
	case AtomicDone:
		u(uint64(ev.Access), uint64(ev.Status), uint64(ev.N))
		u(ev.Words[:ev.N]...)
	case LinkReady:
		u(ev.Destination, uint64(ev.Ready))
	case NodeGone, NodeDrains, LinkUp:
		u(ev.Destination, bit(ev.OK))
	case Admit:
		b = appendFrame(b, r)
	case Store:
		u(uint64(r.Window), uint64(r.Offset), uint64(r.Width), r.Value)
	case Take:
		u(uint64(r.Mailbox))
	}
	return b
}

// The bits of the flags of a frame in an Admit. Values are defined by this project.
const (
	admitWords   = 1
	admitMissing = 2
)

// appendFrame appends the frame of an Admit: the header as in a packet, then integers.
func appendFrame(b []byte, r *Record) []byte {
	f := &r.Outside
	b = (&wire.Packet{Header: f.Header}).AppendTo(b)
	for _, v := range []uint64{
		uint64(r.Payload), f.Present, f.Corrupt, f.Duplicate, bit(f.HasWords)*admitWords | bit(f.WordsMissing)*admitMissing,
		uint64(f.Completion.VA), f.Completion.First, f.Completion.Last, uint64(f.MessageLen),
	} {
		b = binary.AppendUvarint(b, v)
	}
	for _, w := range f.Message[:f.MessageLen] {
		b = binary.AppendUvarint(b, w)
	}
	return b
}

func (f *fields) frame(r *Record) {
	head := f.bytes(wire.HeaderSize + wire.CRCSize)
	if f.err != nil {
		return
	}
	var p wire.Packet
	if _, err := p.DecodeHeader(head); err != nil {
		f.err = fmt.Errorf("%w: the header of a frame: %w", ErrFormat, err)
		return
	}
	to := &r.Outside
	to.Header = p.Header
	r.Payload = int(f.u(device.BlockSize))
	to.Present, to.Corrupt, to.Duplicate = f.u(math.MaxUint64), f.u(math.MaxUint64), f.u(math.MaxUint64)
	flags := f.u(admitWords | admitMissing)
	to.HasWords, to.WordsMissing = flags&admitWords != 0, flags&admitMissing != 0
	to.Completion = wire.Completion{VA: device.VA(f.u(math.MaxUint64)), First: f.u(math.MaxUint64), Last: f.u(math.MaxUint64)}
	to.MessageLen = uint8(f.u(device.PktzMaxWords))
	for i := range to.MessageLen {
		to.Message[i] = f.u(math.MaxUint64)
	}
}

// byteReader is the source of records.
type byteReader interface{ ReadByte() (byte, error) }

// fields reads a record's numbers and keeps the first error.
type fields struct {
	r   byteReader
	err error
}

func (f *fields) u(max uint64) uint64 {
	if f.err != nil {
		return 0
	}
	v, err := binary.ReadUvarint(f.r)
	switch {
	case err != nil:
		f.err = err
	case v > max:
		f.err = fmt.Errorf("%w: a field is %d, its maximum is %d", ErrFormat, v, max)
	}
	return v
}

func (f *fields) i() int64 {
	if f.err != nil {
		return 0
	}
	v, err := binary.ReadVarint(f.r)
	if err != nil {
		f.err = err
	}
	return v
}

func (f *fields) words(to *[device.DescriptorWords]uint64) {
	for i := range to {
		to[i] = f.u(math.MaxUint64)
	}
}

// decodeRecord reads what follows a record's first byte.
func (s *state) decodeRecord(in byteReader, kind byte, nodes int, r *Record) error {
	*r = Record{Kind: Kind(kind)}
	f := &fields{r: in}
	if r.Kind == Check || r.Kind == End {
		r.Count = f.u(math.MaxUint64)
		for i := range 8 {
			if f.err != nil {
				return f.err
			}
			var c byte
			c, f.err = in.ReadByte()
			r.Digest |= uint64(c) << (8 * i)
		}
		return f.err
	}
	if r.Kind == Route {
		r.At = s.at
		r.Event.Destination, r.Event.OK = f.u(uint64(device.NodeIDMask)), f.u(1) == 1
		return f.err
	}
	r.Node = int(f.u(uint64(nodes - 1)))
	if r.Kind == Load {
		s.register(f, r)
		r.At = s.at
		return f.err
	}
	if s.at += f.i(); s.at < 0 || s.at > maxTime {
		return fmt.Errorf("%w: a record has the time %d ns", ErrFormat, s.at)
	}
	r.At = s.at
	ev := &r.Event
	ev.Kind = soc.EventKind(kind)
	switch r.Kind {
	case Tick:
	case FrameArrived:
		r.Frame = s.frames + uint64(f.i())
		s.frames = r.Frame + 1
	case Walked:
		ev.Access = uint32(f.u(math.MaxUint32))
		ev.Absent, ev.Denied = f.u(math.MaxUint64), f.u(math.MaxUint64)
		ev.Unused, ev.External = f.u(math.MaxUint64), f.u(math.MaxUint64)
	case Moved:
		ev.Access = uint32(f.u(math.MaxUint32))
		if ev.OK = f.u(1) == 1; !ev.OK {
			ev.Bytes = int(f.u(device.BlockSize))
		}
	case DoorbellRung, DescriptorCopied:
		ev.Slot, ev.Channel = int(f.u(math.MaxInt32)), int(f.u(math.MaxInt32))
		f.words(&ev.Words)
	case MessageSent:
		ev.Interface, ev.Channel = int(f.u(math.MaxInt32)), int(f.u(math.MaxInt32))
		ev.Destination, ev.N = f.u(math.MaxUint64), int(f.u(math.MaxInt32))
		ev.Number = uint16(f.u(math.MaxUint16))
		f.words(&ev.Words)
	case QueueAccessed:
		ev.Access = uint32(f.u(math.MaxUint32))
		ev.OK = f.u(1) == 1
		r.Data = f.bytes(f.u(queue.MaxRead))
	case AtomicDone:
		ev.Access = uint32(f.u(math.MaxUint32))
		ev.Status = atomics.Status(f.u(math.MaxUint8))
		ev.N = int(f.u(atomics.MaxValues))
		for i := range ev.N {
			ev.Words[i] = f.u(math.MaxUint64)
		}
	case Admit:
		ev.Kind = soc.FrameArrived
		f.frame(r)
	case LinkReady:
		ev.Destination, ev.Ready = f.u(uint64(device.NodeIDMask)), wire.Ready(f.u(uint64(wire.ReadyAll)))
	case NodeGone, NodeDrains, LinkUp:
		ev.Destination, ev.OK = f.u(uint64(device.NodeIDMask)), f.u(1) == 1
	case Store:
		ev.Kind = 0
		s.register(f, r)
		r.Value = f.u(math.MaxUint64)
	case Take:
		ev.Kind = 0
		r.Mailbox = int(f.u(device.Interfaces - 1))
	default:
		return fmt.Errorf("%w: a record of kind %d", ErrFormat, kind)
	}
	return f.err
}

// bytes reads n bytes; it returns nil for none.
func (f *fields) bytes(n uint64) (b []byte) {
	for ; n > 0 && f.err == nil; n-- {
		var c byte
		c, f.err = f.r.ReadByte()
		b = append(b, c)
	}
	return b
}

func (s *state) register(f *fields, r *Record) {
	r.Window = device.WindowID(f.u(uint64(device.Windows) - 1))
	r.Offset = uint32(f.u(math.MaxUint32))
	r.Width = int(f.u(8))
	if f.err == nil && r.Width != 4 && r.Width != 8 {
		f.err = fmt.Errorf("%w: an access of %d bytes, must be 4 or 8", ErrFormat, r.Width)
	}
}
