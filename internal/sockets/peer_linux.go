package sockets

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Control calls f with the descriptor of a connection, which stays open meanwhile.
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

// Peer gives who is at the other end: who connected, or listens.
func Peer(fd int) (*unix.Ucred, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	return cred, os.NewSyscallError("getsockopt SO_PEERCRED", err)
}

// ErrDescriptors says that the kernel could not give all descriptors of a message to this process.
var ErrDescriptors = fmt.Errorf("%w: descriptors that came are lost: out of descriptors (ulimit -n, LimitNOFILE= of a unit), or a security module forbids them", unix.EMFILE)

// Lost returns ErrDescriptors where the kernel cut a message's descriptors (MSG_CTRUNC) though there
// was room for more than the fds that it gave: then it could not give the next one. Else more were sent
// than the receiver has room for.
func Lost(flags, fds, room int) error {
	if flags&unix.MSG_CTRUNC != 0 && fds < room {
		return ErrDescriptors
	}
	return nil
}

// Rights gives all descriptors in control data. Whatever it gives is open, also
// with an error.
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
