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
	"github.com/exanet/pfd/device/queues"
	"github.com/exanet/pfd/internal/owner"
	"github.com/exanet/pfd/internal/tally"
	"github.com/exanet/pfd/internal/yield"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/shadow"
)

// Times (ours).
const (
	// DefaultSpin is short, and not at all on a machine of fewer processors than
	// spinProcessors: one each for the device, its driver, and the two processes of a
	// transfer. There whoever looks for work takes the processor from the one that
	// makes it.
	DefaultSpin    = 20 * time.Microsecond
	spinProcessors = 4
	// againTime is how long the owner looks for the next doorbell after the last
	// transfer under way has ended, wherever it is: it is the one that everybody waits
	// for then, and its process rings again at once or not soon.
	againTime = 10 * time.Microsecond
	// DefaultWindowIdle is for how long memory that nobody uses stays pinned.
	DefaultWindowIdle = 2 * time.Second
	// watchPause is how long the owner sleeps at most while transfers go on:
	// their count of paused blocks raises no vector.
	watchPause = 10 * time.Millisecond
	// A device without vectors is looked at again after shortNap, and twice that each
	// time that there was nothing, up to longNap: what a fault waits at most, a tenth of
	// the time after which its block is sent again. Without processes it has no faults,
	// and idleNap will do.
	shortNap, longNap, idleNap = 50 * time.Microsecond, 10 * time.Millisecond, 100 * time.Millisecond
	// statusPause is how often such a device is asked whether its queues still work.
	statusPause = 100 * time.Millisecond
	// quietTime bounds the wait for accesses in flight at an invalidation. The
	// device ends each within its own time-outs.
	quietTime = 10 * time.Second
)

// errLost says that the memory of btcm has gone.
var errLost = errors.New("the descriptors that it has mapped do not answer")

// ErrConfig says that a Machine cannot be built as asked.
var ErrConfig = errors.New("mediated machine")

// Config is what a Machine is built with.
type Config struct {
	Connect []Connect // one a node
	Window  uint64    // bytes of memory mapped for a node at one time; 0: shadow.DefaultWindow
	// WindowIdle is after how long without use memory is unmapped again; 0:
	// DefaultWindowIdle where mapping pins it, and never elsewhere; negative: never.
	WindowIdle time.Duration
	Spin       time.Duration // how long the owner looks for work before it sleeps; 0: DefaultSpin or not at all, negative: not at all
	// Registers has nodes driven by their registers, whether they have queues in
	// memory or not.
	Registers bool
	// Workers has every call that may sleep made on a goroutine of its slot, as
	// where the machine has swap.
	Workers bool
	Log     *slog.Logger // nil: none
}

// Attachment ties a process's pages to a slot.
type Attachment struct {
	Pages *attach.Pages
	Wake  int    // eventfd by which the process wakes a sleeping owner
	UID   uint32 // whose process it is
	// Declined, where it is given, is called on the owner with each RAPF with the fail bit
	// that the process wants sent, to source; where it is true, the RAPF is not sent.
	Declined func(source device.NodeID, r mailbox.RAPF) bool
}

// Machine is nodes whose devices are somewhere else. Exported methods may be
// called from any goroutine unless they say otherwise.
type Machine struct {
	cfg   Config
	log   *slog.Logger
	base  time.Time
	nodes []*node

	inline bool          // short calls run on the owner
	nap    time.Duration // of the next sleep, where a node has no vectors

	// Owned by the owner.
	stop  bool
	calls []device.Call // to be run
	yield yield.Yield
	over  bool // a process was told of the end of a transfer, since the last look

	loop    *owner.Loop[device.Call, *slot] // messages are calls that have run
	started atomic.Bool
	closing sync.Once
	ended   chan struct{} // no device is waited for any more
	workers sync.WaitGroup
}

