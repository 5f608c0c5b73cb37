package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/exanet/pfd/daemon/domain"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/internal/sim/topology"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/gsas"
	"github.com/exanet/pfd/soc/link"
	"github.com/exanet/pfd/soc/queue"
	"github.com/exanet/pfd/soc/r5"
	"github.com/exanet/pfd/soc/record"
	"github.com/exanet/pfd/soc/wire"
	"github.com/exanet/pfd/space"
)

// Config configures a world.
type Config struct {
	Seed      uint64
	Nodes     int
	Hosts     bool // each node is a host of its own
	VABits    int
	NoTXFIFO  bool
	Stall     bool // faults stall in the SMMU; not supported with front
	Injection link.Injection
	// Topology, unless nil, is the network between the nodes, Topology.Nodes in number.
	Topology *topology.Network
	// Memory is the maximum duration of a walk, a move or a page-in, ns. SlowMemory of a
	// million take a hundred times as long.
	Memory     int64
	SlowMemory int
	TimeoutUS  uint32
	GuardUS    uint32
	Policy     fault.Policy
	// Costs, unless nil, replace the random durations.
	Costs *Costs
	// Outstanding is the value of OUTSTANDING; 0: pfd's default.
	Outstanding uint32
	// Interrupt is the maximum latency from a vector to the driver, ns; 0: 200.
	Interrupt int64
	// front, unless nil, makes the interface that a node's driver uses instead of the
	// registers.
	front func(*Node) front
	// Firmware, IDs, FIFO and Contexts are those of soc.Config.
	Firmware            r5.Options
	IDs, FIFO, Contexts int
	PathFeedback        bool
}

// World is a set of nodes with their drivers, links and processes.
type World struct {
	cfg      Config
	rng      *rand.Rand
	now      int64
	events   eventQueue
	pool     *wire.Pool
	nodes    []*Node
	digest   record.Digest
	audits   []*Node  // nodes that are to be audited after this event
	count    uint64   // number of events
	sent     uint64   // number of frames
	observer Observer // may be nil
	dir      *domain.Directory
	net      *network       // nil: each node has a link to each
	parted   map[[2]int]int // links that are down (Part), by their nodes
}

// front stands between a node and its driver: queues in memory.
type front interface {
	device.Bus
	device.Handler // for the driver
	Handle(driver device.Handler)
	Start() error // once for each driver
	access(a *queue.Access)
}

// Node is a node of a world, with its driver.
type Node struct {
	world   *World
	id      device.NodeID
	SOC     *soc.Node
	link    *link.Link
	Driver  *fault.Driver
	Domains *domain.Manager
	handler device.Handler
	windows [device.Windows]window
	front   front // nil: the driver uses the registers
	process [device.Slots]*Process
	// Operate performs an operation of the node's GSAS unit. nil: each fails.
	Operate func(a *gsas.Access) (atomics.Status, []uint64)
	// OnThread is called when a message has arrived in the mailbox of a thread.
	OnThread func(iface int)
	deadline int64 // for which a tick is scheduled
	actions  []soc.Action
	out      []link.Delivery
	cut      bool     // its links lose every frame
	stopped  bool     // its driver handles nothing
	held     []event  // what the driver will handle
	free     [2]int64 // with Costs: when its driver's processors become free
	steps    int      // since its last audit
	life     uint32   // of the driver: calls and page-ins of an earlier one are dropped
}

