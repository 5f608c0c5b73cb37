package smmu

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"testing"

	"github.com/exanet/pfd/device"
)

// vector is a walk computed by hand; numbers are hexadecimal strings.
type vector struct {
	Name   string
	TTBR0  string
	TCR    string
	Memory map[string]string // address of an entry: the entry
	Walks  []struct {
		VA      string
		Write   bool
		Address string // of the page, or
		Fault   string // why it is not translated
		Level   uint8
	}
}

var faultNames = map[string]Fault{"": NoFault, "table": TableFault, "translation": Translation, "flag": AccessFlag, "permission": PermissionFault}

var errUnmapped = errors.New("unmapped")

func number(t testing.TB, s string) uint64 {
	t.Helper()
	v, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestWalkVectors checks the walk against tables written by hand from Arm DDI 0487, D8.2 and
// D8.3.
func TestWalkVectors(t *testing.T) {
	b, err := os.ReadFile("testdata/walk.json")
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	var vectors []vector
	if err := dec.Decode(&vectors); err != nil {
		t.Fatal(err)
	}
	for _, v := range vectors {
		memory := map[uint64]uint64{}
		for a, e := range v.Memory {
			memory[number(t, a)] = number(t, e)
		}
		read := func(addr uint64, p []byte) error {
			for i := 0; i < len(p); i += 8 {
				e, ok := memory[addr+uint64(i)]
				if !ok {
					return errUnmapped
				}
				binary.LittleEndian.PutUint64(p[i:], e)
			}
			return nil
		}
		tables := Tables{TTBR0: number(t, v.TTBR0), TCR: uint32(number(t, v.TCR))}
		for _, w := range v.Walks {
			want := Page{Fault: faultNames[w.Fault], Level: w.Level}
			if w.Address != "" {
				want.Address = number(t, w.Address)
			}
			var got [1]Page
			tables.Walk(device.VA(number(t, w.VA)), w.Write, got[:], new(Scratch), read)
			if got[0] != want {
				t.Errorf("%s: %s, write %v: %+v, want %+v", v.Name, w.VA, w.Write, got[0], want)
			}
		}
	}
}

// TestWalkRun walks many pages at once, across the end of a last-level table, and compares with
// single walks.
func TestWalkRun(t *testing.T) {
	memory := map[uint64]uint64{
		0x1000: 0x2003, // level 0, entry 0
		0x2000: 0x3003, // level 1
		0x3000: 0x4003, // level 2, entry 0
		0x3008: 0x5003, // and 1
	}
	for i := range uint64(TableEntries) {
		if i%3 != 0 {
			memory[0x4000+8*i] = 0x100000 + i<<12 | 0x443
			memory[0x5000+8*i] = 0x900000 + i<<12 | 0x4c3 // read-only
		}
	}
	reads := 0
	read := func(addr uint64, p []byte) error {
		reads++
		for i := 0; i < len(p); i += 8 {
			binary.LittleEndian.PutUint64(p[i:], memory[addr+uint64(i)])
		}
		return nil
	}
	tables := Tables{TTBR0: 5<<48 | 0x1000, TCR: 16}
	const first = device.VA(480 << device.PageShift)
	run, buf := make([]Page, maxWalk), new(Scratch)
	tables.Walk(first+123, true, run[:], buf, read)
	if reads != 8 { // four levels, twice
		t.Errorf("%d reads of the tables, want 8", reads)
	}
	for i, got := range run {
		var one [1]Page
		tables.Walk(first+device.VA(i)<<device.PageShift, true, one[:], buf, read)
		if got != one[0] {
			t.Errorf("page %d: %+v in a run, %+v alone", i, got, one[0])
		}
		want := NoFault
		switch page := 480 + i; {
		case page%TableEntries%3 == 0:
			want = Translation
		case page >= TableEntries:
			want = PermissionFault
		}
		if got.Fault != want {
			t.Errorf("page %d: fault %d, want %d", i, got.Fault, want)
		}
	}
	if n := testing.AllocsPerRun(100, func() { tables.Walk(first, false, run[:], buf, read) }); n != 0 {
		t.Errorf("%v allocations in a walk", n)
	}
}

// FuzzWalk uses arbitrary tables: a walk ends, reads only whole entries, and returns only page
// addresses from a table.
func FuzzWalk(f *testing.F) {
	f.Add(uint64(0x1000), uint32(16), uint64(0x7f0000001000), true, uint64(0x2003), uint64(0x3443))
	f.Add(uint64(0xffff000000000040), uint32(25), uint64(1)<<39, false, uint64(1), uint64(3))
	f.Add(uint64(0), uint32(39), uint64(0), false, ^uint64(0), uint64(0))
	f.Add(uint64(0), uint32(63), ^uint64(0), false, ^uint64(0), ^uint64(0))
	f.Fuzz(func(t *testing.T, ttbr uint64, tcr uint32, va uint64, write bool, even, odd uint64) {
		reads := 0
		read := func(addr uint64, p []byte) error {
			if reads++; addr%8 != 0 || len(p)%8 != 0 || len(p) == 0 || addr>>48 != 0 {
				t.Fatalf("read of %d bytes at %#x", len(p), addr)
			}
			for i := 0; i < len(p); i += 8 {
				e := even
				if (addr>>3+uint64(i)/8)%2 != 0 {
					e = odd
				}
				binary.LittleEndian.PutUint64(p[i:], e)
			}
			return nil
		}
		var out [maxWalk]Page
		Tables{TTBR0: ttbr, TCR: tcr}.Walk(device.VA(va), write, out[:], new(Scratch), read)
		if reads > 2*levels {
			t.Errorf("%d reads", reads)
		}
		for _, p := range out {
			if p.Address%device.PageSize != 0 || p.Address>>48 != 0 || p.Fault != NoFault && p.Address != 0 {
				t.Errorf("%+v", p)
			}
		}
	})
}