// node is one node; it belongs to the owner, but for what says otherwise.
type node struct {
	m       *Machine
	index   int
	windows [device.Windows]window
	vectors [device.Vectors]int // eventfds
	handler device.Handler
	slots   [device.Slots]*slot
	ended   tally.Node // of its processes' writes
	workers [device.Slots + 1]worker
	pending uint32 // vectors that came and were not delivered yet
	raised  bool   // vector 3 came and its cause was not cleared yet
	written bool   // and completion words were not looked for yet
	open    uint32 // vectors that were up when it was looked last
	asked   int64  // when its queues were asked last

	link atomic.Pointer[link] // nil: the device is gone
}

// link is a node's connection to its device, from one to its end.
type link struct {
	fn     Function
	btcm   *scratchpad
	peek   bool // CAPS has the peek windows and WORDS
	polled bool // there are no vectors
	shadow *shadow.Memory
	// windows are the device's, with the queues in memory in front where rings is
	// not nil.
	windows [device.Windows]device.Window
	rings   *rings
	gone    chan struct{} // closed when the device is
	why     error         // set before that
}

// slot is an attached domain slot.
type slot struct {
	process owner.Process[*slot]
	node    *node
	index   int
	att     *Attachment
	busy    uint64                         // channels that were rung and are not final
	seen    [device.ChannelsPerSlot]uint64 // done and reserved_1 as last told to the process
	rung    [device.WriteChannels]rung     // what was rung, of the busy channels
	mail    mail
	words   uint64 // WORDS as last seen
	asked   asked
}

// rung is a transfer as it was rung, and when.
type rung struct {
	at    int64 // Machine.Now
	size  uint32
	class device.Class
}

// New connects to the devices, waiting for them until ctx ends. Run drives the
// machine; Close must follow.
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

// hasSwap tells whether pages may be somewhere else than in memory (proc(5)).
func hasSwap() bool {
	b, err := os.ReadFile("/proc/swaps")
	return err != nil || bytes.Count(b, []byte{'\n'}) > 1
}

