package user

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// closer closes descriptors of a peer's. To close one may take as long as the peer
// likes (a socket that lingers, a file of FUSE): a goroutine of its own does it.
type closer struct {
	mu   sync.Mutex
	fds  []int
	done chan struct{} // closed when none is left; nil: there is none
}

// shed takes descriptors to close and does not wait for it.
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
			// A socket does not linger for whoever keeps no other duplicate of it.
			_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{}) // fails for all else
		}
		closeFDs(fds)
		c.mu.Lock()
	}
	close(c.done)
	c.done = nil
}

// wait tells whether all are closed within a time; zero is for ever.
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
