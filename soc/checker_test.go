package soc_test

import (
	"fmt"
	"testing"

	"github.com/exanet/pfd/device"
)

// checkKind names one of the checked properties.
type checkKind string

// The checks. Each is done for every register of the map, except hole (once per window), cause
// and ctrlReset (once).
const (
	atReset   checkKind = "reset"     // the reset value
	masks     checkKind = "masks"     // read-only, read-write, action and absent bits
	widths    checkKind = "widths"    // other widths, halves, pairs, BAD_ACCESS
	unaligned checkKind = "unaligned" // reads 0, ignored, BAD_ACCESS
	hole      checkKind = "hole"      // reads 0, ignored, BAD_ACCESS
	clearOne  checkKind = "w1c"       // FSR, set by FSRRESTORE: a 1 clears, a 0 does not
	cause     checkKind = "cause"     // IRQ_STATUS is set again while its cause holds
	ctrlReset checkKind = "ctrlreset" // CTRL.reset gives the configuration its reset values
)

// finding is one deviation from the map.
type finding struct {
	Kind     checkKind
	Register string // window/NAME
	Text     string
}

// String returns the finding in one line.
func (f finding) String() string { return fmt.Sprintf("%s: %s: %s", f.Register, f.Kind, f.Text) }

// conformance tests a node's windows against the register map (spec/hardware.md 2 to 6). The node
// must be new or just reset, and not in use; afterwards its configuration is that after
// CTRL.reset. It is called on the goroutine that owns the windows.
func conformance(t *testing.T, windows func(device.WindowID) device.Window) {
	t.Helper()
	findings, checks := check(windows)
	for _, f := range findings {
		t.Error(f)
	}
	if checks == 0 {
		t.Error("nothing was checked")
	}
}

// check does the same without a testing.T: it returns its findings and the number of comparisons.
func check(windows func(device.WindowID) device.Window) (findings []finding, checks int) {
	c := &checker{windows: windows}
	caps, err := windows(device.PL).Read64(device.PLCaps)
	if err != nil {
		c.fail("read CAPS: %v", err)
		return c.findings, c.checks
	}
	c.caps = caps
	regs := device.Registers()
	each := func(kind checkKind, f func(r device.Register)) {
		for _, r := range regs {
			c.kind, c.name = kind, r.Window.String()+"/"+r.Name
			f(r)
		}
	}
	each(atReset, c.reset)
	each(masks, c.masks)
	each(widths, c.widths)
	each(unaligned, c.unaligned)
	for w := range device.Windows {
		c.kind, c.name = hole, w.String()
		c.holes(w)
	}
	fsr, _, _ := device.Lookup(device.SMMU, device.Bank(0, device.FSR))
	c.kind, c.name = clearOne, "smmu/CB_FSR"
	c.clearOne(fsr)
	c.kind, c.name = cause, "pl/IRQ_STATUS"
	c.cause()
	c.ctrlReset(regs)
	return c.findings, c.checks
}

type checker struct {
	windows  func(device.WindowID) device.Window
	caps     uint64
	kind     checkKind
	name     string
	findings []finding
	checks   int
}

func (c *checker) fail(format string, args ...any) {
	c.findings = append(c.findings, finding{Kind: c.kind, Register: c.name, Text: fmt.Sprintf(format, args...)})
}

func (c *checker) equal(got, want uint64, what string, args ...any) {
	c.checks++
	if got != want {
		c.fail("%s: 0x%x, want 0x%x", fmt.Sprintf(what, args...), got, want)
	}
}

func (c *checker) read(w device.WindowID, offset uint32, width int) uint64 {
	var v uint64
	var err error
	if width == 8 {
		v, err = c.windows(w).Read64(offset)
	} else {
		var v32 uint32
		v32, err = c.windows(w).Read32(offset)
		v = uint64(v32)
	}
	if err != nil {
		c.fail("read %d bits at 0x%x: %v", 8*width, offset, err)
	}
	return v
}

func (c *checker) write(w device.WindowID, offset uint32, width int, v uint64) {
	var err error
	if width == 8 {
		err = c.windows(w).Write64(offset, v)
	} else {
		err = c.windows(w).Write32(offset, uint32(v))
	}
	if err != nil {
		c.fail("write %d bits at 0x%x: %v", 8*width, offset, err)
	}
}

func (c *checker) get(r device.Register, i int) uint64    { return c.read(r.Window, r.At(i), r.Width) }
func (c *checker) put(r device.Register, i int, v uint64) { c.write(r.Window, r.At(i), r.Width, v) }

func (c *checker) bad() uint64 { return c.read(device.PL, device.BadAccess.Offset(), 8) }

// isBad checks that the access f counts in BAD_ACCESS once.
func (c *checker) isBad(what string, f func()) {
	before := c.bad()
	f()
	c.equal(c.bad()-before, 1, "%s: BAD_ACCESS grew by", what)
}