func (m *Machine) open(ctx context.Context) error {
	var err error
	if m.loop, err = owner.New[device.Call](owner.User[*slot](processes{m})); err != nil {
		return fmt.Errorf("mediated machine: %w", err)
	}
	for i := range m.cfg.Connect {
		n := &node{m: m, index: i}
		for v := range n.vectors {
			n.vectors[v] = -1
		}
		for w := range n.windows {
			n.windows[w] = window{n, device.WindowID(w)}
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

// eventfd makes one and watches it.
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

// connect makes the node's link. Not on the owner: it waits for the device.
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

// unmapIdle lets memory go that was not used for some time, until the link or the
// machine ends.
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

// begin takes a link into use.
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
		l.windows[id] = &raw{l, device.WindowID(id)}
	}
	if caps&device.CapsQueues != 0 && !n.m.cfg.Registers {
		if l.rings, err = newRings(n, l, log); err != nil {
			return err
		}
		for id := range l.windows {
			l.windows[id] = l.rings.Window(device.WindowID(id))
		}
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

// invalidate makes the device forget pages of a slot, and waits until no access
// of its bank is in flight: by the command queue, and where that is off by registers,
// which hold no state of the driver's. Any goroutine.
func (l *link) invalidate(slot int, va device.VA, pages int) error {
	if l.rings != nil && l.rings.forget(slot, va, pages) {
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

// down takes a node whose device is gone out of service. On the owner.
func (n *node) down(l *link, why error) {
	if n.link.CompareAndSwap(l, nil) {
		n.m.log.Warn("the device is gone", "node", n.index, "why", why)
		l.why = why
		n.raised, n.written, n.pending = false, false, 0
		close(l.gone)
		l.close(n.m.log)
	}
}

// close lets a link go; nothing on the owner uses it any more.
func (l *link) close(log *slog.Logger) {
	l.quiet(log)
	_ = l.shadow.Close() // nothing that could be lost
	l.end()
	l.fn.Close()
}

// end lets the queues in memory go.
func (l *link) end() {
	if l.rings != nil {
		l.rings.Stop()
		l.rings.unmap()
	}
}

// Reconnect waits until a node's device is there again, or ctx ends. What the
// device remembers of its former driver is the caller's to clear up.
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

// Nodes gives the number of nodes.
func (m *Machine) Nodes() int { return len(m.nodes) }

// Bus gives the way to a node.
func (m *Machine) Bus(node int) device.Bus { return m.nodes[node] }

// Now gives the machine's time, ns.
func (m *Machine) Now() int64 { return int64(time.Since(m.base)) }

// Tables gives what belongs into TTBR0 of a slot's context bank.
func (m *Machine) Tables(node, slot int) uint64 {
	if l := m.nodes[node].link.Load(); l != nil {
		return l.shadow.Root(slot)
	}
	return 0
}

// Ended counts the writes of a node's processes that have ended, from the doorbell that
// pfd passes on to the status that it reads. Reads are served by the device alone. On the
// owning goroutine.
func (m *Machine) Ended(node int) *tally.Node { return &m.nodes[node].ended }

// Messages gives how many messages a node's device was sent since it came, and for how
// many of them the answer was awaited. False: it is gone, or needs none.
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

// Memory gives a node's shared memory, or an error that matches device.ErrGone.
// It is good until the device goes.
func (m *Machine) Memory(node int) (*shadow.Memory, error) {
	if l := m.nodes[node].link.Load(); l != nil {
		return l.shadow, nil
	}
	return nil, fmt.Errorf("node %d: %w", node, device.ErrGone)
}

// Invalidations gives, by slot, what was taken from a node's device; nothing while it
// is gone.
func (m *Machine) Invalidations(node int) (list [device.Slots]tally.Invalidated) {
	if l := m.nodes[node].link.Load(); l != nil {
		list = l.shadow.Invalidations()
	}
	return list
}

// Server gives the pid of the process of this machine that serves a node; 0: there is
// none, or it is not known.
func (m *Machine) Server(node int) int {
	if l := m.nodes[node].link.Load(); l != nil {
		if f, ok := l.fn.(*userFunction); ok {
			return f.ServerPID()
		}
	}
	return 0
}

// Attach ties a process's pages to a slot. On the owner.
func (m *Machine) Attach(node, index int, a *Attachment) error {
	n := m.nodes[node]
	if n.slots[index] != nil {
		return fmt.Errorf("%w: slot %d of node %d is attached already", ErrConfig, index, node)
	}
	// Vector 3 says that a transfer is over: here somebody waits for it.
	mask, err := n.windows[device.PL].Read32(device.PLIRQMask)
	if err == nil {
		err = n.windows[device.PL].Write32(device.PLIRQMask, mask&^(1<<device.VectorDone))
	}
	if err != nil {
		return err
	}
	s := &slot{node: n, index: index, att: a}
	s.process = owner.Process[*slot]{Pages: a.Pages, Wake: a.Wake, UID: a.UID, Slot: s}
	if err := m.loop.Attach(&s.process, m.Now()); err != nil {
		return fmt.Errorf("mediated machine: %w", err)
	}
	n.slots[index] = s
	return nil
}

// Detach lets a slot's process go, and what it has shared. On the owner, when the
// slot is quiet.
func (m *Machine) Detach(node, index int) {
	n := m.nodes[node]
	s := n.slots[index]
	if s == nil {
		return
	}
	m.loop.Detach(&s.process)
	n.slots[index] = nil
	if l := n.link.Load(); l != nil {
		l.shadow.Drop(index)
	}
}

// Run drives the machine until ctx ends; it then returns nil. It is called once.
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

// Close releases everything. The machine must not run.
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

// end ends the wait for devices.
func (m *Machine) end() { m.closing.Do(func() { close(m.ended) }) }
