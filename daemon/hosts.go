package daemon

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/daemon/domain"
	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/daemon/tree"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/link"
	"github.com/exanet/pfd/link/handover"
)

// hostdUser is the user of exanet-hostd.service. Defined by this project.
const hostdUser = "exanet-host"

// stateRoom is how many changes of links may wait for an exanet-hostd that reads slowly; later ones
// are dropped. Defined by this project.
const stateRoom = 256

// hosts connects pfd to exanet-hostd, which has the network: it receives the table of hosts and
// connected sockets for the links, and asks for connections. Links stay up while no exanet-hostd is
// connected. A link that has ended or is idle comes up again when one is.
type hosts struct {
	log     *slog.Logger
	links   *link.Links
	changes chan handover.State
	host    *session.Host // set before serve is called: without it there are no links
	users   []uint32      // of exanet-hostd, besides root and pfd's own user
	groups  sharedGroups

	tables sync.Mutex // one table after the other is put into effect

	mu      sync.Mutex
	conn    *handover.Conn // of the newest exanet-hostd; nil: none is connected
	cluster string         // of the table in effect, and the name of this host there
	self    string
	nodes   map[string]link.Range // of the other hosts of the table
	refused string                // why the last table was refused; "": it was not
	ends    expiry                // of the table in effect

	warned time.Time // of the last process that was refused; serve's
}

// newHosts returns the links of a pfd, and their connection to exanet-hostd.
func newHosts(cfg *Config, groups []domain.Group, log *slog.Logger) *hosts {
	h := &hosts{
		log: log, changes: make(chan handover.State, stateRoom), nodes: map[string]link.Range{},
		groups: sharedGroups{file: cfg.Groups, size: cfg.GroupSize, list: groups},
	}
	h.links = link.New(link.Config{Identity: cfg.identity(groups), Log: log, Changed: h.changed, Told: h.told, May: h.may})
	// Without that user, as where no package is installed, root or pfd's own user runs it.
	if u, err := user.Lookup(hostdUser); err == nil {
		if uid, err := strconv.ParseUint(u.Uid, 10, 32); err == nil {
			h.users = append(h.users, uint32(uid))
		}
	}
	return h
}

// trusted reports whether a user may be exanet-hostd.
func (h *hosts) trusted(uid uint32) bool {
	return uid == 0 || uid == uint32(os.Geteuid()) || slices.Contains(h.users, uid)
}

// changed reports a link that came up or ended to exanet-hostd.
func (h *hosts) changed(host string, state link.State) {
	h.mu.Lock()
	nodes := h.nodes[host]
	h.mu.Unlock()
	if state != link.Idle { // it takes messages about trees, and has lost none
		h.host.LinkChanged(tree.Host{Name: host, First: nodes.First, Last: nodes.Last}, state == link.Up)
	}
	h.report(host, state)
}

// report sends the state of a link to exanet-hostd.
func (h *hosts) report(host string, state link.State) {
	select {
	case h.changes <- handover.State{Host: host, State: string(state)}:
	default:
	}
}

// told handles a message of another host's pfd.
func (h *hosts) told(host string, message []byte) { h.host.Told(host, message) }

// may reports whether the threads of another host may use the pages of a tree.
func (h *hosts) may(host string, p atomics.Protection) bool { return h.host.May(host, p) }

// serve serves the connections of exanet-hostd until ctx ends.
func (h *hosts) serve(ctx context.Context, l *net.UnixListener) {
	defer context.AfterFunc(ctx, func() {
		_ = l.Close() // fails if it has been closed
		h.replace(nil)
	})()
	var workers sync.WaitGroup
	defer workers.Wait()
	workers.Go(func() { h.ask(ctx) })
	const most = time.Second
	for pause := time.Duration(0); ctx.Err() == nil; {
		c, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no descriptors or no memory: others will release some
			pause = min(max(2*pause, time.Millisecond), most)
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
			continue
		}
		pause = 0
		conn, err := handover.Accept(c, h.trusted)
		if err != nil {
			level := slog.LevelDebug // it may try again and again
			if now := time.Now(); now.Sub(h.warned) >= time.Second {
				h.warned, level = now, slog.LevelWarn
			}
			h.log.Log(ctx, level, "a process that may not be exanet-hostd is refused: run it as root, as the user of pfd, or as "+hostdUser, "err", err)
			continue
		}
		h.replace(conn)
		if ctx.Err() != nil { // the end may have come before replace
			_ = conn.Close()
		}
		workers.Go(func() { h.receive(ctx, conn) })
	}
}

// replace makes conn the connection to exanet-hostd, and ends the former one.
func (h *hosts) replace(conn *handover.Conn) {
	h.mu.Lock()
	former := h.conn
	h.conn = conn
	h.mu.Unlock()
	if former != nil {
		_ = former.Close() // fails if it has ended
	}
}

