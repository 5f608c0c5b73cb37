package r5

import (
	"math/bits"

	"github.com/exanet/pfd/device"
)

// Limiting of the rate by path feedback (001 ch. 6 names it as future work; the values are defined by
// this project). Blocks to a node may have window bytes in flight. The window grows by windowStep for
// each round trip, and becomes shrinkTo tenths, once a round trip, if one takes more than twice the least
// time. If the window is less than a block, there are pauses between blocks.
const (
	windowStep  = 1 << 10
	windowLeast = 512
	shrinkTo    = 8
	unlimited   = 1 << 10 // blocks of so many bytes do not wait
)

// path is the way to a node. Transfers that have a block to issue to that node wait while it is shut.
type path struct {
	reach
	waiting list // of channels, by the links of the scheduler: a channel waits there or here
	held    list // of blocks to be retransmitted that wait while the path is full (listHeld)
	short   trip
	long    trip

	flying int64 // bytes of blocks in flight
	window int64 // bytes, 0 if the rate is not limited
	next   int64 // time at which a block may be issued, if none is in flight
	paced  bool  // in Firmware.paced
	shrunk int64 // time at which the window shrank
	// least are the least round trips of blocks, by the number of bits of their length less one, ns; nil if
	// the rate is not limited.
	least *[15]int64
}

// reach says whether blocks to a node may be sent.
type reach struct {
	full   bool // LinkReady: the link takes no blocks
	busy   bool // LinkReady: it takes short ones only, or none
	gone   bool // Gone
	drains bool // Drain
}

// Others says of the nodes of other hosts which ones are full, gone or drain. A path begins with that, so
// that a node needs paths only to those others that it writes to.
type Others map[device.NodeID]reach

// takes reports whether the link takes a block.
func (r *reach) takes(short bool) bool { return !r.full && (short || !r.busy) }

// open reports whether a block of n bytes may be issued.
func (p *path) open(now int64, n uint32, short bool) bool {
	switch {
	case !p.takes(short):
		return false
	case p.window == 0 || n <= unlimited:
		return true
	case p.flying == 0:
		return p.next <= now
	}
	return p.flying+int64(n) <= p.window
}

// trip adapts the window, which is at most most bytes, to a round trip of a block that ends now.
func (p *path) trip(now, took int64, length uint16, most int64) {
	least := &p.least[bits.Len16(length-1)]
	if *least == 0 || took < *least {
		*least = took
	}
	n := int64(length)
	switch {
	case took <= 2*(*least):
		p.window = min(p.window+windowStep*n/max(p.window, device.BlockSize), most)
	case now-p.shrunk >= took:
		p.window, p.shrunk = max(p.window*shrinkTo/10, windowLeast), now
	}
	if p.window < n {
		p.next = now - took + took*n/p.window
	}
}
