package api

import (
	"context"

	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/internal/quota"
)

// Host is what the control interface needs of session.Host.
type Host interface {
	Nodes() []*session.Node
	// Each calls f on the owning goroutine for the node with an index, or for each node if
	// the index is control.AllNodes.
	Each(ctx context.Context, index int, f func(*session.Node) error) error
	Features() *session.Features
	// Attached reports whether a uid has an attachment.
	Attached(uid uint32) bool
	Handshakes() *quota.Quota
	// Refused returns how many connections to the attachment socket got no attachment, and
	// how many more were closed at once.
	Refused() (refused, dropped uint64)
	// Draining returns a channel that is closed when pfd begins to end.
	Draining() <-chan struct{}
}
