package link

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/exanet/pfd/device"
)

// version is the version of the protocol (spec/hosts.md 3).
const version = 2

// hello is the first record of each side (spec/hosts.md 3).
type hello struct {
	Version int              `json:"version"`
	Cluster string           `json:"cluster"`
	Host    string           `json:"host"`
	Nodes   [2]device.NodeID `json:"nodes"`
	PDIDs   [2]device.PDID   `json:"pdids"`
	Groups  string           `json:"groups"`
	Class   int              `json:"class"`
	Link    string           `json:"link"`
}

// number returns the number of the link.
func (h *hello) number() (uint64, error) {
	n, err := strconv.ParseUint(h.Link, 16, 64)
	if err != nil || len(h.Link) != 16 {
		return 0, fmt.Errorf("%w: HELLO of host %q: link is %q, want 16 hexadecimal digits", errRecord, h.Host, h.Link)
	}
	return n, nil
}

// groupsText returns the member groups for a digest.
func groupsText(digest [32]byte) string {
	if digest == ([32]byte{}) {
		return ""
	}
	return hex.EncodeToString(digest[:])
}

// none returns s in quotes, or none.
func none(s string) string {
	if s == "" {
		return "none"
	}
	return strconv.Quote(s)
}

// judge compares the HELLO of a peer with the table. own is this host's HELLO, and want the peer's entry in
// this host's table. The error names both sides' values. It is also sent to the peer.
func judge(peer, own *hello, want Host) error {
	refuse := func(what, theirs, ours, remedy string) error {
		return fmt.Errorf("%s differ: host %.64s has %.200s, host %s expects %.200s: %s", what, peer.Host, theirs, own.Host, ours, remedy)
	}
	const table = "use the same hosts.toml on both hosts"
	nodes, pdids := Range{peer.Nodes[0], peer.Nodes[1]}, func(p [2]device.PDID) string { return fmt.Sprintf("%#x-%#x", p[0], p[1]) }
	switch {
	case peer.Version != own.Version:
		return refuse("protocol versions", strconv.Itoa(peer.Version), strconv.Itoa(own.Version), "install the same version of pfd on both")
	case peer.Cluster != own.Cluster:
		return refuse("clusters", strconv.Quote(peer.Cluster), strconv.Quote(own.Cluster), table)
	case peer.Host != want.Name:
		return refuse("host names", strconv.Quote(peer.Host), strconv.Quote(want.Name), table)
	case nodes != want.Nodes:
		return refuse("node ids", nodes.String(), want.Nodes.String(), table)
	case peer.PDIDs != want.PDIDs:
		return refuse("PDIDs", pdids(peer.PDIDs), pdids(want.PDIDs), table)
	case peer.Groups != own.Groups:
		return refuse("digests of the file of groups", none(peer.Groups), none(own.Groups), "start both pfds with the same --groups file")
	case peer.Class < 0 || peer.Class >= places:
		return refuse("classes of the connection", strconv.Itoa(peer.Class), "0 to 2", "install the same version of pfd on both")
	}
	return nil
}

// decodeHello decodes the content of a HELLO.
func decodeHello(b []byte) (*hello, error) {
	var h hello
	if err := json.Unmarshal(b, &h); err != nil {
		return nil, fmt.Errorf("%w: HELLO: %w", errRecord, err)
	}
	return &h, nil
}

// refusedError is a refusal by the peer.
type refusedError struct{ text string }

func (e *refusedError) Error() string { return "refused by the other side: " + e.text }

// tlsHandshake and tlsMajor begin a connection of TLS (RFC 8446 5.1): no record has them.
const (
	tlsHandshake = 0x16
	tlsMajor     = 3
)

// errTLS means that the other side speaks TLS where this one does not.
var errTLS = errors.New("the other side speaks TLS")

// readRecord reads one record, which is not a frame, and nothing beyond it.
func readRecord(r io.Reader, want int) ([]byte, error) {
	b := make([]byte, headSize, 64)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	kind, size, err := parseHead(b)
	switch {
	case err != nil && b[0] == tlsHandshake && b[1] == tlsMajor:
		return nil, errTLS
	case err != nil:
		return nil, err
	case kind != want && kind != recordRefusal || size > headSize+maxHello+crcSize:
		return nil, fmt.Errorf("%w: type %d of %d bytes, want type %d", errRecord, kind, size, want)
	}
	b = append(b, make([]byte, size-headSize)...)
	if _, err := io.ReadFull(r, b[headSize:]); err != nil {
		return nil, err
	}
	content, err := decodeControl(kind, b)
	if err == nil && kind == recordRefusal {
		err = &refusedError{plain(string(content))}
	}
	return content, err
}

// plain replaces control characters in a text of the peer.
func plain(s string) string {
	r := []rune(s)
	for i, c := range r {
		if !strconv.IsPrint(c) {
			r[i] = '?'
		}
	}
	return string(r)
}

// number16 returns a link number as the HELLO has it.
func number16(n uint64) string {
	return hex.EncodeToString(binary.BigEndian.AppendUint64(nil, n))
}
