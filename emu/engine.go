package emu

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/owner"
	"github.com/exanet/pfd/internal/threads"
	"github.com/exanet/pfd/internal/turnstile"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/link"
	"github.com/exanet/pfd/soc/r5"
	"github.com/exanet/pfd/soc/record"
	"github.com/exanet/pfd/soc/smmu"
	"github.com/exanet/pfd/soc/wire"
	"github.com/exanet/pfd/space"
	"github.com/exanet/pfd/trace"
	"github.com/exanet/pfd/view"
)

// Attachment ties a process to a domain slot.
type Attachment struct {
	Pages *attach.Pages // descriptors, doorbell, packetizer, wake flags
	Wake  int           // eventfd by which the process wakes a sleeping engine
	// Space is the process's memory. The engine closes it when it detaches the slot.
	Space space.Space
	// ReadOnly, where it is given, is what the process shares for reading alone: no access
	// writes it, whatever the process itself may.
	ReadOnly *view.ReadOnly
	// Gone is called once, on the owning goroutine, when the process's address
	// space is found gone (exit or exec). It must not block. May be nil.
	Gone func()
	// Declined, where it is given, is called on the owning goroutine with each RAPF with
	// the fail bit that the process wants sent, to source; where it is true, the RAPF is
	// not sent. It must not block.
	Declined func(source device.NodeID, r mailbox.RAPF) bool
	// UID is whose process it is: one whose user's memory was slow begins slow.
	UID uint32
	// PID is the process's own, for traces; 0 unknown.
	PID int
	// Log, where it is given, names the process and its user in each line about it.
	Log *slog.Logger
}

// Config is what an engine is built with.
type Config struct {
	Nodes  int // 1..MaxNodes; node i has id i
	VABits int // 39..48; 0: 48
	// NoTXFIFO leaves source faults to the senders' time-outs.
	NoTXFIFO bool
	// Stall: the nodes can have faulting accesses wait (CAPS[26]).
	Stall bool
	// Firmware switches off optimizations of the firmware.
	Firmware r5.Options
	// Spin is how long the engine looks for work before it sleeps in the
	// kernel; 0: DefaultSpin, negative: not at all. It grows up to SpinMax while
	// work comes soon after; 0: DefaultSpinMax.
	Spin, SpinMax time.Duration
	Log           *slog.Logger // nil: slog.Default
	// Link is what the nodes' links to each other are like.
	Link link.Options
	// OnLink, where it is given, is what happens to a frame on its way: it gives what
	// arrives, the frame itself or another one, nil where nothing does. For tests.
	OnLink func(f *wire.Frame) *wire.Frame
	// Outside, where it is given, says what node i has that is driven from
	// another process: no process attaches to it here, and its SMMU walks tables
	// in device memory (shadow translation) instead of the processes' own.
	Outside func(i int) Outside
	// Trace, where it is given, takes the records of refused blocks beside those of the
	// owner of the engine; the engine shows it.
	Trace *trace.Log
	// Threads is what calls that may hang have of threads; nil: the engine has a budget of
	// its own, for which Run prepares threads.
	Threads *threads.Budget
}

// Limits and defaults of an engine (ours).
const (
	MaxNodes       = 64
	DefaultSpin    = 50 * time.Microsecond
	DefaultSpinMax = time.Millisecond
)

// Outside is what a node has that is driven from another process.
type Outside struct {
	// BTCM is the memory of window btcm, which the driver maps too.
	BTCM []byte
	// Memory returns the memory of a slot, by the tables that the slot's context
	// bank has at that moment; its operations never wait. It is called on the engine
	// goroutine; nil is memory that fails every access.
	Memory func(slot int, t smmu.Tables) space.Space
	// DMA is the driver's memory, for the queues in memory; nil: the node has none.
	DMA DMA
	// Remote, where it is given, tells whether memory is reached by asking the
	// driver, who may wait for the engine: such accesses are made apart, one of
	// the node at a time. It is called on the owning goroutine.
	Remote func() bool
}