// isGood checks that the access f does not count in BAD_ACCESS.
func (c *checker) isGood(what string, f func()) {
	before := c.bad()
	f()
	c.equal(c.bad()-before, 0, "%s: BAD_ACCESS grew by", what)
}

// sample returns the indices at which an array is checked: all of a short one.
func sample(n int) []int {
	var all []int
	for i := range n {
		if n <= 64 || i < 2 || i >= n-2 || i%37 == 0 {
			all = append(all, i)
		}
	}
	return all
}

func (c *checker) reset(r device.Register) {
	if r.Varies {
		return
	}
	read, _, _ := r.Masks(c.caps)
	for _, i := range sample(r.Count) {
		c.equal(c.get(r, i), r.ResetAt(i)&read, "[%d] at reset", i)
	}
}

var patterns = []uint64{^uint64(0), 0xaaaaaaaaaaaaaaaa, 0x5555555555555555, 0x0123456789abcdef, 0}

func (c *checker) masks(r device.Register) {
	read, write, _ := r.Masks(c.caps)
	for _, i := range sample(r.Count) {
		before := c.get(r, i)
		for _, p := range patterns {
			// Action bits have their own tests, and at rest no W1C bit is set that could be
			// cleared.
			p &^= r.Act
			c.isGood("write", func() { c.put(r, i, p) })
			c.equal(c.get(r, i), (before&^write|p&write)&read, "[%d] after writing 0x%x over 0x%x", i, p, before)
		}
		c.put(r, i, before&^r.Act)
		c.equal(c.get(r, i), before, "[%d] written back", i)
	}
}

func (c *checker) widths(r device.Register) {
	for _, i := range []int{0, r.Count - 1} {
		at := r.At(i)
		switch {
		case r.Width == 4:
			c.wide(r, i)
		case r.Halves:
			c.halves(r, i)
		default:
			for _, half := range []uint32{at, at + 4} {
				c.isBad("32-bit read", func() { c.equal(c.read(r.Window, half, 4), 0, "32-bit read at 0x%x", half) })
				before := c.get(r, i)
				c.isBad("32-bit write", func() { c.write(r.Window, half, 4, ^before&0xffffffff) })
				c.equal(c.get(r, i), before, "[%d] after a 32-bit write", i)
			}
		}
	}
}

// wide makes 64-bit accesses to a 32-bit register.
func (c *checker) wide(r device.Register, i int) {
	at := r.At(i)
	if r.Memory {
		low := at &^ 7
		c.equal(c.read(r.Window, low, 8), c.read(r.Window, low, 4)|c.read(r.Window, low+4, 4)<<32, "64-bit read at 0x%x", low)
		return
	}
	if r.Pairs {
		// Both are empty at rest, so only the count is checked, not the value.
		c.isGood("64-bit read of a pair", func() { c.read(r.Window, at, 8) })
		return
	}
	c.isBad("64-bit read", func() { c.equal(c.read(r.Window, at, 8), 0, "64-bit read at 0x%x", at) })
	before := c.get(r, i)
	c.isBad("64-bit write", func() { c.write(r.Window, at, 8, ^before&^r.Act) })
	c.equal(c.get(r, i), before, "[%d] after a 64-bit write", i)
}

// halves makes 32-bit accesses to a 64-bit register.
func (c *checker) halves(r device.Register, i int) {
	at := r.At(i)
	read, write, _ := r.Masks(c.caps)
	before := c.get(r, i)
	const p = 0x89abcdef01234567
	if write != 0 {
		c.isGood("32-bit writes", func() {
			c.write(r.Window, at, 4, p&0xffffffff)
			c.write(r.Window, at+4, 4, p>>32)
		})
	}
	want := (before&^write | p&write) & read
	c.equal(c.get(r, i), want, "[%d] written by halves", i)
	low := c.read(r.Window, at, 4)
	c.equal(low|c.read(r.Window, at+4, 4)<<32, want, "[%d] read by halves", i)
	c.put(r, i, before&^r.Act)
}

func (c *checker) unaligned(r device.Register) {
	if r.Memory {
		return // may be mapped: then the bus decides, not the device
	}
	at := r.At(0)
	before := c.get(r, 0)
	for _, d := range []uint32{1, 2, 3} {
		c.isBad("unaligned 32-bit read", func() { c.equal(c.read(r.Window, at+d, 4), 0, "32-bit read at 0x%x", at+d) })
		c.isBad("unaligned 32-bit write", func() { c.write(r.Window, at+d, 4, 0xffffffff) })
	}
	for _, d := range []uint32{1, 2, 4} {
		if (at+d)%8 == 0 {
			continue
		}
		c.isBad("unaligned 64-bit read", func() { c.equal(c.read(r.Window, at+d, 8), 0, "64-bit read at 0x%x", at+d) })
		c.isBad("unaligned 64-bit write", func() { c.write(r.Window, at+d, 8, ^uint64(0)) })
	}
	c.equal(c.get(r, 0), before, "after unaligned accesses")
}