// current returns the connection to exanet-hostd, or nil.
func (h *hosts) current() *handover.Conn {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.conn
}

// ask passes what the links want, and their states, to exanet-hostd. Without it they are dropped, and the error
// of the link says so: the links want again after a pause, and at each table.
func (h *hosts) ask(ctx context.Context) {
	hourly := time.NewTicker(time.Hour)
	defer hourly.Stop()
	for {
		var m handover.Message
		select {
		case <-ctx.Done():
			return
		case now := <-hourly.C:
			h.warn(now)
			continue
		case w := <-h.links.Wants():
			if m.Want = (&handover.Want{Host: w.Host, UDP: w.UDP}); h.current() == nil {
				h.links.Failed(w.Host, w.UDP, "no exanet-hostd is connected to pfd: start it on this host")
			}
		case s := <-h.changes:
			m.State = &s
		}
		h.send(&m)
	}
}

// warn warns if the certificate ends soon.
func (h *hosts) warn(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ends.warn(now, h.log)
}

// send sends a message to exanet-hostd. One that does not read is dropped.
func (h *hosts) send(m *handover.Message) {
	conn := h.current()
	if conn == nil {
		return
	}
	if err := conn.Send(m, nil); err != nil {
		h.log.Debug("exanet-hostd", "err", err)
		_ = conn.Close() // receive then notices it
	}
}

// receive handles the messages of one exanet-hostd until its connection ends.
func (h *hosts) receive(ctx context.Context, conn *handover.Conn) {
	pid, uid := conn.Peer()
	h.log.Info("exanet-hostd has connected", "hostd", pid, "user", uid)
	var err error
	for err == nil {
		err = h.handle(conn)
	}
	h.mu.Lock()
	if h.conn == conn {
		h.conn = nil
	}
	h.mu.Unlock()
	_ = conn.Close() // fails if replace has closed it
	if ctx.Err() == nil {
		h.log.Warn("exanet-hostd has left: links that are up stay; those that end, or are idle, cannot be made anew until it is back", "hostd", pid, "err", err)
	}
}

// handle handles the next message.
func (h *hosts) handle(conn *handover.Conn) error {
	m, f, err := conn.Receive()
	if err != nil {
		return err
	}
	switch {
	case m.Table != nil:
		return h.table(conn, m.Table, f)
	case m.Socket != nil:
		c, err := m.Socket.NetConn(f)
		switch {
		case errors.Is(err, handover.ErrMessage):
			return err
		case err != nil: // its peer has ended it already, for example
			if m.Socket.Dialed != "" {
				h.links.Failed(m.Socket.Dialed, m.Socket.UDP, err.Error())
			}
		case m.Socket.UDP:
			h.links.TakeUDP(m.Socket.Dialed, c)
		default:
			h.links.Take(c, m.Socket.Dialed)
		}
	case m.Failed != nil:
		h.links.Failed(m.Failed.Host, m.Failed.UDP, m.Failed.Text)
	}
	return nil
}

// table puts a table into effect, or refuses it.
func (h *hosts) table(conn *handover.Conn, t *handover.Table, credentials *os.File) error {
	next := link.Table{Cluster: t.Cluster, Self: t.Self, Revoked: t.Revoked, TLS: t.TLS}
	if credentials != nil {
		c, err := handover.ReadCredentials(credentials)
		if err != nil {
			return err
		}
		next.Credentials = &link.Credentials{Certificate: []byte(c.Certificate), Key: []byte(c.Key), CA: []byte(c.CA)}
	}
	h.tables.Lock()
	defer h.tables.Unlock()
	if h.current() != conn {
		return nil // a newer exanet-hostd has taken its place, whose table may be in effect
	}
	for _, o := range t.Hosts {
		next.Hosts = append(next.Hosts, link.Host{
			Name: o.Name, Address: o.Address, Nodes: link.Range{First: o.Nodes[0], Last: o.Nodes[1]}, PDIDs: o.PDIDs, UDP: o.UDP,
		})
	}
	nodes := map[string]link.Range{}
	var others []tree.Host
	h.mu.Lock()
	for _, o := range next.Hosts {
		if o.Name != t.Self {
			nodes[o.Name] = o.Nodes
			others = append(others, tree.Host{Name: o.Name, First: o.Nodes.First, Last: o.Nodes.Last})
			if _, ok := h.nodes[o.Name]; !ok { // its link may come up before SetTable returns
				h.nodes[o.Name] = o.Nodes
			}
		}
	}
	h.mu.Unlock()
	err, text := h.groups.check(next.Hosts), ""
	if err == nil {
		err = h.links.SetTable(next)
	}
	if err == nil {
		h.host.SetHosts(others)
	}
	h.mu.Lock()
	if h.refused = ""; err == nil {
		h.cluster, h.self, h.nodes = t.Cluster, t.Self, nodes
		if e := expiryOf(t.Self, next.Credentials); !e.at.Equal(h.ends.at) || e.whose != h.ends.whose {
			h.ends = e
		}
	} else {
		text = strings.TrimPrefix(err.Error(), link.ErrTable.Error()+": ")
		h.refused = text
	}
	h.mu.Unlock()
	if err != nil {
		h.log.Error("the table of hosts is refused: the former one stays in effect", "err", err)
		h.send(&handover.Message{Refused: &handover.Refused{Text: clip(text, handover.MaxText)}})
		return nil
	}
	h.warn(time.Now())
	h.log.Info("table of hosts", "cluster", t.Cluster, "self", t.Self, "hosts", len(t.Hosts))
	for _, i := range h.links.Info() { // an exanet-hostd that is back knows none
		h.report(i.Host, i.State)
	}
	return nil
}

