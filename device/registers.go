package device

import (
	"strconv"
	"strings"
)

// Register is one register of the register map, or an array of equal ones (spec/hardware.md 3 to
// 6). The map is data: the model, exanetctl and the conformance test use the same table.
type Register struct {
	Window WindowID
	Name   string
	Offset uint32 // of the first register, in bytes
	Count  int    // registers in the array, 1 for a single one
	Stride uint32 // bytes from one register to the next
	Width  int    // bytes, 4 or 8

	// Reset is the value after power-up and after CTRL.reset, if that affects the register;
	// ResetAt returns it for one register of an array.
	Reset uint64
	// Varies: the reset value depends on the node (its ID, its capabilities, its counts), and
	// Reset is meaningless.
	Varies bool

	// The bits by the effect of an access. A bit only in Read is read-only; in Read and Write,
	// read-write; in Read and W1C, cleared by writing 1. Writing a bit of Act triggers an action;
	// it reads as zero. All other bits read as zero and ignore writes.
	Read, Write, W1C, Act uint64

	// Cap is a mask of CAPS bits: the bits of CapMask exist only if CAPS has all of them;
	// otherwise they read as zero and ignore writes. 0: all bits always exist.
	Cap, CapMask uint64

	// Halves: a 64-bit register that may also be accessed by 32-bit halves.
	Halves bool
	// Pairs: a 32-bit register that a 64-bit access combines with the next one.
	Pairs bool
	// Memory: plain memory, valid for aligned accesses of either width.
	Memory bool

	// Source cites the description of the register.
	Source string

	fields string // "name[hi:lo] name[bit] …", immutable

	// If altEvery is not 0, registers with index%altEvery >= altFrom reset to alt.
	alt               uint64
	altFrom, altEvery int
}

// Field is a named range of a register's bits.
type Field struct {
	Name   string
	Hi, Lo uint8
}

// Mask returns the field's bits.
func (f Field) Mask() uint64 { return ^uint64(0) >> (63 - (f.Hi - f.Lo)) << f.Lo }

// Of returns the field's value in a register's value.
func (f Field) Of(v uint64) uint64 { return v & f.Mask() >> f.Lo }

// Fields returns the register's fields in a new slice.
func (r Register) Fields() []Field {
	names := strings.Fields(r.fields)
	fields := make([]Field, 0, len(names))
	for _, s := range names {
		name, bits, _ := strings.Cut(strings.TrimSuffix(s, "]"), "[")
		hi, lo, ok := strings.Cut(bits, ":")
		if !ok {
			lo = hi
		}
		// The text is the table's own; a test checks that all of it parses.
		h, _ := strconv.ParseUint(hi, 10, 6)
		l, _ := strconv.ParseUint(lo, 10, 6)
		fields = append(fields, Field{Name: name, Hi: uint8(h), Lo: uint8(l)})
	}
	return fields
}

// At returns the offset of register i of the array.
func (r *Register) At(i int) uint32 { return r.Offset + r.Stride*uint32(i) }

// ResetAt returns the reset value of register i of the array.
func (r Register) ResetAt(i int) uint64 {
	if r.altEvery != 0 && i%r.altEvery >= r.altFrom {
		return r.alt
	}
	return r.Reset
}

// Bits returns a mask of the register's width.
func (r Register) Bits() uint64 { return ^uint64(0) >> (64 - 8*r.Width) }

// Masks returns the read, write and W1C masks on a device with these capabilities (the value of
// CAPS).
func (r *Register) Masks(caps uint64) (read, write, w1c uint64) {
	keep := ^uint64(0)
	if caps&r.Cap != r.Cap {
		keep = ^r.CapMask
	}
	return r.Read & keep, r.Write & keep, r.W1C & keep
}

// table is the register map; index maps each word of the folded windows to its row. Both are
// private and never modified.
var (
	table = joinTables()
	index = buildIndex(table)
)

