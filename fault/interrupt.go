package fault

import "github.com/exanet/pfd/device"

// Limits of the interrupt half (defined by this project): it must end whatever the device
// returns.
const (
	fsrReads = 8 // reads of one bank's FSR per pass
	passes   = 4 // passes over the banks per interrupt
	// stuckLimit is how many interrupts in a row may end with FSR still set before the register
	// counts as broken.
	stuckLimit = 1000
)

// Bits of IRQ_STATUS and IRQ_MASK that belong to this driver; the others are preserved.
const (
	irqFault = 1 << device.VectorFault
	irqFIFO  = 1 << device.VectorFIFO
)

// Interrupt is the interrupt half (spec/faultpath.md, destination fault, 2). It handles vectors 0
// and 1 and ignores others. It never blocks and never pages in.
//
// Vector 1 is masked first, until the page-in half has drained the FIFOs. FSR is cleared before
// IRQ_STATUS, in contrast to the order in spec/faultpath.md: a bit cleared while FSR is not zero
// is set again and sends a second vector for the same fault. For the same reason no fault is
// lost: one recorded in between sets the bit again (spec/hardware.md 3).
func (d *Driver) Interrupt(vector int) {
	if vector != device.VectorFault && vector != device.VectorFIFO || !d.start() {
		return
	}
	d.stats.Interrupts++
	cause := d.read32(device.PL, device.PLIRQStatus) & (irqFault | irqFIFO) &^ d.mask
	if cause == 0 {
		// The other vector's call has already handled it.
		d.stats.Spurious++
		return
	}
	d.irqAt = d.now()
	d.setMask(d.mask | irqFIFO)
	if cause&irqFault != 0 {
		d.clearFaults()
	}
	d.wake()
}

// clearFaults reads and clears the fault registers until the cause of vector 0 is gone. The first
// pass covers the served domains. If the cause still holds, it is in a bank without a domain (one
// just removed), and the next passes cover all banks.
func (d *Driver) clearFaults() {
	for pass := 0; pass < passes && !d.dead; pass++ {
		for n := range d.slots {
			if pass > 0 || d.slots[n].live {
				d.clearBank(n)
			}
		}
		if gfsr := d.read32(device.SMMU, device.SMMUGR0+device.GFSR); gfsr != 0 {
			d.stats.Global++
			d.write32(device.SMMU, device.SMMUGR0+device.GFSR, gfsr)
		}
		d.write32(device.PL, device.PLIRQStatus, irqFault)
		if d.read32(device.PL, device.PLIRQStatus)&irqFault == 0 {
			d.stuck = 0
			return
		}
	}
	// Faults arrive faster than they are cleared, or a register does not clear. Vector 0 stays
	// masked until the page-in half has run, so that it cannot monopolize the owning goroutine.
	// It must be unmasked whatever that finds: source faults without a TXFIFO leave no entry.
	d.stats.StuckFSR++
	if d.stuck++; d.stuck == stuckLimit {
		d.lg.Error("a fault register does not clear: faults are served only through the FIFO from now on", "node", uint32(d.node))
	}
	d.setMask(d.mask | irqFault)
}

// clearBank reads FSR, FAR and FSYNR0 of a bank and writes FSR back until it reads zero.
func (d *Driver) clearBank(n int) {
	s := &d.slots[n]
	for i := 0; i < fsrReads && !d.dead; i++ {
		fsr := d.read32(device.SMMU, device.Bank(n, device.FSR))
		if fsr == 0 || fsr&device.FSRSS != 0 && s.stalled {
			return
		}
		far := device.VA(d.read64(device.SMMU, device.Bank(n, device.FAR)))
		write := d.read32(device.SMMU, device.Bank(n, device.FSYNR0))&device.FSYNR0WNR != 0
		d.write32(device.SMMU, device.Bank(n, device.FSR), fsr)
		d.stats.Faults++
		if fsr&device.FSRMULTI != 0 {
			d.stats.Multi++
		}
		s.hint, s.hintWrite = far, write
		k := pageKey{uint64(far >> device.PageShift), write}
		switch {
		case fsr&device.FSRSS != 0:
			// Under method touch the process answers by itself, and pfd does not learn when: the
			// bank's accesses are aborted.
			d.stall(n, k)
			if !s.live || s.target.Method == Touch || !s.addFAR(k) {
				d.resume(n, true)
			}
		case s.live && !write && d.bare:
			s.addFAR(k)
		}
	}
}

// stall disables a bank's interrupt while an access waits in it: FSR.SS, and with it the cause of
// vector 0, stays until RESUME is written.
func (d *Driver) stall(n int, k pageKey) {
	s := &d.slots[n]
	s.counts.Stalls++
	s.stalled, s.stall = true, k
	d.setSCTLR(n, 0, device.SCTLRCFIE)
}

// resume makes the stalled accesses of a bank walk again, or aborts them.
func (d *Driver) resume(n int, terminate bool) {
	s := &d.slots[n]
	if !s.stalled {
		return
	}
	s.stalled = false
	// All stalled accesses walk again and fault again: the faults in FSR are obsolete.
	d.write32(device.SMMU, device.Bank(n, device.FSR), ^uint32(0))
	var how uint32
	if terminate {
		how = device.ResumeTerminate
	}
	d.write32(device.SMMU, device.Bank(n, device.RESUME), how)
	d.setSCTLR(n, device.SCTLRCFIE, 0)
}

// wake posts the page-in half unless it is already posted.
func (d *Driver) wake() {
	if !d.posted && !d.dead {
		d.posted = true
		d.bus.Post(d.halfFunc)
	}
}
