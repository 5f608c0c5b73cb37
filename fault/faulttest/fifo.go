package faulttest

import "github.com/exanet/pfd/device"

// fifo is a page-fault FIFO with its reading rules (spec/hardware.md 4).
type fifo struct {
	ring [device.FIFODepth]struct {
		words [4]uint32
		ext   uint32
	}
	head, level int
	seen        uint8
	overflow    bool
}

func (f *fifo) push(w [4]uint32, ext uint32) {
	if f.level == device.FIFODepth {
		f.overflow = true
		return
	}
	e := &f.ring[(f.head+f.level)%device.FIFODepth]
	e.words, e.ext = w, ext
	f.level++
}

// read reads word i of the head; reading d pops if a, b and c have been read.
func (f *fifo) read(i int) uint32 {
	if f.level == 0 {
		return 0
	}
	v := f.ring[f.head].words[i]
	if i < 3 {
		f.seen |= 1 << i
	} else if f.seen == 7 {
		f.seen = 0
		f.head = (f.head + 1) % device.FIFODepth
		f.level--
	}
	return v
}

func (f *fifo) ext() uint32 {
	if f.level == 0 {
		return 0
	}
	return f.ring[f.head].ext
}

func (f *fifo) status() uint32 {
	s := uint32(f.level)
	if f.overflow {
		s |= device.FIFOOverflow
	}
	switch f.level {
	case 0:
		s |= device.FIFOEmpty
	case device.FIFODepth:
		s |= device.FIFOFull
	}
	return s
}

func (f *fifo) clear(v uint32) {
	if v&device.FIFOOverflow != 0 {
		f.overflow = false
	}
}
