package mediate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/device/queues"
	"github.com/exanet/pfd/internal/owner"
	"github.com/exanet/pfd/internal/tally"
	"github.com/exanet/pfd/internal/yield"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/space"
	"github.com/exanet/pfd/space/shadow"
)

// Times. Values below are defined by this project.
const (
	// DefaultSpin is short. A machine with fewer processors than spinProcessors does not spin at
	// all: the device, its driver and the two processes of a transfer need one each, and a
	// spinning owner would take the processor from the one that it waits for.
	DefaultSpin    = 20 * time.Microsecond
	spinProcessors = 4
	// againTime is how long the owner polls for the next doorbell after the last transfer in
	// progress has ended, even if it does not spin otherwise. All processes then wait for that
	// doorbell, and the process either rings at once or not soon.
	againTime = 10 * time.Microsecond
	// DefaultWindowIdle is how long unused memory stays pinned.
	DefaultWindowIdle = 2 * time.Second
	// watchPause is the longest sleep of the owner while transfers are in progress: their count
	// of paused blocks raises no vector.
	watchPause = 10 * time.Millisecond
	// A device without vectors is polled after shortNap. The interval doubles after each poll
	// that finds nothing, up to longNap. So a fault waits at most a tenth of the time after which
	// its block is retransmitted. Without processes there are no faults, and the interval is
	// idleNap.
	shortNap, longNap, idleNap = 50 * time.Microsecond, 10 * time.Millisecond, 100 * time.Millisecond
	// statusPause is how often such a device's queues are checked for errors.
	statusPause = 100 * time.Millisecond
	// quietTime bounds the wait for accesses in flight during an invalidation. The device ends
	// each within its own time-outs.
	quietTime = 10 * time.Second
)

// errLost reports that the mapped memory of btcm is gone.
var errLost = errors.New("the descriptors that it has mapped do not answer")

// ErrConfig reports that a Machine cannot be built as requested.
var ErrConfig = errors.New("mediated machine")

// Config configures a Machine.
type Config struct {
	Connect []Connect // one for each node
	Window  uint64    // bytes of memory mapped for a node at one time; 0: shadow.DefaultWindow
	// WindowIdle is how long memory must be unused to be unmapped; 0: DefaultWindowIdle if
	// mapping pins it, otherwise never; negative: never.
	WindowIdle time.Duration
	Spin       time.Duration // how long the owner polls before it sleeps; 0: DefaultSpin or not at all, negative: not at all
	// Registers makes the machine drive nodes by their registers, even if they have queues in
	// memory.
	Registers bool
	// Workers runs every call that may sleep on a goroutine of its slot, as on a machine with
	// swap.
	Workers bool
	Log     *slog.Logger // nil: none
}

// Attachment connects a process's pages to a slot.
type Attachment struct {
	Pages *attach.Pages
	Wake  int    // eventfd by which the process wakes a sleeping owner
	UID   uint32 // user of the process
	// Space, if set, pages in the process's own memory before the pages are entered in the
	// device's tables. Its operations never return the step Wait.
	Space space.Space
	// Bells are the process's rings; nil: none. The owner wakes the process by each, armed or not: a
	// touch of the process's memory might sleep.
	Bells *attach.Bells
	// Gone, if set, is called on the owner when the process's address space is found gone.
	Gone func()
	// Declined, if set, is called on the owner for each RAPF with the fail bit that the process
	// sends, addressed to source. If it returns true the RAPF is not sent.
	Declined func(source device.NodeID, r mailbox.RAPF) bool
}

// Machine drives nodes whose devices are elsewhere. Exported methods are safe for concurrent use
// unless they say otherwise.
type Machine struct {
	cfg   Config
	log   *slog.Logger
	base  time.Time
	nodes []*node

	inline bool          // short calls run on the owner
	nap    time.Duration // length of the next sleep if a node has no vectors

	// Owned by the owner.
	stop   bool
	onCall func(node int, c atomics.Call)
	calls  []work // to be run
	yield  yield.Yield
	over   bool // the end of a transfer was reported to a process since the last check

	loop    *owner.Loop[work, *slot] // messages are calls that have run
	started atomic.Bool
	closing sync.Once
	ended   chan struct{} // closed when no device is awaited any more
	workers sync.WaitGroup
}

