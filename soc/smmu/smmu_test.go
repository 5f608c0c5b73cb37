package smmu

import (
	"math/bits"
	"testing"

	"github.com/exanet/pfd/device"
)

// live returns an SMMU set up as by the driver, with stream n matched to bank n.
func live(t *testing.T) (*SMMU, *Counts) {
	t.Helper()
	var c Counts
	s := New(&c)
	s.StoreGlobal(device.SCR0, 0, device.SCR0GFRE|device.SCR0GFIE|device.SCR0USFCFG)
	for n := range device.Slots {
		s.StoreGlobal(device.SMR, n, device.SMRValid|uint64(n))
		s.StoreGlobal(device.S2CR, n, uint64(n))
		s.StoreBank(device.SCTLR, n, device.SCTLRDriver)
	}
	return s, &c
}

// access walks pages pages at va for a stream and returns the result.
func access(t *testing.T, s *SMMU, stream uint16, va device.VA, pages int, write bool, absent, denied uint64) Result {
	t.Helper()
	b, v := s.Begin(stream, va)
	if v != Translate {
		t.Fatalf("stream %d: not translated", stream)
	}
	defer s.End(b)
	return s.Finish(Access{Bank: b, Stream: stream, VA: va, Pages: pages, Write: write}, Walk{Absent: absent, Denied: denied})
}

func TestFaultRegisters(t *testing.T) {
	s, c := live(t)
	if r := access(t, s, 3, 0x7f0000001234, 3, true, 0b110, 0); r.Aborted != 0b110 || r.Ignored != 0 {
		t.Fatalf("aborted %b, ignored %b", r.Aborted, r.Ignored)
	}
	if got := s.LoadBank(device.FSR, 3); got != device.FSRTF|device.FSRMULTI {
		t.Errorf("FSR %#x, want TF and MULTI", got)
	}
	if got := s.LoadBank(device.FAR, 3); got != 0x7f0000002000 {
		t.Errorf("FAR %#x, want the first absent page", got)
	}
	if got := s.LoadBank(device.FSYNR0, 3); got != device.FSYNR0WNR {
		t.Errorf("FSYNR0 %#x, want WNR", got)
	}
	if !s.Interrupt() {
		t.Error("vector 0 is not raised")
	}
	if c[device.FaultTF] != 2 || c[device.Walks] != 3 {
		t.Errorf("%d translation faults, %d walks", c[device.FaultTF], c[device.Walks])
	}
	// A further fault only sets MULTI.
	access(t, s, 3, 0x1000, 1, false, 0, 1)
	if s.LoadBank(device.FAR, 3) != 0x7f0000002000 || s.LoadBank(device.FSYNR0, 3) != device.FSYNR0WNR {
		t.Error("a fault on a bank whose FSR is not zero has overwritten FAR or FSYNR0")
	}
	s.StoreBank(device.FSR, 3, 0)
	if s.Interrupt() {
		t.Error("vector 0 holds with FSR clear")
	}
	access(t, s, 3, 0x1000, 1, false, 0, 1)
	if got := s.LoadBank(device.FSR, 3); got != device.FSRPF {
		t.Errorf("FSR %#x, want PF", got)
	}
	if s.LoadBank(device.FSYNR0, 3) != 0 || s.LoadBank(device.FAR, 3) != 0x1000 {
		t.Error("FSYNR0 or FAR of a read fault")
	}
	if s.LoadBank(device.FSR, 4) != 0 {
		t.Error("another bank has the fault")
	}
}

func TestFARHasTheFaultingByte(t *testing.T) {
	s, _ := live(t)
	access(t, s, 0, 0x5678, 1, true, 1, 0)
	if got := s.LoadBank(device.FAR, 0); got != 0x5678 {
		t.Errorf("FAR %#x, want the access's own first byte", got)
	}
}

