package user

import (
	"errors"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/linger"
)

// patience is how long an operation that must not wait for the peer may take on a busy machine.
const patience = 10 * time.Second

// soon reports whether f returns in time.
func soon(f func()) bool {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
		return true
	case <-time.After(patience):
		return false
	}
}

// TestLingeringDescriptors: descriptors that take long to close block neither the device's owner
// nor the next client, whichever message brings them, and whether the message is read or not.
func TestLingeringDescriptors(t *testing.T) {
	q, err := linger.New()
	ok(t, err)
	agreed := raw(1, CmdVersion, 0, hello("{}"))
	for name, message := range map[string][]byte{
		"of the device": append(agreed[:len(agreed):len(agreed)], raw(2, CmdRegionRead, 0, le(uint64(0), 7, 4))...),
		"map":           append(agreed[:len(agreed):len(agreed)], raw(2, CmdDMAMap, 0, le(32, 3, uint64(0), uint64(0), uint64(4096)))...),
		"interrupts":    append(agreed[:len(agreed):len(agreed)], raw(2, CmdSetIRQs, 0, le(20, IRQDataEventFD|IRQActionTrigger, IRQMSIX, 0, 1))...),
		"answer":        append(agreed[:len(agreed):len(agreed)], raw(2, CmdDMARead, flagReply, nil)...),
		"half":          append(agreed[:len(agreed):len(agreed)], raw(2, CmdRegionRead, 0, nil)[:9]...),
		"not read":      append(raw(0, 0, 0, nil), agreed...),
	} {
		t.Run(name, func(t *testing.T) {
			var owner sync.Mutex
			s, _ := newServer(t, func(c *Config) {
				c.Timeout = time.Second
				c.Run = func(f func()) { owner.Lock(); defer owner.Unlock(); f() }
			})
			f, err := q.Socket()
			ok(t, err)
			before := openFDs(t) - 1 // f
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			ok(t, err)
			hostile := newSocket(fds[1])
			at := len(agreed)
			if name == "not read" {
				at = HeaderSize // the server ends the connection before
			}
			ok(t, hostile.send(message[:at], nil))
			ok(t, hostile.send(message[at:], []int{int(f.Fd())}))
			ok(t, f.Close()) // the server's is the last
			ended := make(chan error, 1)
			go func() { ended <- s.ServeConn(fds[0]) }()
			time.Sleep(20 * time.Millisecond)
			if !soon(func() { owner.Lock(); defer owner.Unlock() }) {
				t.Fatal("the owner is held up")
			}
			hostile.shutdown()
			if !soon(func() { <-ended }) {
				t.Error("the connection does not end")
			}
			if !soon(func() { newTestClient(t, s, Options{}).Close() }) {
				t.Error("the next client is held up")
			}
			hostile.close()
			for end := time.Now().Add(patience); openFDs(t) > before && time.Now().Before(end); time.Sleep(time.Millisecond) {
			}
			if after := openFDs(t); after > before {
				t.Errorf("%d descriptors before, %d after", before, after)
			}
		})
	}
	ok(t, q.Close())
}

// TestLingeringAnswers: a server's descriptors that take long to close block neither the answer
// that brings them nor the client's Close.
func TestLingeringAnswers(t *testing.T) {
	q, err := linger.New()
	ok(t, err)
	f, err := q.Socket()
	ok(t, err)
	peers := make(chan *rawSession, 1)
	c, peer := fake(t, func(m message) ([]byte, []int) {
		_ = (<-peers).sock.send(raw(m.ID, m.Command, flagReply, append(m.body, 1, 2, 3, 4)), []int{int(f.Fd())})
		_ = f.Close()
		return nil, nil
	})
	peers <- peer
	if !soon(func() {
		if v, err := c.Read(0, 0, 4); v != 0x04030201 || err != nil {
			t.Errorf("%#x, %v", v, err)
		}
	}) {
		t.Error("the answer is held up")
	}
	if !soon(c.Close) {
		t.Error("the end is held up")
	}
	ok(t, q.Close())
}

// TestTwinOfAnotherKind: a twin socket on which shutdown does not end a receive is refused and
// does not block the client's Close.
func TestTwinOfAnotherKind(t *testing.T) {
	for name, make := range map[string]func() (int, error){
		"netlink": func() (int, error) {
			return unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_USERSOCK)
		},
		"datagrams": func() (int, error) { return unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) },
		"eventfd":   func() (int, error) { return unix.Eventfd(0, unix.EFD_CLOEXEC) },
	} {
		t.Run(name, func(t *testing.T) {
			twin, err := make()
			ok(t, err)
			defer closeFDs([]int{twin})
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			ok(t, err)
			peer := newSocket(fds[1])
			defer peer.close()
			ok(t, peer.send(raw(1, CmdVersion, flagReply, hello(`{"capabilities":{"twin_socket":{"supported":true,"fd_index":0}}}`)), []int{twin}))
			ok(t, peer.send(raw(2, CmdDeviceInfo, flagReply, le(16, DevicePCI, 9, 5)), nil))
			if !soon(func() {
				c, err := newClient(t.Context(), fds[0], Options{})
				if err == nil {
					c.Close()
				}
				if !errors.Is(err, ErrMalformed) {
					t.Error(err)
				}
			}) {
				t.Error("the client does not end")
			}
		})
	}
}
