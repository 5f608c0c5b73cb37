package user

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fake is a client of a server that agrees to everything and claims to have a PCI device. The
// test provides its other answers; nil means no answer.
func fake(t *testing.T, answer func(m message) (payload []byte, fds []int)) (*Client, *rawSession) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	ok(t, err)
	peer := &rawSession{t, nil, newSocket(fds[1]), newInbox(1 << 20)}
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			m, more := peer.receive()
			if !more {
				return
			}
			var payload []byte
			var pass []int
			switch m.Command {
			case CmdVersion:
				payload = hello("{}")
			case CmdDeviceInfo:
				payload = le(16, DevicePCI, 9, 5)
			default:
				payload, pass = answer(m)
			}
			closeFDs(m.fds)
			if payload != nil && m.Flags&flagNoReply == 0 {
				_ = peer.sock.send(raw(m.ID, m.Command, flagReply, payload), pass)
			}
		}
	}()
	c, err := newClient(t.Context(), fds[0], Options{})
	ok(t, err)
	t.Cleanup(func() {
		c.Close()
		<-over
		peer.sock.close()
	})
	return c, peer
}

// TestStuckDoorbell: a server that does not read its eventfd, fills it and makes it block does
// not block the client's Signal, and ends the client.
func TestStuckDoorbell(t *testing.T) {
	var owner sync.Mutex
	_, _, c := setUp(t, Options{}, func(c *Config) { c.Run = func(f func()) { owner.Lock(); defer owner.Unlock(); f() } })
	subs, fds, err := c.RegionIOFDs(1)
	ok(t, err)
	defer closeFDs(fds)
	fd := subs[0].FD
	owner.Lock()
	ok(t, c.Signal(fd))
	for count := true; count; time.Sleep(time.Millisecond) { // until the server has taken it and waits for the owner
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		ok(t, err)
		count = n > 0
	}
	_, err = unix.Write(fd, order.AppendUint64(nil, ^uint64(0)-1)) // full
	ok(t, err)
	ok(t, c.Signal(fd)) // EAGAIN: it rings all the same
	ok(t, unix.SetNonblock(fd, false))
	err = c.Signal(fd) // hangs here if it does not work
	owner.Unlock()
	if !errors.Is(err, ErrGone) || !errors.Is(err, ErrMalformed) {
		t.Error(err)
	}
	<-c.Done()
}

// TestCrowdedEventFD: a peer of many threads, each of which waits to fill the eventfd and make it
// block again, delays us no more than a peer of one thread.
func TestCrowdedEventFD(t *testing.T) {
	const writers, signals = 300, 5
	fd := eventfd(t)
	_ = unix.SetNonblock(fd, false)
	full := order.AppendUint64(nil, ^uint64(0)-1)
	var over atomic.Bool
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for !over.Load() {
				if _, err := unix.Write(fd, full); err != nil {
					time.Sleep(time.Millisecond)
					_ = unix.SetNonblock(fd, false)
				}
			}
		})
	}
	time.Sleep(200 * time.Millisecond) // until they wait
	stuck := 0
	s := newSignaller(func() { stuck++ })
	began := time.Now()
	for range signals {
		s.signal(fd)
		drain(fd) // our own count: then it is full again
		time.Sleep(time.Millisecond)
	}
	if took := time.Since(began); took > signals*200*time.Millisecond {
		t.Errorf("%d signals took %v", signals, took)
	}
	if stuck == 0 {
		t.Error("it did not block")
	}
	over.Store(true)
	ended := make(chan struct{})
	go func() { defer close(ended); wg.Wait() }()
	for {
		select {
		case <-ended:
			return
		case <-time.After(100 * time.Microsecond):
			drain(fd)
		}
	}
}

