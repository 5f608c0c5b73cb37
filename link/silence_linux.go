package link

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// minTrip is the least time in which TCP expects an answer here (defined by this project).
const minTrip = 150 * time.Millisecond

// silence returns the time since TCP has received an acknowledgement, 0 if it waits for none, and the time in
// which it expects one. TCP also waits if it cannot send: if this machine has no route, its cable is cut. A peer
// that is stopped acknowledges until its window is full, and then TCP waits for nothing.
func silence(c net.Conn) (silent, trip time.Duration) {
	s, ok := c.(syscall.Conn)
	if !ok {
		return 0, minTrip
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return 0, minTrip // it is closed, and its reader reports that
	}
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil && (info.Unacked > 0 || info.Notsent_bytes > 0 && info.Snd_wnd >= info.Snd_mss) {
			silent = time.Duration(info.Last_ack_recv) * time.Millisecond
			trip = time.Duration(info.Rtt+4*info.Rttvar) * time.Microsecond
		}
	})
	return silent, max(trip, minTrip)
}
