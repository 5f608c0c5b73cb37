// Package smmu is the node's system MMU: sixteen context banks with their fault registers, stream
// matching and a model of the two TLB levels (spec/hardware.md 5; Arm IHI 0062). It is pure: the
// caller performs the walk itself, because only the caller knows what is resident.
package smmu

import "github.com/exanet/pfd/device"

// Counts is the node's counter block, in the order of device.Counter.
type Counts = [device.Counters]uint64

type bank struct {
	sctlr, tcr, tcr2, mair0, mair1 uint32
	fsr, fsynr0, fsynr1            uint32
	ttbr0, ttbr1, far              uint64
	cbar, cba2r, cbfrsynra         uint32
	active                         int // accesses between Begin and End
	stalled                        int // of these, those waiting for RESUME
}

// SMMU is one node's SMMU. It belongs to one goroutine.
type SMMU struct {
	counts   *Counts
	scr0     uint32
	gfsr     uint32
	gfar     uint64
	smr      [device.SMRCount]uint32
	s2cr     [device.SMRCount]uint32
	banks    [device.Slots]bank
	tlb      tlb
	faulting uint32               // banks that assert vector 0: FSR not zero under CFIE
	gone     [device.Slots]uint64 // by bank: pages found absent although the TLB held their translation
}

// New returns an SMMU in its reset state that counts in c.
func New(c *Counts) *SMMU {
	s := &SMMU{counts: c}
	s.Reset()
	return s
}

// Reset sets every register to its reset value and empties the TLBs. Accesses in flight stay
// counted until they end.
func (s *SMMU) Reset() {
	var active [device.Slots]int
	for i := range s.banks {
		active[i] = s.banks[i].active
	}
	*s = SMMU{counts: s.counts, gone: s.gone}
	for i := range s.banks {
		s.banks[i].active = active[i]
	}
	for i := range s.s2cr {
		s.s2cr[i] = device.S2CRFault << device.S2CRTypeShift
	}
	s.scr0 = device.SCR0Client
	s.tlb.reset()
}

// Verdict is the SMMU's decision on an access.
type Verdict uint8

// The verdicts of Begin.
const (
	// Translate: the walk decides.
	Translate Verdict = iota
	// Abort: an AXI slave error, without a walk.
	Abort
	// Stall: the access waits for RESUME because an access of its bank has faulted.
	Stall
)

// Begin starts an access of a stream at va: it matches the stream to a context bank. Unless the
// verdict is Abort, the access counts as in flight in that bank until End. Where SMMUv2 would
// bypass (CLIENTPD, USFCFG = 0, S2CR bypass, M = 0) the access aborts and nothing is recorded
// (defined by this project: an untranslated virtual address has no meaning).
func (s *SMMU) Begin(stream uint16, va device.VA) (bankIndex int, v Verdict) {
	if s.scr0&device.SCR0Client != 0 {
		return -1, Abort
	}
	n := s.match(stream)
	if n < 0 {
		if s.scr0&device.SCR0USFCFG != 0 {
			s.globalFault(device.GFSRUSF, va)
		}
		return -1, Abort
	}
	switch s.s2cr[n] >> device.S2CRTypeShift & device.S2CRTypeMask {
	case device.S2CRTranslate:
	case device.S2CRFault:
		s.globalFault(device.GFSRICF, va)
		return -1, Abort
	default:
		return -1, Abort
	}
	bi := int(s.s2cr[n] & device.S2CRBankMask)
	if bi >= len(s.banks) {
		s.globalFault(device.GFSRUCBF, va)
		return -1, Abort
	}
	b := &s.banks[bi]
	if b.sctlr&device.SCTLRM == 0 {
		return -1, Abort
	}
	if b.fsr != 0 && b.sctlr&device.SCTLRHUPCF == 0 {
		// Hit-under-previous-context-fault is off: every access of the bank aborts, whether its
		// page is present or not (the thesis's false faults), or stalls.
		if !s.stalls(b) {
			return -1, Abort
		}
		b.active++
		b.stalled++
		return bi, Stall
	}
	b.active++
	return bi, Translate
}

