package netlink

import "errors"

// Errors of the sockets, besides those of the system, which are wrapped.
var (
	// ErrFull says that the receiver has some 256 unread messages. The fault is not lost: the
	// sender's guard time-out repeats it (spec/faultpath.md, Recovery).
	ErrFull = errors.New("netlink: the process does not read its fault messages: its socket is full")
	// ErrNoReceiver says that no socket has that port id (the process has closed it), or that the
	// socket accepts messages from another sender only.
	ErrNoReceiver = errors.New("netlink: no receiver with that port id accepts messages from this sender")
	// ErrClosed says that the socket was closed.
	ErrClosed = errors.New("netlink: socket closed")
)
