package emu

import "time"

// stall is the most that passes for the machines from one look at the clock to the
// next (ours): more than a pass or a call takes that has a processor.
const stall = int64(time.Millisecond)

// clock is the machines' time. It passes while the engine runs, and while it sleeps
// because there is nothing to do. While the engine has work and the host gives it no
// processor, or a call sleeps in the kernel, the machines stand still, and their
// time-outs with them: else blocks whose answers are there and not yet looked at
// would be retransmitted.
type clock struct {
	now  int64 // ns, never more than Engine.Now
	seen int64 // Engine.Now at the last look
}

// run takes the time of a look.
func (c *clock) run(now int64) {
	c.now += min(now-c.seen, stall)
	c.seen = now
}

// slept takes the time of a look after a sleep that was to end at until, in the
// machines' time.
func (c *clock) slept(now, until int64) {
	c.now = max(min(c.now+now-c.seen, until), c.now)
	c.seen = now
}
