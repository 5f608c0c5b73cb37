package user

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// closer closes descriptors of a peer in a goroutine of its own. The peer controls how long close
// takes (a socket that lingers, a file of FUSE).
type closer struct {
	mu   sync.Mutex
	fds  []int
	done chan struct{} // closed when none is left; nil: none is being closed
}

// shed closes descriptors without waiting for that.
func (c *closer) shed(fds []int) {
	if len(fds) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fds = append(c.fds, fds...)
	if c.done == nil {
		c.done = make(chan struct{})
		go c.run()
	}
}

func (c *closer) run() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.fds) > 0 {
		fds := c.fds
		c.fds = nil
		c.mu.Unlock()
		for _, fd := range fds {
			// Close does not linger then, unless the peer has kept a duplicate and changes it
			// back.
			_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{}) // fails for all else
		}
		closeFDs(fds)
		c.mu.Lock()
	}
	close(c.done)
	c.done = nil
}

// wait reports whether all descriptors are closed within most; zero means no limit.
func (c *closer) wait(most time.Duration) bool {
	c.mu.Lock()
	done := c.done
	c.mu.Unlock()
	if done == nil {
		return true
	}
	late := (<-chan time.Time)(nil)
	if most > 0 {
		t := time.NewTimer(most)
		defer t.Stop()
		late = t.C
	}
	select {
	case <-done:
		return true
	case <-late:
		return false
	}
}
