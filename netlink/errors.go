package netlink

import "errors"

// What the sockets may answer, besides errors of the system that are wrapped as
// they are.
var (
	// ErrFull: the receiver has some 256 messages unread. The fault is not lost:
	// the sender's guard time-out brings it back (spec/faultpath.md, Recovery).
	ErrFull = errors.New("netlink: the process does not read its fault messages: its socket is full")
	// ErrNoReceiver: no socket has that port id (the process has closed it), or
	// the socket that has it takes messages from another sender only.
	ErrNoReceiver = errors.New("netlink: no receiver with that port id takes our messages")
	// ErrClosed: the socket was closed.
	ErrClosed = errors.New("netlink: socket closed")
)