func joinTables() []Register {
	var all []Register
	for _, part := range [][]Register{plRegisters(), smmuRegisters(), btcmRegisters(), pktzRegisters(), mboxRegisters()} {
		all = append(all, part...)
	}
	for i := range all {
		r := &all[i]
		if r.Count == 0 {
			r.Count, r.Stride = 1, uint32(r.Width)
		}
	}
	return all
}

// Registers returns the register map in a new slice.
func Registers() []Register { return append([]Register(nil), table...) }

// fold maps an offset to its offset in the folded window, in which equal pages are overlaid, so
// that arrays are adjacent and a word has one register.
func fold(w WindowID, offset uint32) uint32 {
	switch w {
	case SMMU:
		if offset >= SMMUBanks {
			return 2*PageSize + offset%SMMUBankSize
		}
		if offset >= 2*PageSize {
			return foldNone // pages 2 to 15 are empty
		}
	case BTCM:
		if offset < BTCMDoorbells {
			return offset % DescriptorSize
		}
		return DescriptorSize + offset%PageSize
	case PKTZ:
		return offset % PktzChannelStride
	case MBOX:
		return offset % PageSize
	}
	return offset
}

// foldNone is not an offset of any window (defined by this project).
const foldNone = ^uint32(0)

// buildIndex returns, for each word of a folded window, the register's index in the table + 1; 0
// is a hole.
func buildIndex(regs []Register) (ix [Windows][]uint8) {
	for n, r := range regs {
		for i := range r.Count {
			at := fold(r.Window, r.At(i))
			for word := at / 4; word < (at+uint32(r.Width))/4; word++ {
				for uint32(len(ix[r.Window])) <= word {
					ix[r.Window] = append(ix[r.Window], 0)
				}
				ix[r.Window][word] = uint8(n + 1)
			}
		}
	}
	return ix
}

// Lookup returns the register that contains the byte at offset of window w, and its index in the
// array; false means a hole. It takes a few nanoseconds.
func Lookup(w WindowID, offset uint32) (r Register, i int, ok bool) {
	t, i := lookup(w, offset)
	if t == nil {
		return Register{}, 0, false
	}
	return *t, i, true
}

// lookup is Lookup without a copy; nil means a hole.
func lookup(w WindowID, offset uint32) (*Register, int) {
	if w >= Windows || offset >= w.Size() {
		return nil, 0
	}
	word := fold(w, offset) / 4
	if word >= uint32(len(index[w])) || index[w][word] == 0 {
		return nil, 0
	}
	t := &table[index[w][word]-1]
	// The register of a folded page may not exist in this page.
	if offset < t.Offset {
		return nil, 0
	}
	i := int((offset - t.Offset) / t.Stride)
	if i >= t.Count || offset >= t.At(i)+uint32(t.Width) {
		return nil, 0
	}
	return t, i
}

// Target is the target of one access to a window (Resolve).
type Target struct {
	Register
	Index int
	// Shift is 32 for a 32-bit access to the register's upper half.
	Shift int
	// Pair: a 64-bit access to this register and, in the upper half, the next one.
	Pair bool
}

// Resolve returns the target of an access of width bytes, 4 or 8, at offset of window w. It
// returns false if the access is unaligned, of a width that the register does not allow, or to a
// hole: such an access reads as zero, is ignored on write and counts in BAD_ACCESS
// (spec/hardware.md 2). Resolve does not handle memory, where every aligned access is valid.
func Resolve(w WindowID, offset uint32, width int) (Target, bool) {
	if width != 4 && width != 8 || offset%uint32(width) != 0 {
		return Target{}, false
	}
	r, i := lookup(w, offset)
	if r == nil {
		return Target{}, false
	}
	shift, pair := 0, false
	switch at := r.At(i); {
	case width == r.Width && offset == at:
	case width == 8 && r.Pairs && offset == at:
		pair = true
	case width == 4 && r.Halves:
		shift = int(offset-at) * 8
	default:
		return Target{}, false
	}
	return Target{Register: *r, Index: i, Shift: shift, Pair: pair}, true
}