// ErrConfig says that an engine cannot be built as asked.
var ErrConfig = errors.New("emulated machine")

// Engine drives the nodes. Exported methods say where they may be called.
type Engine struct {
	cfg   Config
	log   *slog.Logger
	pool  *wire.Pool
	base  time.Time
	epoch uint32 // the nodes' first
	nodes []*node

	// Owned by the engine goroutine.
	urgent    itemQueue // actions to be done (queueOf)
	arriving  itemQueue
	leaving   itemQueue
	actions   []soc.Action     // scratch of step
	clock     clock            // read once a pass and after each call
	tasks     []*call          // calls to be begun, or to be performed
	current   *call            // what the lease is held for
	slowUsers map[uint32]int64 // until when what a user attaches begins slow
	// unseenUsers is until when what a user shares is not touched.
	unseenUsers map[uint32]int64
	late        int // touches of shared memory that lost their leases and sleep still
	free        []*call
	vectors     bool // some node has vectors to be delivered
	stop        bool

	apart   apart
	threads *threads.Budget
	holding int            // calls that wait for a thread
	lateOf  map[uint32]int // calls of a user's that have lost their lease and not ended

	recorder *record.Writer // of the machines' inputs, nil: none
	tap      atomic.Pointer[func(int64, *wire.Frame)]
	tracer   tracer

	lease    atomic.Uint64 // odd: in a call that may sleep
	asleepIn atomic.Uint64 // the lease of the call that the supervisor last found asleep
	thread   atomic.Int32  // the owner's
	parked   atomic.Bool   // the watchdog is not set: the next call sets it
	watchdog *alarm        // wakes the supervisor

	loop *owner.Loop[*call, *slot] // messages are calls that are over

	// held is locked by the owner of the engine: its goroutine but while that
	// sleeps, or a borrower meanwhile (Lend).
	held     turnstile.Lock // a borrower that comes back at once waits for others
	borrowed bool           // the owner is a borrower
	until    int64          // when the engine goroutine wakes by itself, in the machines' time

	started   atomic.Bool
	closeOnce sync.Once
}

type node struct {
	index    int
	soc      *soc.Node
	windows  [device.Windows]*window
	bus      *bus
	handler  device.Handler
	due      int64  // the machines' deadline, or when a frame arrives
	flight   flight // frames that it has sent
	pending  uint32 // vectors to be delivered
	slots    [device.Slots]*slot
	accesses Accesses
	outside  Outside
	sleepers [device.Slots]sleeper // whose memory the driver's tables name
	asking   bool                  // a call by which the driver is asked is under way
	asks     []*call               // and these wait for it
}

// sleeper is whose calls may sleep.
type sleeper struct {
	slowUntil int64 // in the time of Now: its calls are made apart
	sleep     int64 // that its calls were found in, less what was forgiven, ns
	sleptAt   int64 // when one was found asleep last
}

// slot is an attached domain slot.
type slot struct {
	process owner.Process[*slot]
	node    *node
	index   int
	att     *Attachment
	gone    bool
	apart   int     // calls that are made apart
	late    int     // calls that have lost their lease
	held    []*call // that wait for a thread
	starved bool    // a page-in has waited in vain for one, and none has got one since
	wasLate bool    // it was attached while others of its user had
	waits   int     // calls that wait for an answer

	sleeper
	unseenUntil int64 // in the time of Now: what its process shares is not touched
}

