package domain_test

import (
	"errors"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/domain"
)

// TestGivenGroups has two directories with ranges apart and one list of groups:
// the listed group meets, the others do not.
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
			for range 2 { // a given group keeps its PDIDs over its last member's end
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
		"past the last PDID":  {[]domain.Group{{Name: "a", First: 0xfff9}}, domain.ErrRange},
		"twice":               {[]domain.Group{{Name: "a", First: 200}, {Name: "a", First: 300}}, domain.ErrRange},
		"two with one PDID":   {[]domain.Group{{Name: "a", First: 200}, {Name: "b", First: 207}}, domain.ErrRange},
		"name with a newline": {[]domain.Group{{Name: "a\n", First: 200}}, domain.ErrGroupName},
	} {
		if _, err := domain.NewDirectory(domain.DirectoryConfig{First: 100, Last: 199, Groups: tt.groups}); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
}

// TestTell: the message goes out by packetizer 15, which is enabled for it alone.
func TestTell(t *testing.T) {
	n, m := manager(t, 3, directory(t, 1, 100))
	if err := m.Tell(5, device.MailboxDriver, 7, 8); err != nil {
		t.Fatal(err)
	}
	if len(n.Sent) == 0 {
		t.Fatal("nothing was sent")
	}
	if last := n.Sent[len(n.Sent)-1]; last.Interface != 15 || last.Node != 5 || last.Mailbox != device.MailboxDriver {
		t.Errorf("%+v", last)
	}
}
