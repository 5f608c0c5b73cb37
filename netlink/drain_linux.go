package netlink

import (
	"errors"

	"golang.org/x/sys/unix"
)

// drainMost bounds one Drain (ours): more than a socket of the usual size holds,
// and little enough that who sends without end holds nobody up.
const drainMost = 1024

// Drain throws away what others have sent to the sender's own socket, and tells
// how many messages that were. Nobody has anything to send there: whoever learns
// the port id may, and finds the socket full after some 256. One goroutine may use
// it at a time.
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
		default: // EAGAIN: empty; what else may be wrong shows when it sends
			return strays
		}
	}
	return strays
}
