package fault

import "github.com/exanet/pfd/device"

// Bounds of the interrupt half (ours): it must end whatever the device answers.
const (
	fsrReads = 8 // reads of one bank's FSR a pass
	passes   = 4 // passes over the banks an interrupt
	// stuckLimit is how many interrupts in a row may end with FSR set before the
	// register counts as broken.
	stuckLimit = 1000
)

// Bits of IRQ_STATUS and IRQ_MASK that are this driver's; the others are written
// back as found.
const (
	irqFault = 1 << device.VectorFault
	irqFIFO  = 1 << device.VectorFIFO
)

// Interrupt is the interrupt half (spec/faultpath.md, destination fault, 2). It
// takes vectors 0 and 1 and ignores others. It never blocks and never pages in.
//
// Vector 1 is masked first, until the page-in half has drained the FIFOs. FSR is
// cleared before IRQ_STATUS is, not after as the page has it: a bit cleared while
// FSR is not zero is set again and sends a second vector for the same fault. By
// the same rule nothing is lost: a fault recorded in between sets the bit again
// (spec/hardware.md 3).
func (d *Driver) Interrupt(vector int) {
	if vector != device.VectorFault && vector != device.VectorFIFO || !d.start() {
		return
	}
	d.stats.Interrupts++
	cause := d.read32(device.PL, device.PLIRQStatus) & (irqFault | irqFIFO) &^ d.mask
	if cause == 0 {
		// The other vector's call has done it all.
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

// clearFaults reads and clears the fault registers until the cause of vector 0
// is gone. The first pass looks at the domains served; if the cause still holds,
// a bank without one has it (a domain just removed), and all are looked at.
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
	// Faults come faster than this, or a register does not clear. Vector 0 stays
	// off until the page-in half has had its turn, so that it cannot hold the
	// owning goroutine. It must come back whatever that finds: source faults
	// without a TXFIFO leave no entry.
	d.stats.StuckFSR++
	if d.stuck++; d.stuck == stuckLimit {
		d.lg.Error("a fault register does not clear: faults are served by the FIFO alone from now on", "node", uint32(d.node))
	}
	d.setMask(d.mask | irqFault)
}

// clearBank reads FSR, FAR and FSYNR0 of a bank and writes back what it read,
// until FSR reads zero.
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
			// Under method touch the process answers by itself, and pfd does not learn when:
			// its accesses are aborted.
			d.stall(n, k)
			if !s.live || s.target.Method == Touch || !s.addFAR(k) {
				d.resume(n, true)
			}
		case s.live && !write && d.bare:
			s.addFAR(k)
		}
	}
}

// stall keeps vector 0 from a bank in which an access waits: FSR.SS stays until RESUME is
// written, and with it the cause.
func (d *Driver) stall(n int, k pageKey) {
	s := &d.slots[n]
	s.counts.Stalls++
	s.stalled, s.stall = true, k
	d.setSCTLR(n, 0, device.SCTLRCFIE)
}

// resume has the accesses of a bank that wait for a page walk again, or aborted.
func (d *Driver) resume(n int, terminate bool) {
	s := &d.slots[n]
	if !s.stalled {
		return
	}
	s.stalled = false
	// All that wait walk again and fault anew: what FSR has of them is of the past.
	d.write32(device.SMMU, device.Bank(n, device.FSR), ^uint32(0))
	var how uint32
	if terminate {
		how = device.ResumeTerminate
	}
	d.write32(device.SMMU, device.Bank(n, device.RESUME), how)
	d.setSCTLR(n, device.SCTLRCFIE, 0)
}

func (d *Driver) setSCTLR(n int, set, cleared uint32) {
	at := device.Bank(n, device.SCTLR)
	d.write32(device.SMMU, at, d.read32(device.SMMU, at)&^cleared|set)
}

// wake posts the page-in half, once until it runs.
func (d *Driver) wake() {
	if !d.posted && !d.dead {
		d.posted = true
		d.bus.Post(d.round)
	}
}

func (d *Driver) setMask(v uint32) {
	if v != d.mask {
		d.mask = v
		d.write32(device.PL, device.PLIRQMask, v)
	}
}
