package r5

import "math/bits"

// The time-out of blocks to nodes of other hosts follows the measured round trip (001 §4.4): four times the
// smoothed one and 1 ms, rounded up to TIMEOUT_US times a power of two. There are farSteps such periods, each
// with a list. The last one is farMost. Values are defined by this project.
const (
	farSteps  = 10
	farMost   = 500e6 // ns
	tripTimes = 4
	tripMore  = 1e6 // ns
	tripShare = 8   // of a new round trip in the smoothed one: an eighth
)

// trip is the round trip of blocks on a path to another host. Short blocks have one of their own, since they
// overtake the others on a link.
type trip struct {
	smoothed int64 // ns, 0 if none was measured
	doubled  int   // how often the time-out was doubled since
}

// measure adds a round trip.
func (r *trip) measure(took int64) {
	took = min(max(took, 1), farMost)
	if r.doubled = 0; r.smoothed == 0 {
		r.smoothed = took
	}
	r.smoothed += (took - r.smoothed) / tripShare
}

// step returns the list for blocks that are sent now.
func (r *trip) step(timeout int64) int {
	if r.smoothed == 0 {
		return farSteps - 1
	}
	wait := tripTimes*r.smoothed + tripMore
	return min(bits.Len64(uint64((wait-1)/timeout))+r.doubled, farSteps-1)
}

// farPeriod returns the period of a list.
func farPeriod(timeout int64, step int) int64 {
	if step == farSteps-1 {
		return max(timeout, farMost)
	}
	return max(timeout, min(timeout<<uint(step), farMost))
}
