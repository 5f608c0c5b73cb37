package device

// Reset values of the SMMU's registers (Arm IHI 0062 chapter 9; the choices among the permitted
// values are defined by this project).
const (
	// IDR0Reset: S1TS 30, SMS 27, ATOSNS 26, PTFS [25:24] no AArch32 formats,
	// CTTW 14, NUMSIDB [12:9] 15 bits, NUMSMRG [7:0] 16 groups.
	IDR0Reset = 1<<30 | 1<<27 | 1<<26 | 3<<24 | 1<<14 | 15<<9 | SMRCount
	// IDR1Reset: NUMPAGENDXB [30:28], 2^(3+1) = 16 global pages before the
	// context banks; NUMCB [7:0] 16 banks.
	IDR1Reset = 3<<28 | Slots
	// IDR2Reset: PTFSV8_4KB 12, UBS [11:8], OAS [7:4] and IAS [3:0] 5: 48 bits.
	IDR2Reset = 1<<12 | 5<<8 | 5<<4 | 5
	// IDR7Reset: MAJOR [7:4] 2.
	IDR7Reset = 2 << 4
	// SCR0Reset: CLIENTPD; the emulated SMMU aborts then (spec/hardware.md 5).
	SCR0Reset = SCR0Client
	// S2CRReset: TYPE 2, fault, until a driver sets another.
	S2CRReset = S2CRFault << S2CRTypeShift
)

// Masks of the implemented bits (spec/hardware.md 5).
const (
	scr0Bits  = SCR0Client | SCR0GFRE | SCR0GFIE | SCR0STALLD | SCR0USFCFG
	gfsrBits  = GFSRICF | GFSRUSF | GFSRUCBF | GFSRMULTI
	smrBits   = SMRValid | StreamIDMask<<SMRMaskShift | StreamIDMask
	s2crBits  = S2CRTypeMask<<S2CRTypeShift | S2CRBankMask
	cbarBits  = 0xff<<CBARIRPTShift | 3<<CBARTypeShift
	sctlrBits = SCTLRM | SCTLRTRE | SCTLRAFE | SCTLRCFRE | SCTLRCFIE | SCTLRCFCFG | SCTLRHUPCF
	fsrBits   = FSRTF | FSRAFF | FSRPF | FSREF | FSRTLBMCF | FSRTLBLKF | FSRUUT | FSRSS | FSRMULTI
)