// node is one node. It is owned by the owner, except where noted.
type node struct {
	m       *Machine
	index   int
	windows [device.Windows]device.Window
	vectors [device.Vectors]int // eventfds
	handler device.Handler
	slots   [device.Slots]*slot
	threads [device.Interfaces]*mail // by interface, 32..63
	trees   map[atomics.Protection]*tree
	places  []bool     // the DMA addresses of trees that are in use
	calls   int        // operations that the unit has left to the driver, until their answers are written
	answers []answer   // that wait for room in the command queue
	tally   tally.Node // statistics of its processes' writes
	workers [device.Slots + 1]worker
	pending uint32 // vectors that were raised and are not delivered yet
	raised  bool   // vector 3 was raised (not while queues are on) and its cause is not cleared yet
	written bool   // and the completion words are not checked yet
	open    uint32 // vectors that were pending at the last poll
	checked int64  // when its queues were checked last

	link atomic.Pointer[link] // nil: the device is gone
}

// link is a node's connection to its device, from Connect until the device is gone.
type link struct {
	fn     Function
	btcm   *scratchpad
	peek   bool // CAPS has the peek windows and WORDS
	polled bool // the device has no vectors
	shadow *shadow.Memory
	// windows are the device's, behind the queues in memory if rings is not nil.
	windows [device.Windows]device.Window
	rings   *rings
	pages   *treePages    // nil: threads cannot use the node
	gone    chan struct{} // closed when the device is gone
	why     error         // set before gone is closed
}

// slot is an attached domain slot.
type slot struct {
	process owner.Process[*slot]
	node    *node
	index   int
	att     *Attachment
	busy    uint64                         // channels that were rung and are not final
	seen    [device.ChannelsPerSlot]uint64 // done and reserved_1 as last reported to the process
	rung    [device.WriteChannels]rung     // the transfers of the busy channels, as rung
	mail    mail
	threads *[attach.MaxThreads]*mail // nil: it has had none
	words   uint64                    // WORDS as last read
	touches touches                   // of the process, by block (method touch)
}

// rung is a transfer as it was rung, with the time.
type rung struct {
	at    int64 // Machine.Now
	size  uint32
	class device.Class
}

// New connects to the devices, waiting for them until ctx ends. Run then drives the machine. The
// caller must call Close.
func New(ctx context.Context, cfg Config) (*Machine, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Spin == 0 && runtime.NumCPU() >= spinProcessors {
		cfg.Spin = DefaultSpin
	}
	if len(cfg.Connect) == 0 {
		return nil, fmt.Errorf("%w: no node: name a device", ErrConfig)
	}
	m := &Machine{cfg: cfg, log: cfg.Log, base: time.Now(), ended: make(chan struct{}), nap: shortNap, inline: !cfg.Workers && !hasSwap()}
	if err := m.open(ctx); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// hasSwap reports whether pages may be swapped out (proc(5)).
func hasSwap() bool {
	b, err := os.ReadFile("/proc/swaps")
	return err != nil || bytes.Count(b, []byte{'\n'}) > 1
}

func (m *Machine) open(ctx context.Context) error {
	var err error
	if m.loop, err = owner.New[work](owner.User[*slot](processes{m})); err != nil {
		return fmt.Errorf("mediated machine: %w", err)
	}
	for i := range m.cfg.Connect {
		n := &node{m: m, index: i}
		for v := range n.vectors {
			n.vectors[v] = -1
		}
		for w := range n.windows {
			n.windows[w] = device.Window{Access: &window{n, device.WindowID(w)}}
		}
		m.nodes = append(m.nodes, n)
		for v := range n.vectors {
			if n.vectors[v], err = m.eventfd(); err != nil {
				return err
			}
		}
		if err := n.connect(ctx); err != nil {
			return err
		}
	}
	return nil
}

// eventfd makes an eventfd and watches it.
func (m *Machine) eventfd() (int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1, fmt.Errorf("mediated machine: %w", os.NewSyscallError("eventfd", err))
	}
	if err := m.loop.Watch(fd); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("mediated machine: %w", err)
	}
	return fd, nil
}