func TestHitUnderPreviousContextFault(t *testing.T) {
	s, _ := live(t)
	access(t, s, 1, 0x1000, 1, true, 1, 0)
	if _, v := s.Begin(1, 0x9000); v != Translate {
		t.Error("HUPCF set: a present page aborts beside a fault")
	} else {
		s.End(1)
	}
	s.StoreBank(device.SCTLR, 1, device.SCTLRDriver&^device.SCTLRHUPCF)
	if _, v := s.Begin(1, 0x9000); v != Abort {
		t.Error("HUPCF clear: an access continues while FSR is not zero")
	}
	if _, v := s.Begin(2, 0x9000); v != Translate {
		t.Error("HUPCF clear in bank 1 aborts in bank 2")
	}
}

func TestFaultReportingOff(t *testing.T) {
	s, _ := live(t)
	s.StoreBank(device.SCTLR, 2, device.SCTLRDriver&^(device.SCTLRCFRE|device.SCTLRCFIE))
	r := access(t, s, 2, 0x1000, 2, true, 0b10, 0)
	if r.Aborted != 0 || r.Ignored != 0b10 {
		t.Errorf("CFRE clear: aborted %b, ignored %b", r.Aborted, r.Ignored)
	}
	if s.LoadBank(device.FSR, 2) != device.FSRTF {
		t.Error("the fault is not recorded")
	}
	if s.Interrupt() {
		t.Error("CFIE clear: vector 0 is raised")
	}
	s.StoreBank(device.SCTLR, 2, device.SCTLRDriver)
	if !s.Interrupt() {
		t.Error("CFIE set while FSR is not zero: vector 0 is not raised")
	}
}

// Offsets and bits of Arm IHI 0062, restated: SMMU_GFAR, SMMU_GFSR, SMMU_CBFRSYNRAn
// and SMMU_CBn_FSR.
const (
	gfarAt, gfsrAt, cbfrsynraAt = 0x40, 0x48, 0x400

	icf, usf, ucbf     = 1 << 0, 1 << 1, 1 << 3
	tf, aff, pf, ef    = 1 << 1, 1 << 2, 1 << 3, 1 << 4
	multi              = 1 << 31
	bypassed           = 1 // S2CR.TYPE
	faultContext       = 2
	clientPD, usfCFG   = 1 << 0, 1 << 10
	interruptAndReport = 1<<1 | 1<<2
)

func TestStreams(t *testing.T) {
	for _, tt := range []struct {
		name   string
		set    func(*SMMU)
		stream uint16
		bank   int // -1: aborts
		gfsr   uint64
	}{
		{"matched", func(*SMMU) {}, 5, 5, 0},
		{"unmatched", func(*SMMU) {}, 77, -1, usf},
		{"unmatched, USFCFG clear", func(s *SMMU) { s.StoreGlobal(device.SCR0, 0, interruptAndReport) }, 77, -1, 0},
		{"invalid register", func(s *SMMU) { s.StoreGlobal(device.SMR, 5, 5) }, 5, -1, usf},
		{"masked bits", func(s *SMMU) { s.StoreGlobal(device.SMR, 0, device.SMRValid|0x7c00<<16) }, 0x400, 0, 0},
		{"type fault", func(s *SMMU) { s.StoreGlobal(device.S2CR, 5, faultContext<<16|5) }, 5, -1, icf},
		{"type bypass", func(s *SMMU) { s.StoreGlobal(device.S2CR, 5, bypassed<<16|5) }, 5, -1, 0},
		{"bank that does not exist", func(s *SMMU) { s.StoreGlobal(device.S2CR, 5, 16) }, 5, -1, ucbf},
		{"M clear", func(s *SMMU) { s.StoreBank(device.SCTLR, 5, 0) }, 5, -1, 0},
		{"CLIENTPD", func(s *SMMU) { s.StoreGlobal(device.SCR0, 0, clientPD|usfCFG) }, 5, -1, 0},
		{"CLIENTPD, unmatched", func(s *SMMU) { s.StoreGlobal(device.SCR0, 0, clientPD|usfCFG) }, 77, -1, 0},
		{"another register's", func(s *SMMU) {
			s.StoreGlobal(device.SMR, 5, 0)
			s.StoreGlobal(device.SMR, 9, device.SMRValid|5)
		}, 5, 9, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, _ := live(t)
			tt.set(s)
			b, v := s.Begin(tt.stream, 0x4242)
			if (v == Translate) != (tt.bank >= 0) || v == Translate && b != tt.bank {
				t.Errorf("bank %d, verdict %d", b, v)
			}
			if got := s.LoadGlobal(gfsrAt, 0); got != tt.gfsr {
				t.Errorf("GFSR %#x, want %#x", got, tt.gfsr)
			}
			if tt.gfsr != 0 && (s.LoadGlobal(gfarAt, 0) != 0x4242 || !s.Interrupt()) {
				t.Error("a global fault leaves no address, or no vector 0")
			}
			for n := range device.Slots {
				if s.LoadBank(device.FSR, n) != 0 {
					t.Errorf("bank %d has a fault", n)
				}
			}
		})
	}
}

