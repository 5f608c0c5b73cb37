package queues

import "github.com/exanet/pfd/device"

// fifo is a page-fault FIFO filled by events (spec/hardware.md 4).
type fifo struct {
	items    []item
	head     int
	seen     uint8 // words a, b and c of the head read since the last pop
	overflow bool
}

type item struct {
	words [4]uint32
	ext   uint32
}

func (f *fifo) level() int { return len(f.items) - f.head }

func (f *fifo) push(e *device.Event) {
	if f.head == len(f.items) {
		f.items, f.head = f.items[:0], 0
	}
	f.items = append(f.items, item{e.Words, e.Ext})
	f.overflow = f.overflow || e.Lost
}

// read reads word i of the head; reading d pops if a, b and c have been read.
func (f *fifo) read(i uint32) uint64 {
	if f.level() == 0 {
		return 0
	}
	v := f.items[f.head].words[i]
	if i < 3 {
		f.seen |= 1 << i
	} else if f.seen == 7 {
		f.seen = 0
		f.head++
	}
	return uint64(v)
}

func (f *fifo) status() uint64 {
	n := f.level()
	s := uint64(n)
	if f.overflow {
		s |= device.FIFOOverflow
	}
	if n == 0 {
		s |= device.FIFOEmpty
	}
	if n >= device.FIFODepth {
		s |= device.FIFOFull
	}
	return s
}

// window is device.Access to a window of the device that includes the queues.
type window struct {
	q  *Queues
	to device.Window
	id device.WindowID
}

// Load implements device.Access.
func (w *window) Load(off uint32, width int) (uint64, error) {
	if v, ok := w.q.read(w.id, off, width); ok {
		return v, nil
	}
	v, err := w.to.Load(off, width)
	if width == 4 && !w.q.events && w.id == device.PL && off == device.PLIRQStatus {
		v |= uint64(w.q.causes())
	}
	return v, err
}

// Store implements device.Access.
func (w *window) Store(off uint32, width int, v uint64) error {
	if width == 8 && w.id == device.PKTZ {
		if ok, err := w.q.writePacketizer(off, v); ok {
			return err
		}
	}
	if w.q.write(w.id, off, v) {
		return nil
	}
	if w.id == device.PL && width == 8 {
		v = w.q.configure(off, v)
	}
	if width == 4 && w.id == device.PL && off == device.PLCtrl && v&device.CtrlReset != 0 {
		w.q.Stop()
		defer w.q.isOff()
	}
	return w.to.Store(off, width, v)
}

// causes returns the latched causes known only here: those received before the event queue broke.
func (q *Queues) causes() (bits uint32) {
	if q.fifos[0].level()+q.fifos[1].level() > 0 {
		bits |= 1 << device.VectorFIFO
	}
	if q.gfsr != 0 {
		bits |= 1 << device.VectorFault
	}
	for i := range q.banks {
		if q.banks[i].fsr != 0 {
			bits |= 1 << device.VectorFault
		}
	}
	return bits
}

// read reads a register that is kept here. While the event queue is disabled, only registers with
// content left from it are kept here.
func (q *Queues) read(id device.WindowID, off uint32, width int) (uint64, bool) {
	switch id {
	case device.PL:
		switch off {
		case device.PLIRQStatus:
			return uint64(q.status), q.events
		case device.PLIRQMask:
			return uint64(q.mask), q.events
		}
		switch {
		case off >= device.PLRXFIFO && off <= device.PLRXFIFOExt:
			return q.readFIFO(&q.fifos[0], off-device.PLRXFIFO, width)
		case off >= device.PLTXFIFO && off <= device.PLTXFIFOExt:
			return q.readFIFO(&q.fifos[1], off-device.PLTXFIFO, width)
		}
	case device.SMMU:
		switch {
		case off == device.SMMUGR0+device.GFSR:
			return uint64(q.gfsr), q.events || q.gfsr != 0
		case off == device.SMMUGR0+device.GFAR:
			return q.gfar, q.gfsr != 0
		case off >= device.SMMUBanks:
			b := &q.banks[(off-device.SMMUBanks)/device.SMMUBankSize%device.Slots]
			here := b.fsr != 0
			switch (off - device.SMMUBanks) % device.SMMUBankSize {
			case device.FSR:
				return uint64(b.fsr), q.events || here
			case device.FAR:
				return b.far, here
			case device.FSYNR0:
				return uint64(b.fsynr0), here
			}
		}
	case device.PKTZ:
		if off%device.PktzChannelStride == device.PktzStatus && off < ownPages*device.PageSize && q.commands.on {
			q.flush()
			c := &q.pages[off/device.PageSize][off%device.PageSize/device.PktzChannelStride]
			return c.status, !c.direct
		}
	}
	return 0, false
}

func (q *Queues) readFIFO(f *fifo, off uint32, width int) (uint64, bool) {
	if off == device.PLRXFIFOStatus-device.PLRXFIFO && q.events {
		q.drain() // events since the vector
	}
	if f.level() == 0 && !q.events {
		return 0, false
	}
	switch off {
	case device.PLRXFIFOStatus - device.PLRXFIFO:
		return f.status(), true
	case device.PLRXFIFOExt - device.PLRXFIFO:
		if f.level() == 0 {
			return 0, true
		}
		return uint64(f.items[f.head].ext), true
	}
	if off > device.FIFOWordD {
		return 0, false
	}
	v := f.read(off / 4)
	if width == 8 && off < device.FIFOWordD {
		v |= f.read(off/4+1) << 32
	}
	return v, true
}

// write writes a register that is kept here.
func (q *Queues) write(id device.WindowID, off uint32, v uint64) bool {
	switch id {
	case device.PL:
		switch off {
		case device.PLIRQStatus:
			q.status &^= uint32(v)
			q.up &^= uint32(v) // cleared while its cause holds: a new edge
		case device.PLIRQMask:
			q.mask = uint32(v) & (1<<device.Vectors - 1)
		case device.PLRXFIFOStatus:
			return q.clearOverflow(&q.fifos[0], v)
		case device.PLTXFIFOStatus:
			return q.clearOverflow(&q.fifos[1], v)
		default:
			return false
		}
		q.rise()
		return q.events
	case device.SMMU:
		fsr := &q.gfsr
		if off >= device.SMMUBanks {
			if (off-device.SMMUBanks)%device.SMMUBankSize != device.FSR {
				return false
			}
			fsr = &q.banks[(off-device.SMMUBanks)/device.SMMUBankSize%device.Slots].fsr
		} else if off != device.SMMUGR0+device.GFSR {
			return false
		}
		if *fsr == 0 {
			return false // nothing of it is kept here: write the device's
		}
		*fsr &^= uint32(v)
		return true
	}
	return false
}

func (q *Queues) clearOverflow(f *fifo, v uint64) bool {
	here := f.overflow
	if v&device.FIFOOverflow != 0 {
		f.overflow = false
	}
	return here || q.events
}
