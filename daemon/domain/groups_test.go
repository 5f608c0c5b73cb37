package domain_test

import (
	"errors"
	"testing"

	"github.com/exanet/pfd/daemon/domain"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
)

// TestGivenGroups has two directories with separate ranges and one list of groups: the listed
// group has the same PDIDs in both, other groups do not.
func TestGivenGroups(t *testing.T) {
	groups := []domain.Group{{UID: 1000, Name: "app", First: 0x4000}}
	var ids [2][2]device.PDID
	for i, r := range [][2]device.PDID{{1, 100}, {101, 200}} {
		dir, err := domain.NewDirectory(domain.DirectoryConfig{First: r[0], Last: r[1], Groups: groups})
		if err != nil {
			t.Fatal(err)
		}
		_, m := manager(t, device.NodeID(i), dir)
		for k, name := range []string{"app", "other"} {
			for range 2 { // a fixed group keeps its PDIDs after its last member's end
				d := create(t, m, domain.Request{UID: 1000, Group: name})
				ids[i][k] = d.PDID
				if err := m.Destroy(d.Slot, nil); err != nil {
					t.Fatal(err)
				}
			}
		}
		if d := create(t, m, domain.Request{UID: 1001, Group: "app"}); d.PDID >= 0x4000 {
			t.Errorf("another user's group has PDID %d of the list", d.PDID)
		}
	}
	if ids[0][0] != 0x4000 || ids[1][0] != 0x4000 {
		t.Errorf("the listed group has PDIDs %#x and %#x", ids[0][0], ids[1][0])
	}
	if ids[0][1] == ids[1][1] || ids[0][1] > 100 || ids[1][1] < 101 {
		t.Errorf("the group that is not listed has PDIDs %d and %d", ids[0][1], ids[1][1])
	}
}

func TestGivenGroupsRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		groups []domain.Group
		want   error
	}{
		"within the range":    {[]domain.Group{{Name: "a", First: 93}}, domain.ErrRange},
		"PDID 0":              {[]domain.Group{{Name: "a", First: 0}}, domain.ErrRange},
		"past the last PDID":  {[]domain.Group{{Name: "a", First: 0xfff8}}, domain.ErrRange},
		"twice":               {[]domain.Group{{Name: "a", First: 200}, {Name: "a", First: 300}}, domain.ErrRange},
		"two with one PDID":   {[]domain.Group{{Name: "a", First: 200}, {Name: "b", First: 207}}, domain.ErrRange},
		"name with a newline": {[]domain.Group{{Name: "a\n", First: 200}}, domain.ErrGroupName},
	} {
		if _, err := domain.NewDirectory(domain.DirectoryConfig{First: 100, Last: 199, Groups: tt.groups, GroupSize: 8}); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
}

// TestTell: the message is sent by packetizer 15 with the PDID of pfds, which no domain has,
// whether slot 15 is in use or not; afterwards the packetizer is restored.
func TestTell(t *testing.T) {
	const cfg15 = 0x2000 + 8*15
	n, m := manager(t, 3, directory(t, 1, 0x1000))
	for range 2 {
		n.Sent = nil
		before := n.Get64(device.PL, cfg15)
		if err := m.Tell(5, device.MailboxDriver, 7, 8); err != nil {
			t.Fatal(err)
		}
		if len(n.Sent) == 0 {
			t.Fatal("nothing was sent")
		}
		last := n.Sent[len(n.Sent)-1]
		if last.Interface != 15 || last.Node != 5 || last.Mailbox != device.MailboxDriver || last.PDID != 0xffff {
			t.Errorf("%+v", last)
		}
		if after := n.Get64(device.PL, cfg15); after != before {
			t.Errorf("PKTZ_CFG[15] is %#x, and was %#x", after, before)
		}
		for uid := range uint32(16) {
			if _, err := m.Create(domain.Request{UID: uid}); err != nil && !errors.Is(err, domain.ErrNoSlot) {
				t.Fatal(err)
			}
		}
	}
	for src, want := range map[mailbox.Source]bool{
		{Node: 5, Interface: 15, PDID: 0xffff}: true,
		{Node: 5, Interface: 0, PDID: 0}:       false, // an R5
		{Node: 5, Interface: 15, PDID: 0}:      false,
		{Node: 5, Interface: 15, PDID: 7}:      false, // slot 15's RAPF
		{Node: 5, Interface: 31, PDID: 7}:      false, // a process
		{Node: 5, Interface: 31, PDID: 0xffff}: false,
	} {
		if got := domain.Told(src); got != want {
			t.Errorf("%+v: from a pfd: %v, want %v", src, got, want)
		}
	}
}

// No domain has the PDID of pfds.
func TestPDIDOfPfds(t *testing.T) {
	if _, err := domain.NewDirectory(domain.DirectoryConfig{First: 0xff00, Last: 0xffff}); !errors.Is(err, domain.ErrRange) {
		t.Errorf("a range with it: %v", err)
	}
	dir, err := domain.NewDirectory(domain.DirectoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if first, last := dir.Range(); first != 1 || last != 0xfffe {
		t.Errorf("the default range is %#x to %#x", first, last)
	}
}

// By default a user has a process per slot, in one group, and each admits the fifteen others; one
// more PDID fits beside them.
func TestSixteenOfAGroup(t *testing.T) {
	dir, err := domain.NewDirectory(domain.DirectoryConfig{First: 1, Last: 31})
	if err != nil {
		t.Fatal(err)
	}
	_, m := manager(t, 0, dir)
	_, other := manager(t, 1, dir)
	for i := range 16 {
		q := domain.Request{UID: 1, Group: "ranks", AcceptGroup: true}
		d, far := create(t, m, q), create(t, other, q)
		if d.Member != i || d.PDID != far.PDID || far.Member != i || len(d.Peers) != 15 {
			t.Errorf("process %d: member %d with PDID %d and %d peers, on the other node %d with %d", i, d.Member, d.PDID, len(d.Peers), far.Member, far.PDID)
		}
	}
	if _, err := m.Create(domain.Request{UID: 2}); !errors.Is(err, domain.ErrNoSlot) {
		t.Errorf("the seventeenth: %v", err)
	}
	if err := m.Grant(0, 99); err != nil {
		t.Errorf("one PDID beside the group's: %v", err)
	}
	if err := m.Grant(0, 98); !errors.Is(err, domain.ErrPeers) {
		t.Errorf("two PDIDs beside the group's: %v", err)
	}
}

func TestLimitsThatCannotBe(t *testing.T) {
	for _, c := range []domain.DirectoryConfig{{GroupSize: 17}, {GroupSize: -1}, {Quota: 17}, {Quota: -1}} {
		if _, err := domain.NewDirectory(c); !errors.Is(err, domain.ErrLimit) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	dir, err := domain.NewDirectory(domain.DirectoryConfig{GroupSize: 2, Quota: 3})
	if err != nil {
		t.Fatal(err)
	}
	_, m := manager(t, 0, dir)
	q := domain.Request{UID: 1, Group: "g"}
	create(t, m, q)
	create(t, m, q)
	if _, err := m.Create(q); !errors.Is(err, domain.ErrGroupFull) {
		t.Errorf("the third of a group of two: %v", err)
	}
	q.Group = "h"
	create(t, m, q)
	if _, err := m.Create(q); !errors.Is(err, domain.ErrQuota) {
		t.Errorf("the fourth of a user with three slots: %v", err)
	}
	dir.SetQuota(4)
	create(t, m, q)
}