// holes probes the first and the last word of every hole, and one per kilobyte.
func (c *checker) holes(w device.WindowID) {
	hole := func(offset uint32) bool {
		_, _, ok := device.Lookup(w, offset)
		return !ok
	}
	for at := uint32(0); at < w.Size(); at += 4 {
		if w == device.BTCM || !hole(at) {
			continue // btcm is memory throughout
		}
		edge := at == 0 || !hole(at-4) || at+4 == w.Size() || !hole(at+4)
		if !edge && at%1024 != 0 {
			continue
		}
		c.isBad("read of a hole", func() { c.equal(c.read(w, at, 4), 0, "read at 0x%x", at) })
		c.isBad("write to a hole", func() { c.write(w, at, 4, 0xffffffff) })
		c.equal(c.read(w, at, 4), 0, "read at 0x%x after a write", at)
		if at%8 == 0 && at+8 <= w.Size() && hole(at+4) {
			c.isBad("64-bit read of a hole", func() { c.equal(c.read(w, at, 8), 0, "64-bit read at 0x%x", at) })
			c.isBad("64-bit write to a hole", func() { c.write(w, at, 8, ^uint64(0)) })
		}
	}
}

// clearOne sets FSR's bits through FSRRESTORE and clears them one by one.
func (c *checker) clearOne(r device.Register) {
	for _, i := range []int{0, r.Count - 1} {
		c.write(device.SMMU, device.Bank(i, device.FSRRESTORE), 4, r.W1C)
		left := r.W1C
		c.equal(c.get(r, i), left, "[%d] after FSRRESTORE", i)
		c.put(r, i, 0)
		c.equal(c.get(r, i), left, "[%d] after writing 0", i)
		for bit := range 32 {
			b := uint64(1) << bit
			c.put(r, i, b)
			left &^= b
			c.equal(c.get(r, i), left, "[%d] after writing bit %d", i, bit)
		}
	}
}

// cause checks that a bit of IRQ_STATUS that is cleared while its cause holds is set again at
// once, and otherwise stays clear (spec/hardware.md 3).
func (c *checker) cause() {
	status := func() uint64 { return c.read(device.PL, device.PLIRQStatus, 4) & (1 << device.VectorFault) }
	mask := c.read(device.PL, device.PLIRQMask, 4)
	c.write(device.PL, device.PLIRQMask, 4, 1<<device.Vectors-1)
	c.write(device.SMMU, device.Bank(0, device.FSRRESTORE), 4, device.FSRTF)
	c.equal(status(), 0, "FSR set without CFIE")
	c.write(device.SMMU, device.Bank(0, device.SCTLR), 4, device.SCTLRCFIE)
	c.equal(status(), 1<<device.VectorFault, "FSR set under CFIE")
	c.write(device.PL, device.PLIRQStatus, 4, 1<<device.VectorFault)
	c.equal(status(), 1<<device.VectorFault, "cleared while FSR is set")
	c.write(device.SMMU, device.Bank(0, device.FSR), 4, device.FSRTF)
	c.equal(status(), 1<<device.VectorFault, "latched when FSR is cleared")
	c.write(device.PL, device.PLIRQStatus, 4, 1<<device.VectorFault)
	c.equal(status(), 0, "cleared after its cause")
	c.write(device.SMMU, device.Bank(0, device.SCTLR), 4, 0)
	c.write(device.PL, device.PLIRQMask, 4, mask)
}

// resetByCtrl reports whether CTRL.reset clears a register: the SMMU, the PD, PEERS, PKTZ and
// MBOX configuration, and btcm (spec/hardware.md 3).
func resetByCtrl(r device.Register) bool {
	switch r.Window {
	case device.SMMU, device.BTCM:
		return true
	case device.PL:
		switch r.Name {
		case "PKTZ_CFG", "MBOX_CFG", "PD_CFG", "PD_PEERS":
			return true
		}
	}
	return false
}

func (c *checker) ctrlReset(regs []device.Register) {
	var some []device.Register
	for _, r := range regs {
		if resetByCtrl(r) && r.Write != 0 {
			some = append(some, r)
		}
	}
	for _, r := range some {
		for _, i := range sample(r.Count) {
			c.put(r, i, patterns[1])
		}
	}
	badBefore := c.bad()
	c.kind, c.name = ctrlReset, "pl/CTRL"
	c.write(device.PL, device.PLCtrl, 4, device.CtrlReset)
	c.equal(c.read(device.PL, device.PLCtrl, 4)&device.CtrlReset, 0, "reset clears itself")
	c.equal(c.bad(), badBefore, "BAD_ACCESS after reset (counters stay)")
	for _, r := range some {
		c.name = r.Window.String() + "/" + r.Name
		c.reset(r)
	}
}
