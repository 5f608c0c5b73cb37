package domain_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/exanet/pfd/daemon/domain"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault/faulttest"
)

// withWindows returns a manager of a node that has memory windows, with a domain in slot 0.
func withWindows(t *testing.T) (*faulttest.Node, *domain.Manager) {
	t.Helper()
	n := faulttest.New()
	n.Set64(device.PL, device.PLCaps, faulttest.Caps|device.CapsWindows)
	m, err := domain.NewManager(n, node, directory(t, 0, 0), domain.WithTimer(n.After))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Init(); err != nil {
		t.Fatal(err)
	}
	create(t, m, domain.Request{UID: 1})
	return n, m
}

var someWindow = device.MemoryWindow{VA: 0x7f0000001003, Bytes: 0x101, Peer: 0x77, Rights: device.RightRead | device.RightWrite}

// A window is opened and withdrawn by its registers. The withdrawal has ended when CTRL no longer reads busy.
func TestWindow(t *testing.T) {
	n, m := withWindows(t)
	n.Record = true
	other := someWindow
	other.Peer = 0
	for _, w := range []device.MemoryWindow{other, someWindow} {
		if err := m.Window(0, w); err != nil {
			t.Fatal(err)
		}
	}
	wantWrites(t, writes(n)[4:],
		"w32 pl+0x3900 0x1",
		"w64 pl+0x3908 0x7f0000001003",
		"w64 pl+0x3910 0x101",
		"w64 pl+0x3918 0x8000000000030077")
	if d, _ := m.Domain(0); len(d.Windows) != 2 || d.Windows[0] != other || d.Windows[1] != someWindow {
		t.Errorf("windows %+v", d.Windows)
	}
	busy := true
	n.OnAccess = func(a faulttest.Access) {
		if v := n.Get64(device.PL, device.PLWinCtrl) &^ device.WinBusy; a.Offset == device.PLWinCtrl && !a.Write && busy {
			n.Set64(device.PL, device.PLWinCtrl, v|device.WinBusy)
		} else if a.Offset == device.PLWinCtrl && !a.Write {
			n.Set64(device.PL, device.PLWinCtrl, v)
		}
	}
	over := 0
	if err := m.CloseWindow(0, someWindow, func() { over++ }); err != nil {
		t.Fatal(err)
	}
	if w := writes(n); w[0] != "w32 pl+0x3900 0x1" || w[1] != "w64 pl+0x3918 0x30077" {
		t.Errorf("register writes %v", w)
	}
	if err := m.CloseWindow(0, someWindow, nil); !errors.Is(err, domain.ErrNoWindow) {
		t.Errorf("withdrawn twice: %v", err)
	}
	for range 20 {
		n.Tick()
	}
	if d, _ := m.Domain(0); over != 0 || len(d.Windows) != 1 {
		t.Errorf("over %d, %d windows while the window is busy", over, len(d.Windows))
	}
	busy = false
	n.Tick()
	if over != 1 || len(n.Timers) != 0 {
		t.Errorf("over %d, %d timers; want one end", over, len(n.Timers))
	}
	for i, w := range n.Waits {
		if w < 50*time.Microsecond || w > 20*time.Millisecond || i > 0 && w < n.Waits[i-1] {
			t.Errorf("waits %v; want from 50us up to 20ms", n.Waits)
			break
		}
	}
}

// A withdrawal in progress ends when its domain has drained.
func TestWindowEndsWithItsDomain(t *testing.T) {
	n, m := withWindows(t)
	if err := m.Window(0, someWindow); err != nil {
		t.Fatal(err)
	}
	n.OnAccess = func(a faulttest.Access) {
		if a.Offset == device.PLWinCtrl && !a.Write {
			n.Set64(device.PL, device.PLWinCtrl, device.WinBusy)
		}
	}
	over := 0
	if err := m.CloseWindow(0, someWindow, func() { over++ }); err != nil {
		t.Fatal(err)
	}
	n.InFlight[0] = 1
	if err := m.Destroy(0, nil); err != nil {
		t.Fatal(err)
	}
	n.Tick()
	if over != 0 {
		t.Error("over while the domain drains")
	}
	n.InFlight[0] = 0
	for range 3 {
		n.Tick()
	}
	if over != 1 || len(n.Timers) != 0 {
		t.Errorf("over %d, %d timers", over, len(n.Timers))
	}
}

