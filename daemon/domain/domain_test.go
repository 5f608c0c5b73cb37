package domain_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/exanet/pfd/daemon/domain"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault/faulttest"
)

const node = device.NodeID(0x2abcd)

func directory(t *testing.T, first, last device.PDID) *domain.Directory {
	t.Helper()
	d, err := domain.NewDirectory(domain.DirectoryConfig{First: first, Last: last, GroupSize: 8, Quota: 8, Generation: 0x1000})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func manager(t *testing.T, id device.NodeID, dir *domain.Directory) (*faulttest.Node, *domain.Manager) {
	t.Helper()
	n := faulttest.New()
	t.Cleanup(func() {
		if len(n.Bad) != 0 {
			t.Errorf("accesses that reach no register: %+v", n.Bad)
		}
	})
	m, err := domain.NewManager(n, id, dir, domain.WithTimer(n.After))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Init(); err != nil {
		t.Fatal(err)
	}
	return n, m
}

func create(t *testing.T, m *domain.Manager, q domain.Request) *domain.Domain {
	t.Helper()
	d, err := m.Create(q)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// writes formats the writes of a log and clears the log.
func writes(n *faulttest.Node) []string {
	var out []string
	for _, a := range n.Log {
		if a.Write {
			out = append(out, fmt.Sprintf("w%d %v+%#x %#x", 8*a.Width, a.Window, a.Offset, a.Value))
		}
	}
	n.Log = nil
	return out
}

func wantWrites(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("register writes\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
}

// Offsets and values computed by hand from spec/hardware.md 3 and 5. Slot 1 is bank 1, page 17 of
// window smmu (0x11000); PDIDs 10 to 17 belong to the second group. PKTZ_CFG's thread and node ID
// for interface 1 on node 0x2abcd is 1<<18 | 0x2abcd = 0x6abcd, for interface 17 17<<18 | 0x2abcd
// = 0x46abcd.
func TestSetUpAndTearDown(t *testing.T) {
	n, m := manager(t, node, directory(t, 2, 100))
	create(t, m, domain.Request{UID: 1, Group: "a"})
	n.Record = true
	d := create(t, m, domain.Request{UID: 2, PID: 77, Group: "b", Accept: []device.PDID{2, 3, 2, 10, 0x50}})
	if d.Slot != 1 || d.PDID != 10 || d.Generation != 0x1001 || d.Interface != 17 || d.Member != 0 || d.UID != 2 || d.PID != 77 || d.Group != "b" || d.Node != node {
		t.Errorf("domain %+v", d)
	}
	wantWrites(t, writes(n),
		"w32 smmu+0xc04 0x20001",      // S2CR: fault, bank 1
		"w32 smmu+0x1804 0x1",         // CBA2R: VA64
		"w32 smmu+0x1004 0x10000",     // CBAR: stage 1, stage 2 bypass
		"w32 smmu+0x11030 0x10",       // TCR: T0SZ 64-48
		"w32 smmu+0x11618 0x0",        // TLBIALL
		"w32 smmu+0x117f0 0x0",        // TLBSYNC
		"w32 smmu+0x11058 0xffffffff", // FSR: no fault of an earlier domain
		"w32 smmu+0x11000 0x167",      // SCTLR: M, TRE, AFE, CFRE, CFIE, HUPCF
		"w32 smmu+0x804 0x80000001",   // SMR: stream 1
		"w32 smmu+0xc04 0x1",          // PD_PEERS: 2, 3, 0x50; not its own, none twice
		"w64 pl+0x3420 0x5000030002",  // PD_PEERS: 2, 3, 0x50; not its own, none twice
		"w64 pl+0x3428 0x0",
		"w64 pl+0x3430 0x0",
		"w64 pl+0x3438 0x0",
		"w64 pl+0x2008 0x80000006abcd000a", // PKTZ_CFG[1]: pfd's
		"w64 pl+0x2088 0x80000046abcd000a", // PKTZ_CFG[17]: the process's
		"w64 pl+0x2488 0x800000000000000a", // MBOX_CFG[17]
		"w64 pl+0x3008 0x800000001001000a", // PD_CFG[1] last
	)

	// Teardown: PD_CFG first, S2CR fault, TLBIALL, TLBSYNC, then TLBSTATUS until no access is in
	// flight; only then is the slot free.
	n.InFlight[1] = 1
	ended := 0
	if err := m.Destroy(1, func() { ended++ }); err != nil {
		t.Fatal(err)
	}
	wantWrites(t, writes(n),
		"w64 pl+0x3008 0x0",
		"w64 pl+0x2088 0x0",
		"w64 pl+0x2008 0x0",
		"w64 pl+0x2488 0x0",
		"w64 pl+0x3420 0x0",
		"w64 pl+0x3428 0x0",
		"w64 pl+0x3430 0x0",
		"w64 pl+0x3438 0x0",
		"w32 smmu+0xc04 0x20001",
		"w32 smmu+0x11618 0x0",
		"w32 smmu+0x117f0 0x0",
	)
	for range 20 {
		n.Tick()
	}
	if got, ok := m.Domain(1); !ok || got.State != domain.Draining || ended != 0 {
		t.Fatalf("with an access in flight: %+v, %v, ended %d; want draining", got, ok, ended)
	}
	if err := m.Grant(1, 9); !errors.Is(err, domain.ErrNoDomain) {
		t.Errorf("Grant to a draining domain returned %v", err)
	}
	if err := m.Destroy(1, func() { ended += 10 }); err != nil {
		t.Errorf("a second Destroy returned %v", err)
	}
	if d := create(t, m, domain.Request{UID: 3}); d.Slot != 2 {
		t.Errorf("a new domain got slot %d while 1 drains", d.Slot)
	}
	n.Log = nil
	n.InFlight[1] = 0
	n.Tick()
	if ended != 11 {
		t.Errorf("ended %d, want both functions once", ended)
	}
	wantWrites(t, writes(n), "w32 smmu+0x11058 0xffffffff")
	if _, ok := m.Domain(1); ok {
		t.Error("the slot is not free")
	}
	if len(n.Timers) != 0 {
		t.Error("a timer is left")
	}
	if d := create(t, m, domain.Request{UID: 3}); d.Slot != 1 {
		t.Errorf("the next domain got slot %d, want 1", d.Slot)
	}
	for i, w := range n.Waits {
		if w < 50*time.Microsecond || w > 20*time.Millisecond || i > 0 && w < n.Waits[i-1] {
			t.Errorf("waits %v; want from 50us up to 20ms", n.Waits)
			break
		}
	}
}

// Accesses of an earlier driver in flight complete before their slot is assigned: the ends of its
// blocks would be reported to the next domain.
func TestInitWaitsForAccesses(t *testing.T) {
	for _, stall := range []bool{false, true} {
		n := faulttest.New()
		options := []domain.Option{domain.WithTimer(n.After)}
		if stall {
			n.Set64(device.PL, device.PLCaps, faulttest.Caps|device.CapsStall)
			options = append(options, domain.Stall())
		}
		m, err := domain.NewManager(n, node, directory(t, 0, 0), options...)
		if err != nil {
			t.Fatal(err)
		}
		n.InFlight[0] = 1
		if err := m.Init(); err != nil {
			t.Fatal(err)
		}
		// The other slots are available, for root too, and no domain is listed.
		for want := 1; want <= 2; want++ {
			if d := create(t, m, domain.Request{}); d.Slot != want || d.Member != want-1 {
				t.Errorf("stall %v: slot %d, member %d while slot 0 has an access in flight; want slot %d", stall, d.Slot, d.Member, want)
			}
		}
		if list := m.Domains(); len(list) != 2 {
			t.Errorf("stall %v: domains %+v", stall, list)
		}
		n.Tick()
		n.InFlight[0] = 0
		n.Tick()
		if d := create(t, m, domain.Request{}); d.Slot != 0 || d.Member != 2 {
			t.Errorf("stall %v: slot %d, member %d after its access has completed", stall, d.Slot, d.Member)
		}
		if len(n.Timers) != 0 {
			t.Errorf("stall %v: a timer is left", stall)
		}
	}
}

func TestDestroyAtOnce(t *testing.T) {
	_, m := manager(t, node, directory(t, 0, 0))
	create(t, m, domain.Request{UID: 1})
	ended := false
	if err := m.Destroy(0, func() { ended = true }); err != nil || !ended {
		t.Errorf("Destroy with nothing in flight: %v, ended %v", err, ended)
	}
	create(t, m, domain.Request{UID: 1})
	if err := m.Destroy(0, nil); err != nil {
		t.Error(err)
	}
	for _, slot := range []int{-1, 0, 15, 16} {
		if err := m.Destroy(slot, nil); !errors.Is(err, domain.ErrNoDomain) {
			t.Errorf("Destroy(%d) returned %v", slot, err)
		}
	}
}

func TestInit(t *testing.T) {
	n := faulttest.New()
	// State that an earlier driver left.
	n.Set64(device.PL, 0x3000+8*5, 1<<63|9)
	for i := range uint32(64) {
		n.Set64(device.PL, 0x2000+8*i, 1<<63|9)
		if i >= 16 {
			n.Set64(device.PL, 0x2400+8*i, 1<<63|9)
		}
	}
	n.Fault(5, 0x1000, true)
	m, err := domain.NewManager(n, node, directory(t, 0, 0), domain.WithTimer(n.After))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Create(domain.Request{}); !errors.Is(err, domain.ErrNotReady) {
		t.Errorf("Create before Init returned %v", err)
	}
	n.Record = true
	if err := m.Init(); err != nil {
		t.Fatal(err)
	}
	got := writes(n)
	if len(got) < 9 || got[0] != "w32 pl+0x24 0xf" {
		t.Fatalf("the first write is not the mask of all vectors: %v", got)
	}
	wantWrites(t, got[len(got)-8:],
		"w32 smmu+0x48 0xffffffff",
		"w32 smmu+0x70 0x0",
		"w32 smmu+0x0 0x506", // sCR0: GFRE, GFIE, STALLD, USFCFG; CLIENTPD clear
		"w32 pl+0x10 0x2abcd",
		"w32 pl+0x40 0x8",
		"w32 pl+0x18 0x1",
		"w32 pl+0x20 0xf",
		"w32 pl+0x24 0xc",
	)
	for i := range uint32(64) {
		if v := n.Get64(device.PL, 0x2000+8*i) | n.Get64(device.PL, 0x2400+8*i); v != 0 {
			t.Errorf("interface %d: PKTZ_CFG or MBOX_CFG %#x after Init", i, v)
		}
	}
	for s := range uint32(16) {
		for off, want := range map[uint32]uint64{0x3000 + 8*s: 0, 0x3400 + 32*s: 0} {
			if got := n.Get64(device.PL, off); got != want {
				t.Errorf("pl+%#x reads %#x after Init, want %#x", off, got, want)
			}
		}
		if got := n.Get(device.SMMU, 0xc00+4*s); got != 2<<16|s {
			t.Errorf("S2CR[%d] %#x", s, got)
		}
		if got := n.Get(device.SMMU, 0x10058+0x1000*s); got != 0 {
			t.Errorf("FSR of bank %d %#x", s, got)
		}
	}
	if m.VABits() != 48 || m.Caps() != faulttest.Caps {
		t.Errorf("VA bits %d, caps %#x", m.VABits(), m.Caps())
	}
}

func TestInitRefuses(t *testing.T) {
	tests := []struct {
		name string
		do   func(*faulttest.Node)
		want error
	}{
		{"another device", func(n *faulttest.Node) { n.Set(device.PL, 0, 0xffffffff) }, domain.ErrDevice},
		{"another major version", func(n *faulttest.Node) { n.Set(device.PL, 4, 2<<16) }, domain.ErrDevice},
		{"narrow addresses", func(n *faulttest.Node) { n.Set64(device.PL, 8, faulttest.Caps&^0x3f|38) }, domain.ErrDevice},
		{"wide addresses", func(n *faulttest.Node) { n.Set64(device.PL, 8, faulttest.Caps&^0x3f|49) }, domain.ErrDevice},
		{"few banks", func(n *faulttest.Node) { n.Set64(device.PL, 8, faulttest.Caps&^(0x1f<<6)|8<<6) }, domain.ErrDevice},
		{"an SMMU of few banks", func(n *faulttest.Node) { n.Set(device.SMMU, 0x24, 8) }, domain.ErrDevice},
		{"gone", func(n *faulttest.Node) { n.Err = device.ErrGone }, device.ErrGone},
	}
	for _, tt := range tests {
		n := faulttest.New()
		tt.do(n)
		n.Record = true
		m, err := domain.NewManager(n, node, directory(t, 0, 0))
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Init(); !errors.Is(err, tt.want) {
			t.Errorf("%s: Init returned %v, want %v", tt.name, err, tt.want)
		}
		if w := writes(n); len(w) != 0 {
			t.Errorf("%s: Init wrote %v", tt.name, w)
		}
		if _, err := m.Create(domain.Request{}); !errors.Is(err, domain.ErrNotReady) {
			t.Errorf("%s: Create returned %v", tt.name, err)
		}
	}
	// A minor version is compatible.
	n := faulttest.New()
	n.Set(device.PL, 4, 1<<16|7)
	m, err := domain.NewManager(n, node, directory(t, 0, 0))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Init(); err != nil {
		t.Error(err)
	}
	if _, err := domain.NewManager(nil, node, directory(t, 0, 0)); err == nil {
		t.Error("a manager without a bus")
	}
	if _, err := domain.NewManager(n, 1<<22, directory(t, 0, 0)); !errors.Is(err, domain.ErrDevice) {
		t.Errorf("a node id of 23 bits returned %v", err)
	}
}

func TestGroupsOverNodes(t *testing.T) {
	dir := directory(t, 0, 0)
	n0, m0 := manager(t, 0, dir)
	_, m1 := manager(t, 1, dir)
	a0 := create(t, m0, domain.Request{UID: 1, Group: "g", AcceptGroup: true})
	b0 := create(t, m0, domain.Request{UID: 1, Group: "g", AcceptGroup: true})
	a1 := create(t, m1, domain.Request{UID: 1, Group: "g", AcceptGroup: true})
	if a0.PDID != a1.PDID || a0.PDID == b0.PDID || a0.Member != 0 || b0.Member != 1 {
		t.Errorf("members %+v, %+v, %+v: want one PDID per member index", a0, b0, a1)
	}
	if !slices.Contains(a1.Peers, b0.PDID) || slices.Contains(a1.Peers, a1.PDID) || len(a1.Peers) != 7 {
		t.Errorf("peers %v of %d: want the group's seven others", a1.Peers, a1.PDID)
	}
	// Another user's group of the same name, and another name, are different groups.
	for _, q := range []domain.Request{{UID: 2, Group: "g"}, {UID: 1, Group: "h"}, {UID: 1}} {
		d := create(t, m1, q)
		if d.PDID == a0.PDID || d.PDID == b0.PDID || slices.Contains(a0.Peers, d.PDID) {
			t.Errorf("%+v got PDID %d of another group", q, d.PDID)
		}
	}
	// Without AcceptGroup only the equal PDID passes.
	if c := create(t, m0, domain.Request{UID: 1, Group: "g"}); len(c.Peers) != 0 {
		t.Errorf("peers %v, want none", c.Peers)
	}
	// A new member takes the index, and so the PDID, of a former one, but not while that drains.
	n0.InFlight[0] = 1
	if err := m0.Destroy(0, nil); err != nil {
		t.Fatal(err)
	}
	if d := create(t, m0, domain.Request{UID: 1, Group: "g"}); d.Member != 3 {
		t.Errorf("member %d while 0 drains, want 3", d.Member)
	}
	n0.InFlight[0] = 0
	n0.Tick()
	if d := create(t, m0, domain.Request{UID: 1, Group: "g"}); d.Member != 0 || d.PDID != a0.PDID || d.Slot != 0 {
		t.Errorf("member %d, PDID %d, slot %d; want those that went", d.Member, d.PDID, d.Slot)
	}
}

func TestLimits(t *testing.T) {
	dir := directory(t, 1, 24) // three groups
	_, m := manager(t, 0, dir)
	_, other := manager(t, 1, dir)
	for i := range 8 {
		create(t, m, domain.Request{UID: 1, Group: "g", PID: i})
	}
	var le *domain.LimitError
	refused := func(q domain.Request, want error, used int) {
		t.Helper()
		_, err := m.Create(q)
		if !errors.Is(err, want) || !errors.As(err, &le) || le.Used != used || !strings.Contains(err.Error(), ";") {
			t.Errorf("Create(%+v) returned %v, want %v with %d used and what to do", q, err, want, used)
		}
	}
	refused(domain.Request{UID: 1, Group: "g"}, domain.ErrQuota, 8)
	refused(domain.Request{UID: 1, Group: "h"}, domain.ErrQuota, 8)
	// The quota applies per node.
	create(t, other, domain.Request{UID: 1, Group: "g"})
	for i := range 4 {
		create(t, m, domain.Request{UID: 2, Group: "g", PID: i})
		create(t, m, domain.Request{UID: 3, Group: "g", PID: i})
	}
	refused(domain.Request{UID: 4}, domain.ErrNoSlot, 16)
	if err := m.Destroy(15, nil); err != nil {
		t.Fatal(err)
	}
	refused(domain.Request{UID: 4}, domain.ErrNoPDID, 3)
	if d := create(t, m, domain.Request{UID: 3, Group: "g"}); d.Slot != 15 {
		t.Errorf("slot %d, want 15", d.Slot)
	}
	seen := map[device.PDID]bool{}
	for _, d := range m.Domains() {
		if seen[d.PDID] || d.PDID == 0 {
			t.Errorf("PDID %d twice or zero on one node", d.PDID)
		}
		seen[d.PDID] = true
	}
}

func TestPeers(t *testing.T) {
	_, m := manager(t, 0, directory(t, 1, 100))
	accept := func(n int) []device.PDID {
		var out []device.PDID
		for i := range n {
			out = append(out, device.PDID(200+i))
		}
		return out
	}
	var pe *domain.PeersError
	for _, q := range []domain.Request{
		{UID: 1, Accept: accept(17)},
		{UID: 1, Accept: accept(10), AcceptGroup: true},
	} {
		if _, err := m.Create(q); !errors.Is(err, domain.ErrPeers) || !errors.As(err, &pe) {
			t.Errorf("%d accepted returned %v", len(q.Accept), err)
		}
	}
	if _, err := m.Create(domain.Request{Accept: []device.PDID{0xffff}}); !errors.Is(err, domain.ErrPDID) {
		t.Errorf("accepting pfds' PDID: %v", err)
	}
	if _, err := m.Create(domain.Request{Accept: []device.PDID{0}}); !errors.Is(err, domain.ErrPDID) {
		t.Errorf("accepting PDID 0 returned %v", err)
	}
	if len(m.Domains()) != 0 {
		t.Errorf("a refused request left %+v", m.Domains())
	}
	d := create(t, m, domain.Request{UID: 1, Accept: accept(9), AcceptGroup: true})
	if len(d.Peers) != 16 {
		t.Errorf("%d peers, want 16", len(d.Peers))
	}
	if err := m.Grant(0, 500); !errors.Is(err, domain.ErrPeers) {
		t.Errorf("a seventeenth peer returned %v", err)
	}
	if err := m.Grant(0, 200); err != nil {
		t.Errorf("granting again returned %v", err)
	}
}

func TestGrant(t *testing.T) {
	n, m := manager(t, 0, directory(t, 1, 100))
	d := create(t, m, domain.Request{UID: 1, Accept: []device.PDID{0x51, 0x52, 0x53}})
	n.Record = true
	for _, p := range []device.PDID{0x54, 0x55, 0x54, d.PDID} {
		if err := m.Grant(0, p); err != nil {
			t.Fatal(err)
		}
	}
	wantWrites(t, writes(n), "w64 pl+0x3400 0x54005300520051", "w64 pl+0x3408 0x55")
	if got, _ := m.Domain(0); !slices.Equal(got.Peers, []device.PDID{0x51, 0x52, 0x53, 0x54, 0x55}) {
		t.Errorf("peers %v", got.Peers)
	}
	if len(d.Peers) != 3 {
		t.Error("a Domain handed out changes")
	}
	if err := m.Grant(0, 0xffff); !errors.Is(err, domain.ErrPDID) {
		t.Errorf("granting to pfds' PDID: %v", err)
	}
	if err := m.Grant(0, 0); !errors.Is(err, domain.ErrPDID) {
		t.Errorf("Grant of PDID 0 returned %v", err)
	}
	for _, s := range []int{-1, 1, 16} {
		if err := m.Grant(s, 5); !errors.Is(err, domain.ErrNoDomain) {
			t.Errorf("Grant to slot %d returned %v", s, err)
		}
	}
}

// A PDID that a domain admits by name must not be assigned to another group.
func TestPDIDsThatAreNamedAreNotReused(t *testing.T) {
	_, m := manager(t, 0, directory(t, 1, 24))
	a := create(t, m, domain.Request{UID: 1, Group: "a"})
	b := create(t, m, domain.Request{UID: 2, Group: "b", Accept: []device.PDID{a.PDID}})
	if err := m.Destroy(a.Slot, nil); err != nil {
		t.Fatal(err)
	}
	// 17 to 24 are free, and 1 to 8 except the one that b admits.
	create(t, m, domain.Request{UID: 3, Group: "c"})
	if d, err := m.Create(domain.Request{UID: 4, Group: "d"}); !errors.Is(err, domain.ErrNoPDID) {
		t.Errorf("got %+v, %v; want no PDIDs: b admits %d", d, err, a.PDID)
	}
	if err := m.Destroy(b.Slot, nil); err != nil {
		t.Fatal(err)
	}
	create(t, m, domain.Request{UID: 4, Group: "d"})
}

func TestGroupNames(t *testing.T) {
	_, m := manager(t, 0, directory(t, 0, 0))
	for _, name := range []string{strings.Repeat("x", 64), "a\nb", "a b", "\xff", "Größe"} {
		if _, err := m.Create(domain.Request{Group: name}); !errors.Is(err, domain.ErrGroupName) {
			t.Errorf("group %q returned %v", name, err)
		}
	}
	for _, name := range []string{"", "a.b", strings.Repeat("x", 63)} {
		create(t, m, domain.Request{Group: name})
	}
}

func TestRanges(t *testing.T) {
	for _, r := range [][2]device.PDID{{0, 5}, {6, 5}} {
		if _, err := domain.NewDirectory(domain.DirectoryConfig{First: r[0], Last: r[1]}); !errors.Is(err, domain.ErrRange) {
			t.Errorf("range %v returned %v", r, err)
		}
	}
	for _, r := range [][2]device.PDID{{0, 0}, {1, 1}, {0xff00, 0xfffe}} {
		d := directory(t, r[0], r[1])
		first, last := d.Range()
		if r[0] == 0 {
			r = [2]device.PDID{1, 0xfffe}
		}
		if first != r[0] || last != r[1] {
			t.Errorf("range %d to %d, want %v", first, last, r)
		}
	}
	// Seven PDIDs are too few; eight make one group, repeatedly.
	_, m := manager(t, 0, directory(t, 0xfff8, 0xfffe))
	if _, err := m.Create(domain.Request{}); !errors.Is(err, domain.ErrNoPDID) {
		t.Errorf("seven PDIDs: %v", err)
	}
	_, m = manager(t, 0, directory(t, 0xfff7, 0xfffe))
	for range 5 {
		d := create(t, m, domain.Request{})
		if err := m.Destroy(d.Slot, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// The device disappears at each access of a set-up: nothing is assigned, and a teardown then ends
// at once.
func TestGoneInBetween(t *testing.T) {
	for at := 0; ; at++ {
		n, m := manager(t, 0, directory(t, 1, 8))
		count := 0
		n.OnAccess = func(faulttest.Access) {
			if count++; count > at {
				n.Err = device.ErrGone
			}
		}
		_, err := m.Create(domain.Request{Group: "g"})
		if err == nil {
			break
		}
		if !errors.Is(err, device.ErrGone) || len(m.Domains()) != 0 {
			t.Fatalf("gone after %d accesses: %v, %+v", at, err, m.Domains())
		}
		n.OnAccess, n.Err = nil, nil
		if d := create(t, m, domain.Request{Group: "h"}); d.Slot != 0 || d.Member != 0 {
			t.Fatalf("after an attempt that failed: %+v", d)
		}
		n.Err = device.ErrGone
		if err := m.Grant(0, 99); !errors.Is(err, device.ErrGone) {
			t.Errorf("Grant returned %v", err)
		}
		ended := false
		if err := m.Destroy(0, func() { ended = true }); err != nil || !ended || len(m.Domains()) != 0 {
			t.Errorf("teardown without a device: %v, ended %v", err, ended)
		}
	}
}

// Each domain has its own generation, even the next one of a slot and PDID; none is 0, and pfds
// start with different ones.
func TestGenerations(t *testing.T) {
	dir, err := domain.NewDirectory(domain.DirectoryConfig{Generation: 1<<32 - 2})
	if err != nil {
		t.Fatal(err)
	}
	_, m := manager(t, node, dir)
	var got []device.Generation
	for range 4 {
		d := create(t, m, domain.Request{UID: 1})
		if d.Slot != 0 || len(got) > 0 && d.PDID == 0 {
			t.Errorf("%+v", d)
		}
		got = append(got, d.Generation)
		if err := m.Destroy(d.Slot, nil); err != nil {
			t.Fatal(err)
		}
	}
	if want := []device.Generation{1<<32 - 2, 1<<32 - 1, 1, 2}; !slices.Equal(got, want) {
		t.Errorf("generations %#x, want %#x", got, want)
	}
	first := map[device.Generation]bool{}
	for range 8 {
		dir, err := domain.NewDirectory(domain.DirectoryConfig{})
		if err != nil {
			t.Fatal(err)
		}
		_, m := manager(t, node, dir)
		first[create(t, m, domain.Request{UID: 1}).Generation] = true
	}
	if len(first) < 7 {
		t.Errorf("8 directories begin at %d generations", len(first))
	}
}

// Writes may be posted, and a doorbell of the domain or a packet for it may overtake them: the
// registers that admit either are read back before the domain is announced.
func TestWritesHaveArrived(t *testing.T) {
	n, m := manager(t, node, directory(t, 2, 100))
	last := func(what string, offset uint32) {
		t.Helper()
		if a := n.Log[len(n.Log)-1]; a.Write || a.Window != device.PL || a.Offset != offset {
			t.Errorf("%s ends with %+v, want a read of pl+%#x", what, a, offset)
		}
	}
	n.Record = true
	d := create(t, m, domain.Request{UID: 1, Group: "a"})
	last("Create", device.PLPDCfg+8*uint32(d.Slot))
	if err := m.Grant(d.Slot, 0x50); err != nil {
		t.Fatal(err)
	}
	last("Grant", device.PLPDPeers+32*uint32(d.Slot))
}
