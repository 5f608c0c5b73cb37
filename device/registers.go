package device

import (
	"strconv"
	"strings"
)

// Register is one register of the register map, or an array of equal ones
// (spec/hardware.md 3 to 6). The map is data: the model, exanetctl and the
// conformance test read the same table.
type Register struct {
	Window WindowID
	Name   string
	Offset uint32 // of the first, bytes
	Count  int    // registers in the array, 1 for a single one
	Stride uint32 // bytes from one to the next
	Width  int    // bytes, 4 or 8

	// Reset is the value after power-up and after CTRL.reset, where that touches
	// the register; ResetAt gives it for one register of an array.
	Reset uint64
	// Varies: the reset value depends on the node (its id, what it can do, what
	// it has counted), so Reset says nothing.
	Varies bool

	// The bits by what an access does. A bit of Read alone is read-only; of Read
	// and Write, read-write; of Read and W1C, cleared by writing 1. A bit of Act
	// makes the hardware do something when written and reads as zero. Others read
	// as zero and ignore writes.
	Read, Write, W1C, Act uint64

	// Cap is bits of CAPS: the bits of CapMask exist only where CAPS has them all,
	// and read as zero and ignore writes elsewhere. 0: all exist everywhere.
	Cap, CapMask uint64

	// Halves: a 64-bit register that may also be accessed by 32-bit halves.
	Halves bool
	// Pairs: a 32-bit register that a 64-bit access takes together with the next.
	Pairs bool
	// Memory: plain memory, where accesses of either width are good anywhere.
	Memory bool

	// Source is where the register is described.
	Source string

	fields string // "name[hi:lo] name[bit] …", immutable

	// Where altEvery is not 0, those with index%altEvery >= altFrom reset to alt.
	alt               uint64
	altFrom, altEvery int
}

// Field is a named range of a register's bits.
type Field struct {
	Name   string
	Hi, Lo uint8
}

// Mask gives the field's bits.
func (f Field) Mask() uint64 { return ^uint64(0) >> (63 - (f.Hi - f.Lo)) << f.Lo }

// Of gives the field's value in a register's value.
func (f Field) Of(v uint64) uint64 { return v & f.Mask() >> f.Lo }

// Fields gives the register's fields, in a slice of the caller's own.
func (r Register) Fields() []Field {
	names := strings.Fields(r.fields)
	fields := make([]Field, 0, len(names))
	for _, s := range names {
		name, bits, _ := strings.Cut(strings.TrimSuffix(s, "]"), "[")
		hi, lo, ok := strings.Cut(bits, ":")
		if !ok {
			lo = hi
		}
		// The table's own text; its test proves that all of it parses.
		h, _ := strconv.ParseUint(hi, 10, 6)
		l, _ := strconv.ParseUint(lo, 10, 6)
		fields = append(fields, Field{Name: name, Hi: uint8(h), Lo: uint8(l)})
	}
	return fields
}

// At gives the offset of register i of the array.
func (r *Register) At(i int) uint32 { return r.Offset + r.Stride*uint32(i) }

// ResetAt gives the reset value of register i of the array.
func (r Register) ResetAt(i int) uint64 {
	if r.altEvery != 0 && i%r.altEvery >= r.altFrom {
		return r.alt
	}
	return r.Reset
}

// Bits gives the bits that the register's width has.
func (r Register) Bits() uint64 { return ^uint64(0) >> (64 - 8*r.Width) }

// Masks gives the read, write and W1C masks on a device with these capabilities
// (the value of CAPS).
func (r *Register) Masks(caps uint64) (read, write, w1c uint64) {
	keep := ^uint64(0)
	if caps&r.Cap != r.Cap {
		keep = ^r.CapMask
	}
	return r.Read & keep, r.Write & keep, r.W1C & keep
}

// table is the map, and index where each word of the folded windows lies in it.
// Nothing outside this file can reach them, and nothing here changes them.
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

// Registers gives the register map, in a slice of the caller's own.
func Registers() []Register { return append([]Register(nil), table...) }

// fold maps an offset to the one in a window of which equal pages are laid over
// each other, so that arrays lie side by side and a word has one register.
func fold(w WindowID, offset uint32) uint32 {
	switch w {
	case SMMU:
		if offset >= SMMUBanks {
			return 2*PageSize + offset%SMMUBankSize
		}
		if offset >= 2*PageSize {
			return foldNone // pages 2 to 15 have nothing
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

// foldNone is no offset of any window (ours).
const foldNone = ^uint32(0)

// buildIndex gives, for each word of a folded window, the register's place in
// the table + 1; 0 is a hole.
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

// Lookup gives the register that the byte at offset of window w belongs to and
// its index in the array; false: a hole. It takes a few nanoseconds.
func Lookup(w WindowID, offset uint32) (r Register, i int, ok bool) {
	t, i := lookup(w, offset)
	if t == nil {
		return Register{}, 0, false
	}
	return *t, i, true
}

// lookup is Lookup without a copy: nil is a hole.
func lookup(w WindowID, offset uint32) (*Register, int) {
	if w >= Windows || offset >= w.Size() {
		return nil, 0
	}
	word := fold(w, offset) / 4
	if word >= uint32(len(index[w])) || index[w][word] == 0 {
		return nil, 0
	}
	t := &table[index[w][word]-1]
	// A folded page may have the register where this page has none.
	if offset < t.Offset {
		return nil, 0
	}
	i := int((offset - t.Offset) / t.Stride)
	if i >= t.Count || offset >= t.At(i)+uint32(t.Width) {
		return nil, 0
	}
	return t, i
}

// Target is what one access of a window reaches (Resolve).
type Target struct {
	Register
	Index int
	// Shift is 32 where the access is a 32-bit one of the register's upper half.
	Shift int
	// Pair: a 64-bit access of this register and, in the upper half, of the next.
	Pair bool
}

// Resolve says what an access of width bytes, 4 or 8, at offset of window w
// reaches. False: it is unaligned, of another width than the register allows, or
// to a hole: it reads as zero, is ignored on write and counts in BAD_ACCESS
// (spec/hardware.md 2). Memory is not resolved here: its bytes are all there.
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
