package owner

import (
	"time"

	"golang.org/x/sys/unix"
)

// How the owner detects contention for its processor. Values are defined by this project.
const (
	// offerAfter is how long the owner polls before it first yields the processor; offerAgain is
	// the interval between further yields.
	offerAfter = 20 * time.Microsecond
	offerAgain = 100 * time.Microsecond
	// taken is the minimum duration of a yield in which another thread did real work, instead of
	// only waking, polling and sleeping again.
	taken = 100 * time.Microsecond
	// crowdedTime is how long the owner then sleeps instead of polling, so that the kernel can
	// move it to a free processor. It doubles each time the processor is found taken again, up to
	// mostCrowded.
	crowdedTime = 2 * time.Millisecond
	mostCrowded = 100 * time.Millisecond
)

// Patience decides how long an idle owner polls before it sleeps. Polling is cheaper than being
// woken, unless another thread waits for the processor: it may be the very process whose doorbell
// the owner polls for.
type Patience struct {
	base, most int64 // bounds of spin, ns
	spin       int64 // how long it currently polls
	least      int64 // how long it polls at least this time
	since      int64 // when it began to poll, -1: it is working
	offer      int64 // when the processor is yielded next
	crowded    int64 // until then it does not poll
	avoid      int64 // the last duration without polling, 0: there was no contention
}

// NewPatience returns the patience of an owner that polls for base before it sleeps, and longer,
// up to most, while work arrives soon after it has fallen asleep. If base is not positive, it
// does not poll.
func NewPatience(base, most time.Duration) Patience {
	return Patience{base: int64(base), most: int64(most), spin: int64(base), since: -1}
}

// Busy records that the owner has found work.
func (p *Patience) Busy() { p.since, p.least = -1, 0 }

// AtLeast makes the owner poll for at least d, until it finds work: some is about to arrive.
func (p *Patience) AtLeast(d time.Duration) { p.least = int64(d) }

// Since returns when the owner began to poll.
func (p *Patience) Since() int64 { return p.since }

// Idle reports whether the owner should sleep. At times it yields the processor by calling yield,
// which returns for how many ns other threads ran. asked means that a helper was asked, which may
// need this very processor.
func (p *Patience) Idle(now int64, asked bool, yield func() int64) (sleep bool) {
	if p.since < 0 {
		p.since, p.offer = now, now+int64(offerAfter)
	}
	if asked {
		p.offer = now
	}
	if now < p.crowded || now-p.since >= max(p.spin, p.least) {
		return true
	}
	if now >= p.offer {
		p.offer = now + int64(offerAgain)
		if took := yield(); took >= int64(taken) {
			p.avoid = min(max(2*p.avoid, int64(crowdedTime)), int64(mostCrowded))
			p.crowded = now + took + p.avoid
		} else {
			p.avoid = 0
		}
	}
	return false
}

// Slept records that the owner slept for d ns. Polling for work that arrives soon after falling
// asleep would have been cheaper, so the owner then polls longer the next time.
func (p *Patience) Slept(d int64) {
	p.since = -1
	if d < p.most {
		p.spin = min(2*p.spin, p.most)
	} else {
		p.spin = p.base
	}
}

// Yield yields the processor to other threads.
func Yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