// Each refusal has its error, which says what is accepted, and changes nothing.
func TestBadWindows(t *testing.T) {
	n, m := withWindows(t)
	n.Record = true
	for name, tt := range map[string]struct {
		slot   int
		change func(*device.MemoryWindow)
		want   error
	}{
		"no bytes":          {0, func(w *device.MemoryWindow) { w.Bytes = 0 }, domain.ErrWindow},
		"past the end":      {0, func(w *device.MemoryWindow) { w.Bytes = 1<<48 - uint64(w.VA) + 1 }, domain.ErrWindow},
		"beyond the end":    {0, func(w *device.MemoryWindow) { w.VA = 1 << 48 }, domain.ErrWindow},
		"all addresses":     {0, func(w *device.MemoryWindow) { w.Bytes = 1<<64 - 1 }, domain.ErrWindow},
		"no right":          {0, func(w *device.MemoryWindow) { w.Rights = 0 }, domain.ErrWindow},
		"unknown right":     {0, func(w *device.MemoryWindow) { w.Rights = 16 }, domain.ErrWindow},
		"the drivers' PDID": {0, func(w *device.MemoryWindow) { w.Peer = device.PDIDDriver }, domain.ErrPDID},
		"no domain":         {1, func(*device.MemoryWindow) {}, domain.ErrNoDomain},
	} {
		w := someWindow
		tt.change(&w)
		if err := m.Window(tt.slot, w); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
		if err := m.CloseWindow(tt.slot, w, nil); !errors.Is(err, domain.ErrNoWindow) && !errors.Is(err, domain.ErrNoDomain) {
			t.Errorf("%s: withdrawn: %v", name, err)
		}
	}
	if w := writes(n); len(w) != 0 {
		t.Errorf("refusals write %v", w)
	}
	last := someWindow
	last.Bytes = 1<<48 - uint64(last.VA)
	for range device.WindowsPerSlot {
		if err := m.Window(0, last); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Window(0, someWindow); !errors.Is(err, domain.ErrWindowLimit) || !strings.Contains(err.Error(), "64") {
		t.Errorf("one window too many: %v", err)
	}
	if err := m.CloseWindow(0, last, func() {}); err != nil {
		t.Fatal(err)
	}
	if err := m.Window(0, someWindow); err != nil {
		t.Errorf("after one was closed: %v", err)
	}
	_, without := manager(t, node, directory(t, 0, 0))
	create(t, without, domain.Request{UID: 1})
	if err := without.Window(0, someWindow); !errors.Is(err, domain.ErrNoWindows) {
		t.Errorf("a device without windows: %v", err)
	}
}

// The PDID of a window's peer is not assigned to a new group while the window is open.
func TestWindowHoldsItsPeer(t *testing.T) {
	n := faulttest.New()
	n.Set64(device.PL, device.PLCaps, faulttest.Caps|device.CapsWindows)
	dir := directory(t, 1, 24) // three groups of eight
	m, err := domain.NewManager(n, node, dir, domain.WithTimer(n.After))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Init(); err != nil {
		t.Fatal(err)
	}
	create(t, m, domain.Request{UID: 1})
	guest := create(t, m, domain.Request{UID: 2})
	w := someWindow
	w.Peer = guest.PDID
	if err := m.Window(0, w); err != nil {
		t.Fatal(err)
	}
	if err := m.Destroy(guest.Slot, nil); err != nil {
		t.Fatal(err)
	}
	create(t, m, domain.Request{UID: 3})
	if _, err := m.Create(domain.Request{UID: 4}); !errors.Is(err, domain.ErrNoPDID) {
		t.Errorf("the PDIDs of a window's peer are assigned again: %v", err)
	}
	if err := m.CloseWindow(0, w, func() {}); err != nil {
		t.Fatal(err)
	}
	create(t, m, domain.Request{UID: 4})
}

// A user who admits every PDID by name, with windows and otherwise, leaves PDIDs for groups of others:
// those that a domain admits by name are not assigned.
func TestNamesLeavePDIDs(t *testing.T) {
	dir := directory(t, 1, 256)
	var managers []*domain.Manager
	for id := range device.NodeID(8) {
		n := faulttest.New()
		n.Set64(device.PL, device.PLCaps, faulttest.Caps|device.CapsWindows)
		m, err := domain.NewManager(n, id, dir, domain.WithTimer(n.After))
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Init(); err != nil {
			t.Fatal(err)
		}
		managers = append(managers, m)
	}
	next := device.PDID(1)
	name := func() device.PDID { next = next%256 + 1; return next }
	refused := 0
	for _, m := range managers {
		for range 2 {
			d, err := m.Create(domain.Request{UID: 7, Group: "names", Accept: []device.PDID{name(), name(), name(), name()}})
			if errors.Is(err, domain.ErrNames) {
				refused++
				d, err = m.Create(domain.Request{UID: 7, Group: "names"})
			}
			if err != nil {
				t.Fatal(err)
			}
			for range device.WindowsPerSlot {
				w := someWindow
				w.Peer = name()
				if err := m.Window(d.Slot, w); errors.Is(err, domain.ErrNames) {
					refused++
				} else if err != nil {
					t.Fatal(err)
				}
			}
			if err := m.Grant(d.Slot, name()); errors.Is(err, domain.ErrNames) {
				refused++
			} else if err != nil {
				t.Fatal(err)
			}
			// PDIDs of another pfd's range are not this one's to assign.
			w := someWindow
			w.Peer = 300
			if err := m.Window(d.Slot, w); err != nil && !errors.Is(err, domain.ErrWindowLimit) {
				t.Error(err)
			}
		}
	}
	if refused == 0 {
		t.Error("a user may admit any number of PDIDs by name")
	}
	for i := range 8 {
		if _, err := managers[i].Create(domain.Request{UID: 8, Group: strings.Repeat("x", i+1)}); err != nil {
			t.Fatalf("group %d of another user: %v", i, err)
		}
	}
	// Closed windows count no longer.
	for _, m := range managers {
		for _, d := range m.Domains() {
			if d.UID == 7 {
				for _, w := range d.Windows {
					if err := m.CloseWindow(d.Slot, w, func() {}); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
	for _, d := range managers[0].Domains() {
		if d.UID != 7 {
			continue
		}
		for range 20 {
			w := someWindow
			w.Peer = name()
			if err := managers[0].Window(d.Slot, w); err != nil {
				t.Fatal(err)
			}
		}
		break
	}
}
