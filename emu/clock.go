package emu

import "time"

// stall is the most that the machines' time advances between two readings of the clock: more than
// a pass or a call takes that has a processor. Defined by this project.
const stall = int64(time.Millisecond)

// clock is the machines' time. It advances while the engine runs, and while it sleeps because it has
// no work. It stops while the engine has work but no processor, or a call sleeps in the kernel.
// Otherwise blocks whose answers have arrived, but have not been read yet, would time out and be
// retransmitted.
type clock struct {
	now  int64 // ns, never more than Engine.Now
	seen int64 // Engine.Now at the last look
}

// run advances the clock to a reading of Engine.Now.
func (c *clock) run(now int64) {
	c.now += min(now-c.seen, stall)
	c.seen = now
}

// slept advances the clock to a reading of Engine.Now after a sleep that was to end at until, in the
// machines' time.
func (c *clock) slept(now, until int64) {
	c.now = max(min(c.now+now-c.seen, until), c.now)
	c.seen = now
}
