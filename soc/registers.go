package soc

import (
	"encoding/binary"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/packetizer"
)

// Load performs a read access of width bytes at an offset of a window, with its side effects. A
// bad access reads as zero and is counted (spec/hardware.md 2).
func (n *Node) Load(w device.WindowID, offset uint32, width int) uint64 {
	if w == device.BTCM {
		return n.loadMemory(offset, width)
	}
	at := n.places.find(n.caps(), w, offset, width)
	if at == nil {
		n.counts[device.BadAccess]++
		return 0
	}
	t := &at.target
	var v uint64
	switch {
	case t.Pair:
		v = n.loadPair(t.Offset)
	case w == device.PL && t.Offset == device.PLCounters && width == 4:
		return n.loadCounterHalf(t.Index, t.Shift)
	default:
		v = n.load(t) & at.read
	}
	v >>= uint(t.Shift)
	if width == 4 {
		v &= 1<<32 - 1
	}
	return v
}

// loadCounterHalf reads half a counter: reading the low half latches the high half
// (spec/hardware.md 2).
func (n *Node) loadCounterHalf(i, shift int) uint64 {
	if shift != 0 {
		return uint64(n.latch[i])
	}
	n.latch[i] = uint32(n.counts[i] >> 32)
	return n.counts[i] & (1<<32 - 1)
}

func (n *Node) loadPair(offset uint32) uint64 {
	switch offset {
	case device.PLRXFIFO:
		return n.rx.Read64(0)
	case device.PLRXFIFO + device.FIFOWordC:
		return n.rx.Read64(1)
	case device.PLTXFIFO:
		return n.tx.Read64(0)
	case device.PLTXFIFO + device.FIFOWordC:
		return n.tx.Read64(1)
	}
	return 0
}

// load reads a whole register, with its side effects.
func (n *Node) load(t *device.Target) uint64 {
	switch t.Window {
	case device.PL:
		return n.loadPL(t)
	case device.SMMU:
		switch {
		case t.Offset >= device.SMMUBanks:
			return n.smmu.LoadBank(t.Offset-device.SMMUBanks, t.Index)
		case t.Offset >= device.SMMUGR1:
			return n.smmu.LoadGR1(t.Offset-device.SMMUGR1, t.Index)
		}
		return n.smmu.LoadGlobal(t.Offset, t.Index)
	case device.PKTZ:
		c := &n.pktz[t.Index/device.PktzChannels][t.Index%device.PktzChannels]
		switch t.Offset {
		case device.PktzDestination:
			return c.destination
		case device.PktzStatus:
			return uint64(c.status)
		}
		if i := (t.Offset - device.PktzPayload) / 8; i < device.PktzMaxWords {
			return c.payload[i]
		}
	case device.MBOX:
		b := &n.boxes[t.At(t.Index)/device.PageSize]
		switch t.At(t.Index) % device.PageSize {
		case device.MboxData:
			v, m := b.data(), int(t.At(t.Index)/device.PageSize)
			n.tellLong(m)
			n.mailRead = n.mailRead || n.evented>>m&1 != 0
			return v
		case device.MboxStatus:
			return b.status()
		case device.MboxSource:
			return b.source()
		}
	}
	return 0
}

func (n *Node) loadPL(t *device.Target) uint64 {
	switch t.Offset {
	case device.PLID:
		return device.IDValue
	case device.PLVersion:
		return device.VersionValue
	case device.PLCaps:
		return n.caps()
	case device.PLNodeID:
		return uint64(n.id)
	case device.PLCtrl:
		return uint64(n.ctrl)
	case device.PLIRQStatus:
		return uint64(n.irqStatus)
	case device.PLIRQMask:
		return uint64(n.irqMask)
	case device.PLTimeoutUS:
		return uint64(n.timeoutUS)
	case device.PLGuardUS:
		return uint64(n.guardUS)
	case device.PLOutstanding:
		return uint64(n.outstanding)
	case device.PLCounters:
		return n.counts[t.Index]
	case device.PLPktzCfg:
		return n.pktzCfg[t.Index]
	case device.PLMboxCfg:
		return n.mboxCfg[t.Index]
	case device.PLPDCfg:
		return n.pdCfg[t.Index]
	case device.PLPDPeers:
		return n.peers[t.Index/4][t.Index%4]
	case device.PLRXFIFOStatus:
		return uint64(n.rx.Status())
	case device.PLRXFIFOExt:
		return uint64(n.rx.Ext())
	case device.PLTXFIFOStatus:
		return uint64(n.tx.Status())
	case device.PLTXFIFOExt:
		return uint64(n.tx.Ext())
	}
	switch t.Cap {
	case device.CapsQueues:
		return n.queues.Load(t.Offset)
	case device.CapsWindows:
		v := n.windows.Load(t.Offset)
		if t.Offset == device.PLWinCtrl && n.withdrawing() {
			v |= device.WinBusy
		}
		return v
	case device.CapsGSAS:
		return n.loadGSAS(t)
	}
	if t.Offset >= device.PLWords {
		return n.peekAt(t)
	}
	if o := t.Offset - device.PLRXFIFO; o <= device.FIFOWordD {
		return uint64(n.rx.Read32(int(o / 4)))
	}
	if o := t.Offset - device.PLTXFIFO; o <= device.FIFOWordD {
		return uint64(n.tx.Read32(int(o / 4)))
	}
	return 0
}