// clip returns the first n bytes of a text.
func clip(text string, n int) string { return strings.ToValidUTF8(text[:min(len(text), n)], "") }

// Drain and Cut implement api.Links.
func (h *hosts) Drain(host string, on bool) error { return h.links.Drain(host, on) }

func (h *hosts) Cut(host string, d time.Duration) error { return h.links.Cut(host, d) }

// View returns what pfd knows of the other hosts.
func (h *hosts) View() control.Hosts {
	now := time.Now()
	h.mu.Lock()
	r := control.Hosts{Version: control.Version, Cluster: h.cluster, Self: h.self, Hostd: h.conn != nil, Refused: h.refused, Hosts: []control.Host{}}
	if e := h.ends; !e.at.IsZero() {
		r.Certificate, r.CertificateLeftNS = e.whose, e.at.Sub(now).Nanoseconds()
	}
	h.mu.Unlock()
	for _, i := range h.links.Info() {
		v := control.Host{
			Name: i.Host, Address: i.Address, FirstNode: uint32(i.Nodes.First), LastNode: uint32(i.Nodes.Last),
			State: string(i.State), SinceNS: now.Sub(i.Since).Nanoseconds(), Error: i.LastError,
			TLS: i.TLS, UDP: i.UDP, RTTNS: i.RTT.Nanoseconds(), Connects: i.Connects,
			Connected: i.Connected, Draining: i.Draining,
			QueuedHighBytes: i.QueuedHigh, QueuedBulkBytes: i.QueuedBulk,
			FramesSent: i.FramesSent, FramesReceived: i.FramesReceived, BytesSent: i.BytesSent, BytesReceived: i.BytesReceived,
			Dropped: i.Dropped, Forged: i.Forged, Bad: i.Bad,
		}
		if !i.LastErrorAt.IsZero() {
			v.ErrorAgeNS = now.Sub(i.LastErrorAt).Nanoseconds()
		}
		r.Hosts = append(r.Hosts, v)
	}
	return r
}

// identity returns the values of this pfd with which a table of hosts must agree.
func (c *Config) identity(groups []domain.Group) link.Identity {
	return link.Identity{
		Nodes:  link.Range{First: c.NodeBase, Last: c.NodeBase + device.NodeID(c.Nodes) - 1},
		PDIDs:  [2]device.PDID{cmp.Or(c.FirstPDID, 1), cmp.Or(c.LastPDID, device.MaxPDID)},
		Groups: groupsDigest(groups, c.GroupSize),
	}
}

// sharedGroups are the groups of the file that the hosts share.
type sharedGroups struct {
	file string
	size int
	list []domain.Group
}

// check returns an error that matches link.ErrTable if a group has PDIDs of a host's block: these are its
// processes' alone, so frames of the group from elsewhere would be dropped as forged.
func (g *sharedGroups) check(table []link.Host) error {
	for _, o := range g.list {
		last := o.First + device.PDID(g.size) - 1
		for _, h := range table {
			if o.First <= h.PDIDs[1] && h.PDIDs[0] <= last {
				return fmt.Errorf("%w: group %s of user %d has PDIDs %#x-%#x in %s, and host %s has PDIDs %#x-%#x: give the group PDIDs that no host has, in the groups of all hosts, and restart their pfds",
					link.ErrTable, o.Name, o.UID, o.First, last, g.file, h.Name, h.PDIDs[0], h.PDIDs[1])
			}
		}
	}
	return nil
}

// groupsDigest returns the digest of the groups that pfds share, zero without groups. Order and comments
// of the file do not matter.
func groupsDigest(groups []domain.Group, size int) (sum [sha256.Size]byte) {
	if len(groups) == 0 {
		return sum
	}
	lines := make([]string, 0, len(groups))
	for _, g := range groups {
		lines = append(lines, fmt.Sprintln(g.UID, g.Name, g.First, size))
	}
	slices.Sort(lines)
	d := sha256.New()
	for _, l := range lines {
		_, _ = d.Write([]byte(l)) // a hash never fails
	}
	return [sha256.Size]byte(d.Sum(nil))
}