// While GFSR is not zero another global fault, of whatever kind, sets MULTI and changes nothing
// else; once cleared, the next one is recorded in full (IHI 0062, 3.8.1).
func TestGlobalFaults(t *testing.T) {
	s, _ := live(t)
	s.StoreGlobal(device.S2CR, 5, faultContext<<16)
	s.Begin(77, 0x1000)
	for _, stream := range []uint16{5, 78, 5} {
		s.Begin(stream, 0x2000)
		if got := s.LoadGlobal(gfsrAt, 0); got != usf|multi || s.LoadGlobal(gfarAt, 0) != 0x1000 {
			t.Errorf("stream %d: GFSR %#x, GFAR %#x; want the first fault and MULTI", stream, got, s.LoadGlobal(gfarAt, 0))
		}
	}
	s.StoreGlobal(gfsrAt, 0, multi) // USF cleared alone: still not zero
	s.Begin(5, 0x3000)
	if got := s.LoadGlobal(gfsrAt, 0); got != multi || s.LoadGlobal(gfarAt, 0) != 0x1000 {
		t.Errorf("with MULTI alone: GFSR %#x, GFAR %#x", got, s.LoadGlobal(gfarAt, 0))
	}
	s.StoreGlobal(gfsrAt, 0, 0)
	s.Begin(5, 0x3000)
	if got := s.LoadGlobal(gfsrAt, 0); got != icf || s.LoadGlobal(gfarAt, 0) != 0x3000 {
		t.Errorf("cleared: GFSR %#x, GFAR %#x, want ICF at 0x3000", got, s.LoadGlobal(gfarAt, 0))
	}
}

// Each cause has its bit, and the recorded fault identifies its stream.
func TestContextFaults(t *testing.T) {
	for _, tt := range []struct {
		name string
		walk Walk
		fsr  uint64
	}{
		{"translation", Walk{Absent: 1}, tf},
		{"access flag", Walk{Unused: 1}, aff},
		{"permission", Walk{Denied: 1}, pf},
		{"external", Walk{External: 1}, ef},
		{"two", Walk{Denied: 1, External: 2}, pf | multi},
	} {
		s, c := live(t)
		s.StoreGlobal(device.SMR, 9, device.SMRValid|0x7c40) // stream 0x7c40 to bank 9
		b, v := s.Begin(0x7c40, 0x5678)
		if v != Translate {
			t.Fatalf("verdict %d", v)
		}
		a := Access{Bank: b, Stream: 0x7c40, VA: 0x5678, Pages: 2, Write: true}
		r := s.Finish(a, tt.walk)
		faults := bits.OnesCount64(r.Aborted)
		if got := s.LoadBank(device.FSR, 9); got != tt.fsr || s.LoadBank(device.FAR, 9) != 0x5678 || r.Aborted&1 == 0 {
			t.Errorf("%s: FSR %#x, FAR %#x, aborted %b; want FSR %#x", tt.name, got, s.LoadBank(device.FAR, 9), r.Aborted, tt.fsr)
		}
		if got := s.LoadGR1(cbfrsynraAt, 9); got != 0x7c40 {
			t.Errorf("%s: CBFRSYNRA %#x, want the stream's id", tt.name, got)
		}
		if got := c[device.FaultTF] + c[device.FaultPF]; got != uint64(faults) {
			t.Errorf("%s: %d faults counted, %d pages aborted", tt.name, got, faults)
		}
		// Another stream's fault of the same bank is recorded only as MULTI.
		a.Stream, a.VA = 9, 0x9000
		s.Finish(a, Walk{Absent: 1})
		if s.LoadGR1(cbfrsynraAt, 9) != 0x7c40 || s.LoadBank(device.FSR, 9) != tt.fsr|multi {
			t.Errorf("%s: a second fault: CBFRSYNRA %#x, FSR %#x", tt.name, s.LoadGR1(cbfrsynraAt, 9), s.LoadBank(device.FSR, 9))
		}
		s.StoreBank(device.FSR, 9, 0)
		s.Finish(a, Walk{Absent: 1})
		if s.LoadGR1(cbfrsynraAt, 9) != 9 {
			t.Errorf("%s: CBFRSYNRA %#x after FSR was cleared, want 9", tt.name, s.LoadGR1(cbfrsynraAt, 9))
		}
	}
}

