package faulttest

import "github.com/exanet/pfd/device"

// begin records an access; false if it does not reach a register.
func (w *window) begin(a Access) (bool, error) {
	n := w.n
	if n.OnAccess != nil {
		n.OnAccess(a)
	}
	if n.Err != nil {
		return false, n.Err
	}
	if n.Record {
		n.Log = append(n.Log, a)
	}
	if a.Window == device.BTCM && a.Offset%uint32(a.Width) == 0 && a.Offset < a.Window.Size() {
		return true, nil // memory
	}
	if _, ok := device.Resolve(a.Window, a.Offset, a.Width); !ok {
		n.Bad = append(n.Bad, a)
		return false, nil
	}
	return true, nil
}

// done adds the value read to the recorded access.
func (w *window) done(v uint64) {
	if n := w.n; n.Record && len(n.Log) > 0 {
		n.Log[len(n.Log)-1].Value = v
	}
}

// Load reads a register.
func (w *window) Load(off uint32, width int) (uint64, error) {
	ok, err := w.begin(Access{Window: w.id, Width: width, Offset: off})
	if !ok {
		return 0, err
	}
	v := uint64(w.words[off/4])
	if width == 8 {
		v = w.get64(off)
	}
	switch {
	case w.id == device.PL && width == 8:
		switch off {
		case device.PLRXFIFO, device.PLRXFIFO + 8, device.PLTXFIFO, device.PLTXFIFO + 8:
			lo := w.n.readPL(off, 0)
			v = uint64(lo) | uint64(w.n.readPL(off+4, 0))<<32
		}
	case w.id == device.PL && w.n.Queues != nil && queueRegister(off):
		v = w.n.Queues.Load(off) & (1<<32 - 1)
	case w.id == device.PL:
		v = uint64(w.n.readPL(off, uint32(v)))
	case w.id == device.SMMU && width == 4 && off >= device.SMMUBanks && (off-device.SMMUBanks)%device.SMMUBankSize == device.TLBSTATUS:
		v = 0
		if w.n.InFlight[(off-device.SMMUBanks)/device.SMMUBankSize] > 0 {
			v = 1
		}
	case w.id == device.PKTZ:
		v = w.n.readPktz(off, v)
	}
	w.done(v)
	return v, nil
}

// Store writes a register.
func (w *window) Store(off uint32, width int, v uint64) error {
	ok, err := w.begin(Access{Window: w.id, Write: true, Width: width, Offset: off, Value: v})
	if !ok {
		return err
	}
	if width == 8 {
		w.set64(off, v)
		if w.id == device.PL && w.n.Queues != nil && queueRegister(off) {
			w.n.Queues.Store(off, v)
		}
		if w.id == device.PKTZ {
			w.n.writePktz(off, v)
		}
	} else {
		w.store32(off, uint32(v))
	}
	w.n.irq()
	return nil
}

func (w *window) store32(off, v uint32) {
	n := w.n
	switch {
	case w.id == device.PL && n.Queues != nil && queueRegister(off):
		n.Queues.Store(off, uint64(v))
	case w.id == device.PL && off == device.PLIRQStatus:
		n.status &^= v
		// The edge must be visible: down, and up again if the cause holds.
		n.sent &= n.status
	case w.id == device.PL && off == device.PLRXFIFOStatus:
		n.rx.clear(v)
	case w.id == device.PL && off == device.PLTXFIFOStatus:
		n.tx.clear(v)
	case w.id == device.SMMU && off == device.SMMUGR0+device.GFSR:
		w.words[off/4] &^= v
	case w.id == device.SMMU && off >= device.SMMUBanks && (off-device.SMMUBanks)%device.SMMUBankSize == device.FSR:
		if b := (off - device.SMMUBanks) / device.SMMUBankSize; n.Sticky[b] > 0 {
			n.Sticky[b]--
		} else {
			w.words[off/4] &^= v
		}
	case w.id == device.PKTZ:
		n.writePktz(off, uint64(v))
	default:
		w.words[off/4] = v
	}
}

// queueRegister reports whether a register of window pl belongs to the queues.
func queueRegister(off uint32) bool {
	return off >= device.PLEventQueue && off <= device.PLCommandQueue+device.QueueDoorbell
}

// readPL reads the registers of window pl that are not plain memory.
func (n *Node) readPL(off, v uint32) uint32 {
	switch off {
	case device.PLIRQStatus:
		return n.status
	case device.PLRXFIFO, device.PLRXFIFO + 4, device.PLRXFIFO + 8, device.PLRXFIFO + 12:
		return n.rx.read(int(off-device.PLRXFIFO) / 4)
	case device.PLTXFIFO, device.PLTXFIFO + 4, device.PLTXFIFO + 8, device.PLTXFIFO + 12:
		return n.tx.read(int(off-device.PLTXFIFO) / 4)
	case device.PLRXFIFOStatus:
		return n.rx.status()
	case device.PLTXFIFOStatus:
		return n.tx.status()
	case device.PLRXFIFOExt:
		return n.rx.ext()
	case device.PLTXFIFOExt:
		return n.tx.ext()
	}
	return v
}

// readPktz counts a read of STATUS down for a busy interface.
func (n *Node) readPktz(off uint32, v uint64) uint64 {
	if off%device.PktzChannelStride != device.PktzStatus {
		return v
	}
	if p := off / device.PageSize; v == device.PktzBusy {
		if n.Busy[p] > 0 {
			n.Busy[p]--
		}
		if n.Busy[p] == 0 {
			n.windows[device.PKTZ].set64(off, device.PktzFree)
		}
	}
	return v
}

// writePktz sends a message on a write to SEND.
func (n *Node) writePktz(off uint32, v uint64) {
	w := &n.windows[device.PKTZ]
	w.words[off/4] = uint32(v)
	if off%device.PktzChannelStride != device.PktzSend {
		return
	}
	ch, p := off-device.PktzSend, int(off/device.PageSize)
	if n.Refuse[p] > 0 {
		n.Refuse[p]--
		w.set64(ch+device.PktzStatus, device.PktzRefused)
		return
	}
	status := uint64(device.PktzFree)
	if n.Busy[p] > 0 {
		status = device.PktzBusy
	}
	w.set64(ch+device.PktzStatus, status)
	dst := w.get64(ch + device.PktzDestination)
	m := Message{
		Interface: p, Node: device.NodeID(dst & device.NodeIDMask), Mailbox: uint8(dst >> 24),
		PDID: device.PDID(n.Get64(device.PL, device.PLPktzCfg+8*uint32(p)) & device.PDIDMask),
		Len:  int(min(v, device.PktzMaxWords)),
	}
	for i := range m.Len {
		m.Words[i] = w.get64(ch + device.PktzPayload + 8*uint32(i))
	}
	n.Sent = append(n.Sent, m)
}
