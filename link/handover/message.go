package handover

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
)

// Limits of a message. Values below are defined by this project.
const (
	MaxMessage = 64 << 10        // bytes
	MaxHosts   = 256             // hosts of a cluster: as many blocks of 256 PDIDs exist
	MaxName    = 63              // bytes of a name of a host or a cluster
	MaxText    = 1 << 10         // bytes of any other text
	MaxNodes   = 64              // nodes of a host, as many as a pfd has
	LastNode   = atomics.MaxNode // the highest node of a pfd
)

// ErrMessage reports a message that does not follow the protocol. The connection is of no use
// after it.
var ErrMessage = errors.New("message between exanet-hostd and pfd")

// Message is one message. Exactly one field is set.
type Message struct {
	// From exanet-hostd.
	Table  *Table  `json:"table,omitempty"`  // with TLS the descriptor of the credentials comes with it
	Socket *Socket `json:"socket,omitempty"` // the descriptor of the socket comes with it
	Failed *Failed `json:"failed,omitempty"`

	// From pfd.
	Want    *Want    `json:"want,omitempty"`
	Refused *Refused `json:"refused,omitempty"`
	State   *State   `json:"state,omitempty"`
}

// Table is the table of hosts, as hosts.toml describes them.
type Table struct {
	Cluster string   `json:"cluster"`
	Self    string   `json:"self"` // the name of this host
	Hosts   []Host   `json:"hosts"`
	Revoked []string `json:"revoked,omitempty"` // serial numbers of certificates: hexadecimal, lower case, no leading zero
	TLS     bool     `json:"tls"`
}

// Host is one host of a Table. Ranges include both ends.
type Host struct {
	Name    string           `json:"name"`
	Address string           `json:"address"` // HOST:PORT
	Nodes   [2]device.NodeID `json:"nodes"`
	PDIDs   [2]device.PDID   `json:"pdids"`
	UDP     bool             `json:"udp,omitempty"`
}

// Socket announces a connected socket.
type Socket struct {
	Dialed string `json:"dialed,omitempty"` // the host that was dialed, "" if the socket was accepted
	UDP    bool   `json:"udp,omitempty"`
}

// Want asks exanet-hostd to dial a host.
type Want struct {
	Host string `json:"host"`
	UDP  bool   `json:"udp,omitempty"`
}

// Failed says that a host could not be dialed. pfd asks again after its back-off time.
type Failed struct {
	Host string `json:"host"`
	UDP  bool   `json:"udp,omitempty"`
	Text string `json:"text"`
}

// Refused says why pfd does not accept the Table: its former one stays in effect.
type Refused struct {
	Text string `json:"text"`
}

// State is the state of a host's link, whenever it changes.
type State struct {
	Host  string `json:"host"`
	State string `json:"state"`
}

// Descriptors returns how many descriptors come with the message.
func (m *Message) Descriptors() int {
	if m.Socket != nil || m.Table != nil && m.Table.TLS {
		return 1
	}
	return 0
}

// FromHostd reports whether exanet-hostd sends this message, and not pfd.
func (m *Message) FromHostd() bool { return m.Table != nil || m.Socket != nil || m.Failed != nil }

// Encode returns the packet of a message. Errors match ErrMessage.
func (m *Message) Encode() ([]byte, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	b, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMessage, err)
	}
	if len(b) > MaxMessage {
		return nil, fmt.Errorf("%w: it has %d bytes, at most %d are possible", ErrMessage, len(b), MaxMessage)
	}
	return b, nil
}

// Decode reads the packet of a message. Errors match ErrMessage.
func Decode(packet []byte) (*Message, error) {
	if len(packet) > MaxMessage {
		return nil, fmt.Errorf("%w: it has %d bytes, at most %d are possible", ErrMessage, len(packet), MaxMessage)
	}
	d := json.NewDecoder(bytes.NewReader(packet))
	d.DisallowUnknownFields()
	m := new(Message)
	if err := d.Decode(m); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMessage, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: something follows the object", ErrMessage)
	}
	if err := m.check(); err != nil {
		return nil, err
	}
	return m, nil
}

