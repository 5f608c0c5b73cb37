package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/exanet/pfd/daemon/domain"
	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/packetizer"
)

// Equal PDIDs are one domain, so each pfd of a network claims the range of PDIDs that it
// assigns. It sends a message of two words to mailbox 3 of each node, by a packetizer that no
// process has (spec/hardware.md 3: 3..15 are pfd's).
//
//	word 0: [1:0] kind, [17:2] wired PDID, [33:18] first PDID, [49:34] last PDID,
//	        [53:50] version 1, [63:54] zero
//	word 1: a random number of the claiming pfd
//
// A pfd claims its range when its nodes are enabled and before it accepts processes. A pfd
// that has PDIDs in common answers with a conflict, which carries its own range and the
// number; the claimant then refuses to start. Of two that claim at the same time, the one with
// the lower node stays. A claim stands if no conflict comes within claimTime. Values below are
// defined by this project.
const (
	claimKind     = 1
	conflictKind  = 2
	claimVersion  = 1
	claimWords    = 2
	claimKindMask = 3
	claimFirst    = 18
	claimLast     = 34
	claimVerShift = 50
	claimVerMask  = 0xf
	claimZero     = 54

	claimTime = 300 * time.Millisecond
)

// ErrRange says that another pfd of the network assigns the same PDIDs.
var ErrRange = errors.New("PDIDs of another pfd")

// claimMessage is a claim or a conflict.
type claimMessage struct {
	kind        uint8
	first, last device.PDID
	number      uint64
}

func (m claimMessage) encode() [claimWords]uint64 {
	return [claimWords]uint64{
		uint64(m.kind) | claimVersion<<claimVerShift | uint64(m.first)<<claimFirst | uint64(m.last)<<claimLast,
		m.number,
	}
}

// decodeClaim decodes a message; false if it is neither.
func decodeClaim(words []uint64) (claimMessage, bool) {
	if len(words) != claimWords {
		return claimMessage{}, false
	}
	w := words[0]
	m := claimMessage{
		kind: uint8(w & claimKindMask), first: device.PDID(w >> claimFirst & device.PDIDMask), last: device.PDID(w >> claimLast & device.PDIDMask),
		number: words[1],
	}
	ok := (m.kind == claimKind || m.kind == conflictKind) && w>>claimVerShift&claimVerMask == claimVersion && w>>claimZero == 0 &&
		m.first != 0 && m.first <= m.last
	return m, ok
}

// claims is the state of a pfd's claim. It belongs to the owning goroutine.
type claims struct {
	host        *session.Host
	log         *slog.Logger
	first, last device.PDID
	number      uint64
	node        device.NodeID // the sender of the claim
	claiming    bool
	lost        chan error // the first conflict
}

// claim claims this pfd's range and waits for a conflict.
func (c *claims) claim(ctx context.Context) error {
	n := c.host.Nodes()[0]
	err := c.host.Own(ctx, n, func() error {
		c.node, c.claiming = n.ID(), true
		return c.send(n)
	})
	if err != nil {
		return fmt.Errorf("telling other pfds of the PDIDs: %w", err)
	}
	select {
	case err = <-c.lost:
	case <-time.After(claimTime):
	case <-ctx.Done():
	}
	if end := c.host.Own(context.WithoutCancel(ctx), n, func() error { c.claiming = false; return nil }); end != nil && err == nil {
		err = end
	}
	return err
}

// send sends the claim to the nodes from 0 on, up to the first that has no route.
func (c *claims) send(n *session.Node) error {
	words := claimMessage{claimKind, c.first, c.last, c.number}.encode()
	for id := range device.NodeID(MaxNodes) {
		if c.host.NodeByID(id) != nil {
			continue
		}
		err := n.Manager().Tell(id, device.MailboxDriver, words[:]...)
		if errors.Is(err, packetizer.ErrRefused) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fromPeer handles a message in mailbox 3. On the owning goroutine.
func (c *claims) fromPeer(n *session.Node, src mailbox.Source, words []uint64) {
	m, ok := decodeClaim(words)
	if !ok || c.host.NodeByID(src.Node) != nil || !domain.Told(src) {
		return
	}
	switch {
	case m.kind == conflictKind && m.number == c.number && c.claiming:
		c.lose(src.Node, m)
	case m.kind == claimKind && m.first <= c.last && c.first <= m.last:
		if c.claiming && src.Node < c.node {
			c.lose(src.Node, m) // both claim, and the lower node stays
			return
		}
		c.log.Warn("another pfd claims PDIDs of this one: refused", "node", uint32(src.Node), "first", m.first, "last", m.last)
		answer := claimMessage{conflictKind, c.first, c.last, m.number}.encode()
		if err := n.Manager().Tell(src.Node, device.MailboxDriver, answer[:]...); err != nil {
			c.log.Warn("the refusal was not sent", "node", uint32(src.Node), "err", err)
		}
	}
}

func (c *claims) lose(by device.NodeID, m claimMessage) {
	err := fmt.Errorf("%w: this pfd would give out %d to %d and that of node %d gives out %d to %d: give each a --pdid-range of its own",
		ErrRange, c.first, c.last, by, m.first, m.last)
	select {
	case c.lost <- err:
	default:
	}
}

// newClaims returns the claims of a pfd with a directory.
func newClaims(h *session.Host, dir *domain.Directory, log *slog.Logger) *claims {
	first, last := dir.Range()
	return &claims{host: h, log: log, first: first, last: last, number: rand.Uint64(), lost: make(chan error, 1)}
}
