package smmu

import (
	"encoding/binary"

	"github.com/exanet/pfd/device"
)

// Descriptors of VMSAv8-64 tables with a 4 KiB granule, stage 1 (Arm DDI 0487,
// D8.3 "Translation table descriptor formats").
const (
	DescValid   = 1 << 0         // if clear, the other bits are ignored
	DescTable   = 1 << 1         // levels 0 to 2: a table, or a block if clear; level 3: must be set
	DescUnpriv  = 1 << 6         // AP[1]: unprivileged accesses, which a device's are
	DescRO      = 1 << 7         // AP[2]: read-only
	DescShared  = 3 << 8         // SH: inner shareable
	DescAF      = 1 << 10        // access flag: a walk of an entry without it faults
	DescNG      = 1 << 11        // not global: the entry belongs to its ASID
	DescAddress = 0xfffffffff000 // output address or next table, [47:12]
	TableNoUser = 1 << 61        // APTable[0]: no unprivileged accesses below
	TableRO     = 1 << 62        // APTable[1]: no writes below

	TableEntries = 512 // 8 bytes each, a page
	levels       = 4
	levelBits    = 9 // of the address, per level

	tcrT0SZMask = 0x3f      // TCR [5:0]
	tcrTG0Mask  = 3 << 14   // TCR [15:14]: 0 is the 4 KiB granule
	ttbrAddress = 1<<48 - 1 // TTBR0 [47:0]; [63:48] is the ASID
	minT0SZ     = 16        // 48 bits of address (DDI 0487, TCR_EL1.T0SZ)
	maxT0SZ     = 39
)

// Tables is the root of a context bank's walk: its TTBR0 and TCR.
type Tables struct {
	TTBR0 uint64
	TCR   uint32
}

// Tables returns the tables of a context bank.
func (s *SMMU) Tables(bankIndex int) Tables {
	if bankIndex < 0 || bankIndex >= len(s.banks) {
		return Tables{TCR: tcrTG0Mask} // a granule that does not exist: nothing translates
	}
	b := &s.banks[bankIndex]
	return Tables{TTBR0: b.ttbr0, TCR: b.tcr}
}

// Bank returns the context bank that translates a stream, -1 if there is none.
func (s *SMMU) Bank(stream uint16) int {
	n := s.match(stream)
	if n < 0 {
		return -1
	}
	return int(s.s2cr[n] & device.S2CRBankMask)
}

// Fault is the reason why a page is not translated.
type Fault uint8

// The faults, in the order of their checks (Arm DDI 0487, D8.14).
const (
	NoFault         Fault = iota
	TableFault            // the tables could not be read: FSR.EF
	Translation           // no valid entry, or an address beyond T0SZ: FSR.TF
	AccessFlag            // an entry without AF: FSR.AFF; SCTLR.AFE has no effect with these tables (Arm IHI 0062, 16.5.29)
	PermissionFault       // AP or APTable forbids the access: FSR.PF
)

// Page is the outcome for one page: its address, or the fault.
type Page struct {
	Address uint64 // of the page's first byte, if Fault is NoFault
	Fault   Fault
	Level   uint8 // of the entry that decided, 0 to 3
}

// maxWalk is the maximum number of pages of one Walk: the machine's answers have one bit per
// page.
const maxWalk = 64

// Scratch holds the entries that a walk reads.
type Scratch [maxWalk * 8]byte

// Walk translates len(out) pages, at most 64, starting with the page of va, for an unprivileged
// read or write. read fills p, a part of buf, from the tables' memory; its error is a fault of
// the pages concerned. Neighbouring entries are read together, so that most pages need no read of
// their own.
func (t Tables) Walk(va device.VA, write bool, out []Page, buf *Scratch, read func(addr uint64, p []byte) error) {
	out = out[:min(len(out), maxWalk)]
	for i := 0; i < len(out); {
		at := va.Page() + device.VA(i)<<device.PageShift
		// Pages of one last-level table are looked up together.
		run := min(len(out)-i, TableEntries-int(at>>device.PageShift)%TableEntries)
		t.run(at, write, out[i:i+run], buf[:8*run], read)
		i += run
	}
}

// run walks pages that share a last-level table.
func (t Tables) run(va device.VA, write bool, out []Page, buf []byte, read func(addr uint64, p []byte) error) {
	fill := func(f Fault, level int) {
		for i := range out {
			out[i] = Page{Fault: f, Level: uint8(level)}
		}
	}
	t0sz := max(t.TCR&tcrT0SZMask, minT0SZ)
	if t0sz > maxT0SZ || t.TCR&tcrTG0Mask != 0 || uint64(va)>>(64-t0sz) != 0 {
		fill(Translation, 0)
		return
	}
	inputBits := 64 - int(t0sz)
	level := levels - (inputBits-device.PageShift+levelBits-1)/levelBits
	// The first table has only as many entries as the input address needs, and is aligned to its
	// size, at least 64 bytes.
	firstBits := inputBits - shift(level)
	table := t.TTBR0 & ttbrAddress &^ (max(uint64(8)<<firstBits, 64) - 1)
	var noUser, readOnly bool
	for ; level < levels-1; level++ {
		index := uint64(va) >> shift(level) & (TableEntries - 1)
		if read(table+8*index, buf[:8]) != nil {
			fill(TableFault, level)
			return
		}
		e := binary.LittleEndian.Uint64(buf)
		switch {
		case e&DescValid == 0, e&DescTable == 0 && level == 0:
			fill(Translation, level)
			return
		case e&DescTable == 0:
			size := uint64(1) << shift(level)
			base := e & DescAddress &^ (size - 1)
			for i := range out {
				at := uint64(va) + uint64(i)<<device.PageShift
				out[i] = leaf(e, base|at&(size-1), level, write, noUser, readOnly)
			}
			return
		}
		noUser = noUser || e&TableNoUser != 0
		readOnly = readOnly || e&TableRO != 0
		table = e & DescAddress
	}
	index := uint64(va) >> device.PageShift & (TableEntries - 1)
	if read(table+8*index, buf) != nil {
		fill(TableFault, level)
		return
	}
	for i := range out {
		e := binary.LittleEndian.Uint64(buf[8*i:])
		if e&(DescValid|DescTable) != DescValid|DescTable {
			out[i] = Page{Fault: Translation, Level: uint8(level)}
			continue
		}
		out[i] = leaf(e, e&DescAddress, level, write, noUser, readOnly)
	}
}

// shift returns the lowest address bit of a level's index.
func shift(level int) int { return device.PageShift + levelBits*(levels-1-level) }

// leaf checks a valid page or block entry.
func leaf(e, addr uint64, level int, write, noUser, readOnly bool) Page {
	p := Page{Address: addr, Level: uint8(level)}
	switch {
	case e&DescAF == 0:
		p.Fault = AccessFlag
	case e&DescUnpriv == 0 || noUser, write && (e&DescRO != 0 || readOnly):
		p.Fault = PermissionFault
	}
	if p.Fault != NoFault {
		p.Address = 0
	}
	return p
}