// check returns an error, which matches ErrMessage, unless exactly one field is set and its values
// are within their limits.
func (m *Message) check() error {
	set := 0
	var err error
	for _, c := range []struct {
		set   bool
		check func() error
	}{
		{m.Table != nil, func() error { return m.Table.check() }},
		{m.Socket != nil, func() error { return checkName("dialed host", m.Socket.Dialed, true) }},
		{m.Failed != nil, func() error {
			return errors.Join(checkName("host", m.Failed.Host, false), checkText("text", m.Failed.Text))
		}},
		{m.Want != nil, func() error { return checkName("host", m.Want.Host, false) }},
		{m.Refused != nil, func() error { return checkText("text", m.Refused.Text) }},
		{m.State != nil, func() error {
			return errors.Join(checkName("host", m.State.Host, false), checkName("state", m.State.State, false))
		}},
	} {
		if c.set {
			set++
			err = errors.Join(err, c.check())
		}
	}
	if set != 1 {
		return fmt.Errorf("%w: it has %d kinds, want one", ErrMessage, set)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrMessage, err)
	}
	return nil
}

func (t *Table) check() error {
	if err := errors.Join(checkName("cluster", t.Cluster, false), checkName("self", t.Self, false)); err != nil {
		return err
	}
	if len(t.Hosts) > MaxHosts {
		return fmt.Errorf("%d hosts: at most %d are possible", len(t.Hosts), MaxHosts)
	}
	for _, r := range t.Revoked {
		if err := checkText("revoked", r); err != nil {
			return err
		}
	}
	self := false
	for _, h := range t.Hosts {
		if err := errors.Join(checkName("host", h.Name, false), CheckAddress(h.Address)); err != nil {
			return err
		}
		if h.Nodes[0] > h.Nodes[1] || h.Nodes[1] > LastNode || h.Nodes[1]-h.Nodes[0] >= MaxNodes {
			return fmt.Errorf("host %s: nodes %d-%d: want A-B, 0 to %d, at most %d nodes", h.Name, h.Nodes[0], h.Nodes[1], LastNode, MaxNodes)
		}
		if h.PDIDs[0] == 0 || h.PDIDs[0] > h.PDIDs[1] {
			return fmt.Errorf("host %s: pdids %#x-%#x: want A-B, from 1 on", h.Name, uint16(h.PDIDs[0]), uint16(h.PDIDs[1]))
		}
		self = self || h.Name == t.Self
	}
	if !self {
		return fmt.Errorf("this host, %q, is not in the table", t.Self)
	}
	return nil
}

// checkName accepts letters, digits, dots, hyphens and underscores: a name also stands in URIs of
// certificates, metrics and lines of the log.
func checkName(what, name string, empty bool) error {
	if ValidName(name) || empty && name == "" {
		return nil
	}
	return fmt.Errorf("%s %.70q: want 1 to %d letters, digits, dots, hyphens or underscores", what, name, MaxName)
}

// ValidName reports whether name may be the name of a host or a cluster.
func ValidName(name string) bool {
	if strings.Contains(name, "..") || strings.HasSuffix(name, ".") { // no name in a URI
		return false
	}
	for i := range len(name) {
		c := name[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || i > 0 && (c == '.' || c == '-' || c == '_')) {
			return false
		}
	}
	return name != "" && len(name) <= MaxName
}

func checkText(what, text string) error {
	if len(text) > MaxText {
		return fmt.Errorf("%s has %d bytes, at most %d are possible", what, len(text), MaxText)
	}
	return nil
}

// CheckAddress returns an error unless address is HOST:PORT with a numeric port.
func CheckAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || len(address) > MaxText {
		return fmt.Errorf("address %.70q: want HOST:PORT", address)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("address %.70q: port: want 1 to 65535", address)
	}
	return nil
}
