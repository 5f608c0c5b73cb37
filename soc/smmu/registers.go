package smmu

import "github.com/exanet/pfd/device"

// LoadGlobal reads a register of page GR0, identified by its offset in the page; i is the index
// in an array.
func (s *SMMU) LoadGlobal(reg uint32, i int) uint64 {
	switch reg {
	case device.SCR0:
		return uint64(s.scr0)
	case device.IDR0, device.IDR1, device.IDR2, device.IDR7:
		// Their values are in the register map.
		r, _, _ := device.Lookup(device.SMMU, reg)
		return r.Reset
	case device.GFAR:
		return s.gfar
	case device.GFSR:
		return uint64(s.gfsr)
	case device.STLBGSTAT:
		return s.anyActive()
	case device.SMR:
		return uint64(s.smr[i])
	case device.S2CR:
		return uint64(s.s2cr[i])
	}
	return 0
}

func (s *SMMU) anyActive() uint64 {
	for i := range s.banks {
		if s.banks[i].active > 0 {
			return 1
		}
	}
	return 0
}

// StoreGlobal writes a register of page GR0; its masks have been applied to v.
func (s *SMMU) StoreGlobal(reg uint32, i int, v uint64) {
	switch reg {
	case device.SCR0:
		s.scr0 = uint32(v)
	case device.GFAR:
		s.gfar = v
	case device.GFSR:
		s.gfsr = uint32(v)
	case device.SMR:
		s.smr[i] = uint32(v)
	case device.S2CR:
		s.s2cr[i] = uint32(v)
	}
}

// LoadGR1 reads register reg of page GR1 for context bank i.
func (s *SMMU) LoadGR1(reg uint32, i int) uint64 {
	b := &s.banks[i]
	switch reg {
	case device.CBAR:
		return uint64(b.cbar)
	case device.CBFRSYNRA:
		return uint64(b.cbfrsynra)
	case device.CBA2R:
		return uint64(b.cba2r)
	}
	return 0
}

// StoreGR1 writes register reg of page GR1 for context bank i.
func (s *SMMU) StoreGR1(reg uint32, i int, v uint64) {
	b := &s.banks[i]
	switch reg {
	case device.CBAR:
		b.cbar = uint32(v)
	case device.CBFRSYNRA:
		b.cbfrsynra = uint32(v)
	case device.CBA2R:
		b.cba2r = uint32(v)
	}
}

// LoadBank reads register reg of context bank i.
func (s *SMMU) LoadBank(reg uint32, i int) uint64 {
	b := &s.banks[i]
	switch reg {
	case device.SCTLR:
		return uint64(b.sctlr)
	case device.TCR2:
		return uint64(b.tcr2)
	case device.TTBR0:
		return b.ttbr0
	case device.TTBR1:
		return b.ttbr1
	case device.TCR:
		return uint64(b.tcr)
	case device.MAIR0:
		return uint64(b.mair0)
	case device.MAIR1:
		return uint64(b.mair1)
	case device.FSR:
		return uint64(b.fsr)
	case device.FAR:
		return b.far
	case device.FSYNR0:
		return uint64(b.fsynr0)
	case device.FSYNR1:
		return uint64(b.fsynr1)
	case device.TLBSTATUS:
		// A sync completes when no access that began before it is in flight.
		if b.active > 0 {
			return 1
		}
	}
	return 0
}

// StoreBank writes register reg of context bank i; its masks have been applied to v. For FSR, v
// has the bits that remain set.
func (s *SMMU) StoreBank(reg uint32, i int, v uint64) {
	b := &s.banks[i]
	switch reg {
	case device.SCTLR:
		b.sctlr = uint32(v)
	case device.TCR2:
		b.tcr2 = uint32(v)
	case device.TTBR0:
		b.ttbr0 = v
	case device.TTBR1:
		b.ttbr1 = v
	case device.TCR:
		b.tcr = uint32(v)
	case device.MAIR0:
		b.mair0 = uint32(v)
	case device.MAIR1:
		b.mair1 = uint32(v)
	case device.RESUME:
		b.resume()
	case device.FSR:
		b.fsr = uint32(v)
		if b.stalled > 0 {
			b.fsr |= device.FSRSS // only RESUME clears it
		}
	case device.FSRRESTORE:
		b.fsr |= uint32(v)
	case device.FAR:
		b.far = v
	case device.FSYNR0:
		b.fsynr0 = uint32(v)
	case device.FSYNR1:
		b.fsynr1 = uint32(v)
	case device.TLBIVA, device.TLBIVAL:
		s.tlb.invalidate(i, v&(1<<44-1))
	case device.TLBIALL, device.TLBIASID:
		s.tlb.invalidateBank(i)
	}
	s.level(i)
}
