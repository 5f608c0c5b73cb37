package rdma

import (
	"time"

	"github.com/exanet/pfd/trace"
)

// stampClock returns CLOCK_MONOTONIC without a system call.
type stampClock struct {
	began time.Time // zero: not started
	base  int64     // CLOCK_MONOTONIC then
}

func (c *stampClock) now() (int64, error) {
	if c.began.IsZero() {
		began := time.Now()
		base, err := trace.Base(func() int64 { return int64(time.Since(began)) })
		if err != nil {
			return 0, err
		}
		c.began, c.base = began, base
	}
	return c.base + int64(time.Since(c.began)), nil
}

// stampLocked records by set that an event happened on a channel now, if pfd asks for stamps
// (docs/attach.md, WATCHED). Without a clock it records nothing.
func (e *Endpoint) stampLocked(ch int, set func(ch int, at int64)) {
	if !e.pages.Watched() {
		return
	}
	if at, err := e.clock.now(); err == nil {
		set(ch, at)
	}
}
