package domain

import (
	"fmt"

	"github.com/exanet/pfd/device"
)

// Init checks that this driver supports the node, resets every slot so that nothing passes, sets
// the SMMU's global registers and OUTSTANDING, and enables the node. A slot with accesses still
// in flight is not assigned until they have completed. At the end vectors 0 and 1 are unmasked; 2
// and 3 stay masked until the code that serves them unmasks them. An error matches ErrDevice or
// device.ErrGone.
func (m *Manager) Init() error {
	r := regs{bus: m.bus, node: m.node}
	if err := m.check(&r); err != nil {
		return err
	}
	// No vector must arrive while the node is half set up.
	r.write32(device.PL, device.PLIRQMask, 1<<device.Vectors-1)

	// Domains of an earlier driver must not continue to send or receive.
	for n := 0; n < device.Slots; n++ {
		r.write64(device.PL, pdCfg(n), 0)
		r.writePeers(n, nil)
		r.write32(device.SMMU, s2cr(n), device.S2CRFault<<device.S2CRTypeShift|uint32(n))
		r.write32(device.SMMU, smr(n), 0)
		r.write32(device.SMMU, device.Bank(n, device.FSR), ^uint32(0))
		r.write32(device.SMMU, device.Bank(n, device.TLBIALL), 0)
	}
	// The interfaces of threads, too.
	for n := range device.Interfaces {
		r.write64(device.PL, pktzCfg(n), 0)
		if n >= device.MailboxProcess {
			r.write64(device.PL, mboxCfg(n), 0)
		}
	}
	r.write32(device.SMMU, device.SMMUGR0+device.GFSR, ^uint32(0))
	r.write32(device.SMMU, device.SMMUGR0+device.STLBGSYNC, 0)
	// Client port on; a global fault is reported and raises vector 0; no stall by default; a
	// stream without a match faults (Arm IHI 0062 sCR0).
	scr0 := uint32(device.SCR0GFRE | device.SCR0GFIE | device.SCR0STALLD | device.SCR0USFCFG)
	if m.stall {
		scr0 &^= device.SCR0STALLD
	}
	r.write32(device.SMMU, device.SMMUGR0+device.SCR0, scr0)

	if r.read32(device.PL, device.PLNodeID)&device.NodeIDMask != uint32(m.node) {
		r.write32(device.PL, device.PLNodeID, uint32(m.node))
	}
	if m.caps&device.CapsGSAS != 0 {
		r.write32(device.PL, device.PLGSASCtrl, 0) // forgets the pages and requests of a former pfd
		r.write32(device.PL, device.PLGSASCtrl, device.GSASEnable)
	}
	r.write32(device.PL, device.PLOutstanding, Outstanding)
	r.write32(device.PL, device.PLCtrl, device.CtrlEnable)
	r.write32(device.PL, device.PLIRQStatus, 1<<device.Vectors-1)
	r.write32(device.PL, device.PLIRQMask, 1<<device.VectorMailbox|1<<device.VectorDone)
	for n := range m.slots {
		if s := &m.slots[n]; !s.used && r.read32(device.SMMU, device.Bank(n, device.TLBSTATUS))&1 != 0 {
			// The firmware still has blocks of a transfer there, and would report its end to the
			// slot's next domain.
			s.inherited = true
			m.poll(n)
		}
	}
	m.ready = r.err == nil
	return r.err
}

// check reads the device's identity and capabilities.
func (m *Manager) check(r *regs) error {
	id := r.read32(device.PL, device.PLID)
	version := r.read32(device.PL, device.PLVersion)
	caps := r.read64(device.PL, device.PLCaps)
	idr1 := r.read32(device.SMMU, device.SMMUGR0+device.IDR1)
	if r.err != nil {
		return r.err
	}
	if id != device.IDValue {
		return fmt.Errorf("node %d: %w: ID reads 0x%x, not 0x%x; check which device pfd was given", m.node, ErrDevice, id, device.IDValue)
	}
	if version>>16 != device.VersionValue>>16 {
		return fmt.Errorf("node %d: %w: the device's interface has version %d.%d and the driver's %d.%d; use a pfd that supports the device",
			m.node, ErrDevice, version>>16, version&0xffff, device.VersionValue>>16, device.VersionValue&0xffff)
	}
	if bits := caps & device.CapsVABitsMask; bits < device.MinVABits || bits > device.MaxVABits {
		return fmt.Errorf("node %d: %w: CAPS has a VA width of %d bits, not %d to %d; check the device", m.node, ErrDevice, bits, device.MinVABits, device.MaxVABits)
	}
	if banks := caps >> device.CapsBanksShift & device.CapsBanksMask; banks < device.Slots {
		return fmt.Errorf("node %d: %w: CAPS has %d context banks, not %d; check the device", m.node, ErrDevice, banks, device.Slots)
	}
	if n := idr1 & 0xff; n < device.Slots {
		return fmt.Errorf("node %d: %w: the SMMU has %d context banks, not %d; check the device", m.node, ErrDevice, n, device.Slots)
	}
	if m.stall && caps&device.CapsStall == 0 {
		return fmt.Errorf("node %d: %w: its SMMU cannot stall (CAPS[26]); use pfd --fault-mode terminate", m.node, ErrDevice)
	}
	m.caps = caps
	return nil
}
