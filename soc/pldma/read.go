package pldma

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/wire"
)

// OpenReads is the number of reads that the processes of a slot may have open:
// as many as the target has channels and places in its queue (ours).
const OpenReads = 64

// OpenRead is a read that a process of this node has asked for: data of reads
// comes into a slot only where one is open (spec/hardware.md 3, PD_PEERS).
type OpenRead struct {
	Interface   uint8 // packetizer that asked
	Tag         uint16
	Node        device.NodeID     // target
	PDID        device.PDID       // target's
	Generation  device.Generation // target's
	Dst         device.VA
	Size        uint32
	Notify      device.VA
	First, Last uint64
}

type openReads struct {
	used  uint64
	reads [OpenReads]OpenRead
	next  int // where the next one goes, if that is free
	// served: closed by their completion words; they stay known until their place is
	// another's. A process that does not see the words at once asks again.
	served uint64
	// closing: the completion words are being written: nothing but their own
	// block is let in any more.
	closing uint64
}

// OpenRead notes a read that is being asked for. Not open: its tag is another
// read's that is open, or too many are. Served: its completion words have come already,
// and the request is not to be sent: nobody would answer it, and it would stay open.
func (e *Engine) OpenRead(slot int, r OpenRead) (open, served bool) {
	o := &e.reads[slot]
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
			return *x == r, false // asked for again
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

// CloseRead takes the answer that a read has failed. False:
// something of it, or of a former read into the same memory, is still being
// written, and the answer must not be received yet.
func (e *Engine) CloseRead(slot int, iface uint8, tag uint16) bool {
	o := &e.reads[slot]
	for i := range o.reads {
		x := &o.reads[i]
		if o.used>>uint(i)&1 == 0 || x.Tag != tag || x.Interface != iface {
			continue
		}
		if e.writingInto(uint8(slot), x, nil) {
			return false
		}
		o.used &^= 1 << uint(i)
	}
	return true
}

// match tells whether a block of a read belongs to r, and whether it carries
// r's completion words.
func (r *OpenRead) match(f *wire.Header, hasWords bool, w *wire.Completion) (ok, words bool) {
	if f.SrcNode != r.Node || f.SrcPDID != r.PDID || f.SrcGeneration != r.Generation {
		return false, false
	}
	words = hasWords && w.VA == r.Notify && w.First == r.First && w.Last == r.Last
	if f.Length == 0 {
		return words, words
	}
	return f.VA >= r.Dst && uint64(f.VA-r.Dst)+uint64(f.Length) <= uint64(r.Size), words
}

// readOpen tells whether a frame of a read may come in; later: not now, but
// when it is sent again.
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
			later = f.HasWords // its words are missing, they may be the right ones
		}
	}
	return false, later
}

// writingInto tells whether blocks of reads, other than that of but, are being
// written into the memory of r.
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

// drained tells whether the completion words of c may be written: the read is
// open, and nothing that a late request had served is still being written into
// its memory. Where something is, c waits for it.
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

// drain looks at the blocks whose words wait for others' writes.
func (e *Engine) drain() {
	for c := e.recv.head; c != nil; {
		next := c.next
		if c.draining {
			e.advanceBlock(c)
		}
		c = next
	}
}

// former tells whether a context is of a domain that its slot has no more: the next one
// may have asked for a read as that one did.
func (e *Engine) former(c *context) bool {
	return c.header.DstGeneration != e.domains[c.slot].Generation
}

// reopen lets blocks of the read into again whose words c was to write: it does not.
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

// readDone closes the read whose completion words c has brought.
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
