package domain_test

import (
	"errors"
	"testing"

	"github.com/exanet/pfd/daemon/domain"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault/faulttest"
)

// Threads and the pages of trees are written to their registers (spec/gsas.md 2 and 4), the packetizer last,
// and runs of pages in as few parts as GSAS_PAGE allows.
func TestThreads(t *testing.T) {
	n := faulttest.New()
	n.Set64(device.PL, device.PLCaps, faulttest.Caps|device.CapsGSAS)
	m, err := domain.NewManager(n, node, directory(t, 0, 0), domain.WithTimer(n.After))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Init(); err != nil {
		t.Fatal(err)
	}
	if n.Get64(device.PL, device.PLGSASCtrl)&device.GSASEnable == 0 {
		t.Error("the unit is not enabled")
	}
	d := create(t, m, domain.Request{UID: 1})
	if err := m.AddThread(5, 33, 0x800000); !errors.Is(err, domain.ErrNoDomain) {
		t.Errorf("a thread of no domain: %v", err)
	}
	n.Record = true
	if err := m.AddThread(d.Slot, 33, 0x800001); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(
		m.SetPages(0x800001, 0x400000, 1<<16+2, 0x3000), m.ClearPages(0x400001, 1), m.RemoveThread(33)); err != nil {
		t.Fatal(err)
	}
	prot, cfg := uint32(device.PLPktzProt+8*33), uint32(device.PLPktzCfg+8*33)
	if got := n.Get64(device.PL, prot); got != 0 {
		t.Errorf("PKTZ_PROT is %#x in the end", got)
	}
	if got := n.Get64(device.PL, cfg); got != 0 {
		t.Errorf("PKTZ_CFG is %#x in the end", got)
	}
	wantWrites(t, writes(n),
		"w64 pl+0x2908 0x800001",
		"w64 pl+0x2508 0x8000008000010001",
		"w64 pl+0x2108 0xc0000086abcd0001",
		"w64 pl+0x3808 0xffff000400000", "w64 pl+0x3818 0x3000", "w64 pl+0x3810 0xc000000000800001",
		"w64 pl+0x3808 0x1000410000", "w64 pl+0x3818 0x10003000", "w64 pl+0x3810 0xc000000000800001",
		"w64 pl+0x3808 0x400001", "w64 pl+0x3810 0x0",
		"w64 pl+0x2108 0x0", "w64 pl+0x2508 0x0", "w64 pl+0x2908 0x0")

	busy := true
	n.OnAccess = func(a faulttest.Access) {
		if a.Offset == device.PLGSASEntry && !a.Write {
			v := uint64(0)
			if busy {
				v = device.GSASBusy
			}
			n.Set64(device.PL, device.PLGSASEntry, v)
		}
	}
	for range 2 {
		if got, err := m.PagesBusy(0x400000, 3); err != nil || got != busy {
			t.Errorf("busy %v, %v, want %v", got, err, busy)
		}
		busy = false
	}
}

func TestNoThreads(t *testing.T) {
	n := faulttest.New()
	m, err := domain.NewManager(n, node, directory(t, 0, 0), domain.WithTimer(n.After))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Init(); err != nil {
		t.Fatal(err)
	}
	d := create(t, m, domain.Request{UID: 1})
	if err := m.AddThread(d.Slot, 32, 0x800000); !errors.Is(err, domain.ErrNoThreads) {
		t.Errorf("a thread of a node without a unit: %v", err)
	}
}