// Store performs a write access and appends the resulting actions to out.
func (n *Node) Store(now int64, w device.WindowID, offset uint32, width int, v uint64, out []Action) []Action {
	n.now, n.out = now, out
	n.fw.Clock(now)
	n.fw.Forget()
	if w == device.BTCM {
		n.storeMemory(offset, width, v)
		return n.settle()
	}
	at := n.places.find(n.caps(), w, offset, width)
	if at == nil {
		n.counts[device.BadAccess]++
		return n.settle()
	}
	t := &at.target
	lanes := ^uint64(0)
	if width == 4 {
		lanes = 1<<32 - 1
	}
	v, lanes = v&lanes<<uint(t.Shift), lanes<<uint(t.Shift)
	act := v & t.Act
	var value uint64
	if at.write|at.w1c != 0 {
		value = n.peek(t)
	}
	value = value&^(at.write&lanes) | v&at.write
	value &^= v & at.w1c
	n.storeRegister(t, value, v&at.w1c, act)
	return n.settle()
}

// peek reads a register before a partial write; none of these registers has side effects on
// reads.
func (n *Node) peek(t *device.Target) uint64 { return n.load(t) }

// storeRegister writes a whole register: value is its new content, cleared the bits written as W1C, act
// the written bits that trigger an action.
func (n *Node) storeRegister(t *device.Target, value, cleared, act uint64) {
	switch t.Window {
	case device.PL:
		n.storePL(t, value, cleared, act)
	case device.SMMU:
		switch {
		case t.Offset >= device.SMMUBanks:
			n.smmu.StoreBank(t.Offset-device.SMMUBanks, t.Index, value|act)
			if t.Offset-device.SMMUBanks == device.RESUME {
				n.dma.Resume(t.Index, act&device.ResumeTerminate != 0)
			}
		case t.Offset >= device.SMMUGR1:
			n.smmu.StoreGR1(t.Offset-device.SMMUGR1, t.Index, value)
		default:
			n.smmu.StoreGlobal(t.Offset, t.Index, value)
		}
	case device.PKTZ:
		iface, ch := t.Index/device.PktzChannels, t.Index%device.PktzChannels
		c := &n.pktz[iface][ch]
		switch t.Offset {
		case device.PktzDestination:
			c.destination = value
		case device.PktzSend:
			words, number := packetizer.SplitSend(act)
			n.send(iface, ch, words, number)
		default:
			if i := (t.Offset - device.PktzPayload) / 8; i < device.PktzMaxWords {
				c.payload[i] = value
			}
		}
	case device.MBOX:
		if t.At(t.Index)%device.PageSize == device.MboxStatus && cleared != 0 {
			n.boxes[t.At(t.Index)/device.PageSize].overflow = false
		}
	}
}

