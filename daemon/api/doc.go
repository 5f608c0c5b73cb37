// Package api is the control interface of a pfd: JSON answers over HTTP on its control socket,
// and metrics.
//
// It sees the nodes and the attachments through Host, and by the plain values that session.Node
// returns. A peer that sees everything (Peer.All) may see and change everything. Peer.sees decides for
// another one, by the uid of an object. For an object without a uid of its own, such as a channel,
// seen finds the attachment that owns it (owns, ownsDomain, ownsPDID).
//
// The cost of a client is bounded: the connections of a uid, the size of a request, the time of
// an answer, and how often the owner of a node is asked.
//
// docs/papers.md has the papers that comments cite by number.
package api
