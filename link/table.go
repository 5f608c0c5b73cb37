package link

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/exanet/pfd/device"
)

// Range is a range of node ids, both ends included.
type Range struct{ First, Last device.NodeID }

// String returns the range as "4-7", or "4" if it has one node.
func (r Range) String() string {
	if r.First == r.Last {
		return fmt.Sprintf("%d", r.First)
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// Contains reports whether id is in the range.
func (r Range) Contains(id device.NodeID) bool { return r.First <= id && id <= r.Last }

// Identity has the names and numbers of a pfd, from its own flags.
type Identity struct {
	Cluster, Host string         // "": as the table says
	Nodes         Range          // the node ids that it emulates
	PDIDs         [2]device.PDID // the first and last that it gives to processes
	// Groups is the SHA-256 of the file of groups, zero if there is none. It must be the same on
	// all hosts.
	Groups [32]byte
}

// Host is an entry of a table.
type Host struct {
	Name, Address string
	Nodes         Range
	PDIDs         [2]device.PDID
	UDP           bool // frames travel as UDP datagrams
}

// Table names all hosts of a cluster.
type Table struct {
	Cluster string
	Self    string // the name of this host; it is one of Hosts
	Hosts   []Host
	Revoked []string // serial numbers of certificates that are not accepted, hexadecimal
	TLS     bool
	// Credentials are needed if TLS is on.
	Credentials *Credentials
}

// Credentials are this host's certificate with its key, and the certificate authority of the
// cluster, each as PEM.
type Credentials struct{ Certificate, Key, CA []byte }

// State is the state of a link.
type State string

// The states of a link (spec/hosts.md 4).
const (
	Connecting  State = "connecting"
	Up          State = "up"
	Idle        State = "idle"        // closed since nothing uses it; the first frame brings it up
	Unreachable State = "unreachable" // no link for Timing.Unreachable
	Draining    State = "draining"    // up or idle, and no new transfers begin
	Drained     State = "drained"     // up or idle, and no transfer is under way
	CutOff      State = "cut"         // by Cut
	Gone        State = "gone"        // no longer in the table
)

// Info is the state of the link to one host.
type Info struct {
	Host        string
	Address     string
	Nodes       Range
	State       State
	Since       time.Time // of the state
	LastError   string    // why the last connection ended or failed, "" if none has
	LastErrorAt time.Time
	TLS, UDP    bool
	Connected   bool          // frames need not wait for a connection, as of a drained link that is idle
	Draining    bool          // whatever the state
	RTT         time.Duration // of the last heartbeat, 0 if there was none
	Connects    uint64        // times that the link came up

	QueuedHigh, QueuedBulk int // bytes that wait to be sent

	FramesSent, FramesReceived uint64
	BytesSent, BytesReceived   uint64 // of records, before encryption
	// Dropped counts frames that were not sent because the link was down, ended or its queue was full, Forged
	// received ones whose source is not the peer's or whose destination is not ours, and Bad
	// connections that ended because a record could not be decoded.
	Dropped, Forged, Bad uint64
}

// overlap reports whether two ranges have a node in common.
func overlap(a, b Range) bool { return a.First <= b.Last && b.First <= a.Last }

// newView checks a table and parses its credentials.
func newView(t Table, id Identity) (*view, error) {
	v := &view{table: t}
	if len(t.Hosts) > MaxHosts {
		return nil, fmt.Errorf("%d hosts, at most %d", len(t.Hosts), MaxHosts)
	}
	found := false
	for i, h := range t.Hosts {
		if h.Name == "" || h.Nodes.First > h.Nodes.Last || h.Nodes.Last > maxNode || h.Nodes.Last-h.Nodes.First >= maxNodes || h.PDIDs[0] > h.PDIDs[1] {
			return nil, fmt.Errorf("host %q has nodes %v and PDIDs %#x-%#x: it needs a name, ranges in order, and at most %d nodes with ids up to %d",
				h.Name, h.Nodes, h.PDIDs[0], h.PDIDs[1], maxNodes, maxNode)
		}
		for _, o := range t.Hosts[:i] {
			switch {
			case h.Name == o.Name:
				return nil, fmt.Errorf("host %s is there twice", h.Name)
			case overlap(h.Nodes, o.Nodes):
				return nil, fmt.Errorf("hosts %s and %s have nodes %v and %v: give each host its own", o.Name, h.Name, o.Nodes, h.Nodes)
			case h.PDIDs[0] <= o.PDIDs[1] && o.PDIDs[0] <= h.PDIDs[1]:
				return nil, fmt.Errorf("hosts %s and %s have PDIDs %#x-%#x and %#x-%#x: give each host its own",
					o.Name, h.Name, o.PDIDs[0], o.PDIDs[1], h.PDIDs[0], h.PDIDs[1])
			}
		}
		if h.Name == t.Self {
			v.self, found = h, true
		}
	}
	switch {
	case !found:
		return nil, fmt.Errorf("host %q, which this is, is not one of its hosts", t.Self)
	case id.Cluster != "" && id.Cluster != t.Cluster:
		return nil, fmt.Errorf("it is of cluster %q, this pfd of cluster %q", t.Cluster, id.Cluster)
	case id.Host != "" && id.Host != t.Self:
		return nil, fmt.Errorf("it says that this is host %q, this pfd is host %q", t.Self, id.Host)
	case v.self.Nodes != id.Nodes:
		return nil, fmt.Errorf("host %s has nodes %v there, this pfd has nodes %v: start pfd with --node-base and --nodes as in %s.pfd.toml, or exanet-hostd with the --name of this host", t.Self, v.self.Nodes, id.Nodes, t.Self)
	case v.self.PDIDs != id.PDIDs:
		return nil, fmt.Errorf("host %s has PDIDs %#x-%#x there, this pfd has %#x-%#x: start pfd with --pdid-range as in %s.pfd.toml, or exanet-hostd with the --name of this host",
			t.Self, v.self.PDIDs[0], v.self.PDIDs[1], id.PDIDs[0], id.PDIDs[1], t.Self)
	}
	v.blocks = slices.SortedFunc(slices.Values(t.Hosts), func(a, b Host) int { return cmp.Compare(a.PDIDs[0], b.PDIDs[0]) })
	if !t.TLS {
		return v, nil
	}
	var err error
	v.keys, err = t.keysOf(v.self)
	return v, err
}

// Limits of a table (defined by this project): the largest node id that a pfd may have, and the
// number of nodes of a host.
const (
	maxNode  device.NodeID = 65534
	maxNodes device.NodeID = 64
)

// claimed reports whether a PDID is of the block of another host than the one named: its processes
// alone have it. PDIDs outside all blocks are those of groups and of the firmware.
func (v *view) claimed(pdid device.PDID, host string) bool {
	i, _ := slices.BinarySearchFunc(v.blocks, pdid, func(h Host, pdid device.PDID) int {
		if h.PDIDs[1] < pdid {
			return -1
		}
		return 1
	})
	return i < len(v.blocks) && v.blocks[i].PDIDs[0] <= pdid && v.blocks[i].Name != host
}

// same reports whether an entry of a new table is the peer as it is.
func (p *peer) same(h Host, v, old *view) bool {
	q := p.host
	q.Address, h.Address = "", ""
	return q == h && p.own == v.self.Nodes && old.table.Cluster == v.table.Cluster && old.table.Self == v.table.Self
}

// info returns the state of the link.
func (p *peer) info(v *view) Info {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := Info{
		Host: p.host.Name, Address: *p.address.Load(), Nodes: p.host.Nodes, State: p.state, Since: p.since,
		LastError: p.err, LastErrorAt: p.errAt, TLS: v.keys != nil, UDP: p.host.UDP, RTT: time.Duration(p.rtt.Load()), Connects: p.connects,
		Connected: p.connected, Draining: p.drains,
		FramesReceived: p.framesIn.Load(), BytesReceived: p.octetsIn.Load(), Forged: p.forged.Load(), Bad: p.bad.Load(),
	}
	for class, q := range []*queue{p.queues[classHigh], p.queues[classBulk], p.udp} {
		if q == nil {
			continue
		}
		q.mu.Lock()
		i.FramesSent += q.frames - q.waiting
		i.BytesSent += q.octets
		i.Dropped += q.dropped
		if class == classHigh {
			i.QueuedHigh = q.bytes
		} else {
			i.QueuedBulk += q.bytes
		}
		q.mu.Unlock()
	}
	return i
}
