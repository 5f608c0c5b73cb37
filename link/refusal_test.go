package link

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/exanet/pfd/device"
)

// A table that contradicts itself or this pfd is refused, with the values of both sides.
func TestTablesThatAreRefused(t *testing.T) {
	r := newRig(t, 2, true)
	other := newAuthority(t)
	for name, c := range map[string]struct {
		change func(*Table)
		want   []string
	}{
		"this host":         {func(t *Table) { t.Self = "z" }, []string{`"z"`}},
		"nodes":             {func(t *Table) { t.Hosts[0].Nodes.Last = 0 }, []string{"nodes 0 ", "nodes 0-1", "--node-base"}},
		"pdids":             {func(t *Table) { t.Hosts[0].PDIDs[1] = 0x1f0 }, []string{"0x100-0x1f0", "0x100-0x1ff", "--pdid-range"}},
		"overlapping nodes": {func(t *Table) { t.Hosts[1].Nodes.First = 1 }, []string{"a and b", "0-1 and 1-3"}},
		"overlapping pdids": {func(t *Table) { t.Hosts[1].PDIDs[0] = 0x1ff }, []string{"0x100-0x1ff and 0x1ff-0x2ff"}},
		"names":             {func(t *Table) { t.Hosts[1].Name = "a" }, []string{"host a is there twice"}},
		"node id":           {func(t *Table) { t.Hosts[1].Nodes.Last = 1 << 22 }, []string{"65534"}},
		"no certificate":    {func(t *Table) { t.Credentials = nil }, []string{"no certificate"}},
		"key":               {func(t *Table) { t.Credentials.Key = r.ca.issue(9, "exanet://test/node/0-1", time.Hour).Key }, []string{"host a", "private key does not match"}},
		"authority":         {func(t *Table) { t.Credentials.CA = []byte("no") }, []string{"authority"}},
		"other authority":   {func(t *Table) { t.Credentials.CA = other.pem }, []string{"64", "unknown authority"}},
		"other nodes":       {func(t *Table) { t.Credentials = r.ca.issue(9, "exanet://test/node/1-2", time.Hour) }, []string{"exanet://test/node/1-2", "does not cover nodes 0-1"}},
		"other cluster":     {func(t *Table) { t.Cluster = "prod" }, []string{"exanet://test/node/0-1", "cluster prod"}},
		"expired":           {func(t *Table) { t.Credentials = r.ca.issue(9, "exanet://test/node/0-1", -time.Minute) }, []string{"expired"}},
		"revoked":           {func(t *Table) { t.Revoked = []string{"00:64"} }, []string{"64", "revoked"}},
	} {
		l := New(Config{Identity: Identity{Nodes: r.table[0].Nodes, PDIDs: r.table[0].PDIDs}})
		table := r.tableOf(0)
		if err := l.SetTable(table); err != nil {
			t.Fatal(err)
		}
		c.change(&table)
		err := l.SetTable(table)
		if !errors.Is(err, ErrTable) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %q is not in: %v", name, w, err)
			}
		}
		if !l.Reaches(2) || l.Reaches(0) || l.Reaches(4) {
			t.Errorf("%s: the former table is not in use", name)
		}
	}
}

// Two hosts that do not agree refuse each other, and the values of both are known on both sides.
func TestHostsThatRefuseEachOther(t *testing.T) {
	stranger := newAuthority(t)
	for name, c := range map[string]struct {
		b      func(*Table, *Config)
		dialer []string // in the last error of host a, which dials
		accept []string // in the log of host b
	}{
		"cluster": {func(t *Table, _ *Config) { t.Cluster = "prod" }, []string{`"prod"`, `"test"`}, []string{`"prod"`, `"test"`}},
		"nodes":   {func(t *Table, _ *Config) { t.Hosts[0].Nodes = Range{0, 0} }, []string{"0-1", "expects 0:"}, []string{"0-1", "expects 0:"}},
		"pdids":   {func(t *Table, _ *Config) { t.Hosts[0].PDIDs[1] = 0x1fe }, []string{"0x100-0x1ff", "0x100-0x1fe"}, []string{"0x100-0x1ff", "0x100-0x1fe"}},
		"groups":  {func(_ *Table, c *Config) { c.Identity.Groups[0] = 0xab }, []string{"none", `"ab00`, "--groups"}, []string{"none", `"ab00`}},
		"name":    {func(t *Table, _ *Config) { t.Hosts[0].Name = "x" }, []string{"host a", "0-1", "table of host b"}, []string{"host a", "table of host b"}},
		"authority": {func(t *Table, _ *Config) {
			t.Credentials = stranger.issue(7, "exanet://test/node/2-3", time.Hour)
		}, []string{"certificate 7", "unknown authority"}, []string{"remote error", "certificate"}},
		"revoked": {func(t *Table, _ *Config) { t.Revoked = []string{"64"} }, []string{"certificate 64", "host a", "revoked"}, []string{"certificate 64", "revoked"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 2, name != "cluster")
			log := &textLog{}
			a := r.start(0, r.tableOf(0), nil)
			table := r.tableOf(1)
			var own Config
			c.b(&table, &own)
			b := r.start(1, table, func(cfg *Config) {
				cfg.Log = log.logger()
				cfg.Identity.Groups = own.Identity.Groups
			})
			i := a.awaitInfo(t, "b", "error", func(i Info) bool { return contains(i.LastError, c.dialer) })
			if i.State != Connecting && i.State != Unreachable || i.Connects != 0 {
				t.Errorf("%+v", i)
			}
			log.await(t, c.accept)
			for _, i := range b.Info() {
				if i.Connects != 0 {
					t.Errorf("%+v", i)
				}
			}
		})
	}
}

