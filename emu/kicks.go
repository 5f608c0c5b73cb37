package emu

import (
	"time"

	"golang.org/x/sys/unix"
)

// A kick for which there is nothing costs the engine a wake-up and a look around. Values
// below are defined by this project.
const (
	// vainKicks is how many of these a user may have at once, and vainEvery after what
	// time one more. A process that publishes much kicks in vain now and then, since the
	// engine sees what it publishes before it sees the kick: each kick that brings
	// something repays vainRepaid.
	vainKicks  = 64
	vainEvery  = 10 * time.Millisecond
	vainRepaid = 4
)

// kick takes a kick of a slot, or looks for what an earlier one announced. It reports
// whether there was anything.
func (e *Engine) kick(s *slot, k uint32) bool {
	again := k == s.kick
	s.kick = k
	switch {
	case e.kicked(s), len(s.asked) > 0: // the process may have answered
		e.vain.Repay(s.att.UID, vainRepaid)
		return true
	case !again && !e.vain.Take(s.att.UID, e.clock.seen):
		e.mute(s)
	}
	return false
}

// mute leaves a slot's kicks alone for a while.
func (e *Engine) mute(s *slot) {
	s.muted = e.clock.seen + int64(vainEvery)
	s.node.accesses.Muted++
	_ = unix.EpollCtl(e.epoll, unix.EPOLL_CTL_DEL, s.att.Wake, nil)
}

// deaf reports whether a slot's kicks are left alone still.
func (e *Engine) deaf(s *slot) bool {
	if s.muted == 0 {
		return false
	}
	if e.clock.seen < s.muted {
		return true
	}
	s.muted = 0
	if err := e.watch(s.att.Wake); err != nil {
		s.muted = e.clock.seen + int64(vainEvery) // once more then
		return true
	}
	return false
}