// connect makes the node's link. It waits for the device, so it must not run on the owner.
func (n *node) connect(ctx context.Context) error {
	fn, err := n.m.cfg.Connect[n.index](ctx, n.vectors[:])
	if err != nil {
		return fmt.Errorf("node %d: %w", n.index, err)
	}
	l := &link{fn: fn, gone: make(chan struct{})}
	_, l.polled = fn.(poller)
	if err := l.prepare(n); err != nil {
		select {
		case <-fn.Done():
			err = gone(err)
		default:
		}
		l.quiet(n.m.log)
		l.end()
		fn.Close()
		return fmt.Errorf("node %d: %w", n.index, err)
	}
	n.begin(l)
	n.m.workers.Go(func() {
		select {
		case <-fn.Done():
			n.m.loop.Post(func() { n.down(l, fn.Err()) })
		case <-n.m.ended:
		}
	})
	idle := n.m.cfg.WindowIdle
	if idle == 0 && fn.Kind() == shadow.Pinned {
		idle = DefaultWindowIdle
	}
	if idle > 0 {
		n.m.workers.Go(func() { l.unmapIdle(idle, n.m.ended) })
	}
	return nil
}

// unmapIdle unmaps memory that was not used for some time, until the link or the machine ends.
func (l *link) unmapIdle(idle time.Duration, done <-chan struct{}) {
	t := time.NewTicker(max(idle/4, time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-t.C:
			l.shadow.Idle(idle)
		case <-l.gone:
			return
		case <-done:
			return
		}
	}
}

// begin puts a link into use.
func (n *node) begin(l *link) {
	if l.rings == nil {
		n.link.Store(l)
		return
	}
	l.rings.live = true
	n.link.Store(l)
	n.m.loop.Post(l.rings.begin)
}

func (l *link) prepare(n *node) error {
	log := n.m.log.With("node", n.index)
	caps, err := l.fn.Read(int(device.PL), device.PLCaps, 8)
	if err != nil {
		return err
	}
	l.peek = caps&device.CapsPeek != 0
	if l.btcm, err = newScratchpad(l.fn.Descriptors()); err != nil {
		return err
	}
	l.btcm.lost = func() { n.m.loop.Post(func() { n.down(l, errLost) }) }
	for id := range l.windows {
		l.windows[id] = device.Window{Access: &raw{l, device.WindowID(id)}}
	}
	if caps&device.CapsQueues != 0 && !n.m.cfg.Registers {
		if l.rings, err = newRings(n, l, log); err != nil {
			return err
		}
		for id := range l.windows {
			l.windows[id] = l.rings.Window(device.WindowID(id))
		}
	}
	if caps&device.CapsGSAS != 0 && l.rings != nil && l.fn.Kind() == shadow.Files {
		l.pages = newTreePages(n, l)
	}
	beside := uint64(0)
	if l.rings != nil {
		beside = queues.MemorySize
	}
	l.shadow, err = shadow.New(shadow.Config{
		Beside: beside,
		DMA:    l.fn, Invalidate: l.invalidate, VABits: int(caps & device.CapsVABitsMask), Window: n.m.cfg.Window, Log: log,
	})
	if p, ok := l.fn.(mapPoster); ok && err == nil && l.rings != nil {
		p.PostMaps()
	}
	return err
}