func (n *Node) storePL(t *device.Target, value, cleared, act uint64) {
	i := t.Index
	switch t.Offset {
	case device.PLNodeID:
		n.id = device.NodeID(value)
		n.fw.SetNode(n.id)
		if n.unit != nil {
			n.unit.SetNode(n.id)
		}
		n.dma.SetNode(n.id)
	case device.PLCtrl:
		n.ctrl = uint32(value)
		if act&device.CtrlReset != 0 {
			n.reset()
		}
	case device.PLIRQStatus:
		// A bit cleared while its cause still holds is set again at once, which is a new edge: no
		// cause can be lost between two reads.
		n.irqStatus = uint32(value)
		n.irqSent &^= uint32(cleared)
	case device.PLIRQMask:
		n.irqMask = uint32(value)
	case device.PLTimeoutUS:
		n.timeoutUS = uint32(value)
		n.fw.SetTimeout(n.timeoutUS)
		n.dma.SetTimeout(n.timeoutUS)
	case device.PLGuardUS:
		n.guardUS = uint32(value)
		n.fw.SetGuard(n.guardUS)
	case device.PLOutstanding:
		n.outstanding = uint32(value)
		n.fw.SetOutstanding(n.outstanding)
	case device.PLPktzCfg:
		n.pktzCfg[i] = value
	case device.PLMboxCfg:
		if (n.mboxCfg[i]^value)&^device.MboxEvents != 0 {
			n.boxes[i] = box{} // waiting messages belong only to their reader
		}
		n.mboxCfg[i] = value
		if n.evented &^= 1 << i; value&device.MboxEvents != 0 {
			n.evented |= 1 << i
			n.tellLong(int(i))
		}
	case device.PLPDCfg:
		n.pdCfg[i] = value
		n.windows.Clear(i)
		pdid, g, on := device.SplitPDCfg(value)
		n.fw.SetDomain(i, pdid, g, on)
		n.dma.SetDomain(i, pdid, g, on)
		n.recheck(i)
		n.endThreads(i)
	case device.PLPDPeers:
		n.peers[i/4][i%4] = value
		peers := n.dma.Domain(i / 4).Peers
		for k := range 4 {
			peers[i%4*4+k] = device.PDID(value >> (16 * k))
		}
		n.fw.SetPeers(i/4, &peers)
		n.dma.SetPeers(i/4, &peers)
	case device.PLRXFIFOStatus:
		n.rx.ClearStatus(uint32(cleared))
	case device.PLTXFIFOStatus:
		n.tx.ClearStatus(uint32(cleared))
	default:
		switch {
		case t.Cap == device.CapsQueues && n.cfg.Queues:
			n.queues.Store(t.Offset, value, act)
		case t.Cap == device.CapsGSAS && n.cfg.GSAS:
			n.storeGSAS(t, value)
		case t.Cap == device.CapsWindows && n.cfg.Windows:
			if n.windows.Store(t.Offset, value) {
				slot, _ := n.windows.Selected()
				n.recheck(slot)
			}
		}
	}
}

// recheck ends what a slot's PD_PEERS and memory windows no longer admit.
func (n *Node) recheck(slot int) {
	n.fw.Recheck(slot)
	n.dma.Recheck(slot)
}

// withdrawing reports whether memory of the selected window's range is accessed that the slot no
// longer admits.
func (n *Node) withdrawing() bool {
	slot, w := n.windows.Selected()
	return n.dma.Withdrawing(slot, w.VA, w.Bytes) || n.fw.Withdrawing(slot, w.VA, w.Bytes)
}

// Window btcm is memory: 32-bit and 64-bit accesses anywhere. The doorbell words are consumed at
// once and read as zero (spec/hardware.md 6).
func (n *Node) loadMemory(offset uint32, width int) uint64 {
	if !n.inMemory(offset, width) {
		return 0
	}
	if width == 4 {
		return uint64(binary.LittleEndian.Uint32(n.btcm[offset:]))
	}
	return binary.LittleEndian.Uint64(n.btcm[offset:])
}

func (n *Node) inMemory(offset uint32, width int) bool {
	if width != 4 && width != 8 || offset%uint32(width) != 0 || int(offset)+width > len(n.btcm) {
		n.counts[device.BadAccess]++
		return false
	}
	return true
}

func (n *Node) storeMemory(offset uint32, width int, v uint64) {
	if !n.inMemory(offset, width) {
		return
	}
	if offset >= device.BTCMDoorbells && offset%device.PageSize == 0 {
		// Word 0 of a doorbell page: the firmware consumes it and writes 0.
		if v != 0 {
			ch := v - 1
			if ch >= device.ChannelsPerSlot {
				n.counts[device.DoorbellDenied]++
				return
			}
			n.ringByWord(int(offset-device.BTCMDoorbells)/device.PageSize, int(ch))
		}
		return
	}
	if width == 4 {
		binary.LittleEndian.PutUint32(n.btcm[offset:], uint32(v))
		return
	}
	binary.LittleEndian.PutUint64(n.btcm[offset:], v)
}
