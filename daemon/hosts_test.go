package daemon

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/daemon/domain"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/link/handover"
)

// dialHosts connects as exanet-hostd does.
func dialHosts(t *testing.T, c *control.Client) *handover.Conn {
	t.Helper()
	conn, err := handover.Dial(control.HostsSocket(c.Socket()), func(uint32) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// receive returns the next message that is not about the state of a link.
func receive(conn *handover.Conn) (*handover.Message, error) {
	for {
		m, _, err := conn.Receive()
		if err != nil || m.State == nil {
			return m, err
		}
	}
}

// hostsUntil asks for the hosts until a condition is true.
func hostsUntil(ctx context.Context, t *testing.T, c *control.Client, what string, check func(*control.Hosts) bool) {
	t.Helper()
	for {
		r, err := c.Hosts(ctx)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if check(&r) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// linkHost sends a pfd, whose nodes are 0 and 1 and whose PDIDs are 1 to 0xff, a table with another host. There are
// metrics of links then.
func linkHost(ctx context.Context, t *testing.T, c *control.Client) {
	t.Helper()
	table := handover.Table{Cluster: "lab", Self: "a", Hosts: []handover.Host{
		{Name: "a", Address: "192.0.2.1:9480", Nodes: [2]device.NodeID{0, 1}, PDIDs: [2]device.PDID{1, 0xff}},
		{Name: "b", Address: "192.0.2.2:9480", Nodes: [2]device.NodeID{2, 3}, PDIDs: [2]device.PDID{0x100, 0x1ff}},
	}}
	if err := dialHosts(t, c).Send(&handover.Message{Table: &table}, nil); err != nil {
		t.Fatal(err)
	}
	hostsUntil(ctx, t, c, "the table is in effect", func(r *control.Hosts) bool { return len(r.Hosts) == 1 })
}

// A table in which a host has PDIDs of a group is refused: the group's frames would be dropped as forged. The
// error has both sides' values and the remedy.
func TestGroupOfAHost(t *testing.T) {
	file := filepath.Join(t.TempDir(), "groups")
	if err := os.WriteFile(file, []byte("1001 default 0x20\n7 lab 0x2f8\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, c, ctx := startEngine(t, func(cfg *Config) { cfg.FirstPDID, cfg.LastPDID, cfg.Groups = 0x100, 0x1ff, file })
	table := handover.Table{Cluster: "lab", Self: "a", Hosts: []handover.Host{
		{Name: "a", Address: "192.0.2.1:9480", Nodes: [2]device.NodeID{0, 1}, PDIDs: [2]device.PDID{0x100, 0x1ff}},
		{Name: "b", Address: "192.0.2.2:9480", Nodes: [2]device.NodeID{2, 3}, PDIDs: [2]device.PDID{0x300, 0x3ff}},
	}}
	conn := dialHosts(t, c)
	if err := conn.Send(&handover.Message{Table: &table}, nil); err != nil {
		t.Fatal(err)
	}
	m, err := receive(conn)
	if err != nil || m.Refused == nil {
		t.Fatalf("%+v, %v, want the table to be refused", m, err)
	}
	for _, want := range []string{"group lab of user 7", "0x2f8-0x307", file, "host b", "0x300-0x3ff", "restart"} {
		if !strings.Contains(m.Refused.Text, want) {
			t.Errorf("refused without %q: %s", want, m.Refused.Text)
		}
	}
	table.Hosts[1].PDIDs = [2]device.PDID{0x308, 0x3ff} // just beside it
	if err := conn.Send(&handover.Message{Table: &table}, nil); err != nil {
		t.Fatal(err)
	}
	hostsUntil(ctx, t, c, "the table is in effect", func(r *control.Hosts) bool { return r.Refused == "" && len(r.Hosts) == 1 })
}

// An exanet-hostd brings the table of hosts and is asked to dial. A newer one replaces it. A table that
// contradicts pfd's flags is refused with both sides' values, and the former one stays.
func TestHosts(t *testing.T) {
	_, c, ctx := startEngine(t, func(cfg *Config) { cfg.NodeBase, cfg.FirstPDID, cfg.LastPDID = 4, 0x100, 0x1ff })
	if r, err := c.Hosts(ctx); err != nil || r.Hostd || r.Cluster != "" || len(r.Hosts) != 0 {
		t.Errorf("without exanet-hostd: %+v, %v", r, err)
	}
	table := handover.Table{Cluster: "lab", Self: "a", Hosts: []handover.Host{
		{Name: "a", Address: "192.0.2.1:9480", Nodes: [2]device.NodeID{4, 5}, PDIDs: [2]device.PDID{0x100, 0x1ff}},
		{Name: "b", Address: "192.0.2.2:9480", Nodes: [2]device.NodeID{6, 9}, PDIDs: [2]device.PDID{0x200, 0x2ff}},
	}}
	first := dialHosts(t, c)
	if err := first.Send(&handover.Message{Table: &table}, nil); err != nil {
		t.Fatal(err)
	}
	if m, err := receive(first); err != nil || m.Want == nil || m.Want.Host != "b" {
		t.Fatalf("%+v, %v, want b to be dialed", m, err)
	}
	const why = "dial tcp: no route to host"
	if err := first.Send(&handover.Message{Failed: &handover.Failed{Host: "b", Text: why}}, nil); err != nil {
		t.Fatal(err)
	}
	hostsUntil(ctx, t, c, "the error is shown", func(r *control.Hosts) bool {
		return r.Hostd && r.Cluster == "lab" && r.Self == "a" && len(r.Hosts) == 1 && r.Hosts[0].Name == "b" &&
			r.Hosts[0].FirstNode == 6 && r.Hosts[0].LastNode == 9 && r.Hosts[0].Error == why &&
			(r.Hosts[0].State == control.HostConnecting || r.Hosts[0].State == control.HostUnreachable) // after 5 s
	})

	second := dialHosts(t, c)
	for {
		if _, err := receive(first); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	other := table
	other.Hosts = append([]handover.Host(nil), table.Hosts...)
	other.Hosts[0].Nodes[0] = 3
	if err := second.Send(&handover.Message{Table: &other}, nil); err != nil {
		t.Fatal(err)
	}
	for {
		m, err := receive(second)
		if err != nil {
			t.Fatal(err)
		}
		if m.Refused == nil {
			continue
		}
		if !strings.Contains(m.Refused.Text, "3-5") || !strings.Contains(m.Refused.Text, "4-5") {
			t.Errorf("refused without both sides' values: %q", m.Refused.Text)
		}
		break
	}
	hostsUntil(ctx, t, c, "the former table stays", func(r *control.Hosts) bool { return r.Refused != "" && len(r.Hosts) == 1 })
	metrics, err := c.Metrics(ctx)
	if err != nil || !strings.Contains(metrics, "exanet_hosts_refused 1\n") || !strings.Contains(metrics, `exanet_link_up{host="b"} 0`) {
		t.Errorf("metrics: %v\n%s", err, metrics)
	}
	if err := second.Send(&handover.Message{Table: &table}, nil); err != nil {
		t.Fatal(err)
	}
	hostsUntil(ctx, t, c, "the good table is in effect", func(r *control.Hosts) bool { return r.Refused == "" })

	if r, err := c.DrainHost(ctx, "b", true); err != nil || len(r.Hosts) != 1 {
		t.Errorf("drain: %+v, %v", r, err)
	}
	if _, err := c.CutHost(ctx, "b", time.Second); err != nil {
		t.Error(err)
	}
	var reply *control.ReplyError
	if _, err := c.CutHost(ctx, "a", time.Second); err == nil || !strings.Contains(err.Error(), "a is this host") {
		t.Errorf("cutting the link to this host: %v", err)
	}
	if _, err := c.CutHost(ctx, "c", time.Second); !errors.As(err, &reply) || reply.Code != control.CodeNotFound {
		t.Errorf("cutting a host that is not there: %v", err)
	}
	// A message that is not exanet-hostd's ends the connection, and nothing else.
	third := dialHosts(t, c)
	if err := third.Send(&handover.Message{Table: &table}, nil); err != nil {
		t.Fatal(err)
	}
	// One that is back learns the states.
	for {
		m, _, err := third.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if m.State != nil && m.State.Host == "b" {
			break
		}
	}
	if err := third.Send(&handover.Message{Want: &handover.Want{Host: "b"}}, nil); err == nil {
		for err == nil { // pfd may have asked for b once more before
			var m *handover.Message
			if m, err = receive(third); err == nil && m.Want == nil || ctx.Err() != nil {
				t.Fatalf("a message in the wrong direction does not end the connection: %+v, %v", m, err)
			}
		}
	}
	hostsUntil(ctx, t, c, "no exanet-hostd is connected", func(r *control.Hosts) bool { return !r.Hostd && r.Cluster == "lab" })
}

// The digest of the groups depends on what they are, and not on their order in the file.
func TestGroupsDigest(t *testing.T) {
	a, b := domain.Group{UID: 1, Name: "x", First: 16}, domain.Group{UID: 2, Name: "y", First: 32}
	sum := groupsDigest([]domain.Group{a, b}, 16)
	if sum != groupsDigest([]domain.Group{b, a}, 16) {
		t.Error("the order of the lines matters")
	}
	for name, other := range map[string][32]byte{
		"fewer": groupsDigest([]domain.Group{a}, 16), "smaller": groupsDigest([]domain.Group{a, b}, 8), "none": groupsDigest(nil, 16),
		"another": groupsDigest([]domain.Group{a, {UID: 2, Name: "y", First: 48}}, 16),
	} {
		if sum == other {
			t.Errorf("%s: the digest is the same", name)
		}
	}
	if groupsDigest(nil, 16) != [32]byte{} {
		t.Error("without groups the digest is not zero")
	}
}

// An error about a group names the file of groups, and one about the range of PDIDs does not.
func TestGroupsOfOwnRange(t *testing.T) {
	file := filepath.Join(t.TempDir(), "groups")
	if err := os.WriteFile(file, []byte("0 default 0x110\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for last, want := range map[device.PDID]string{0x1ff: "groups in " + file + `: bad PDID range: group "default" of uid 0 has PDIDs 0x110 to 0x11f`, 1: "bad PDID range: 256 to 1"} {
		c := Config{FirstPDID: 0x100, LastPDID: last, Groups: file}
		if err := c.CheckGroups(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), file) != (last == 0x1ff) {
			t.Errorf("up to PDID %#x: %v, want %s", last, err, want)
		}
	}
}