// New creates a world and initializes every node as pfd does.
func New(cfg Config) (*World, error) {
	if cfg.VABits == 0 {
		cfg.VABits = device.MaxVABits
	}
	w := &World{
		cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0x9e3779b97f4a7c15)),
		pool: new(wire.Pool),
	}
	var err error
	w.dir, err = domain.NewDirectory(domain.DirectoryConfig{Generation: device.Generation(w.rng.Uint32() | 1)})
	if err != nil {
		return nil, err
	}
	if cfg.Topology != nil {
		w.net = newNetwork(w, cfg.Topology)
	}
	for i := range cfg.Nodes {
		n := &Node{world: w, id: device.NodeID(i), link: link.New(cfg.Injection, w.rng, w.pool)}
		for id := range n.windows {
			n.windows[id] = window{n, device.WindowID(id)}
		}
		w.nodes = append(w.nodes, n)
		n.power()
		if err := n.start(); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// power installs a machine in its reset state. Events of an earlier machine are dropped.
func (n *Node) power() {
	w, cfg, together := n.world, &n.world.cfg, uint32(0)
	if cfg.Hosts {
		together = 1
	}
	n.SOC = soc.New(soc.Config{
		Base: n.id, Nodes: together,
		Like: w.nodes[0].SOC,
		ID:   n.id, VABits: cfg.VABits, NoTXFIFO: cfg.NoTXFIFO, Stall: cfg.Stall, SVA: true, Windows: true, GSAS: true, Epoch: w.rng.Uint32() | 1,
		Firmware: cfg.Firmware, IDs: cfg.IDs, FIFO: cfg.FIFO, Contexts: cfg.Contexts, PathFeedback: cfg.PathFeedback,
		Queues: cfg.front != nil, Pool: w.pool, Route: func(id device.NodeID) bool { return int(id) < cfg.Nodes },
	})
	n.deadline = never
	if w.net != nil {
		w.net.powered(int(n.id))
	}
}

// start initializes the node as pfd does.
func (n *Node) start() (err error) {
	w, cfg := n.world, &n.world.cfg
	n.life++
	life := n.life
	bus := device.Bus(n)
	if cfg.front != nil {
		if n.front == nil {
			n.front = cfg.front(n)
		}
		bus = n.front
		if err := n.front.Start(); err != nil {
			return fmt.Errorf("node %d: %w", n.id, err)
		}
	}
	n.Driver = fault.New(fault.Config{Bus: bus, Memory: n, Node: n.id, Now: w.Now, TimeoutSource: cfg.NoTXFIFO})
	n.handler = n.Driver
	if cfg.front != nil {
		n.front.Handle(n.Driver)
		n.handler = n.front
	}
	options := []domain.Option{domain.WithTimer(func(d time.Duration, f func()) {
		w.after(int64(d), func() {
			if n.life == life {
				f()
			}
		})
	})}
	if cfg.Stall {
		options = append(options, domain.Stall())
	}
	n.Domains, err = domain.NewManager(bus, n.id, w.dir, options...)
	if err != nil {
		return err
	}
	if err := n.Domains.Init(); err != nil {
		return fmt.Errorf("node %d: %w", n.id, err)
	}
	for reg, v := range map[uint32]uint32{device.PLTimeoutUS: cfg.TimeoutUS, device.PLGuardUS: cfg.GuardUS, device.PLOutstanding: cfg.Outstanding} {
		if v != 0 {
			_ = n.Window(device.PL).Write32(reg, v)
		}
	}
	return nil
}

// Now returns the simulated time, ns.
func (w *World) Now() int64 { return w.now }

// Node returns node i.
func (w *World) Node(i int) *Node { return w.nodes[i] }

// Digest returns a fingerprint of all events: equal seeds produce equal digests.
func (w *World) Digest() uint64 { return uint64(w.digest) }

// Events returns the number of events so far.
func (w *World) Events() uint64 { return w.count }

// Frames returns the number of frames that nodes have sent.
func (w *World) Frames() uint64 { return w.sent }

// After calls f after d ns.
func (w *World) After(d int64, f func()) { w.after(d, f) }

// after is After.
func (w *World) after(d int64, f func()) {
	w.events.push(w.now + max(d, 0)).run = f
}

// after schedules an event of the node after d ns, which is dropped if the node's machine has been
// replaced by then.
func (n *Node) after(d int64, kind eventKind) *event {
	e := n.world.events.push(n.world.now + max(d, 0))
	e.kind, e.node, e.machine, e.life = kind, n, n.SOC, n.life
	return e
}

// ErrStuck reports that the simulation did not end within its time.
var ErrStuck = errors.New("simulation does not end")

// Run runs until over returns true. It returns ErrStuck if no events are left or limit (ns) is
// reached before, and any error of Audit.
func (w *World) Run(limit int64, over func() bool) error {
	for !over() {
		if w.events.len() == 0 || w.events.next() > limit {
			return fmt.Errorf("%w: seed %d at %d ns, %d events left", ErrStuck, w.cfg.Seed, w.now, w.events.len())
		}
		if err := w.step(); err != nil {
			return err
		}
	}
	return nil
}

// auditEvery is how many steps a node takes between two audits.
const auditEvery = 64

func (w *World) step() error {
	var e event
	at := w.now
	if w.now, e = w.events.pop(); w.now < at {
		return fmt.Errorf("seed %d: time went back from %d to %d ns", w.cfg.Seed, at, w.now)
	}
	w.count++
	w.happen(&e)
	if w.observer != nil {
		if err := w.observer.Failed(); err != nil {
			return fmt.Errorf("seed %d: %w", w.cfg.Seed, err)
		}
	}
	for _, n := range w.audits {
		n.steps = 0
		if err := n.SOC.Audit(); err != nil {
			return fmt.Errorf("seed %d, node %d at %d ns: %w", w.cfg.Seed, n.id, w.now, err)
		}
	}
	w.audits = w.audits[:0]
	return nil
}

// Settle runs all outstanding events for d ns.
func (w *World) Settle(d int64) error {
	for end := w.now + d; w.events.len() > 0 && w.events.next() <= end; {
		if err := w.step(); err != nil {
			return err
		}
	}
	return nil
}

// memoryTime returns the duration of the next access to memory.
func (w *World) memoryTime() int64 {
	if w.cfg.Costs != nil {
		return w.cfg.Costs.Access
	}
	if w.cfg.Memory <= 0 {
		return 0
	}
	d := w.rng.Int64N(w.cfg.Memory)
	if w.cfg.SlowMemory > 0 && w.rng.IntN(1e6) < w.cfg.SlowMemory {
		d *= 100
	}
	return d
}

// Event passes an event to the node and performs the resulting actions.
func (n *Node) Event(ev *soc.Event) {
	n.do(n.SOC.Step(n.world.now, ev, n.actions[:0]))
}

func (n *Node) do(actions []soc.Action) {
	w := n.world
	if n.steps++; n.steps == auditEvery {
		w.audits = append(w.audits, n)
	}
	// Actions may write registers, and so call this method recursively.
	n.actions = nil
	for i := range actions {
		a := &actions[i]
		w.digest.Mix(uint64(w.now))
		w.digest.Mix(uint64(a.Kind) | uint64(a.Slot)<<8 | uint64(a.Channel)<<16 | uint64(a.Vector)<<32)
		w.digest.Mix(uint64(a.Done))
		switch a.Kind {
		case soc.Transmit:
			n.transmit(a.Frame)
		case soc.Walk:
			e := n.after(w.memoryTime(), walked)
			e.access, e.process = a.Access, n.process[a.Access.Slot]
		case soc.Move:
			p := n.process[a.Access.Slot]
			if w.observer != nil && a.Access.Write {
				w.observer.Moves(n, p, a.Access)
			}
			e := n.after(w.memoryTime(), moved)
			e.access, e.process = a.Access, p
		case soc.Interrupt:
			d := int64(200)
			if w.cfg.Costs != nil {
				d = w.cfg.Costs.Interrupt
			} else if w.cfg.Interrupt > 0 {
				d += w.rng.Int64N(w.cfg.Interrupt)
			}
			n.after(d, interrupted).number = uint64(a.Vector)
		case soc.DescriptorChanged:
			if w.observer != nil {
				w.observer.Reported(n, a)
			}
			if p := n.process[a.Slot]; p != nil {
				p.descriptor(int(a.Channel), a.Done, a.Status)
			}
		case soc.MailArrived:
			m := int(a.Interface)
			if m >= device.MailboxThread {
				if n.OnThread != nil {
					e := n.after(200, called)
					e.run = func() { n.OnThread(m) }
				}
			} else if p := n.process[(m-device.MailboxProcess)%device.Slots]; p != nil && p.OnMail != nil {
				e := n.after(200, mailed)
				e.process, e.number = p, uint64(m)
			}
		case soc.WordsWritten:
			if p := n.process[a.Slot]; p != nil && p.OnWords != nil {
				p.OnWords()
			}
		case soc.Atomic:
			n.after(w.memoryTime(), operated).operation = a.Atomic
		case soc.QueueAccess:
			n.front.access(a.Queue)
		}
	}
	n.actions = actions[:0]
	n.tick()
}

// tick schedules the node's deadline.
func (n *Node) tick() {
	d := n.SOC.Deadline()
	if d >= n.deadline || d >= never {
		return
	}
	n.deadline = d
	n.after(d-n.world.now, ticked).number = uint64(d)
}

func (n *Node) transmit(f *wire.Frame) {
	w := n.world
	dst := int(f.DstNode)
	if dst >= len(w.nodes) || dst != int(n.id) && (n.cut || w.nodes[dst].cut || w.apart(int(n.id), dst)) {
		w.pool.Put(f)
		return
	}
	if w.observer != nil {
		w.observer.Sent(n, f)
	}
	if w.net != nil && dst != int(n.id) {
		n.out = n.link.Disturb(w.now, f, n.out[:0])
	} else {
		n.out = n.link.Carry(w.now, f, n.out[:0])
	}
	if w.observer != nil {
		w.observer.Carried(n.out)
	}
	w.sent++
	for _, d := range n.out {
		if w.cfg.Costs != nil {
			d.At += w.cfg.Costs.later(d.Frame)
		}
		if w.net != nil && dst != int(n.id) {
			w.net.send(int(n.id), dst, flight{d.Frame, w.sent, d.At - w.now})
		} else {
			w.arrive(d.At, dst, d.Frame, w.sent)
		}
	}
}

// Processes returns the processes of the node's slots, nil for a free slot.
func (n *Node) Processes() []*Process { return n.process[:] }

// Cost returns the durations, nil if they are random.
func (w *World) Cost() *Costs { return w.cfg.Costs }

// arrive makes a frame arrive at a node. order is its number among all frames sent.
func (w *World) arrive(at int64, node int, f *wire.Frame, order uint64) {
	e := w.events.push(max(at, w.now))
	e.kind, e.node, e.frame, e.number = arrived, w.nodes[node], f, order
}

// Node is a device.Bus whose owner is the simulation.

// Window implements device.Bus.
func (n *Node) Window(id device.WindowID) device.Window { return device.Window{Access: &n.windows[id]} }

// Serve implements device.Bus. It is not used: the world serves the node.
func (n *Node) Serve(context.Context, device.Handler) error {
	return errors.New("a simulated node is served by its world")
}

// Post runs f after the current event.
func (n *Node) Post(f func()) { n.after(0, called).run = f }

// PageIn implements space.Machine: the pages are there when their duration has passed.
func (n *Node) PageIn(slot int, op *space.Op, long bool) {
	var d int64
	if costs := n.world.cfg.Costs; costs != nil {
		d = costs.work(n, slot, op, long)
	} else if d = 4500 + n.world.memoryTime(); long {
		d += 20000
	}
	e := n.after(d, paged)
	e.op, e.number = op, uint64(slot)
}

type window struct {
	n  *Node
	id device.WindowID
}

// Load implements device.Access.
func (x *window) Load(off uint32, width int) (uint64, error) {
	return x.n.SOC.Load(x.id, off, width), nil
}

// Store implements device.Access.
func (x *window) Store(off uint32, width int, v uint64) error {
	n := x.n
	if o := n.world.observer; o != nil && x.id == device.PKTZ && n.front == nil {
		o.Wrote(n, off, v)
	}
	n.do(n.SOC.Store(n.world.now, x.id, off, width, v, n.actions[:0]))
	return nil
}