// invalidate invalidates pages of a slot in the device, and waits until no access of its bank is
// in flight. It uses the command queue, or if that is off the registers, which hold no state of
// the driver. It is safe for concurrent use.
func (l *link) invalidate(slot int, va device.VA, pages int) error {
	if l.rings != nil && l.rings.invalidate(slot, va, pages) {
		return nil
	}
	reg := func(r uint32) uint64 { return uint64(device.Bank(slot, r)) }
	const few = 4
	var err error
	if pages <= few {
		asid := uint64(slot+1) << 48
		for i := range pages {
			err = errors.Join(err, l.fn.Post(int(device.SMMU), reg(device.TLBIVA), 8, asid|(uint64(va)>>device.PageShift+uint64(i))))
		}
	} else {
		err = l.fn.Post(int(device.SMMU), reg(device.TLBIASID), 4, uint64(slot+1))
	}
	if err = errors.Join(err, l.fn.Post(int(device.SMMU), reg(device.TLBSYNC), 4, 0)); err != nil {
		return err
	}
	pause := 10 * time.Microsecond
	for deadline := time.Now().Add(quietTime); ; pause = min(2*pause, 10*time.Millisecond) {
		v, err := l.fn.Read(int(device.SMMU), reg(device.TLBSTATUS), 4)
		if err != nil || v&1 == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("slot %d: accesses are in flight for %v", slot, quietTime)
		}
		time.Sleep(pause)
	}
}

// down takes a node whose device is gone out of service. It must be called on the owner.
func (n *node) down(l *link, why error) {
	if n.link.CompareAndSwap(l, nil) {
		n.m.log.Warn("the device is gone", "node", n.index, "why", why)
		l.why = why
		n.raised, n.written, n.pending = false, false, 0
		close(l.gone)
		l.close(n.m.log)
	}
}

// close releases a link that the owner no longer uses.
func (l *link) close(log *slog.Logger) {
	l.quiet(log)
	_ = l.shadow.Close() // no data can be lost
	l.end()
	l.fn.Close()
}

// end releases the queues in memory.
func (l *link) end() {
	if l.rings != nil {
		l.rings.Stop()
		l.rings.unmap()
	}
}

// Reconnect waits until a node's device is present again, or ctx ends. The caller must clear the
// state that the device keeps of its former driver.
func (m *Machine) Reconnect(ctx context.Context, node int) error {
	n := m.nodes[node]
	if n.link.Load() != nil {
		return nil
	}
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := n.connect(ctx)
		if !errors.Is(err, device.ErrGone) {
			return err
		}
		m.log.Warn("the device was back and is gone again", "node", node, "why", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return err
		}
	}
}

// Nodes returns the number of nodes.
func (m *Machine) Nodes() int { return len(m.nodes) }

// Bus returns the device.Bus of a node.
func (m *Machine) Bus(node int) device.Bus { return m.nodes[node] }

// Now returns the machine's time in ns.
func (m *Machine) Now() int64 { return int64(time.Since(m.base)) }

// Tables returns the value of TTBR0 of a slot's context bank.
func (m *Machine) Tables(node, slot int) uint64 {
	if l := m.nodes[node].link.Load(); l != nil {
		return l.shadow.Root(slot)
	}
	return 0
}

// Ended returns the statistics of the writes of a node's processes that have ended, from the
// doorbell that pfd forwards to the status that it reads. Reads are served by the device alone.
// It must be called on the owner.
func (m *Machine) Ended(node int) *tally.Node { return &m.nodes[node].tally }

// Messages returns how many messages were sent to a node's device since it connected, and how
// many answers were awaited. ok is false if the device is gone, or uses no messages.
func (m *Machine) Messages(node int) (sent, awaited uint64, ok bool) {
	l := m.nodes[node].link.Load()
	if l == nil {
		return 0, 0, false
	}
	r, ok := l.fn.(interface{ Requests() (sent, awaited uint64) })
	if ok {
		sent, awaited = r.Requests()
	}
	return sent, awaited, ok
}

