package pldma

import (
	"math/bits"
	"slices"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/wire"
)

// OpenRead records a read that is being requested. It returns open false if another open read
// uses the tag or too many are open, and served true if the completion words have already
// arrived. A request for a served read must not be sent: no answer would come, and the read would
// stay open.
func (e *Engine) OpenRead(slot int, r OpenRead) (open, served bool) {
	o := &e.reads[slot]
	if o.reads == nil {
		o.reads = make([]OpenRead, OpenReads)
	}
	free := -1
	for n := range o.reads {
		i := (o.next + n) % OpenReads
		bit := uint64(1) << uint(i)
		switch x := &o.reads[i]; {
		case o.used&bit == 0 && o.served&bit != 0 && *x == r:
			return true, true
		case o.used&bit == 0:
			if free < 0 {
				free = i
			}
		case x.Tag == r.Tag && x.Interface == r.Interface:
			return *x == r, false // repeated request
		}
	}
	if free < 0 {
		return false, false
	}
	bit := uint64(1) << uint(free)
	o.used |= bit
	o.closing &^= bit
	o.served &^= bit
	o.reads[free] = r
	o.next = (free + 1) % OpenReads
	return true, false
}

// CloseRead handles the answer of a node that a read from it has failed. It returns false if the process
// has no such read from there and one from elsewhere under that tag, or if data or completion words
// of this read, or of a former read into the same memory, are still being written: the answer must
// not be received yet.
func (e *Engine) CloseRead(slot int, iface uint8, tag uint16, from device.NodeID) bool {
	o := &e.reads[slot]
	for i := range o.reads {
		x := &o.reads[i]
		if o.used>>uint(i)&1 == 0 || x.Tag != tag || x.Interface != iface {
			continue
		}
		if x.Node != from || e.writingInto(uint8(slot), x, nil) || e.writingWords(uint8(slot), x) {
			return false
		}
		o.used &^= 1 << uint(i)
	}
	return true
}

// Reading reports whether a read of a slot's process is open.
func (e *Engine) Reading(slot int, iface uint8, tag uint16) bool {
	o := &e.reads[slot]
	for i := range o.reads {
		if x := &o.reads[i]; o.used>>uint(i)&1 != 0 && x.Tag == tag && x.Interface == iface {
			return true
		}
	}
	return false
}

// ReadsFrom calls f with each open read whose target is one of the nodes first to last. f may close it.
func (e *Engine) ReadsFrom(first, last device.NodeID, f func(slot int, r *OpenRead)) {
	for slot := range e.reads {
		o := &e.reads[slot]
		for used := o.used; used != 0; used &= used - 1 {
			if x := &o.reads[bits.TrailingZeros64(used)]; first <= x.Node && x.Node <= last {
				f(slot, x)
			}
		}
	}
}

// readOpen reports whether a frame of a read may be received; later means not now, but when it is
// sent again.
func (e *Engine) readOpen(slot uint8, f *wire.Frame) (open, later bool) {
	o := &e.reads[slot]
	has := f.HasWords && !f.WordsMissing
	for i := range o.reads {
		if o.used>>uint(i)&1 == 0 {
			continue
		}
		ok, words := o.reads[i].match(&f.Header, has, &f.Completion)
		switch {
		case !ok || has && !words:
		case words || o.closing>>uint(i)&1 == 0:
			return true, false
		default:
			later = f.HasWords // its words are missing and may be the right ones
		}
	}
	return false, later
}

// writingInto reports whether blocks of reads, except that of but, are being written to the
// memory of r.
func (e *Engine) writingInto(slot uint8, r *OpenRead, but *context) bool {
	for _, a := range e.accesses {
		if a.kind != writeData || a.Slot != slot || a.orphan {
			continue
		}
		if c := a.ctx; c != but && c.header.Read && a.VA < r.Dst+device.VA(r.Size) && r.Dst < a.VA+device.VA(len(a.Data)) {
			return true
		}
	}
	return false
}

// writingWords reports whether completion words of a read are being written to those of r. The
// process uses their memory for its next read, whose words they would overwrite.
func (e *Engine) writingWords(slot uint8, r *OpenRead) bool {
	return slices.ContainsFunc(e.accesses, func(a *Access) bool {
		return a.kind == writeWords && a.Slot == slot && !a.orphan && a.ctx.header.Read && a.VA == r.Notify
	})
}

// drained reports whether the completion words of c may be written: the read is open, and no data
// that a late request caused is still being written to its memory. Otherwise c waits for that
// write.
func (e *Engine) drained(c *context) bool {
	o := &e.reads[c.slot]
	for i := range o.reads {
		r := &o.reads[i]
		if o.used>>uint(i)&1 == 0 {
			continue
		}
		if _, words := r.match(&c.header, true, &c.completion); !words {
			continue
		}
		o.closing |= 1 << uint(i)
		busy := e.writingInto(c.slot, r, c)
		if busy != c.draining {
			c.draining = busy
			if busy {
				e.recv.draining++
			} else {
				e.recv.draining--
			}
		}
		return !busy
	}
	e.nack(c, device.CodeDomain)
	return false
}

// former reports whether a context belongs to a domain that no longer owns the slot: the next
// domain may have requested an identical read.
func (e *Engine) former(c *context) bool {
	return c.header.DstGeneration != e.domains[c.slot].Generation
}

// reopen admits blocks again for the read whose words c will not write after all.
func (e *Engine) reopen(c *context) {
	o := &e.reads[c.slot]
	if e.former(c) {
		return
	}
	for i := range o.reads {
		if _, words := o.reads[i].match(&c.header, true, &c.completion); words {
			o.closing &^= 1 << uint(i)
		}
	}
}

// readDone closes the read whose completion words c has written.
func (e *Engine) readDone(slot uint8, c *context) {
	o := &e.reads[slot]
	if e.former(c) {
		return
	}
	for i := range o.reads {
		if o.used>>uint(i)&1 == 0 {
			continue
		}
		if _, words := o.reads[i].match(&c.header, true, &c.completion); words {
			o.used &^= 1 << uint(i)
			o.served |= 1 << uint(i)
			return
		}
	}
}
