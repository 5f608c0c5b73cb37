package netlink

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/golden"
)

func TestFaultGolden(t *testing.T) {
	for _, c := range golden.Read(t, "testdata/fault.txt") {
		t.Run(c.Name, func(t *testing.T) {
			want := Fault{
				Source:      device.NodeID(c.Uint(t, "source")),
				Transaction: device.TransactionID(c.Uint(t, "transaction")),
				Sequence:    device.Sequence(c.Uint(t, "sequence")),
				Process:     uint8(c.Uint(t, "process")),
				VA:          device.VA(c.Uint(t, "va")),
				PDID:        device.PDID(c.Uint(t, "pdid")),
				Write:       c.Bool(t, "write"),
				Pages:       uint16(c.Uint(t, "pages")),
			}
			text := strings.ReplaceAll(c.Text(t, "text"), " ", "")
			c.Done(t)
			got, err := ParseFault([]byte(text))
			if err != nil || got != want {
				t.Errorf("parsed %+v %v, want %+v", got, err, want)
			}
			if b, err := want.AppendText(nil); err != nil || string(b) != text {
				t.Errorf("text %s %v, want %s", b, err, text)
			}
		})
	}
}

func TestParseFault(t *testing.T) {
	const narrow = "01234503a7123453f12345beef1"
	const wide = "2:3fffff3fff3ffff0007ffdeadbeffff10001"
	tests := []struct {
		name, text string
		ok         bool
	}{
		{"narrow", narrow, true},
		{"wide", wide, true},
		{"a NUL at the end", narrow + "\x00", true},
		{"capitals", strings.ToUpper(narrow), true},
		{"two NULs", narrow + "\x00\x00", false},
		{"nothing", "", false},
		{"a NUL", "\x00", false},
		{"a digit short", narrow[1:], false},
		{"a digit more", narrow + "0", false},
		{"not a digit", narrow[:5] + "g" + narrow[6:], false},
		{"a sign", "+" + narrow[1:], false},
		{"narrow in the length of wide", "0" + narrow + "0000000000", false},
		{"another version", "3" + wide[1:], false},
		{"source of 23 bits", "400000" + narrow[6:], false},
		{"transaction of 15 bits", narrow[:6] + "4000" + narrow[10:], false},
		{"sequence of 15 bits", narrow[:10] + "4000" + narrow[14:], false},
		{"R/W 2", narrow[:26] + "2", false},
		{"no pages", wide[:34] + "0000", false},
	}
	for _, tt := range tests {
		f, err := ParseFault([]byte(tt.text))
		if tt.ok != (err == nil) || !tt.ok && (!errors.Is(err, ErrMessage) || f != Fault{}) {
			t.Errorf("%s: %+v %v", tt.name, f, err)
		}
	}
}

func TestFaultRange(t *testing.T) {
	good := Fault{Source: 1, VA: 0x1000, Pages: 1}
	for name, change := range map[string]func(*Fault){
		"source":      func(f *Fault) { f.Source = 1 << 22 },
		"transaction": func(f *Fault) { f.Transaction = 1 << 14 },
		"sequence":    func(f *Fault) { f.Sequence = 1 << 14 },
		"process":     func(f *Fault) { f.Process = 16 },
		"address":     func(f *Fault) { f.VA = 1 << 60 },
		"pages":       func(f *Fault) { f.Pages = 0 },
	} {
		f := good
		change(&f)
		b, err := f.AppendText([]byte("x"))
		if !errors.Is(err, ErrRange) || !strings.Contains(err.Error(), name) || string(b) != "x" {
			t.Errorf("%s: %q %v", name, b, err)
		}
		if b, err := AppendMessage([]byte("x"), &f, 1, 2); !errors.Is(err, ErrRange) || string(b) != "x" {
			t.Errorf("%s: message %q %v", name, b, err)
		}
	}
}

