package sim

import (
	"bytes"
	"errors"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/record"
	"github.com/exanet/pfd/soc/wire"
)

// recorded drives two nodes by hand and records them: pfd starts, and a process sends a message
// from one node to the other.
func recorded(t testing.TB) (file []byte, digest record.Digest, count uint64) {
	t.Helper()
	h := record.Header{Nodes: 2, VABits: 48, SVA: true, Windows: true, Epoch: 77, Started: 1}
	var out bytes.Buffer
	w := record.NewWriter(&out, h, func(err error) { t.Error(err) })
	pool := new(wire.Pool)
	nodes := make([]*soc.Node, h.Nodes)
	for i := range nodes {
		nodes[i] = soc.New(soc.Config{ID: device.NodeID(i), VABits: 48, SVA: true, Windows: true, Epoch: 77, Pool: pool, Route: func(id device.NodeID) bool { return id < 2 }})
	}
	now := int64(0)
	var todo []soc.Action
	do := func(node int, actions []soc.Action) {
		for _, a := range actions {
			if a.Kind == soc.Transmit {
				todo = append(todo, a)
			}
		}
	}
	store := func(node int, id device.WindowID, off uint32, width int, v uint64) {
		now += 100
		actions := nodes[node].Store(now, id, off, width, v, nil)
		w.Store(now, node, id, off, width, v, actions)
		do(node, actions)
	}
	load := func(node int, id device.WindowID, off uint32, width int) uint64 {
		v := nodes[node].Load(id, off, width)
		w.Load(node, id, off, width, v)
		return v
	}
	event := func(node int, ev soc.Event) {
		now += 50
		actions := nodes[node].Step(now, &ev, nil)
		w.Step(now, node, &ev, actions)
		do(node, actions)
	}
	for i := range nodes {
		store(i, device.PL, device.PLCtrl, 4, device.CtrlEnable)
		store(i, device.PL, device.PLPktzCfg+8*16, 8, 5|device.CfgEnable)
		store(i, device.PL, device.PLMboxCfg+8*16, 8, 5|device.CfgEnable)
		store(i, device.PL, device.PLPDCfg, 8, device.PDCfg(5, 7))
		store(i, device.PL, device.PLWinSelect, 4, uint64(device.WinSelect(0, 3)))
		store(i, device.PL, device.PLWinBytes, 8, 1)
		store(i, device.PL, device.PLWinCtrl, 8, device.WinCtrl(9, device.RightWrite))
		load(i, device.PL, device.PLWinCtrl, 8)
		load(i, device.PL, device.PLCaps, 8)
	}
	event(0, soc.Event{Kind: soc.DoorbellRung, Slot: 0, Channel: 65}) // no such channel
	event(0, soc.Event{Kind: soc.MessageSent, Interface: 16, Destination: 1 | 16<<24 | 7<<32, N: 1, Words: [8]uint64{0xabc}})
	for len(todo) > 0 {
		a := todo[0]
		todo = todo[1:]
		event(int(a.Frame.DstNode), soc.Event{Kind: soc.FrameArrived, Frame: a.Frame})
	}
	event(1, soc.Event{Kind: soc.Tick})
	event(1, soc.Event{Kind: soc.Walked, Access: 3, Absent: 1})
	event(1, soc.Event{Kind: soc.Moved, Access: 9, OK: true})
	// The message has arrived, and reading it removes it.
	if v := load(1, device.MBOX, 16*device.PageSize+device.MboxData, 8); v == device.MboxEmpty {
		t.Error("the message did not arrive: the recording is incomplete")
	}
	load(1, device.MBOX, 16*device.PageSize+device.MboxData, 8)
	digest, count = w.Digest()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), digest, count
}

func TestReplay(t *testing.T) {
	file, digest, count := recorded(t)
	r, err := Replay(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	if r.Digest != digest || r.Records != count || r.Checked != count || r.Frames == 0 || r.Until == 0 {
		t.Errorf("%+v, want digest %#x of %d records", r, digest, count)
	}
	if len(r.Counters) != 2 || r.Counters[0][device.DoorbellDenied] != 1 {
		t.Errorf("counters %v", r.Counters)
	}
	for end := range file {
		if _, err := Replay(bytes.NewReader(file[:end])); err == nil {
			t.Fatalf("a recording cut at %d counts as whole", end)
		} else if end >= 64 && !errors.Is(err, record.ErrTruncated) {
			t.Fatalf("cut at %d: %v", end, err)
		}
	}
}

// Whatever a file contains, a replay ends with an error and does not crash.
func FuzzReplay(f *testing.F) {
	file, _, _ := recorded(f)
	f.Add(file)
	f.Add(file[:100])
	for i := 64; i < len(file); i += 7 {
		other := bytes.Clone(file)
		other[i] ^= 0x55
		f.Add(other)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 13 && (b[12] > 4 || b[13] != 0) {
			b = bytes.Clone(b)
			b[12], b[13] = 4, 0 // a node needs much memory
		}
		r, err := Replay(bytes.NewReader(b))
		if err == nil && r.Checked != r.Records {
			t.Errorf("whole, but %d of %d records confirmed", r.Checked, r.Records)
		}
	})
}
