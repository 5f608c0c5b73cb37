package wire

import (
	"math/bits"

	"github.com/exanet/pfd/device"
)

// Pool recycles frames and their payloads of one block each. It belongs to one goroutine. The
// zero value is ready.
//
// Payloads lie in slabs, and the first free one is used: payloads of neighbouring blocks are
// usually neighbours, too, and may be moved as one (Adjoin).
type Pool struct {
	frames []*Frame
	slabs  []slab
	shares []*Share
}

// slabBlocks is the number of payloads in a slab, one bit each (defined by this project).
const slabBlocks = 64

type slab struct {
	bytes []byte
	taken uint64
}

// Frame returns an empty frame without a payload.
func (p *Pool) Frame() *Frame {
	if n := len(p.frames); n > 0 {
		f := p.frames[n-1]
		p.frames = p.frames[:n-1]
		return f
	}
	return new(Frame)
}

// Payload returns length bytes, at most a block, with unspecified content.
func (p *Pool) Payload(length int) []byte {
	for i := range p.slabs {
		if s := &p.slabs[i]; s.taken != ^uint64(0) {
			return s.take(length)
		}
	}
	p.slabs = append(p.slabs, slab{bytes: make([]byte, slabBlocks*device.BlockSize)})
	return p.slabs[len(p.slabs)-1].take(length)
}

// take returns the first free payload. Its capacity extends to the end of the slab, which
// identifies the slab and shows which payloads are neighbours.
func (s *slab) take(length int) []byte {
	i := bits.TrailingZeros64(^s.taken)
	s.taken |= 1 << uint(i)
	return s.bytes[i*device.BlockSize:][:length]
}

// Adjoin returns a and b as one slice if b's bytes follow a's in memory, as payloads of
// neighbouring blocks may.
func Adjoin(a, b []byte) ([]byte, bool) {
	if len(a) == 0 || len(b) == 0 || len(b) > cap(a)-len(a) || &a[:len(a)+1][len(a)] != &b[0] {
		return nil, false
	}
	return a[:len(a)+len(b)], true
}

// Put returns a frame to the pool, and its payload unless that is shared. The caller must hold
// the last reference to the frame.
func (p *Pool) Put(f *Frame) {
	p.Release(f.Payload, f.Shared)
	*f = Frame{}
	p.frames = append(p.frames, f)
}

// Share returns a count for a payload with one holder.
func (p *Pool) Share() *Share {
	if n := len(p.shares); n > 0 {
		s := p.shares[n-1]
		p.shares = p.shares[:n-1]
		s.Holders = 1
		return s
	}
	return &Share{Holders: 1}
}

// Release drops one holder's share of a payload; the last release returns the payload to the
// pool. A nil s means that the payload is not shared.
func (p *Pool) Release(b []byte, s *Share) {
	if s != nil {
		if s.Holders--; s.Holders > 0 {
			return
		}
		p.shares = append(p.shares, s)
	}
	p.PutPayload(b)
}

// PutPayload returns a payload to the pool; bytes from elsewhere are left to the garbage
// collector.
func (p *Pool) PutPayload(b []byte) {
	if cap(b) == 0 {
		return
	}
	last := &b[:cap(b)][cap(b)-1]
	for i := range p.slabs {
		s := &p.slabs[i]
		if last == &s.bytes[len(s.bytes)-1] {
			if from := len(s.bytes) - cap(b); from >= 0 && from%device.BlockSize == 0 {
				s.taken &^= 1 << uint(from/device.BlockSize)
			}
			return
		}
	}
}

// Split cuts a block's frame into at most n frames of consecutive packets, which share the
// payload. f becomes the last one and carries the completion words.
func (p *Pool) Split(f *Frame, n int) []*Frame {
	packets := bits.OnesCount64(f.Present)
	if n = min(n, packets); n < 2 {
		return []*Frame{f}
	}
	if f.Shared == nil {
		f.Shared = p.Share()
	}
	var all []*Frame
	for i := range n - 1 {
		c := p.Frame()
		*c = *f
		c.Present = 0
		for range packets*(i+1)/n - packets*i/n {
			bit := f.Present & -f.Present
			c.Present |= bit
			f.Present &^= bit
		}
		c.Corrupt, c.Duplicate = f.Corrupt&c.Present, f.Duplicate&c.Present
		c.WordsMissing = f.HasWords
		c.Shared.Holders++
		all = append(all, c)
	}
	f.Corrupt &= f.Present
	f.Duplicate &= f.Present
	return append(all, f)
}

// Clone copies f and its payload, for a link that duplicates frames.
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
