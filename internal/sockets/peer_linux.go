package sockets

import (
	"errors"
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