func TestTLB(t *testing.T) {
	s, c := live(t)
	look := func(want device.Counter, page uint64) {
		t.Helper()
		before := c[want]
		access(t, s, 0, device.VA(page<<device.PageShift), 1, false, 0, 0)
		if c[want] != before+1 {
			t.Errorf("page %d: %v did not count", page, want)
		}
	}
	look(device.Walks, 1)
	look(device.TLBL1Hit, 1)
	// 128 more pages evict the first from L1, but not from L2.
	for p := uint64(1000); p < 1128; p++ {
		look(device.Walks, p)
	}
	look(device.TLBL2Hit, 1)
	look(device.TLBL1Hit, 1)
	// Four more pages of one L2 set evict it there; L1 still has it until 128 others were
	// accessed.
	s.StoreBank(device.TLBIVA, 0, 1)
	look(device.Walks, 1)
	s.StoreBank(device.TLBIVA, 0, 2)
	look(device.TLBL1Hit, 1)
	s.StoreBank(device.TLBIALL, 1, 1)
	look(device.TLBL1Hit, 1)
	s.StoreBank(device.TLBIALL, 0, 1)
	look(device.Walks, 1)
	// A page that faults leaves the TLB: its translation is no longer valid.
	access(t, s, 0, 1<<device.PageShift, 1, false, 1, 0)
	look(device.Walks, 1)
	// The same page of another bank is a different page.
	before := c[device.Walks]
	access(t, s, 1, 1<<device.PageShift, 1, false, 0, 0)
	if c[device.Walks] != before+1 {
		t.Error("two banks share a TLB entry")
	}
}

func TestL2Conflict(t *testing.T) {
	s, c := live(t)
	for i := range uint64(5) { // five pages of one set of four ways
		access(t, s, 0, device.VA((1+i*l2Sets)<<device.PageShift), 1, false, 0, 0)
	}
	for p := uint64(3000); p < 3000+l1Entries; p++ { // evicts them from L1
		access(t, s, 0, device.VA(p<<device.PageShift), 1, false, 0, 0)
	}
	walks := c[device.Walks]
	access(t, s, 0, device.VA((1+4*l2Sets)<<device.PageShift), 1, false, 0, 0)
	if c[device.Walks] != walks {
		t.Error("the newest of the set is gone from L2")
	}
	access(t, s, 0, device.VA(1<<device.PageShift), 1, false, 0, 0)
	if c[device.Walks] != walks+1 {
		t.Error("five pages fit into four ways")
	}
}

// TLBSTATUS reads 1 until the accesses in flight have ended: a driver that tears down a domain
// waits for it.
func TestSync(t *testing.T) {
	s, _ := live(t)
	b, _ := s.Begin(6, 0x1000)
	if s.LoadBank(device.TLBSTATUS, 6) != 1 || s.LoadGlobal(device.STLBGSTAT, 0) != 1 || s.LoadBank(device.TLBSTATUS, 7) != 0 {
		t.Error("an access in flight is not reported")
	}
	s.Reset()
	if s.LoadBank(device.TLBSTATUS, 6) != 1 {
		t.Error("reset loses an access in flight")
	}
	s.End(b)
	if s.LoadBank(device.TLBSTATUS, 6) != 0 {
		t.Error("TLBSTATUS stays 1")
	}
}

