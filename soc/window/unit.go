package window

import "github.com/exanet/pfd/device"

// Unit is the windows of a node and the registers that set them. Its zero value is the reset state.
type Unit struct {
	Sets   [device.Slots]Set
	choice uint32 // WIN_SELECT
	va     device.VA
	bytes  uint64 // WIN_VA and WIN_BYTES: of the selected window, until WIN_CTRL is written
}

// Clear removes all windows of a slot.
func (u *Unit) Clear(slot int) {
	u.Sets[slot] = Set{}
	u.choose(u.choice)
}

// Selected returns the slot of the selected window, and the window.
func (u *Unit) Selected() (slot int, w device.MemoryWindow) {
	slot, i := u.at()
	return slot, u.Sets[slot].all[i]
}

func (u *Unit) at() (slot, i int) {
	return int(u.choice >> device.WinSlotShift & device.WinSlotMask), int(u.choice & device.WinIndexMask)
}

func (u *Unit) choose(choice uint32) {
	u.choice = choice
	_, w := u.Selected()
	u.va, u.bytes = w.VA, w.Bytes
}

// Load reads a register, WIN_CTRL without its busy bit.
func (u *Unit) Load(offset uint32) uint64 {
	switch offset {
	case device.PLWinSelect:
		return uint64(u.choice)
	case device.PLWinVA:
		return uint64(u.va)
	case device.PLWinBytes:
		return u.bytes
	}
	slot, i := u.at()
	w, enabled := u.Sets[slot].Window(i)
	v := device.WinCtrl(w.Peer, w.Rights)
	if !enabled {
		v &^= device.CfgEnable
	}
	return v
}

// Store writes a register. It reports whether that changed a window of the selected slot.
func (u *Unit) Store(offset uint32, v uint64) (changed bool) {
	switch offset {
	case device.PLWinSelect:
		u.choose(uint32(v))
	case device.PLWinVA:
		u.va = device.VA(v)
	case device.PLWinBytes:
		u.bytes = v
	case device.PLWinCtrl:
		slot, i := u.at()
		peer, rights, enabled := device.SplitWinCtrl(v)
		u.Sets[slot].Put(i, device.MemoryWindow{VA: u.va, Bytes: u.bytes, Peer: peer, Rights: rights}, enabled)
		return true
	}
	return false
}
