package wire

import "github.com/exanet/pfd/device"

// Pool recycles frames and their payloads of one block each. It belongs to one
// goroutine. The zero value is ready.
type Pool struct {
	frames   []*Frame
	payloads [][]byte
	shares   []*Share
}

// Frame gives an empty frame without payload.
func (p *Pool) Frame() *Frame {
	if n := len(p.frames); n > 0 {
		f := p.frames[n-1]
		p.frames = p.frames[:n-1]
		return f
	}
	return new(Frame)
}

// Payload gives length bytes, at most a block, of unspecified content.
func (p *Pool) Payload(length int) []byte {
	if n := len(p.payloads); n > 0 {
		b := p.payloads[n-1]
		p.payloads = p.payloads[:n-1]
		return b[:length]
	}
	return make([]byte, device.BlockSize)[:length]
}

// Put takes a frame back, and its payload if nobody shares it. Nobody may hold
// the frame any more.
func (p *Pool) Put(f *Frame) {
	p.Release(f.Payload, f.Shared)
	*f = Frame{}
	p.frames = append(p.frames, f)
}

// Share gives a count for a payload with one holder.
func (p *Pool) Share() *Share {
	if n := len(p.shares); n > 0 {
		s := p.shares[n-1]
		p.shares = p.shares[:n-1]
		s.Holders = 1
		return s
	}
	return &Share{Holders: 1}
}

// Release lets a holder's share of a payload go; the last one's takes it back.
// s may be nil: the payload is not shared.
func (p *Pool) Release(b []byte, s *Share) {
	if s != nil {
		if s.Holders--; s.Holders > 0 {
			return
		}
		p.shares = append(p.shares, s)
	}
	p.PutPayload(b)
}

// PutPayload takes a payload of Payload back; others are left to the collector.
func (p *Pool) PutPayload(b []byte) {
	if cap(b) == device.BlockSize {
		p.payloads = append(p.payloads, b)
	}
}

// Clone copies f and its payload, as a link that duplicates does.
func (p *Pool) Clone(f *Frame) *Frame {
	c := p.Frame()
	*c = *f
	c.Shared = nil
	if f.Payload != nil {
		c.Payload = p.Payload(len(f.Payload))
		copy(c.Payload, f.Payload)
	}
	return c
}