func TestMessageGolden(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the vectors are those of a little-endian machine; nlmsghdr is in the machine's order")
	}
	for _, c := range golden.Read(t, "testdata/message.txt") {
		t.Run(c.Name, func(t *testing.T) {
			f, err := ParseFault([]byte(c.Text(t, "text")))
			if err != nil {
				t.Fatal(err)
			}
			want := c.Bytes(t, "bytes")
			got, err := AppendMessage(nil, &f, uint32(c.Uint(t, "seq")), uint32(c.Uint(t, "port")))
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%x %v, want %x", got, err, want)
			}
			back, err := ParseMessage(want)
			if err != nil || back != f {
				t.Errorf("parsed %+v %v", back, err)
			}
			c.Done(t)
		})
	}
}

func TestParseMessage(t *testing.T) {
	f := Fault{VA: 0x1000, Pages: 1, Write: true}
	message := func(change func([]byte) []byte) []byte {
		b, err := AppendMessage(nil, &f, 1, 2)
		if err != nil {
			t.Fatal(err)
		}
		return change(b)
	}
	put32 := func(at int, v uint32) func([]byte) []byte {
		return func(b []byte) []byte { binary.NativeEndian.PutUint32(b[at:], v); return b }
	}
	put16 := func(at int, v uint16) func([]byte) []byte {
		return func(b []byte) []byte { binary.NativeEndian.PutUint16(b[at:], v); return b }
	}
	tests := []struct {
		name string
		b    []byte
		ok   bool
	}{
		{"good", message(func(b []byte) []byte { return b }), true},
		{"without padding", message(func(b []byte) []byte { return b[:43] }), true},
		{"another type", message(put16(headerType, 0x22)), true},
		{"another port in the header", message(put32(headerPort, 99)), true},
		{"empty", nil, false},
		{"half a header", message(func(b []byte) []byte { return b[:15] }), false},
		{"a header", message(func(b []byte) []byte { return b[:16] }), false},
		{"length 0", message(put32(headerLength, 0)), false},
		{"length 15", message(put32(headerLength, 15)), false},
		{"length past the end", message(put32(headerLength, 45)), false},
		{"length 2^32-1", message(put32(headerLength, 1<<32-1)), false},
		{"two messages", message(func(b []byte) []byte { return append(b, b...) }), false},
		{"a control message", message(put16(headerType, 2)), false},
		{"no fault", message(func(b []byte) []byte { b[20] = 'x'; return b }), false},
	}
	for _, tt := range tests {
		got, err := ParseMessage(tt.b)
		if tt.ok && (err != nil || got != f) || !tt.ok && !errors.Is(err, ErrMessage) {
			t.Errorf("%s: %+v %v", tt.name, got, err)
		}
	}
}

func FuzzParseFault(f *testing.F) {
	f.Add([]byte("01234503a7123453f12345beef1"))
	f.Add([]byte("2:3fffff3fff3ffff0007ffdeadbeffff10001"))
	f.Add([]byte("00000000000000F8000000FFFF0\x00"))
	f.Add([]byte("2:"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := ParseFault(b)
		if err != nil {
			return
		}
		text, err := got.AppendText(nil)
		if err != nil {
			t.Fatalf("%q parsed as %+v, which does not fit: %v", b, got, err)
		}
		if again, err := ParseFault(text); err != nil || again != got {
			t.Fatalf("%q: %+v, then %q: %+v %v", b, got, text, again, err)
		}
	})
}

func FuzzParseMessage(f *testing.F) {
	m, _ := AppendMessage(nil, &Fault{VA: 0x7ffdeadbe000, Pages: 16}, 1, 2)
	f.Add(m)
	f.Add(m[:16])
	f.Add(append(m, m...))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := ParseMessage(b)
		if err != nil {
			return
		}
		m, err := AppendMessage(nil, &got, 0, 0)
		if err != nil {
			t.Fatalf("%x parsed as %+v, which does not fit: %v", b, got, err)
		}
		if again, err := ParseMessage(m); err != nil || again != got {
			t.Fatalf("%+v, then %+v %v", got, again, err)
		}
	})
}
