package procstatus

import (
	"errors"
	"strings"
	"testing"
)

func TestBytes(t *testing.T) {
	for _, c := range []struct {
		name, status string
		want         int64
		ok, none     bool
	}{
		{"nothing", "Name:\tx\nVmLck:\t       0 kB\nVmPin:\t       0 kB\n", 0, true, false},
		{"both", "VmPeak:\t 99 kB\nVmLck:\t      12 kB\nVmPin:\t       4 kB\n", 16 << 10, true, false},
		{"a zombie", "Name:\tx\nState:\tZ (zombie)\n", 0, false, true},
		{"one only", "VmLck:\t 0 kB\n", 0, false, true},
		{"another unit", "VmLck:\t 0 MB\nVmPin:\t 0 kB\n", 0, false, false},
	} {
		got, err := Bytes([]byte(c.status), "VmLck", "VmPin")
		if got != c.want || (err == nil) != c.ok || errors.Is(err, ErrNone) != c.none {
			t.Errorf("%s: got %d, %v", c.name, got, err)
		}
	}
}

func TestMask(t *testing.T) {
	status := []byte("Name:\tx\nCapPrm:\tffffffffffffffff\nCapEff:\t0000000000080000\nCapBnd:\tx\n")
	if got, err := Mask(status, "CapEff"); got != 0x80000 || err != nil {
		t.Errorf("got %#x, %v", got, err)
	}
	if _, err := Mask(status, "CapAmb"); !errors.Is(err, ErrNone) {
		t.Errorf("a missing line: %v, want ErrNone", err)
	}
	if got, err := Mask(status, "CapBnd"); err == nil {
		t.Errorf("not a number: got %#x", got)
	}
}

// The value of a line is contained in the text, without surrounding space, and no size is
// negative.
func FuzzField(f *testing.F) {
	f.Add("Name:\tx\nUid:\t0\t0\t0\t0\n", "Uid")
	f.Add("Uid:", "Uid")
	f.Add("\n\n", "")
	f.Add("VmLck:\t9223372036854775807 kB\n", "VmLck")
	f.Add("VmPin:\t-1 kB\n", "VmPin")
	f.Add("VmLck: kB", "VmLck")
	f.Fuzz(func(t *testing.T, s, name string) {
		v, ok := Field([]byte(s), name)
		if ok && (!strings.Contains(s, v) || !strings.Contains(s, name+":") || v != strings.TrimSpace(v)) {
			t.Errorf("%q of %q is %q", name, s, v)
		}
		if n, err := Bytes([]byte(s), name, name); err == nil && n < 0 {
			t.Errorf("%d bytes from %q", n, s)
		}
	})
}
