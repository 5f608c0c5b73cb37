package memport

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/leak"
	"github.com/exanet/pfd/internal/linger"
	"github.com/exanet/pfd/space/proc/proctest"
)

// TestLingeringDescriptor: a descriptor that takes long to close, sent with a helper's message,
// does not delay the port's close.
func TestLingeringDescriptor(t *testing.T) {
	q, err := linger.New()
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	s, err := q.Socket()
	if err != nil {
		t.Fatal(err)
	}
	p, socket, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	if _, err := unix.GetsockoptInt(int(socket.Fd()), unix.SOL_SOCKET, unix.SO_PASSRIGHTS); err != nil {
		t.Skipf("this kernel lets descriptors be sent to every socket: Linux 6.16 does not: %v", err)
	}
	f := &fake{p, socket, make(chan struct{})}
	f.say(t, messageOK)
	if err := unix.Sendmsg(int(socket.Fd()), []byte{messageOK}, unix.UnixRights(int(s.Fd())), nil, unix.MSG_DONTWAIT); err != nil {
		t.Logf("the kernel sends none: %v", err) // since 6.16
		_ = unix.SetsockoptLinger(int(s.Fd()), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
	}
	if err := s.Close(); err != nil { // the port holds the last one
		t.Fatal(err)
	}
	if err := f.Ready(time.Now().Add(patience), func() { close(f.ended) }); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond)
	closed := make(chan error, 1)
	go func() { closed <- f.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the port does not close")
	}
}

// TestPortsLeaveNothing checks descriptors, goroutines and mappings.
func TestPortsLeaveNothing(t *testing.T) {
	c := proctest.Start(t)
	pidfd, keeperfd := c.PIDFDs()
	va := c.Map(proctest.Anon, 1)
	var r Request
	leak.Rounds(t, 10, func(int) {
		p := start(t, pidfd, keeperfd)
		if err := p.Ready(time.Now().Add(patience), func() { close(p.ended) }); err != nil {
			t.Fatal(err)
		}
		r.AskWalk(va, 1, true)
		finish(t, p.Port, &r)
		if _, err := p.Mapping(va); err != nil {
			t.Error(err)
		}
		p.close()
		if err := <-p.waited; err != nil {
			t.Error(err)
		}
		<-p.ended
	})
}
