package scenario

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/record"
	"github.com/exanet/pfd/soc/wire"
)

// recorded returns a recording of two nodes: a process of node 0 rings for writes of these sizes, one every
// 10 us.
func recorded(t *testing.T, sizes ...uint32) []byte {
	t.Helper()
	var out bytes.Buffer
	w := record.NewWriter(&out, record.Header{Nodes: 2, VABits: 48, SVA: true, Epoch: 7, Started: 1}, func(err error) { t.Error(err) })
	n := soc.New(soc.Config{VABits: 48, SVA: true, Epoch: 7, Pool: new(wire.Pool), Route: func(id device.NodeID) bool { return id < 2 }})
	store := func(off uint32, width int, v uint64) {
		w.Store(100, 0, device.PL, off, width, v, n.Store(100, device.PL, off, width, v, nil))
	}
	store(device.PLCtrl, 4, device.CtrlEnable)
	store(device.PLPDCfg, 8, device.PDCfg(5, 7))
	for i, size := range sizes {
		d := device.Descriptor{Src: 0x1000, Dst: 0x2000, Size: size, DstNode: 1, DstGeneration: 7}
		ev := soc.Event{Kind: soc.DoorbellRung, Channel: i, Words: d.Words()}
		at := int64(1000 + 10_000*i)
		w.Step(at, 0, &ev, n.Step(at, &ev, nil))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// The transfers of a recording run at their times; what no simulation can have is left out.
func TestRecording(t *testing.T) {
	file := recorded(t, 4096, 1, 1<<30, 70_000)
	f := parse(t, `workload = [{ kind = "recording", file = "pfd.rec", absent = 0.5, start = "1ms" }]`)
	if _, err := Run(t.Context(), f, Options{}); !errors.Is(err, ErrFile) || !strings.Contains(err.Error(), "pfd.rec is not loaded") {
		t.Errorf("before it is loaded: %v", err)
	}
	for _, name := range f.Recordings() {
		if err := f.Load(name, bytes.NewReader(file[:len(file)-3])); !errors.Is(err, ErrFile) {
			t.Errorf("a recording without its end: %v", err)
		}
		if err := f.Load(name, bytes.NewReader(file)); err != nil {
			t.Fatal(err)
		}
	}
	r, err := Run(t.Context(), f, Options{})
	if err != nil || r.Completed != 3 || r.Nodes != 2 {
		t.Fatalf("%v, %+v", err, r)
	}
	for i, want := range []Done{{Size: 4096, BeginNS: 1_000_000}, {Size: 1, BeginNS: 1_010_000}, {Size: 70_000, BeginNS: 1_030_000}} {
		if d := r.Done[i]; d.Size != want.Size || d.BeginNS != want.BeginNS || d.From != 0 || d.To != 1 {
			t.Errorf("%+v, want %+v", d, want)
		}
	}
	one := *f
	one.Topology.Nodes = 1
	if _, err := Run(t.Context(), &one, Options{}); !errors.Is(err, ErrFile) || !strings.Contains(err.Error(), "has 2 nodes, and the topology has 1") {
		t.Errorf("in one node: %v", err)
	}
	text, err := f.Text()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Parse("again.toml", text); err != nil {
		t.Errorf("%v\n%s", err, text)
	}
}
