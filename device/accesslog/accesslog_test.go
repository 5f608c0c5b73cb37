package accesslog

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/exanet/pfd/device"
)

// plain is a bus that answers each read with one value.
type plain struct {
	device.Bus
	value uint64
	err   error
}

type plainWindow struct{ b *plain }

func (b *plain) Window(device.WindowID) device.Window       { return device.Window{Access: plainWindow{b}} }
func (w plainWindow) Load(uint32, int) (uint64, error)      { return w.b.value, w.b.err }
func (w plainWindow) Store(_ uint32, _ int, v uint64) error { w.b.value = v; return w.b.err }

// The lines, written by hand from the tables of spec/hardware.md 3 to 6.
func TestLines(t *testing.T) {
	var out bytes.Buffer
	clock := time.Duration(0)
	l := New(&out, func() time.Duration { clock += 1500 * time.Millisecond; return clock })
	p := &plain{}
	bus := l.Bus(p, 3)
	read := func(id device.WindowID, off uint32, width int, v uint64) func() error {
		return func() (err error) {
			p.value = v
			var got uint64
			if width == 4 {
				var v32 uint32
				v32, err = bus.Window(id).Read32(off)
				got = uint64(v32)
			} else {
				got, err = bus.Window(id).Read64(off)
			}
			if got != v {
				t.Errorf("reads %#x, want %#x", got, v)
			}
			return err
		}
	}
	for i, tc := range []struct {
		do   func() error
		want string
	}{
		{read(device.PL, 0x20, 4, 3), "r32 pl+0x00020 IRQ_STATUS = 0x3: fault fifo"},
		{read(device.PL, 0x20, 4, 0), "r32 pl+0x00020 IRQ_STATUS = 0x0"},
		{read(device.PL, 0x08, 8, 0x0b100430), "r64 pl+0x00008 CAPS = 0xb100430: va_bits=0x30 banks=0x10 fifo_depth=0x200 txfifo wide_iova sva"},
		{read(device.PL, 0x0c, 4, 0), "r32 pl+0x0000c CAPS high half = 0x0"},
		{func() error { return bus.Window(device.PL).Write32(0x10, 0x2abcd) }, "w32 pl+0x00010 NODE_ID = 0x2abcd: node=0x2abcd"},
		{func() error { return bus.Window(device.PL).Write64(0x3008, 1<<63|9) }, "w64 pl+0x03008 PD_CFG[1] = 0x8000000000000009: pdid=0x9 enable"},
		{read(device.SMMU, 0x11058, 4, 0x80000002), "r32 smmu+0x11058 CB_FSR[1] = 0x80000002: tf multi"},
		{read(device.PL, 0x13, 4, 0), "r32 pl+0x00013 BAD ACCESS = 0x0"},
		{read(device.PL, 0xff0, 4, 0), "r32 pl+0x00ff0 BAD ACCESS = 0x0"},
		{func() error { p.err = device.ErrGone; return nil }, ""},
		{func() error { _, _ = bus.Window(device.PL).Read32(0x10); return nil }, "r32 pl+0x00010 NODE_ID: device gone"},
	} {
		out.Reset()
		if err := tc.do(); err != nil {
			t.Error(err)
		}
		want := ""
		if tc.want != "" {
			want = fmt.Sprintf("%d.%09d node 3 %s\n", clock/time.Second, clock%time.Second, tc.want)
		}
		if out.String() != want {
			t.Errorf("line %d\n got %swant %s", i, out.String(), want)
		}
	}
}

// Every access of every width to every register yields one line with its name.
func TestEveryRegister(t *testing.T) {
	var out bytes.Buffer
	l := New(&out, func() time.Duration { return 0 })
	bus := l.Bus(&plain{value: ^uint64(0)}, 0)
	for _, r := range device.Registers() {
		out.Reset()
		var err error
		if r.Width == 8 {
			_, err = bus.Window(r.Window).Read64(r.Offset)
		} else {
			_, err = bus.Window(r.Window).Read32(r.Offset)
		}
		name := r.Name
		if r.Memory {
			name = "memory"
		}
		if line := out.String(); err != nil || strings.Count(line, "\n") != 1 || !strings.Contains(line, " "+name) || !r.Memory && len(r.Fields()) > 0 && !strings.Contains(line, r.Fields()[0].Name) {
			t.Errorf("%v %s: %q, %v", r.Window, r.Name, line, err)
		}
	}
}
