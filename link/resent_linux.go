package link

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// resent returns how often TCP has sent again, after time-outs, what is unanswered; 0 if nothing is.
func resent(c net.Conn) (n int) {
	s, ok := c.(syscall.Conn)
	if !ok {
		return 0
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return 0 // it is closed, and its reader reports that
	}
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n = int(info.Retransmits)
		}
	})
	return n
}
