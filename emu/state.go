package emu

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/internal/owner"
	"github.com/exanet/pfd/internal/threads"
	"github.com/exanet/pfd/internal/turnstile"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/record"
	"github.com/exanet/pfd/soc/wire"
	"github.com/exanet/pfd/trace"
)

// Engine drives the nodes. Each exported method says on which goroutine it may be called: on any one,
// or on the owning goroutine (device.Bus).
type Engine struct {
	cfg   Config
	log   *slog.Logger
	pool  *wire.Pool
	base  time.Time
	epoch uint32 // the nodes' first
	nodes []*node

	// Owned by the engine goroutine.
	urgent      itemQueue             // actions that wait (queueOf)
	arriving    itemQueue             // data at its destination
	leaving     itemQueue             // data at its source
	actions     []soc.Action          // scratch of step
	clock       clock                 // read once per pass and after each call
	tasks       []*call               // calls to begin or to perform
	current     *call                 // the call under the lease
	slowUsers   map[uint32]int64      // until when new attachments of a user begin slow
	unseenUsers map[uint32]int64      // until when memory that a user shares is not touched
	owners      map[uint32]*treeOwner // by user
	lateMapped  int                   // touches of shared memory that lost their leases and still sleep
	free        []*call
	vectors     bool // some node has pending vectors
	struck      bool // a process was woken since the engine last had no work
	stop        bool
	linked      int64 // in the time of Now: when a frame came from another host or went there
	sent        bool  // frames to other hosts that wait for Flush

	apart   apart
	threads *threads.Budget
	holding int            // calls that wait for a thread
	lateOf  map[uint32]int // by user: calls that have lost their lease and have not ended

	recorder *record.Writer // of the machines' inputs; nil: none
	tap      atomic.Pointer[func(int64, *wire.Frame)]
	tracer   tracer

	lease    atomic.Uint64 // odd: in a call that may sleep
	asleepIn atomic.Uint64 // the lease of the call that the supervisor last found asleep
	thread   atomic.Int32  // the owner's
	noted    atomic.Bool   // thread was noted since the supervisor's last look
	parked   atomic.Bool   // the watchdog is not set: the next call sets it
	watchdog *alarm        // wakes the supervisor

	onCall func(node int, c atomics.Call) // operations for the driver; nil: none

	loop *owner.Loop[*call, *slot] // its messages are calls that have ended

	// held is locked by the owner of the engine: its goroutine or, while that sleeps, a borrower
	// (Lend). It is fair: a borrower that returns at once waits for the others.
	held     turnstile.Lock
	borrowed bool   // the owner is a borrower
	left     func() // is called if the borrower is found blocked; nil: nothing is
	until    int64  // when the engine goroutine wakes by itself, in the machines' time

	started   atomic.Bool
	closeOnce sync.Once
}

// Now returns the time since the engine was made, in ns. Any goroutine.
func (e *Engine) Now() int64 { return int64(time.Since(e.base)) }

// Clock returns the machines' time, in ns: the times that Node returns are in it. On the owning
// goroutine.
func (e *Engine) Clock() int64 { return e.clock.now }

// nodeOf returns the node of an id, nil if it is none of this engine's.
func (e *Engine) nodeOf(id device.NodeID) *node {
	if i := uint32(id - e.cfg.Base); i < uint32(len(e.nodes)) {
		return e.nodes[i]
	}
	return nil
}

// route reports whether there is a way to a node.
func (e *Engine) route(id device.NodeID) bool {
	return e.nodeOf(id) != nil || e.cfg.Carrier != nil && e.cfg.Carrier.Reaches(id)
}

// routes is route for the machines.
func (e *Engine) routes(id device.NodeID) bool {
	ok := e.route(id)
	if e.recorder != nil && e.nodeOf(id) == nil {
		e.recorder.Reached(id, ok)
	}
	return ok
}

// attached iterates over the attached slots.
func (e *Engine) attached(yield func(*slot) bool) {
	for _, n := range e.nodes {
		for _, s := range n.slots {
			if s != nil && !yield(s) {
				return
			}
		}
	}
}

func (e *Engine) newCall() *call {
	n := len(e.free)
	if n == 0 {
		return new(call)
	}
	c := e.free[n-1]
	e.free = e.free[:n-1]
	return c
}

func (e *Engine) freeCall(c *call) {
	clear(c.bufs[:c.count])
	clear(c.whole[:c.count])
	clear(c.moved[:c.count])
	c.op, c.space, c.queue, c.bell, c.atomic, c.err, c.node, c.slot = nil, nil, nil, nil, nil, nil, nil, nil
	c.count, c.from = 0, 0
	c.begun, c.long, c.outside, c.late, c.asleep, c.refused, c.waited = false, false, false, false, false, false, false
	e.free = append(e.free, c)
}

// tracer records the blocks that were refused. It is owned by the engine goroutine.
type tracer struct {
	log       *trace.Log
	base      int64 // CLOCK_MONOTONIC at Engine.base
	on        bool  // the processes know that tracing is on
	seen      int64 // a reading of Engine.Now that is later than the machines' clock
	published int64 // when a done was published, before the process could see it
	finishing []finishing
}

// finishing is the record of a block whose transfer's done is not published yet.
type finishing struct {
	node   *node
	slot   uint8
	record trace.Record
}
