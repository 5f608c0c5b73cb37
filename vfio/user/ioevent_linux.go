package user

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// ioEvents watches the eventfds of Config.IOEvents. The watching goroutine starts with the first
// client that asks for them.
type ioEvents struct {
	s    *Server
	fds  []int // one for each event
	ep   int
	stop int // eventfd
	once sync.Once
	down sync.Once
	wg   sync.WaitGroup
}

func (e *ioEvents) open(s *Server) error {
	e.s, e.ep, e.stop = s, -1, -1
	for _, ev := range s.cfg.IOEvents {
		if ev.BAR < 0 || ev.BAR > 5 || ev.Size != 1 && ev.Size != 2 && ev.Size != 4 && ev.Size != 8 ||
			ev.Offset%uint64(ev.Size) != 0 || ev.Offset >= s.cfg.BARs[ev.BAR].Size {
			return fmt.Errorf("I/O event at BAR %d, %#x of %d bytes: not an aligned access inside the BAR", ev.BAR, ev.Offset, ev.Size)
		}
	}
	if len(s.cfg.IOEvents) == 0 {
		return nil
	}
	err := e.build(len(s.cfg.IOEvents))
	if err != nil {
		e.close()
		return fmt.Errorf("I/O events: %w", err)
	}
	return nil
}

func (e *ioEvents) build(n int) (err error) {
	if e.ep, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	for i := range n + 1 {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			return err
		}
		if i == n {
			e.stop = fd
		} else {
			e.fds = append(e.fds, fd)
		}
		// Edge-triggered: a client that fills an eventfd wakes us only once.
		if err := unix.EpollCtl(e.ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(i)}); err != nil {
			return err
		}
	}
	return nil
}

// start starts the watching goroutine, once.
func (e *ioEvents) start() {
	e.once.Do(func() { e.wg.Go(e.watch) })
}

func (e *ioEvents) watch() {
	var events [16]unix.EpollEvent
	for {
		n, err := unix.EpollWait(e.ep, events[:], -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return
		}
		for _, ev := range events[:n] {
			i := int(ev.Fd)
			if i == len(e.fds) {
				return
			}
			if drain(e.fds[i]) {
				e.s.run(func() { e.s.ioEvent(e.s.cfg.IOEvents[i]) })
			}
		}
	}
}

// ioEvent performs the write that an eventfd stands for, on the owner's goroutine.
func (s *Server) ioEvent(ev IOEvent) {
	if s.memory {
		s.dev.Write(ev.BAR, ev.Offset, ev.Size, ev.Value)
	}
}

func (e *ioEvents) close() {
	e.down.Do(func() {
		e.once.Do(func() {}) // no start after this
		if e.stop >= 0 {
			_, _ = unix.Write(e.stop, eventfdOne) // a fresh eventfd accepts a one
		}
		e.wg.Wait()
		for _, fd := range append(e.fds, e.stop, e.ep) {
			if fd >= 0 {
				closeFDs([]int{fd})
			}
		}
	})
}