// A page that was translated once and is absent at a later access has been unmapped; a page that
// never was translated, or is only denied, has not.
func TestInvalidations(t *testing.T) {
	s, _ := live(t)
	const at = device.VA(0x40000)
	steps := []struct {
		name           string
		absent, denied uint64
		want           uint64 // in all
	}{
		{"absent at first", 0b1111, 0, 0},
		{"there", 0, 0, 0},
		{"denied", 0, 0b0001, 0},
		{"two unmapped", 0b0110, 0, 2},
		{"still unmapped", 0b0110, 0, 2},
		{"mapped again", 0, 0, 2},
		{"all unmapped", 0b1111, 0, 6},
	}
	for _, c := range steps {
		access(t, s, 0, at, 4, true, c.absent, c.denied)
		if got := s.Invalidations()[0]; got != c.want {
			t.Fatalf("%s: %d invalidations, want %d", c.name, got, c.want)
		}
	}
	// Between walk and move, and across a reset.
	access(t, s, 0, at, 1, true, 0, 0)
	s.Refuse(Access{VA: at, Pages: 1, Write: true})
	s.Refuse(Access{VA: at, Pages: 1, Write: true})
	s.Reset()
	if got := s.Invalidations(); got != [device.Slots]uint64{0: 7} {
		t.Errorf("%d invalidations, want 7 of bank 0", got)
	}
}

// A fault under CFCFG stalls the access: SS holds the cause of vector 0 until RESUME, whatever is
// written to FSR (Arm IHI 0062, 3.7.3). SCR0.STALLD forbids it.
func TestStall(t *testing.T) {
	s, _ := live(t)
	const sctlr = device.SCTLRDriver | device.SCTLRCFCFG
	s.StoreBank(device.SCTLR, 3, sctlr)
	stalled := func(va device.VA, want uint64) {
		t.Helper()
		b, v := s.Begin(3, va)
		if v != Translate {
			t.Fatalf("verdict %v", v)
		}
		if r := s.Finish(Access{Bank: b, Stream: 3, VA: va, Pages: 4}, Walk{Absent: 0b1110}); r != (Result{Stalled: want}) {
			t.Errorf("%+v, want stalled %b", r, want)
		}
	}
	stalled(0x1000, 0b10)
	if got := s.LoadBank(device.FSR, 3); got != device.FSRTF|device.FSRSS {
		t.Errorf("FSR %#x, want TF and SS", got)
	}
	if got := s.LoadBank(device.FAR, 3); got != 0x2000 {
		t.Errorf("FAR %#x", got)
	}
	stalled(0x9000, 0b10)
	if got := s.LoadBank(device.FSR, 3); got != device.FSRTF|device.FSRSS|device.FSRMULTI {
		t.Errorf("FSR %#x, want MULTI, too", got)
	}
	s.StoreBank(device.FSR, 3, 0)
	if got := s.LoadBank(device.FSR, 3); got != device.FSRSS || !s.Interrupt() {
		t.Errorf("FSR %#x once it was cleared, interrupt %v: want SS alone, which raises it", got, s.Interrupt())
	}
	s.StoreBank(device.SCTLR, 3, sctlr&^device.SCTLRCFIE)
	if s.Interrupt() {
		t.Error("vector 0 without CFIE")
	}
	// Hit under previous fault: other accesses continue, unless HUPCF is clear.
	if r := access(t, s, 3, 0x20000, 1, true, 0, 0); r != (Result{}) {
		t.Errorf("a present page: %+v", r)
	}
	s.StoreBank(device.SCTLR, 3, sctlr&^device.SCTLRHUPCF)
	if b, v := s.Begin(3, 0x20000); v != Stall {
		t.Errorf("without HUPCF: verdict %v", v)
	} else {
		s.End(b)
	}
	s.StoreBank(device.RESUME, 3, 0)
	if got := s.LoadBank(device.FSR, 3); got != 0 || s.Interrupt() {
		t.Errorf("FSR %#x after RESUME", got)
	}
	s.StoreBank(device.SCTLR, 3, sctlr)
	s.StoreGlobal(device.SCR0, 0, device.SCR0STALLD)
	if r := access(t, s, 3, 0x1000, 2, false, 0b10, 0); r != (Result{Aborted: 0b10}) {
		t.Errorf("under STALLD: %+v", r)
	}
}
