package wire

import (
	"encoding/binary"
	"math/bits"

	"github.com/exanet/pfd/device"
)

// Cut writes the packets of f one after the other into b and calls emit with each packet's bytes,
// which emit must not keep. b is scratch: if it has room for MaxPacket, Cut allocates nothing.
// The packets carry all of f: only those in Present, corrupt ones with a wrong CRC, duplicates
// twice. Cut stops at emit's first error and returns it.
func Cut(f *Frame, b []byte, emit func(packet []byte) error) error {
	p := Packet{Header: f.Header, Words: f.HasWords}
	if cap(b) < MaxPacket {
		b = make([]byte, 0, MaxPacket)
	}
	// Small payloads are built in place, where AppendTo puts them.
	buf := b[:MaxPacket][HeaderSize+CRCSize:]
	switch f.Kind {
	case Data:
		if err := cutData(f, p, b, emit); err != nil {
			return err
		}
		if !f.HasWords || f.WordsMissing {
			return nil
		}
		p.Kind = Words
		fallthrough
	case Words:
		p.VA = f.Completion.VA
		p.Words = true
		binary.LittleEndian.PutUint64(buf[0:], f.Completion.First)
		binary.LittleEndian.PutUint64(buf[8:], f.Completion.Last)
		p.Payload = buf[:completionSize]
	case Ack:
		p.Refused = f.MessageLen != 0
	case Message:
		n := min(int(f.MessageLen), device.PktzMaxWords)
		for i, v := range f.Message[:n] {
			binary.LittleEndian.PutUint64(buf[8*i:], v)
		}
		p.Payload = buf[:8*n]
	}
	return emit(p.AppendTo(b[:0]))
}

func cutData(f *Frame, p Packet, b []byte, emit func([]byte) error) error {
	length := min(int(f.Length), len(f.Payload))
	for left := f.Present & All(length); left != 0; left &= left - 1 {
		i := bits.TrailingZeros64(left)
		off := i * device.MTU
		p.Offset = uint16(off)
		p.VA = f.VA + device.VA(off)
		p.Remaining = f.Remaining - uint32(off)
		p.Payload = f.Payload[off:min(off+device.MTU, length)]
		p.Corrupt = f.Corrupt>>i&1 != 0
		copies := 1 + int(f.Duplicate>>i&1)
		for range copies {
			if err := emit(p.AppendTo(b[:0])); err != nil {
				return err
			}
		}
	}
	return nil
}

// Collector reassembles packets into frames. Consecutive packets of one block make one frame; any
// grouping is correct, because the machines accept a block's packets in several frames. It
// belongs to one goroutine.
type Collector struct {
	pool *Pool
	open *Frame // Data whose packets are still coming
}

// NewCollector returns a collector that takes its frames from pool.
func NewCollector(pool *Pool) *Collector { return &Collector{pool: pool} }

// Add adds a packet and keeps no reference to it. If p belongs to another block than the open
// frame, Add emits that frame; if p is a frame by itself, it emits p's frame at once. A block's
// frame stays open until then, or until Flush at the end of a batch. A corrupt packet of kind
// Words or Message is dropped as if lost, and Add returns true (counted in CRC_PAYLOAD).
func (c *Collector) Add(p *Packet, emit func(*Frame)) (dropped bool) {
	if p.Corrupt && p.Kind != Data {
		return true
	}
	block := p.Kind == Data || p.Kind == Words && p.Length > 0
	if !block {
		c.Flush(emit)
		emit(c.single(p))
		return false
	}
	if c.open == nil || !c.belongs(p) {
		c.Flush(emit)
		c.begin(p)
	}
	f := c.open
	if p.Kind == Words {
		if f.WordsMissing {
			f.WordsMissing = false
			f.Completion = completion(p)
		}
	} else {
		c.place(p)
	}
	return false
}

// Flush emits the open frame, if there is one.
func (c *Collector) Flush(emit func(*Frame)) {
	if f := c.open; f != nil {
		c.open = nil
		emit(f)
	}
}

// single makes the frame of a packet that is a frame by itself.
func (c *Collector) single(p *Packet) *Frame {
	f := c.pool.Frame()
	f.Header = p.Header
	switch p.Kind {
	case Words:
		f.HasWords = true
		f.Completion = completion(p)
	case Ack:
		if p.Refused {
			f.MessageLen = 1
		}
	case Message:
		f.MessageLen = uint8(len(p.Payload) / 8)
		for i := range f.MessageLen {
			f.Message[i] = binary.LittleEndian.Uint64(p.Payload[8*i:])
		}
	}
	return f
}

func completion(p *Packet) Completion {
	return Completion{
		VA:    p.VA,
		First: binary.LittleEndian.Uint64(p.Payload[0:]),
		Last:  binary.LittleEndian.Uint64(p.Payload[8:]),
	}
}

// header returns the frame header of p's block. A Words packet does not carry the block's
// address.
func header(p *Packet) Header {
	h := p.Header
	h.Kind = Data
	if p.Kind == Words {
		h.VA = 0
		return h
	}
	h.VA -= device.VA(p.Offset)
	h.Remaining += uint32(p.Offset)
	return h
}

func (c *Collector) begin(p *Packet) {
	f := c.pool.Frame()
	f.Header = header(p)
	f.HasWords, f.WordsMissing = p.Words, p.Words
	f.Payload = c.pool.Payload(int(f.Length))
	c.open = f
}

// belongs reports whether p is of the open frame's block: all of the header must agree. The
// address is known from the first Data packet on.
func (c *Collector) belongs(p *Packet) bool {
	f := c.open
	h := header(p)
	va := h.VA
	if p.Kind == Words || f.Present == 0 {
		h.VA = f.VA
	}
	if f.HasWords != p.Words || f.Header != h {
		return false
	}
	if p.Kind == Data {
		f.VA = va
	}
	return true
}

// place copies a Data packet's bytes into the open frame.
func (c *Collector) place(p *Packet) {
	f := c.open
	m := uint64(1) << (p.Offset / device.MTU)
	seen := f.Present&m != 0
	if seen {
		f.Duplicate |= m
	}
	if p.Corrupt {
		f.Corrupt |= m
	}
	f.Present |= m
	if !seen || !p.Corrupt {
		copy(f.Payload[p.Offset:], p.Payload)
	}
}
