package emu

import "time"

// How the engine tells that others want its processor (ours).
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

// patience says how long an engine that has nothing to do looks for work before it
// sleeps. Looking is cheaper than to be woken, unless somebody waits for the
// processor meanwhile: it may be the very process whose doorbell would be seen.
type patience struct {
	base, most int64 // Config.Spin, Config.SpinMax, ns
	spin       int64 // how long it looks at present
	since      int64 // when it began, -1: it works
	offer      int64 // when the processor is offered next
	crowded    int64 // until then it does not look
	avoid      int64 // for how long it did not look the last time, 0: there was room
}

func newPatience(base, most time.Duration) patience {
	return patience{base: int64(base), most: int64(most), spin: int64(base), since: -1}
}

func (p *patience) busy() { p.since = -1 }

// idle tells whether to sleep; yield offers the processor and gives how long
// others had it. A helper that is asked may need this very one.
func (p *patience) idle(now int64, asked bool, yield func() int64) (sleep bool) {
	if p.since < 0 {
		p.since, p.offer = now, now+int64(offerAfter)
	}
	if asked {
		p.offer = now
	}
	if now < p.crowded || now-p.since >= p.spin {
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

// slept takes how long the engine slept. Work that comes soon after falling asleep
// would have been cheaper to wait for: it looks longer the next time, as long as
// that is so.
func (p *patience) slept(d int64) {
	p.since = -1
	if d < p.most {
		p.spin = min(2*p.spin, p.most)
	} else {
		p.spin = p.base
	}
}