// globalFault records a fault of an access that has no context bank. If GFSR is not zero it sets
// MULTI and records nothing else (Arm IHI 0062, 3.8.1).
func (s *SMMU) globalFault(kind uint32, va device.VA) {
	if s.gfsr != 0 {
		s.gfsr |= device.GFSRMULTI
		return
	}
	s.gfsr, s.gfar = kind, uint64(va)
}

// End ends an access that Begin admitted.
func (s *SMMU) End(bankIndex int) { s.banks[bankIndex].active-- }

func (s *SMMU) match(stream uint16) int {
	// Stream n is usually in register n: check that one first.
	if i := int(stream) & (device.SMRCount - 1); s.hits(i, stream) {
		return i
	}
	for i := range s.smr {
		if s.hits(i, stream) {
			return i
		}
	}
	return -1
}

func (s *SMMU) hits(i int, stream uint16) bool {
	r := s.smr[i]
	mask := r >> device.SMRMaskShift & device.StreamIDMask
	return r&device.SMRValid != 0 && (r^uint32(stream))&device.StreamIDMask&^mask == 0
}

// Result is the outcome for the pages of an access, one bit per page.
type Result struct {
	Aborted uint64 // AXI slave error (CFRE set)
	Ignored uint64 // faulted with CFRE clear: reads zero, writes are dropped, no error
	Stalled uint64 // the first page that faulted: the access waits for RESUME
}

// Access is an access that Begin admitted, or the rest of one.
type Access struct {
	Bank   int
	Stream uint16
	VA     device.VA
	Pages  int
	Write  bool
}

// Walk is the result of an access's walk, one bit per page: a page that translates is in no
// field, any other in exactly one.
type Walk struct {
	Absent   uint64 // no translation: FSR.TF
	Denied   uint64 // no permission: FSR.PF
	Unused   uint64 // the entry's access flag is clear: FSR.AFF
	External uint64 // the tables could not be read: FSR.EF
}

// of returns the fault of page i, 0 for none.
func (w *Walk) of(i int) uint32 {
	switch bit := uint64(1) << uint(i); {
	case w.External&bit != 0:
		return device.FSREF
	case w.Absent&bit != 0:
		return device.FSRTF
	case w.Unused&bit != 0:
		return device.FSRAFF
	case w.Denied&bit != 0:
		return device.FSRPF
	}
	return 0
}

// Finish handles the result of an access's walk: it updates the TLB model and records the faults.
func (s *SMMU) Finish(a Access, w Walk) Result {
	b := &s.banks[a.Bank]
	page := uint64(a.VA) >> device.PageShift
	var res Result
	for i := 0; i < a.Pages; i++ {
		kind := w.of(i)
		if kind == 0 {
			switch s.tlb.lookup(a.Bank, page+uint64(i)) {
			case hitL1:
				s.counts[device.TLBL1Hit]++
			case hitL2:
				s.counts[device.TLBL2Hit]++
			default:
				s.counts[device.Walks]++
			}
			continue
		}
		s.counts[device.Walks]++
		held := s.tlb.invalidate(a.Bank, page+uint64(i))
		if kind == device.FSRPF {
			s.counts[device.FaultPF]++
		} else {
			s.counts[device.FaultTF]++ // AFF and EF, too: no translation either (defined by this project)
			s.lost(a.Bank, held)
		}
		bit := uint64(1) << uint(i)
		stall := s.stalls(b)
		if stall {
			kind |= device.FSRSS
		}
		s.fault(&a, kind, max(a.VA, device.VA((page+uint64(i))<<device.PageShift)))
		if stall {
			b.stalled++
			return Result{Stalled: bit}
		}
		if b.sctlr&device.SCTLRCFRE != 0 {
			res.Aborted |= bit
		} else {
			res.Ignored |= bit
		}
	}
	return res
}

