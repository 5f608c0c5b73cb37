package netlink

import (
	"errors"

	"golang.org/x/sys/unix"
)

// drainMost bounds one Drain. Defined by this project: more than a socket of the usual size holds, and few
// enough that a process that sends without end does not block the caller.
const drainMost = 1024

// Drain discards the messages that arrived at the sender's own socket and returns how many there
// were. No process needs to send there, but any that knows the port id may; some 256 messages fill
// the socket. One goroutine may call it at a time.
func (s *Sender) Drain() (strays uint64) {
	if s.fd < 0 {
		return 0
	}
	var b [1]byte
	for strays < drainMost {
		_, _, err := unix.Recvfrom(s.fd, b[:], unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		switch {
		case err == nil:
			strays++
		case errors.Is(err, unix.EINTR):
		default: // EAGAIN: empty; any other error shows at the next Send
			return strays
		}
	}
	return strays
}