// Where one side speaks TLS and the other does not, or has no table, both say so, with the remedy.
func TestOneSideSpeaksTLS(t *testing.T) {
	for name, c := range map[string]struct {
		plain  int // host a dials
		table  bool
		dialer []string // in the last error of host a
		accept []string // in the log of host b
	}{
		"plain dialer":   {0, true, []string{"waiting for HELLO", `tls = "on"`, "exanetctl host"}, []string{"does not speak TLS", "host b has", "same hosts.toml"}},
		"plain acceptor": {1, true, []string{"TLS: ", "exanetctl host"}, []string{"speaks TLS", "host b has", "off", "same hosts.toml"}},
		"no table":       {1, false, []string{"TLS: ", "exanetctl host"}, []string{"speaks TLS", "no list of hosts", "exanetctl host"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 2, true)
			log := &textLog{}
			tables := [2]Table{r.tableOf(0), r.tableOf(1)}
			if tables[c.plain].TLS = false; !c.table {
				tables[c.plain] = Table{}
			}
			a := r.start(0, tables[0], nil)
			r.start(1, tables[1], func(cfg *Config) { cfg.Log = log.logger() })
			a.awaitInfo(t, "b", "error", func(i Info) bool { return contains(i.LastError, c.dialer) })
			log.await(t, c.accept)
		})
	}
}

func contains(s string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(s, w) {
			return false
		}
	}
	return true
}

// Certificates end links: a revoked one, and one whose time is past. A new one brings the link back.
func TestCertificatesEndLinks(t *testing.T) {
	cabled(t, func(r *rig, _ *cable, a, b *host) {
		table := r.tableOf(0)
		table.Revoked = []string{"65"}
		if err := a.SetTable(table); err != nil {
			t.Fatal(err)
		}
		a.awaitReady(t, false)
		b.awaitReady(t, false)
		a.awaitInfo(t, "b", "error", func(i Info) bool { return contains(i.LastError, []string{"certificate 65", "revoked"}) })
		own := r.tableOf(1)
		own.Credentials = r.ca.issue(0x77, "exanet://test/node/2-3", 20*time.Second)
		if err := b.SetTable(own); err != nil {
			t.Fatal(err)
		}
		a.awaitReady(t, true)
		a.awaitInfo(t, "b", "error", func(i Info) bool { return contains(i.LastError, []string{"certificate 77", "expired"}) })
		a.awaitReady(t, false)
	})
}

// A trusted host that claims another's nodes by its name, its HELLO or its frames is refused, and
// the other's link goes on.
func TestImpostor(t *testing.T) {
	r := newRig(t, 3, true)
	a, _ := r.two()
	// The impostor is host c: it has a good certificate for its own nodes, 4-5.
	before := a.Info()[0].LastError
	mallory := r.tableOf(2).Credentials
	for _, h := range []hello{
		{Host: "b", Nodes: [2]device.NodeID{2, 3}, PDIDs: r.table[1].PDIDs},
		{Host: "b", Nodes: [2]device.NodeID{4, 5}, PDIDs: r.table[1].PDIDs},
		{Host: "c", Nodes: [2]device.NodeID{2, 3}, PDIDs: r.table[2].PDIDs},
		{Host: "c", Nodes: [2]device.NodeID{5, 4}, PDIDs: r.table[2].PDIDs},
		{Host: "a", Nodes: [2]device.NodeID{0, 1}, PDIDs: r.table[0].PDIDs},
	} {
		h.Version, h.Cluster, h.Link = version, "test", number16(1)
		c := r.raw(a, "", mallory)
		err := c.record(recordHello, encodeHello(&h))
		if err == nil {
			_, err = readRecord(c.stream, recordHello)
		}
		var refused *refusedError
		if !errors.As(err, &refused) {
			t.Errorf("%+v: %v", h, err)
		}
		c.close()
	}
	if i := a.Info()[0]; i.State != Up || i.Connects != 1 || i.LastError != before {
		t.Errorf("%+v", i)
	}
}

// raw makes a connection to h of a peer that the test plays, up to TLS. dialed is "" if the
// test dials.
func (r *rig) raw(h *host, dialed string, own *Credentials) *conn {
	r.t.Helper()
	mine, theirs := r.pair()
	h.Take(theirs, dialed)
	c := &conn{raw: mine, stream: mine, peer: &peer{}}
	if own == nil {
		return c
	}
	k, err := newKeys(&Table{Cluster: "test", Credentials: own}, Host{Name: "test"})
	if err != nil {
		r.t.Fatal(err)
	}
	var p *peer
	if dialed == "" {
		p = &peer{}
	}
	if err := c.secure(h.ctx, &view{keys: k}, p); err != nil {
		r.t.Fatal(err)
	}
	return c
}

