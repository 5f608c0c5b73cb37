package device

// The registers of threads and of the GSAS unit (spec/gsas.md 2 and 4). Values below are defined by
// this project.
const (
	ProtectionMask = 1<<24 - 1 // a protection ID (003 fig. 9)

	protSlotShift  = 24 // PKTZ_PROT [27:24]
	protSlotMask   = Slots - 1
	protBits       = ProtectionMask | protSlotMask<<protSlotShift
	mboxProtShift  = 16 // MBOX_CFG [39:16]
	mboxProtection = ProtectionMask << mboxProtShift

	GSASEnable = 1 << 0          // GSAS_CTRL
	GSASNoPage = ^uint64(0)      // GSAS_WANT: no page is wanted
	GSASMaxRun = 1 << runBits    // pages that GSAS_PAGE selects
	runBits    = 16              // GSAS_PAGE [51:36]: pages after the first one
	pageBits   = 48 - PageShift  // GSAS_PAGE [35:0]: first page
	pageMask   = 1<<pageBits - 1 // as in a partition

	entryGrantShift = 24 // GSAS_ENTRY [30:24]
	grantMask       = 0x7f
	GSASBusy        = 1 << 61 // GSAS_ENTRY: operations that have begun on the pages have not ended
	GSASPresent     = 1 << 62 // GSAS_ENTRY
	GSASGrants      = 128     // 0 is none

	grantProtShift = 7 // GSAS_GRANT [30:7]
	grantRead      = 1 << 31
	grantWrite     = 1 << 32

	gsasRunBits   = 1<<(pageBits+runBits) - 1
	gsasEntryBits = ProtectionMask | grantMask<<entryGrantShift | GSASPresent | CfgEnable
	gsasGrantBits = grantMask | ProtectionMask<<grantProtShift | grantRead | grantWrite | CfgEnable
)

// PktzProt returns PKTZ_PROT of a thread: its protection ID, and the slot of its attachment.
func PktzProt(protection uint32, slot int) uint64 {
	return uint64(protection&ProtectionMask) | uint64(slot&protSlotMask)<<protSlotShift
}

// SplitPktzProt is the inverse of PktzProt.
func SplitPktzProt(v uint64) (protection uint32, slot int) {
	return uint32(v & ProtectionMask), int(v >> protSlotShift & protSlotMask)
}

// ThreadMboxCfg returns MBOX_CFG of a thread's mailbox.
func ThreadMboxCfg(p PDID, protection uint32) uint64 {
	return uint64(p) | uint64(protection&ProtectionMask)<<mboxProtShift | CfgEnable
}

// MboxProtection returns the protection ID in MBOX_CFG.
func MboxProtection(v uint64) uint32 { return uint32(v >> mboxProtShift & ProtectionMask) }

// GSASRun returns GSAS_PAGE for a run of 1 to GSASMaxRun pages of the node's partition.
func GSASRun(first uint64, pages int) uint64 {
	return first&pageMask | uint64(uint16(pages-1))<<pageBits
}

// SplitGSASRun is the inverse of GSASRun. The run ends with the partition.
func SplitGSASRun(v uint64) (first uint64, pages int) {
	first, pages = v&pageMask, int(uint16(v>>pageBits))+1
	return first, int(min(uint64(pages), pageMask+1-first))
}

// GSASEntry is the content of GSAS_ENTRY: which tree a page belongs to.
type GSASEntry struct {
	Protection uint32
	Grant      uint8 // number of the grant that lets another tree access the page; 0: none
	Present    bool  // it can be accessed: its memory is known
	Valid      bool
}

// Encode returns the register's value.
func (e GSASEntry) Encode() uint64 {
	v := uint64(e.Protection&ProtectionMask) | uint64(e.Grant&grantMask)<<entryGrantShift
	if e.Present {
		v |= GSASPresent
	}
	if e.Valid {
		v |= CfgEnable
	}
	return v
}

// SplitGSASEntry is the inverse of GSASEntry.Encode.
func SplitGSASEntry(v uint64) GSASEntry {
	return GSASEntry{
		Protection: uint32(v & ProtectionMask), Grant: uint8(v >> entryGrantShift & grantMask),
		Present: v&GSASPresent != 0, Valid: v&CfgEnable != 0,
	}
}

// GSASGrant is the content of GSAS_GRANT: it lets a tree access the pages of others whose entries
// have the grant's number.
type GSASGrant struct {
	Number      uint8 // 1 to GSASGrants-1
	Protection  uint32
	Read, Write bool
	Valid       bool
}

// Encode returns the register's value.
func (g GSASGrant) Encode() uint64 {
	v := uint64(g.Number&grantMask) | uint64(g.Protection&ProtectionMask)<<grantProtShift
	if g.Read {
		v |= grantRead
	}
	if g.Write {
		v |= grantWrite
	}
	if g.Valid {
		v |= CfgEnable
	}
	return v
}

// SplitGSASGrant is the inverse of GSASGrant.Encode.
func SplitGSASGrant(v uint64) GSASGrant {
	return GSASGrant{
		Number: uint8(v & grantMask), Protection: uint32(v >> grantProtShift & ProtectionMask),
		Read: v&grantRead != 0, Write: v&grantWrite != 0, Valid: v&CfgEnable != 0,
	}
}
