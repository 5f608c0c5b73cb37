package hostile

import (
	"context"
	"errors"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/control"
)

// sendLingering sends pfd TCP sockets with unread data and SO_LINGER set, and closes its own
// descriptors: the last close of such a socket sleeps for the lingering time.
func sendLingering(ctx context.Context, o order, did func()) error {
	const linger = 36 // seconds
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	hello, err := (&attach.Hello{Product: "linger", Group: "linger"}).Append(nil)
	if err != nil {
		return err
	}
	var unread, told []net.Conn
	closing := make(chan struct{}, 500) // for sockets whose last close is ours
	for i := 0; ctx.Err() == nil; i++ {
		fd, theirs, err := unreadTCP(l, linger)
		if err != nil {
			time.Sleep(attackPause)
			continue
		}
		if unread = append(unread, theirs); len(unread) > 4000 { // below the limit of descriptors
			_ = unread[0].Close()
			unread = unread[1:]
		}
		network, path, msg := "unix", o.Attach.Socket, []byte("GET /v1/status HTTP/1.1\r\nHost: x\r\n")
		if i%2 == 0 {
			network, path, msg = "unixpacket", control.AttachSocket(path), hello
		}
		c, err := net.Dial(network, path)
		if err == nil {
			uc := c.(*net.UnixConn)
			// EPERM: the kernel refuses a descriptor where no descriptor is expected.
			if _, _, err = uc.WriteMsgUnix(msg, unix.UnixRights(fd), nil); err == nil || errors.Is(err, unix.EPERM) {
				did()
			}
			if told = append(told, c); len(told) > 50 { // close some and keep others
				_ = told[0].Close()
				told = told[1:]
			}
		}
		closing <- struct{}{}
		go func() { _ = unix.Close(fd); <-closing }()
		time.Sleep(5 * attackPause)
	}
	return nil
}

// unreadTCP returns a connected socket with unsent data, and the other end, which never reads.
// The error has the kernel's answers.
func unreadTCP(l net.Listener, linger int32) (int, net.Conn, error) {
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return -1, nil, err
	}
	defer c.Close()
	theirs, err := l.Accept()
	if err != nil {
		return -1, nil, err
	}
	f, err := c.(*net.TCPConn).File() // a duplicate, which closing c does not close
	if err != nil {
		return -1, nil, errors.Join(err, theirs.Close())
	}
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, nil, errors.Join(err, theirs.Close())
	}
	err = errors.Join(
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: linger}),
		unix.SetNonblock(fd, true),
	)
	for junk := make([]byte, 1<<16); err == nil; {
		_, err = unix.Write(fd, junk)
	}
	if !errors.Is(err, unix.EAGAIN) {
		return -1, nil, errors.Join(err, unix.Close(fd), theirs.Close())
	}
	return fd, theirs, unix.SetNonblock(fd, false)
}