// TestDoorbellNoEventFD: a server that sends other descriptors than eventfds as doorbells is
// refused, and none of them stays open.
func TestDoorbellNoEventFD(t *testing.T) {
	p, ev := pipe(t), eventfd(t)
	before := openFDs(t)
	t.Run("pipe", func(t *testing.T) {
		c, _ := fake(t, func(m message) ([]byte, []int) {
			if m.Command != CmdRegionIOFDs {
				return nil, nil
			}
			sub := le(uint64(0), uint64(4), 1, 0, 0, 0, uint64(1))
			return le(16+len(sub), 0, 0, 1, sub), []int{ev, p}
		})
		subs, fds, err := c.RegionIOFDs(0)
		if !errors.Is(err, ErrMalformed) || len(subs)+len(fds) != 0 {
			t.Errorf("%v, %v, %v", subs, fds, err)
		}
		<-c.Done()
	})
	if after := fdsAfter(t, before); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// TestClosedEventFD: an eventfd that the client has closed is signalled without effect, can be
// replaced, and is released with the client.
func TestClosedEventFD(t *testing.T) {
	s, _ := newServer(t)
	before := openFDs(t)
	c := newTestClient(t, s, Options{})
	ok(t, c.SetCommand(CommandMemory|CommandMaster))
	for range 3 {
		var evs []int
		for range 4 {
			ev, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
			ok(t, err)
			evs = append(evs, ev)
		}
		for i, action := range []uint32{IRQActionTrigger, IRQActionMask, IRQActionUnmask} {
			ok(t, c.SetEventFDs(IRQMSIX, 0, action, evs[i:i+1]))
		}
		ok(t, c.SetEventFDs(IRQErr, 0, IRQActionTrigger, evs[3:]))
		closeFDs(evs)
		for range 100 {
			ok(t, s.Interrupt(0))
			ok(t, c.ActIRQs(IRQMSIX, 0, 1, IRQActionMask))
			ok(t, c.ActIRQs(IRQMSIX, 0, 1, IRQActionUnmask))
			ok(t, c.ActIRQs(IRQErr, 0, 1, IRQActionTrigger))
		}
	}
	ev := eventfd(t)
	ok(t, c.SetEventFDs(IRQMSIX, 0, IRQActionTrigger, []int{ev}))
	ok(t, s.Interrupt(0))
	await(t, ev)
	c.Close()
	for end := time.Now().Add(2 * time.Minute); openFDs(t) > before+1 && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	if after := openFDs(t); after > before+1 { // ev
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// TestPowerOn: a device that was left in D3hot answers again. A device whose list of capabilities
// is circular, or passes the end, is refused.
func TestPowerOn(t *testing.T) {
	_, _, c := setUp(t, Options{})
	ok(t, c.PowerOn()) // it is on
	ok(t, c.Write(RegionConfig, pmControl, 2, 3))
	if _, err := c.Read(0, 0, 4); !errors.Is(err, unix.EIO) {
		t.Errorf("in D3hot: %v", err)
	}
	ok(t, c.PowerOn())
	ok(t, c.Write(0, 8, 4, 7))
	if v, err := c.Read(0, 8, 4); v != 7 || err != nil {
		t.Errorf("in D0: %#x, %v", v, err)
	}
	for name, x := range map[string]struct {
		set  map[int]byte
		want error
	}{
		"none":          {map[int]byte{}, nil},
		"no list":       {map[int]byte{cfgCapPtr: 0x40, 0x40: 1, 0x44: 3}, nil},
		"a loop":        {map[int]byte{cfgStatus: 0x10, cfgCapPtr: 0x40, 0x41: 0x48, 0x49: 0x40}, ErrMalformed},
		"at the end":    {map[int]byte{cfgStatus: 0x10, cfgCapPtr: 0xfc, 0xfc: 1}, ErrMalformed},
		"in the header": {map[int]byte{cfgStatus: 0x10, cfgCapPtr: 0x3c}, nil},
		"never wakes":   {map[int]byte{cfgStatus: 0x10, cfgCapPtr: 0x40, 0x40: 1, 0x44: 3}, unix.EIO},
	} {
		t.Run(name, func(t *testing.T) {
			var space [256]byte
			for at, v := range x.set {
				space[at] = v
			}
			c, _ := fake(t, func(m message) ([]byte, []int) {
				a, _, err := DecodeRegionAccess(m.body)
				if err != nil {
					return nil, nil
				}
				head := a.Append(nil)
				if m.Command == CmdRegionWrite {
					return head, nil
				}
				return append(head, space[a.Offset:a.Offset+uint64(a.Count)]...), nil
			})
			if err := c.PowerOn(); !errors.Is(err, x.want) {
				t.Errorf("%v, want %v", err, x.want)
			}
		})
	}
}