// Memory returns a node's shared memory, or an error that matches device.ErrGone. The result is
// valid until the device is gone.
func (m *Machine) Memory(node int) (*shadow.Memory, error) {
	if l := m.nodes[node].link.Load(); l != nil {
		return l.shadow, nil
	}
	return nil, fmt.Errorf("node %d: %w", node, device.ErrGone)
}

// Invalidations returns, by slot, the memory that was taken from a node's device; nothing while
// the device is gone.
func (m *Machine) Invalidations(node int) (list [device.Slots]tally.Invalidated) {
	if l := m.nodes[node].link.Load(); l != nil {
		list = l.shadow.Invalidations()
	}
	return list
}

// Server returns the pid of the local process that serves a node; 0: there is none, or it is
// unknown.
func (m *Machine) Server(node int) int {
	if l := m.nodes[node].link.Load(); l != nil {
		if f, ok := l.fn.(*userFunction); ok {
			return f.ServerPID()
		}
	}
	return 0
}

// Attach connects a process's pages to a slot. It must be called on the owner.
func (m *Machine) Attach(node, index int, a *Attachment) error {
	n := m.nodes[node]
	if n.slots[index] != nil {
		return fmt.Errorf("%w: slot %d of node %d is attached already", ErrConfig, index, node)
	}
	// Vector 3, or an event by vector 1 if there are queues, reports the end of a transfer, for which
	// a process now waits.
	mask, err := n.windows[device.PL].Read32(device.PLIRQMask)
	if err == nil {
		err = n.windows[device.PL].Write32(device.PLIRQMask, mask&^(1<<device.VectorDone))
	}
	if err != nil {
		return err
	}
	if a.Bells == nil {
		a.Bells = new(attach.Bells)
	}
	s := newSlot(n, index, a)
	s.process = owner.Process[*slot]{Pages: a.Pages, Wake: a.Wake, UID: a.UID, Slot: s}
	if err := m.loop.Attach(&s.process, m.Now()); err != nil {
		return fmt.Errorf("mediated machine: %w", err)
	}
	n.slots[index] = s
	return nil
}

// Detach disconnects a slot's process and ends its shares. It must be called on the owner, when
// the slot is quiet.
func (m *Machine) Detach(node, index int) {
	n := m.nodes[node]
	s := n.slots[index]
	if s == nil {
		return
	}
	m.loop.Detach(&s.process)
	for i := range attach.MaxThreads {
		m.DetachThread(node, index, i)
	}
	n.slots[index] = nil
	if s.att.Space != nil {
		s.att.Space.Close()
	}
	if l := n.link.Load(); l != nil {
		l.shadow.Drop(index)
	}
}

// Run drives the machine until ctx ends and then returns nil. It may be called only once.
func (m *Machine) Run(ctx context.Context) error {
	if !m.started.CompareAndSwap(false, true) {
		return fmt.Errorf("%w: Run called twice", ErrConfig)
	}
	stop := context.AfterFunc(ctx, func() { m.loop.Post(func() { m.stop = true }) })
	m.run()
	stop()
	m.loop.End()
	m.end()
	for _, n := range m.nodes {
		for i := range n.slots {
			m.Detach(n.index, i)
		}
	}
	return nil
}

// Close releases all resources. The machine must not be running.
func (m *Machine) Close() error {
	m.end()
	for _, n := range m.nodes {
		if l := n.link.Swap(nil); l != nil {
			close(l.gone)
			l.close(m.log)
		}
	}
	m.workers.Wait()
	var errs []error
	if m.loop != nil {
		errs = append(errs, m.loop.Close())
	}
	for _, n := range m.nodes {
		for _, fd := range n.vectors {
			if fd >= 0 {
				errs = append(errs, os.NewSyscallError("close", unix.Close(fd)))
			}
		}
	}
	return errors.Join(errs...)
}

// end ends the waits for devices.
func (m *Machine) end() { m.closing.Do(func() { close(m.ended) }) }