// Refuse records that the first page of an access, or of the rest of one, could not be accessed
// although its walk had succeeded: a translation fault there. The TLBs drop all pages of the
// access, since none of them is confirmed. Refuse reports whether the access is aborted;
// otherwise the page is ignored (CFRE = 0).
func (s *SMMU) Refuse(a Access) (aborted bool) {
	page := uint64(a.VA) >> device.PageShift
	s.lost(a.Bank, s.tlb.invalidate(a.Bank, page))
	for i := 1; i < a.Pages; i++ {
		s.tlb.invalidate(a.Bank, page+uint64(i))
	}
	s.counts[device.FaultTF]++
	s.fault(&a, device.FSRTF, a.VA)
	return s.banks[a.Bank].sctlr&device.SCTLRCFRE != 0
}

// lost counts an absent page if the TLB still held its translation.
func (s *SMMU) lost(bankIndex int, held bool) {
	if held {
		s.gone[bankIndex]++
	}
}

// Invalidations returns, by context bank, the number of pages that accesses found absent although
// the TLB held their translation: unmapped in between by madvise, munmap or reclaim (ODP's
// num_invalidation_pages, as far as visible here). A board is told of each unmapping; this model
// is not, so a page that is not accessed again or has left the TLB is not counted. Permission
// faults are not counted, because they may be the first write to a read page. No register holds
// this number.
func (s *SMMU) Invalidations() [device.Slots]uint64 { return s.gone }

// fault records a fault on a bank whose FSR is zero. If FSR is not zero it sets MULTI and records
// nothing else (Arm IHI 0062, 3.7.2 "Multiple faults"; spec/hardware.md 5).
func (s *SMMU) fault(a *Access, kind uint32, addr device.VA) {
	b := &s.banks[a.Bank]
	if b.fsr != 0 {
		// SS nevertheless: resuming the bank replays this access, which faults again.
		b.fsr |= device.FSRMULTI | kind&device.FSRSS
		s.level(a.Bank)
		return
	}
	b.fsr = kind
	b.far = uint64(addr)
	b.cbfrsynra = uint32(a.Stream) & device.StreamIDMask
	b.fsynr0 = 0
	if a.Write {
		b.fsynr0 = device.FSYNR0WNR
	}
	s.level(a.Bank)
}

// stalls reports whether a bank's faults stall: SCTLR.CFCFG, unless SCR0.STALLD forbids it (Arm
// IHI 0062, 3.7.3).
func (s *SMMU) stalls(b *bank) bool {
	return b.sctlr&device.SCTLRCFCFG != 0 && s.scr0&device.SCR0STALLD == 0
}

// resume ends the stall of a bank's accesses: the caller has them walked again, or aborted.
func (b *bank) resume() {
	b.stalled = 0
	b.fsr &^= device.FSRSS
}

func (s *SMMU) level(bankIndex int) {
	b := &s.banks[bankIndex]
	bit := uint32(1) << uint(bankIndex)
	if b.fsr != 0 && b.sctlr&device.SCTLRCFIE != 0 {
		s.faulting |= bit
	} else {
		s.faulting &^= bit
	}
}

// Invalidate drops pages of a bank from the TLBs, starting at page; all if pages is 0, as TLBIVA
// and TLBIALL do.
func (s *SMMU) Invalidate(bankIndex int, page, pages uint64) {
	if pages == 0 || pages > tlbPages {
		s.tlb.invalidateBank(bankIndex)
		return
	}
	for i := range pages {
		s.tlb.invalidate(bankIndex, (page+i)&(1<<44-1))
	}
}

// tlbPages is the maximum number of pages that are looked up one by one (defined by this
// project): the TLB has no more entries.
const tlbPages = 2048

// Interrupt reports whether vector 0's cause holds.
func (s *SMMU) Interrupt() bool {
	return s.faulting != 0 || s.gfsr != 0 && s.scr0&device.SCR0GFIE != 0
}
