package domain

import (
	"fmt"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/packetizer"
)

// regs accesses a sequence of registers and keeps the first error, after which it accesses no
// more. An error means that the device is gone.
type regs struct {
	bus  device.Bus
	node device.NodeID
	err  error
}

func (r *regs) fail(w device.WindowID, off uint32, err error) {
	r.err = fmt.Errorf("node %d, window %v, offset 0x%x: %w", r.node, w, off, err)
}

func (r *regs) store(w device.WindowID, off uint32, width int, v uint64) {
	if r.err != nil {
		return
	}
	if err := r.bus.Window(w).Store(off, width, v); err != nil {
		r.fail(w, off, err)
	}
}

func (r *regs) load(w device.WindowID, off uint32, width int) uint64 {
	if r.err != nil {
		return 0
	}
	v, err := r.bus.Window(w).Load(off, width)
	if err != nil {
		r.fail(w, off, err)
		return 0
	}
	return v
}

func (r *regs) write32(w device.WindowID, off, v uint32)        { r.store(w, off, 4, uint64(v)) }
func (r *regs) write64(w device.WindowID, off uint32, v uint64) { r.store(w, off, 8, v) }
func (r *regs) read32(w device.WindowID, off uint32) uint32     { return uint32(r.load(w, off, 4)) }
func (r *regs) read64(w device.WindowID, off uint32) uint64     { return r.load(w, off, 8) }

// arrived reads a 64-bit register of the PL back. Writes may be posted, and a doorbell, of this
// or another node, may overtake them (PCI: a read pushes earlier writes).
func (r *regs) arrived(off uint32) { r.read64(device.PL, off) }

// Offsets of the arrays (spec/hardware.md 3 and 5).
func pdCfg(n int) uint32   { return device.PLPDCfg + 8*uint32(n) }
func pktzCfg(n int) uint32 { return device.PLPktzCfg + 8*uint32(n) }
func mboxCfg(n int) uint32 { return device.PLMboxCfg + 8*uint32(n) }
func pdPeers(n, k int) uint32 {
	return device.PLPDPeers + 32*uint32(n) + 8*uint32(k)
}
func smr(n int) uint32   { return device.SMMUGR0 + device.SMR + 4*uint32(n) }
func s2cr(n int) uint32  { return device.SMMUGR0 + device.S2CR + 4*uint32(n) }
func cbar(n int) uint32  { return device.SMMUGR1 + device.CBAR + 4*uint32(n) }
func cba2r(n int) uint32 { return device.SMMUGR1 + device.CBA2R + 4*uint32(n) }

// peerRegisters is the number of 64-bit registers that hold a slot's sixteen PDIDs.
const peerRegisters = device.PeersPerSlot / 4

// writePeers writes a slot's PD_PEERS, four PDIDs per register, the first in the lowest bits
// (spec/hardware.md 3).
func (r *regs) writePeers(n int, peers []device.PDID) {
	for k := 0; k < peerRegisters; k++ {
		var v uint64
		for i := 0; i < 4; i++ {
			if j := 4*k + i; j < len(peers) {
				v |= uint64(peers[j]) << (16 * i)
			}
		}
		r.write64(device.PL, pdPeers(n, k), v)
	}
}

// pktzValue returns PKTZ_CFG of interface n: the R5 words' form, enabled.
func pktzValue(n int, node device.NodeID, pdid device.PDID) uint64 {
	return packetizer.Config{PDID: pdid, Node: node, Interface: uint8(n), Enable: true}.Encode()
}
