package emu

import (
	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/space"
)

// strike wakes a process by its rings that are armed. Each is a call, because the touch of its word
// ARM may sleep; if the memory must not be touched, the ring counts as armed. The caller has
// written all that the process waits for.
func (e *Engine) strike(s *slot, bells []*attach.Bell) {
	for _, b := range bells {
		c := e.newCall()
		c.node, c.slot, c.index, c.bell = s.node, s, s.index, b
		c.begun, c.step = true, space.Mapped
		if e.slow(s) || !e.usesMapping(c) {
			b.Wake()
			e.freeCall(c)
			continue
		}
		e.tasks = append(e.tasks, c)
	}
}

// notify announces a change to a process. If threads of it wait for one, the kernel may put them on
// this processor.
func (e *Engine) notify(s *slot) {
	s.att.Pages.Notify()
	e.struck = e.struck || s.att.Pages.Waiting()
}
