package owner

import (
	"time"

	"golang.org/x/sys/unix"
)

// How the owner finds that others want its processor. Values are defined by this project.
const (
	// offerAfter is how long it looks for work before it offers the processor, and
	// between one offer and the next.
	offerAfter = 20 * time.Microsecond
	offerAgain = 100 * time.Microsecond
	// taken is how long an offer takes at least where somebody had work to do, and
	// did not just wake, look around and sleep again.
	taken = 100 * time.Microsecond
	// crowdedTime is for how long the engine does not look for work after that, but
	// sleeps, so that the kernel can put it where there is room; twice as long each
	// time that it finds the processor taken again, mostCrowded at most.
	crowdedTime = 2 * time.Millisecond
	mostCrowded = 100 * time.Millisecond
)

// Patience decides how long an owner that has nothing to do looks for work before it
// sleeps. Looking is cheaper than to be woken, unless another thread waits for the
// processor meanwhile: it may be the very process whose doorbell would be seen.
type Patience struct {
	base, most int64 // bounds of spin, ns
	spin       int64 // how long it looks at present
	least      int64 // how long it looks at least this time
	since      int64 // when it began, -1: it works
	offer      int64 // when the processor is offered next
	crowded    int64 // until then it does not look
	avoid      int64 // for how long it did not look the last time, 0: there was room
}

// NewPatience returns the patience of an owner that looks for base before it sleeps, and
// longer, most at most, while work comes soon after it has fallen asleep. A base that is
// not positive: it does not look.
func NewPatience(base, most time.Duration) Patience {
	return Patience{base: int64(base), most: int64(most), spin: int64(base), since: -1}
}

// Busy says that the owner has found work.
func (p *Patience) Busy() { p.since, p.least = -1, 0 }

// AtLeast has the owner look for d at least, until it finds work: some is about to come.
func (p *Patience) AtLeast(d time.Duration) { p.least = int64(d) }

// Since returns when the owner began to look for work.
func (p *Patience) Since() int64 { return p.since }

// Idle reports whether the owner is to sleep. It offers the processor at times, by yield,
// which returns for how many ns others had it. asked: a helper was asked, who may need this
// very processor.
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

// Slept takes for how many ns the owner slept. Work that comes soon after falling asleep
// would have been cheaper to wait for: the owner looks longer the next time, as long as
// that is so.
func (p *Patience) Slept(d int64) {
	p.since = -1
	if d < p.most {
		p.spin = min(2*p.spin, p.most)
	} else {
		p.spin = p.base
	}
}

// Yield offers the processor to other threads.
func Yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
