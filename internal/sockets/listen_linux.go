package sockets

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// umask is the process's: one at a time changes it.
var umask sync.Mutex

// Listen makes a listener of network unix or unixpacket with a mode. A descriptor that somebody sends there
// is refused by the kernel (Linux 6.16). The file, which Close leaves, is the caller's to remove.
//
// The mode is the socket's from its first moment: who may write the directory
// puts another file in its place otherwise, and a chmod by name changes that.
func Listen(network, path string, mode uint32) (*net.UnixListener, *File, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if cerr := c.Control(func(fd uintptr) {
			// Connections inherit it when they are made, before they are accepted.
			if err = PassRights(int(fd), false); err == nil {
				err = os.NewSyscallError("fchmod", unix.Fchmod(int(fd), mode))
			}
		}); cerr != nil {
			return cerr
		}
		return err
	}}
	umask.Lock()
	old := unix.Umask(0)
	l, err := lc.Listen(context.Background(), network, path)
	unix.Umask(old)
	umask.Unlock()
	if err != nil {
		return nil, nil, err
	}
	ul, ok := l.(*net.UnixListener)
	if !ok {
		return nil, nil, errors.Join(fmt.Errorf("listening on %s: not a unix socket", path), l.Close())
	}
	// By its name alone it would remove whatever has that by then.
	ul.SetUnlinkOnClose(false)
	f, err := Made(path)
	if err != nil {
		return nil, nil, errors.Join(err, ul.Close())
	}
	return ul, f, nil
}

// PassRights says whether the kernel lets descriptors be sent to a socket. A
// kernel before 6.16 lets them whatever is said; that is no error.
func PassRights(fd int, pass bool) error {
	v := 0
	if pass {
		v = 1
	}
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, v)
	if errors.Is(err, unix.ENOPROTOOPT) {
		return nil
	}
	return os.NewSyscallError("setsockopt SO_PASSRIGHTS", err)
}