// link makes both connections of a link to h by a test that plays host i, which dials.
func (r *rig) link(h *host, i int, number uint64) (conns [classes]*conn) {
	r.t.Helper()
	var own *Credentials
	if r.ca != nil {
		own = r.ca.issue(int64(200+i), fmt.Sprintf("exanet://test/node/%v", r.table[i].Nodes), time.Hour)
	}
	for class := range conns {
		c := r.raw(h, "", own)
		e := r.table[i]
		err := c.record(recordHello, encodeHello(&hello{
			Version: version, Cluster: "test", Host: e.Name, Nodes: [2]device.NodeID{e.Nodes.First, e.Nodes.Last},
			PDIDs: e.PDIDs, Class: class, Link: number16(number),
		}))
		if err == nil {
			_, err = readRecord(c.stream, recordHello)
		}
		if err == nil {
			err = c.record(recordReady, nil)
		}
		if err != nil {
			r.t.Fatal(err)
		}
		conns[class] = c
		r.t.Cleanup(c.close)
	}
	return conns
}

// Peers that speak another version, or none, learn it, and this host's log has it.
func TestOtherVersion(t *testing.T) {
	r := newRig(t, 2, false)
	log := &textLog{}
	table := r.tableOf(1)
	b := r.start(1, table, func(c *Config) { c.Log = log.logger() })
	for _, v := range []string{"7", "1"} { // 1 had no idle links
		c := r.raw(b, "", nil)
		defer c.close()
		if err := c.record(recordHello, []byte(`{"version":`+v+`,"host":"a","future":[1,2]}`)); err != nil {
			t.Fatal(err)
		}
		_, err := readRecord(c.stream, recordHello)
		want := []string{"host a has " + v, "host b expects 2", "install the same version"}
		if err == nil || !contains(err.Error(), want) {
			t.Errorf("the other side learns %v", err)
		}
		if v == "7" { // later strangers are not warned of at once
			log.await(t, want)
		}
	}
}

// A connection that says nothing, or garbage, is closed, however many there are; a link that is up
// goes on, and a host that connects meanwhile gets its link.
func TestStrangers(t *testing.T) {
	r := newRig(t, 3, true)
	a, b := r.two()
	before := memory()
	var silent []net.Conn
	for i := range 2000 {
		c, theirs := net.Pipe()
		a.Take(theirs, "")
		if i%3 == 0 {
			go func() { _, _ = c.Write([]byte("GET / HTTP/1.1\r\n\r\n" + strings.Repeat("x", i))) }()
		}
		silent = append(silent, c)
	}
	waiting := func() int {
		a.Links.mu.Lock()
		defer a.Links.mu.Unlock()
		return len(a.pending)
	}
	if n := waiting(); n > maxPending+classes { // and a link that is dialed
		t.Errorf("%d connections wait", n)
	}
	// The goroutines of those that were closed end soon. Each that waits has some 60 KiB.
	for end := time.Now().Add(60 * time.Second); int64(memory())-int64(before) > 12<<20; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("memory has grown by %d KiB", (memory()-before)>>10)
		}
	}
	c := r.start(2, r.tableOf(2), nil)
	c.awaitReady(t, true)
	c.awaitReady(t, true)
	a.Send(block(0, 2, 300, 1))
	b.await(t, "frame", func(g got) bool { return g.frame != nil })
	for _, c := range silent {
		_ = c.Close()
	}
	if i := a.Info()[0]; i.Connects != 1 {
		t.Errorf("%+v", i)
	}
}

// Strangers do not have a connection closed whose certificate is verified. A host has few of those.
func TestStrangersBesideHosts(t *testing.T) {
	r := newRig(t, 2, true)
	b := r.start(1, r.tableOf(1), nil)
	own := r.ca.issue(7, "exanet://test/node/0-1", time.Hour)
	verified := func() int {
		b.Links.mu.Lock()
		defer b.Links.mu.Unlock()
		n := 0
		for _, p := range b.pending {
			if p.serial == "7" {
				n++
			}
		}
		return n
	}
	var conns []*conn
	for n := range maxVerified {
		conns = append(conns, r.raw(b, "", own))
		for verified() <= n {
			time.Sleep(time.Millisecond)
		}
	}
	for range 3 * maxPending {
		c, theirs := net.Pipe()
		b.Take(theirs, "")
		t.Cleanup(func() { _ = c.Close() })
	}
	if n := verified(); n != maxVerified {
		t.Errorf("%d verified connections, want %d", n, maxVerified)
	}
	defer r.raw(b, "", own).close()
	if _, err := conns[0].stream.Read(make([]byte, 1)); err == nil {
		t.Error("the oldest of too many connections says something")
	}
	if n := verified(); n != maxVerified {
		t.Errorf("%d verified connections, want %d", n, maxVerified)
	}
	for _, c := range conns {
		c.close()
	}
}
