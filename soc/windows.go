package soc

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/window"
)

// windows are a node's memory windows and the registers that set them (spec/hardware.md 3,
// WIN_SELECT).
type windows struct {
	sets   [device.Slots]window.Set
	choice uint32 // WIN_SELECT
	va     device.VA
	bytes  uint64 // WIN_VA and WIN_BYTES: of the selected window, until WIN_CTRL is written
}

// selected returns the slot and the number of the selected window.
func (w *windows) selected() (slot, i int) {
	return int(w.choice >> device.WinSlotShift & device.WinSlotMask), int(w.choice & device.WinIndexMask)
}

// clear removes all windows of a slot.
func (w *windows) clear(slot int) {
	w.sets[slot] = window.Set{}
	w.choose(w.choice)
}

// choose selects a window.
func (w *windows) choose(choice uint32) {
	w.choice = choice
	slot, i := w.selected()
	m, _ := w.sets[slot].Window(i)
	w.va, w.bytes = m.VA, m.Bytes
}

func (n *Node) loadWindow(offset uint32) uint64 {
	slot, i := n.windows.selected()
	switch offset {
	case device.PLWinSelect:
		return uint64(n.windows.choice)
	case device.PLWinVA:
		return uint64(n.windows.va)
	case device.PLWinBytes:
		return n.windows.bytes
	}
	m, enabled := n.windows.sets[slot].Window(i)
	v := device.WinCtrl(m.Peer, m.Rights)
	if !enabled {
		v &^= device.CfgEnable
	}
	if n.dma.Withdrawing(slot, m.VA, m.Bytes) || n.fw.Withdrawing(slot, m.VA, m.Bytes) {
		v |= device.WinBusy
	}
	return v
}

func (n *Node) storeWindow(offset uint32, v uint64) {
	w := &n.windows
	switch offset {
	case device.PLWinSelect:
		w.choose(uint32(v))
	case device.PLWinVA:
		w.va = device.VA(v)
	case device.PLWinBytes:
		w.bytes = v
	case device.PLWinCtrl:
		slot, i := w.selected()
		peer, rights, enabled := device.SplitWinCtrl(v)
		w.sets[slot].Put(i, device.MemoryWindow{VA: w.va, Bytes: w.bytes, Peer: peer, Rights: rights}, enabled)
		n.recheck(slot)
	}
}

// recheck ends what a slot's windows no longer admit.
func (n *Node) recheck(slot int) {
	n.fw.Recheck(slot)
	n.dma.Recheck(slot)
}