// smmuRegisters describes window smmu (spec/hardware.md 5).
func smmuRegisters() []Register {
	regs := []Register{
		{Name: "SCR0", Offset: SCR0, Width: 4, Reset: SCR0Reset, Read: scr0Bits, Write: scr0Bits, fields: "clientpd[0] gfre[1] gfie[2] stalld[8] usfcfg[10]"},
		{Name: "IDR0", Offset: IDR0, Width: 4, Reset: IDR0Reset, Read: low32,
			fields: "ses[31] s1ts[30] s2ts[29] nts[28] sms[27] atosns[26] ptfs[25:24] numirpt[23:16] exsmrgs[15] cttw[14] btm[13] numsidb[12:9] exids[8] numsmrg[7:0]"},
		{Name: "IDR1", Offset: IDR1, Width: 4, Reset: IDR1Reset, Read: low32,
			fields: "pagesize[31] numpagendxb[30:28] hafdbs[27:26] res25[25:24] nums2cb[23:16] smcd[15] res14[14:13] ssdtp[12] numssdndxb[11:8] numcb[7:0]"},
		{Name: "IDR2", Offset: IDR2, Width: 4, Reset: IDR2Reset, Read: low32,
			fields: "res16[31:16] vmid16[15] ptfsv8_64kb[14] ptfsv8_16kb[13] ptfsv8_4kb[12] ubs[11:8] oas[7:4] ias[3:0]"},
		{Name: "IDR7", Offset: IDR7, Width: 4, Reset: IDR7Reset, Read: 0xff, fields: "major[7:4] minor[3:0]"},
		{Name: "GFAR", Offset: GFAR, Width: 8, Halves: true, Read: allBits, Write: allBits, fields: "address[63:0]"},
		// The other causes of Arm IHI 0062, 3.8 cannot occur: SMCF without SMCFCFG, CAF (a hole
		// reads as zero), EF and PF outside a bank, UCIF, UUT.
		{Name: "GFSR", Offset: GFSR, Width: 4, Read: gfsrBits, W1C: gfsrBits, fields: "icf[0] usf[1] ucbf[3] multi[31]"},
		{Name: "STLBGSYNC", Offset: STLBGSYNC, Width: 4, Act: low32, fields: "sync[31:0]"},
		{Name: "STLBGSTATUS", Offset: STLBGSTAT, Width: 4, Read: 1, fields: "active[0]"},
		{Name: "SMR", Offset: SMR, Count: SMRCount, Stride: 4, Width: 4, Read: smrBits, Write: smrBits, fields: "valid[31] mask[30:16] id[14:0]"},
		{Name: "S2CR", Offset: S2CR, Count: SMRCount, Stride: 4, Width: 4, Reset: S2CRReset, Read: s2crBits, Write: s2crBits, fields: "type[17:16] cbndx[7:0]"},

		{Name: "CBAR", Offset: SMMUGR1 + CBAR, Count: Slots, Stride: 4, Width: 4, Read: cbarBits, Write: cbarBits, fields: "irptndx[31:24] type[17:16]"},
		{Name: "CBFRSYNRA", Offset: SMMUGR1 + CBFRSYNRA, Count: Slots, Stride: 4, Width: 4, Read: StreamIDMask, Write: StreamIDMask, fields: "stream_id[14:0]"},
		{Name: "CBA2R", Offset: SMMUGR1 + CBA2R, Count: Slots, Stride: 4, Width: 4, Read: CBA2RVA64, Write: CBA2RVA64, fields: "va64[0]"},
	}
	bank := []Register{
		{Name: "CB_SCTLR", Offset: SCTLR, Width: 4, Read: sctlrBits, Write: sctlrBits, Cap: CapsStall, CapMask: SCTLRCFCFG,
			fields: "m[0] tre[1] afe[2] cfre[5] cfie[6] cfcfg[7] hupcf[8]"},
		{Name: "CB_RESUME", Offset: RESUME, Width: 4, Act: ResumeTerminate, fields: "terminate[0]"},
		{Name: "CB_TCR2", Offset: TCR2, Width: 4, Read: low32, Write: low32, fields: "tcr2[31:0]"},
		{Name: "CB_TTBR0", Offset: TTBR0, Width: 8, Halves: true, Read: allBits, Write: allBits, fields: "asid[63:48] address[47:0]"},
		{Name: "CB_TTBR1", Offset: TTBR1, Width: 8, Halves: true, Read: allBits, Write: allBits, fields: "asid[63:48] address[47:0]"},
		{Name: "CB_TCR", Offset: TCR, Width: 4, Read: low32, Write: low32, fields: "res16[31:16] tg0[15:14] res6[13:6] t0sz[5:0]"},
		{Name: "CB_MAIR0", Offset: MAIR0, Width: 4, Read: low32, Write: low32, fields: "attr3[31:24] attr2[23:16] attr1[15:8] attr0[7:0]"},
		{Name: "CB_MAIR1", Offset: MAIR1, Width: 4, Read: low32, Write: low32, fields: "attr7[31:24] attr6[23:16] attr5[15:8] attr4[7:0]"},
		// No fault sets TLBMCF, TLBLKF or UUT: the TLB has no conflicting and no locked entries,
		// and there is only one kind of access. FSRRESTORE can set them.
		{Name: "CB_FSR", Offset: FSR, Width: 4, Read: fsrBits, W1C: fsrBits,
			fields: "tf[1] aff[2] pf[3] ef[4] tlbmcf[5] tlblkf[6] uut[8] ss[30] multi[31]"},
		{Name: "CB_FSRRESTORE", Offset: FSRRESTORE, Width: 4, Act: fsrBits,
			fields: "tf[1] aff[2] pf[3] ef[4] tlbmcf[5] tlblkf[6] uut[8] ss[30] multi[31]"},
		{Name: "CB_FAR", Offset: FAR, Width: 8, Halves: true, Read: allBits, Write: allBits, fields: "address[63:0]"},
		{Name: "CB_FSYNR0", Offset: FSYNR0, Width: 4, Read: FSYNR0WNR, Write: FSYNR0WNR, fields: "wnr[4]"},
		// FSYNR1 is implementation defined; this implementation has no bits in it.
		{Name: "CB_FSYNR1", Offset: FSYNR1, Width: 4},
		{Name: "CB_TLBIVA", Offset: TLBIVA, Width: 8, Halves: true, Act: allBits, fields: "asid[63:48] res44[47:44] page[43:0]"},
		{Name: "CB_TLBIASID", Offset: TLBIASID, Width: 4, Act: 0xffff, fields: "asid[15:0]"},
		{Name: "CB_TLBIALL", Offset: TLBIALL, Width: 4, Act: low32, fields: "all[31:0]"},
		{Name: "CB_TLBIVAL", Offset: TLBIVAL, Width: 8, Halves: true, Act: allBits, fields: "asid[63:48] res44[47:44] page[43:0]"},
		{Name: "CB_TLBSYNC", Offset: TLBSYNC, Width: 4, Act: low32, fields: "sync[31:0]"},
		{Name: "CB_TLBSTATUS", Offset: TLBSTATUS, Width: 4, Read: 1, fields: "active[0]"},
	}
	for _, r := range bank {
		r.Offset = Bank(0, r.Offset)
		r.Count, r.Stride = Slots, SMMUBankSize
		regs = append(regs, r)
	}
	for i := range regs {
		regs[i].Window, regs[i].Source = SMMU, srcSMMU
	}
	return regs
}
