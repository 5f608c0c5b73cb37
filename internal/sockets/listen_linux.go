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

// umask serializes changes of the process's umask.
var umask sync.Mutex

// Listen creates a listener of network unix or unixpacket with a mode. The kernel refuses
// descriptors that are sent there (Linux 6.16). Close leaves the file; the caller must remove
// it.
//
// The socket has its mode from the start. A later chmod by name could change another file,
// which a user who may write the directory puts in its place.
func Listen(network, path string, mode uint32) (*net.UnixListener, *File, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if cerr := c.Control(func(fd uintptr) {
			// Connections inherit the option when they are made, before they are accepted.
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
	// Unlinking by name could remove another file that has the name by then.
	ul.SetUnlinkOnClose(false)
	f, err := Made(path)
	if err != nil {
		return nil, nil, errors.Join(err, ul.Close())
	}
	return ul, f, nil
}

// PassRights selects whether the kernel accepts descriptors sent to a socket. Before 6.16 it
// always does; that is no error.
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
