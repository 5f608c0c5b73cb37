// Package stream makes connections between processes: byte streams in both directions that are
// net.Conn and net.Listener, so that a program of package net, net/http or gRPC runs on them
// unchanged but for its dialer and its listener.
//
//	l, err := stream.Listen(ep, ":80")                  // in one process
//	c, err := stream.Dial(ctx, ep, "exanet:1/16/80")    // in another: node, interface, port
//
// Each direction of a connection is a ring in the receiver's memory, into which the sender writes
// by rdma.Endpoint.Write, slots beside it that say which bytes have arrived, and a credit in the
// sender's memory that says which were consumed. Nothing is pinned, and a connection that was
// never used has no memory. docs/streams.md defines the protocol.
//
// The protocol is a machine without I/O (host, end, sender, receiver). stack drives it with an
// endpoint, and one goroutine of it waits for all connections. A process may reach those that
// admit its domain, as for transfers (rdma.Options.Group, Accept and AcceptGroup).
package stream
