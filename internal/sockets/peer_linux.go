package sockets

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Control calls f with the descriptor of a connection, which stays open during the call.
func Control(c syscall.Conn, f func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	if cerr := raw.Control(func(fd uintptr) { err = f(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}

// Peer returns the credentials of the peer: the process that connected, or that listens.
func Peer(fd int) (*unix.Ucred, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	return cred, os.NewSyscallError("getsockopt SO_PEERCRED", err)
}

// ErrDescriptors reports that the kernel could not install all descriptors of a message.
var ErrDescriptors = fmt.Errorf("%w: received descriptors are lost: out of descriptors (ulimit -n, LimitNOFILE= of a unit), or a security module forbids them", unix.EMFILE)

// Lost returns ErrDescriptors if the kernel truncated the descriptors of a message (MSG_CTRUNC)
// though there was room for more than the fds received: it could not install the next one.
// Otherwise the sender sent more than the receiver has room for.
func Lost(flags, fds, room int) error {
	if flags&unix.MSG_CTRUNC != 0 && fds < room {
		return ErrDescriptors
	}
	return nil
}

// Rights returns all descriptors in control data. The returned descriptors are open, also if
// there is an error.
func Rights(oob []byte) (fds []int, err error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	for i := range msgs {
		if msgs[i].Header.Level != unix.SOL_SOCKET || msgs[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		got, rerr := unix.ParseUnixRights(&msgs[i])
		fds, err = append(fds, got...), errors.Join(err, rerr)
	}
	return fds, err
}
