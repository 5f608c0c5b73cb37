package emu

import (
	"time"

	"golang.org/x/sys/unix"
)

// Recovery of a slow domain: after so many calls in a row that were shorter than
// quickCall it is served inline again, after twice as many each time that it
// becomes slow again within slowMemory, at most mostQuickCalls (ours): otherwise a
// process could hold the engine up for a lease, be quick for a moment, and again.
const (
	quickCalls     = 256
	mostQuickCalls = 1 << 18
	quickCall      = time.Millisecond
	slowMemory     = 10 * time.Second
)

// pace follows how a domain's calls fare. Engine goroutine.
type pace struct {
	slow   bool  // its calls are done by a worker of its own instead of inline
	quick  int   // short calls in a row since it became slow
	need   int   // as many of them as end that
	slowed int64 // when it became slow last

	watched int           // so many calls are looked at more closely
	late    time.Duration // that these have slept in all
}

// slowDown has a domain served by a worker of its own.
func (p *pace) slowDown(now int64) {
	if p.need = min(2*p.need, mostQuickCalls); p.need == 0 || now-p.slowed > int64(slowMemory) {
		p.need = quickCalls
	}
	*p = pace{slow: true, need: p.need, slowed: now}
}

// settle takes how long a slow domain's call took; idle: none is left.
func (p *pace) settle(took time.Duration, idle func() bool) {
	if !p.slow || took == 0 {
		return
	}
	if took > quickCall {
		p.quick = 0
		return
	}
	if p.quick++; p.quick >= p.need && idle() {
		p.slow = false
	}
}

// charge takes how long an inline call took, and whether it slept, where that was
// watched. True: the domain has held the engine up for a lease in all, in calls of
// which none may have outlasted its own.
func (p *pace) charge(took time.Duration, slept bool) bool {
	switch {
	case took <= quickCall:
		if p.watched > 0 {
			if p.watched--; p.watched == 0 {
				p.late = 0
			}
		}
		return false
	case slept:
		p.late += took
	}
	p.watched = quickCalls
	return p.late >= leaseTime
}

// naps gives the calling thread, and how often it has gone to sleep in the kernel:
// by itself, not to give way to another thread (getrusage(2), ru_nvcsw).
func naps() [2]int64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &u) != nil {
		return [2]int64{}
	}
	return [2]int64{int64(unix.Gettid()), u.Nvcsw}
}