// New builds the machine; Run drives it. Errors match ErrConfig.
func New(cfg Config) (*Engine, error) {
	if cfg.VABits == 0 {
		cfg.VABits = device.MaxVABits
	}
	if cfg.Spin == 0 {
		cfg.Spin = DefaultSpin
	}
	if cfg.SpinMax == 0 {
		cfg.SpinMax = DefaultSpinMax
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Nodes < 1 || cfg.Nodes > MaxNodes {
		return nil, fmt.Errorf("%w: %d nodes: give 1 to %d", ErrConfig, cfg.Nodes, MaxNodes)
	}
	if err := cfg.Link.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if cfg.VABits < device.MinVABits || cfg.VABits > device.MaxVABits {
		return nil, fmt.Errorf("%w: %d bits of virtual address: give %d to %d", ErrConfig, cfg.VABits, device.MinVABits, device.MaxVABits)
	}
	budget := cfg.Threads
	if budget == nil {
		budget = threads.New()
	}
	e := &Engine{
		cfg: cfg, log: cfg.Log, pool: new(wire.Pool), base: time.Now(),
		slowUsers: map[uint32]int64{}, unseenUsers: map[uint32]int64{}, lateOf: map[uint32]int{}, threads: budget, held: turnstile.New(),
	}
	var err error
	if e.loop, err = owner.New[*call](owner.User[*slot](processes{e})); err != nil {
		return nil, fmt.Errorf("emulated machine: %w", err)
	}
	if e.watchdog, err = newAlarm(); err != nil {
		e.close()
		return nil, fmt.Errorf("emulated machine: %w", err)
	}
	if e.tracer, err = newTracer(cfg.Trace, e); err != nil {
		e.close()
		return nil, fmt.Errorf("emulated machine: %w", err)
	}
	e.parked.Store(true)
	e.epoch = max(rand.Uint32(), 1)
	e.tracer.log.Fabric = uint64(e.epoch)
	if cfg.Outside != nil {
		e.tracer.log.Fabric = trace.Served(os.Getpid())
	}
	for i := range cfg.Nodes {
		n := &node{index: i, flight: newFlight(&cfg.Link, i, e.pool)}
		if cfg.Outside != nil {
			n.outside = cfg.Outside(i)
		}
		n.soc = soc.New(soc.Config{
			ID: device.NodeID(i), VABits: cfg.VABits, NoTXFIFO: cfg.NoTXFIFO, Stall: cfg.Stall, SVA: cfg.Outside == nil, Queues: n.outside.DMA != nil,
			Epoch: e.epoch, Pool: e.pool, BTCM: n.outside.BTCM, Firmware: cfg.Firmware,
			Route: func(id device.NodeID) bool { return int(id) < cfg.Nodes },
		})
		n.due = n.deadline()
		n.bus = &bus{engine: e, node: n}
		for w := range n.windows {
			n.windows[w] = &window{engine: e, node: n, id: device.WindowID(w)}
		}
		e.nodes = append(e.nodes, n)
	}
	return e, nil
}

// Nodes gives the number of nodes. Any goroutine.
func (e *Engine) Nodes() int { return len(e.nodes) }

// Bus gives the way to a node. Any goroutine.
func (e *Engine) Bus(node int) device.Bus { return e.nodes[node].bus }

// Space returns what pages in for the driver of a node. Any goroutine.
func (e *Engine) Space(node int) space.Machine { return e.nodes[node].bus }

// Now gives the time since the engine was made, ns. Any goroutine.
func (e *Engine) Now() int64 { return int64(time.Since(e.base)) }

// Clock gives the machines' time, ns: what Node tells of times is of it. On the
// owning goroutine.
func (e *Engine) Clock() int64 { return e.clock.now }

// Run drives the machine until ctx ends. It is called once.
func (e *Engine) Run(ctx context.Context) error {
	if !e.started.CompareAndSwap(false, true) {
		return fmt.Errorf("%w: Run called twice", ErrConfig)
	}
	if e.cfg.Threads == nil {
		if made, wanted := e.threads.Prepare(); made < wanted {
			e.log.Warn("few threads can be made: page-ins are refused sooner where memory hangs: raise pids.max (TasksMax) or ulimit -u", "made", made, "wanted", wanted)
		}
	}
	go e.run(nil)
	super := make(chan struct{})
	go func() {
		defer close(super)
		e.supervise()
	}()
	select {
	case <-ctx.Done():
		e.loop.Post(func() { e.stop = true })
		<-e.loop.Done()
	case <-e.loop.Done():
	}
	e.watchdog.set(1, 0)
	<-super
	e.apart.end()
	e.close()
	return nil
}

func (e *Engine) close() {
	e.closeOnce.Do(func() {
		if e.watchdog != nil {
			_ = e.watchdog.file.Close()
		}
		_ = e.loop.Close() // nothing that could be lost
	})
}

// Attach ties a process to a slot of a node. On the owning goroutine.
func (e *Engine) Attach(nodeIndex, slotIndex int, a *Attachment) error {
	n := e.nodes[nodeIndex]
	if n.slots[slotIndex] != nil {
		return fmt.Errorf("%w: slot %d of node %d is attached already", ErrConfig, slotIndex, nodeIndex)
	}
	if a.Space == nil {
		return fmt.Errorf("%w: slot %d of node %d has no memory", ErrConfig, slotIndex, nodeIndex)
	}
	s := &slot{node: n, index: slotIndex, att: a, wasLate: e.lateOf[a.UID] > 0}
	s.process = owner.Process[*slot]{Pages: a.Pages, Wake: a.Wake, UID: a.UID, Helper: a.Space, Slot: s}
	if err := e.loop.Attach(&s.process, e.Now()); err != nil {
		return fmt.Errorf("emulated machine: %w", err)
	}
	s.slowUntil = e.slowUsers[a.UID]
	s.unseenUntil = e.unseenUsers[a.UID]
	n.slots[slotIndex] = s
	a.Pages.SetWatched(e.tracer.on)
	e.tracer.client(s, 0)
	return nil
}

// Detach lets a slot's process go; the machine touches neither its pages nor its
// memory any more. On the owning goroutine, when the slot is quiet.
func (e *Engine) Detach(nodeIndex, slotIndex int) {
	n := e.nodes[nodeIndex]
	s := n.slots[slotIndex]
	if s == nil {
		return
	}
	e.loop.Detach(&s.process)
	e.refuseHeld(s)
	// Page-ins that have not been asked for, or whose answer has not come, end; they must
	// not touch memory that the session unmaps.
	s.att.Space.Close()
	// What the firmware has said of its transfers and nobody was told is not for the
	// slot's next process.
	for i := range e.urgent.items {
		if it := &e.urgent.items[i]; it.node == n && it.action.Kind == soc.DescriptorChanged && int(it.action.Slot) == slotIndex {
			it.action.Kind = 0
		}
	}
	e.tracer.client(s, trace.Final)
	n.slots[slotIndex] = nil
}

// attached yields the attached slots.
func (e *Engine) attached(yield func(*slot) bool) {
	for _, n := range e.nodes {
		for _, s := range n.slots {
			if s != nil && !yield(s) {
				return
			}
		}
	}
}

// Firmware tells which optimizations the nodes' firmware goes without. Any
// goroutine.
func (e *Engine) Firmware() r5.Options { return e.cfg.Firmware }

// Node gives a node's machine, to look at. On the owning goroutine.
func (e *Engine) Node(i int) *soc.Node { return e.nodes[i].soc }

// Accesses counts how a node reached processes' memory.
type Accesses struct {
	LeasesLost   uint64 // calls that outlasted their lease
	Muted        uint64 // times that a slot's kicks were left alone for a while
	Refused      uint64 // calls for which no thread was left
	Shared       uint64 // walks and moves that the view of shared memory did
	SharedMissed uint64 // walks of shared memory of which a page was not entered in the view
}

// Accesses gives a node's counts. On the owning goroutine.
func (e *Engine) Accesses(nodeIndex int) Accesses { return e.nodes[nodeIndex].accesses }
