package device

// Window smmu: SMMUv2 with 4 KiB pages (spec/hardware.md 5; Arm IHI 0062, names and values as in
// Linux's drivers/iommu/arm/arm-smmu/arm-smmu.h). SMRCount is defined by this project.
const (
	SMMUGR0      = 0x0000  // global register space 0, page 0
	SMMUGR1      = 0x1000  // global register space 1, page 1
	SMMUBanks    = 0x10000 // context bank n at + 0x1000*n
	SMMUBankSize = 0x1000

	// GR0
	SCR0       = 0x0
	IDR0       = 0x20
	IDR1       = 0x24
	IDR2       = 0x28
	IDR7       = 0x3c
	GFAR       = 0x40 // 64 bits
	GFSR       = 0x48 // W1C
	STLBGSYNC  = 0x70
	STLBGSTAT  = 0x74
	SMR        = 0x800 // +4n
	S2CR       = 0xc00 // +4n
	SMRCount   = 16    // stream-match registers, one per slot
	SCR0Client = 1 << 0
	SCR0GFRE   = 1 << 1
	SCR0GFIE   = 1 << 2
	SCR0STALLD = 1 << 8
	SCR0USFCFG = 1 << 10
	GFSRICF    = 1 << 0  // invalid context: S2CR.TYPE says fault
	GFSRUSF    = 1 << 1  // unidentified stream
	GFSRUCBF   = 1 << 3  // unimplemented context bank
	GFSRMULTI  = 1 << 31 // a fault while GFSR was not zero

	SMRValid       = 1 << 31
	SMRMaskShift   = 16
	StreamIDMask   = 0x7fff
	S2CRTypeShift  = 16
	S2CRTypeMask   = 3
	S2CRTranslate  = 0
	S2CRBypass     = 1
	S2CRFault      = 2
	S2CRBankMask   = 0xff
	CBARTypeShift  = 16
	CBARIRPTShift  = 24
	CBA2RVA64      = 1 << 0
	CBARS1BypassS2 = 1 // CBAR.TYPE: stage 1, stage 2 bypass

	// GR1
	CBAR      = 0x0   // +4n
	CBFRSYNRA = 0x400 // +4n
	CBA2R     = 0x800 // +4n

	// context bank
	SCTLR      = 0x0
	RESUME     = 0x8
	TCR2       = 0x10
	TTBR0      = 0x20 // 64 bits, ASID [63:48]
	TTBR1      = 0x28 // 64 bits
	TCR        = 0x30
	MAIR0      = 0x38
	MAIR1      = 0x3c
	FSR        = 0x58 // W1C
	FSRRESTORE = 0x5c
	FAR        = 0x60 // 64 bits
	FSYNR0     = 0x68
	FSYNR1     = 0x6c
	TLBIVA     = 0x600
	TLBIASID   = 0x610
	TLBIALL    = 0x618
	TLBIVAL    = 0x620
	TLBSYNC    = 0x7f0
	TLBSTATUS  = 0x7f4

	SCTLRM     = 1 << 0
	SCTLRTRE   = 1 << 1
	SCTLRAFE   = 1 << 2
	SCTLRCFRE  = 1 << 5
	SCTLRCFIE  = 1 << 6
	SCTLRCFCFG = 1 << 7
	SCTLRHUPCF = 1 << 8
	// SCTLRDriver is the value that the driver sets: M, AFE, TRE, CFRE, CFIE, HUPCF
	// (spec/hardware.md 5).
	SCTLRDriver = SCTLRM | SCTLRTRE | SCTLRAFE | SCTLRCFRE | SCTLRCFIE | SCTLRHUPCF

	ResumeTerminate = 1 << 0

	FSRTF     = 1 << 1
	FSRAFF    = 1 << 2
	FSRPF     = 1 << 3
	FSREF     = 1 << 4
	FSRTLBMCF = 1 << 5
	FSRTLBLKF = 1 << 6
	FSRUUT    = 1 << 8
	FSRSS     = 1 << 30
	FSRMULTI  = 1 << 31

	FSYNR0WNR = 1 << 4 // the access was a write: the fault is at a destination
)

// Bank returns the offset in window smmu of register reg of context bank n.
func Bank(n int, reg uint32) uint32 { return SMMUBanks + SMMUBankSize*uint32(n) + reg }
