package link

import (
	"fmt"
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
	Unreachable State = "unreachable" // no link for Timing.Unreachable
	Draining    State = "draining"    // up, and no new transfers begin
	Drained     State = "drained"     // up, and no transfer is under way
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
	RTT         time.Duration // of the last heartbeat, 0 if there was none
	Connects    uint64        // times that the link came up

	QueuedHigh, QueuedBulk int // bytes that wait to be sent

	FramesSent, FramesReceived uint64
	BytesSent, BytesReceived   uint64 // of records, before encryption
	// Dropped counts frames that were not sent because the link was down or its queue full, Forged
	// received ones whose source is not the peer's or whose destination is not ours, and Bad
	// connections that ended because a record could not be decoded.
	Dropped, Forged, Bad uint64
}
