package sim

import (
	"container/heap"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"github.com/exanet/pfd/daemon/domain"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/link"
	"github.com/exanet/pfd/soc/pldma"
	"github.com/exanet/pfd/soc/queue"
	"github.com/exanet/pfd/soc/r5"
	"github.com/exanet/pfd/soc/wire"
	"github.com/exanet/pfd/space"
)

// Config configures a world.
type Config struct {
	Seed      uint64
	Nodes     int
	VABits    int
	NoTXFIFO  bool
	Stall     bool // faults stall in the SMMU; not supported with front
	Injection link.Injection
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
}

// World is a set of nodes with their drivers, links and processes.
type World struct {
	cfg      Config
	rng      *rand.Rand
	now      int64
	events   eventHeap
	order    uint64
	pool     *wire.Pool
	nodes    []*Node
	digest   hash.Hash64
	steps    int
	sent     uint64   // number of frames
	observer observer // may be nil
	dir      *domain.Directory
}

// observer receives the events of a world as they happen.
type observer interface {
	// moves: a write to a process's memory begins; p is nil if the slot is free.
	moves(n *Node, p *Process, a *pldma.Access)
	landed(p *Process, a *pldma.Access) // the bytes are written
	sent(n *Node, f *wire.Frame)        // before the link gets it
	carried(out []link.Delivery)        // what the link delivers for that frame
	arrived(f *wire.Frame, order uint64)
	reported(n *Node, a *soc.Action)     // DescriptorChanged
	wrote(n *Node, off uint32, v uint64) // by a driver to its packetizers
	failed() error                       // an error ends the run
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
	world    *World
	id       device.NodeID
	SOC      *soc.Node
	link     *link.Link
	Driver   *fault.Driver
	Domains  *domain.Manager
	handler  device.Handler
	windows  [device.Windows]window
	front    front // nil: the driver uses the registers
	process  [device.Slots]*Process
	deadline int64 // for which a tick is scheduled
	actions  []soc.Action
	out      []link.Delivery
	free     [2]int64 // with Costs: when its driver's processors become free
}

type event struct {
	at    int64
	order uint64
	run   func()
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(event)) }
func (h *eventHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = event{}
	*h = old[:len(old)-1]
	return e
}

// New creates a world and initializes every node as pfd does.
func New(cfg Config) (*World, error) {
	if cfg.VABits == 0 {
		cfg.VABits = device.MaxVABits
	}
	w := &World{
		cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0x9e3779b97f4a7c15)),
		pool: new(wire.Pool), digest: fnv.New64a(),
	}
	var err error
	w.dir, err = domain.NewDirectory(domain.DirectoryConfig{Generation: device.Generation(w.rng.Uint32() | 1)})
	if err != nil {
		return nil, err
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
	w, cfg := n.world, &n.world.cfg
	n.SOC = soc.New(soc.Config{
		ID: n.id, VABits: cfg.VABits, NoTXFIFO: cfg.NoTXFIFO, Stall: cfg.Stall, SVA: true, Windows: true, Epoch: w.rng.Uint32() | 1,
		Firmware: cfg.Firmware, IDs: cfg.IDs, FIFO: cfg.FIFO, Contexts: cfg.Contexts,
		Queues: cfg.front != nil, Pool: w.pool, Route: func(id device.NodeID) bool { return int(id) < cfg.Nodes },
	})
	n.deadline = 1 << 62
}

// start initializes the node as pfd does.
func (n *Node) start() (err error) {
	w, cfg := n.world, &n.world.cfg
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
	options := []domain.Option{domain.WithTimer(func(d time.Duration, f func()) { w.after(int64(d), f) })}
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

// alive returns a function that runs f unless the node's current machine has been replaced.
func (n *Node) alive(f func()) func() {
	s := n.SOC
	return func() {
		if n.SOC == s {
			f()
		}
	}
}

// Now returns the simulated time, ns.
func (w *World) Now() int64 { return w.now }

// Node returns node i.
func (w *World) Node(i int) *Node { return w.nodes[i] }

// Digest returns a fingerprint of all events: equal seeds produce equal digests.
func (w *World) Digest() uint64 { return w.digest.Sum64() }

func (w *World) after(d int64, f func()) {
	w.order++
	heap.Push(&w.events, event{w.now + max(d, 0), w.order, f})
}

// ErrStuck reports that the simulation did not end within its time.
var ErrStuck = errors.New("simulation does not end")

// Run runs until over returns true. It returns ErrStuck if no events are left or limit (ns) is
// reached before, and any error of Audit.
func (w *World) Run(limit int64, over func() bool) error {
	for !over() {
		if w.events.Len() == 0 || w.events[0].at > limit {
			return fmt.Errorf("%w: seed %d at %d ns, %d events left", ErrStuck, w.cfg.Seed, w.now, w.events.Len())
		}
		if err := w.step(); err != nil {
			return err
		}
	}
	return nil
}

func (w *World) step() error {
	e := heap.Pop(&w.events).(event)
	w.now = e.at
	e.run()
	if w.observer != nil {
		if err := w.observer.failed(); err != nil {
			return fmt.Errorf("seed %d: %w", w.cfg.Seed, err)
		}
	}
	w.steps++
	if w.steps%64 == 0 {
		for i, n := range w.nodes {
			if err := n.SOC.Audit(); err != nil {
				return fmt.Errorf("seed %d, node %d at %d ns: %w", w.cfg.Seed, i, w.now, err)
			}
		}
	}
	return nil
}

func (w *World) note(vs ...uint64) {
	var b [8]byte
	for _, v := range vs {
		binary.LittleEndian.PutUint64(b[:], v)
		_, _ = w.digest.Write(b[:])
	}
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
	// Actions may write registers, and so call this method recursively.
	n.actions = nil
	for i := range actions {
		a := &actions[i]
		w.note(uint64(w.now), uint64(a.Kind), uint64(a.Slot), uint64(a.Channel), uint64(a.Done), uint64(a.Vector))
		switch a.Kind {
		case soc.Transmit:
			n.transmit(a.Frame)
		case soc.Walk:
			id, slot, va, pages, write := a.Access.ID, a.Access.Slot, a.Access.VA, a.Access.Pages(), a.Access.Write
			p := n.process[slot]
			w.after(w.memoryTime(), n.alive(func() {
				absent, denied := p.walk(va, pages, write)
				n.Event(&soc.Event{Kind: soc.Walked, Access: id, Absent: absent, Denied: denied})
			}))
		case soc.Move:
			acc, p := *a.Access, n.process[a.Access.Slot]
			if w.observer != nil && acc.Write {
				w.observer.moves(n, p, &acc)
			}
			w.after(w.memoryTime(), n.alive(func() {
				ok := p.move(acc.VA, acc.Data, acc.Write)
				w.note(uint64(acc.VA), uint64(len(acc.Data)))
				if w.observer != nil && acc.Write && ok {
					w.observer.landed(p, &acc)
				}
				n.Event(&soc.Event{Kind: soc.Moved, Access: acc.ID, OK: ok})
			}))
		case soc.Interrupt:
			v := int(a.Vector)
			d := int64(200)
			if w.cfg.Costs != nil {
				d = w.cfg.Costs.Interrupt
			} else if w.cfg.Interrupt > 0 {
				d += w.rng.Int64N(w.cfg.Interrupt)
			}
			w.after(d, n.alive(func() { n.handler.Interrupt(v) }))
		case soc.DescriptorChanged:
			if w.observer != nil {
				w.observer.reported(n, a)
			}
			if p := n.process[a.Slot]; p != nil {
				p.descriptor(int(a.Channel), a.Done, a.Status)
			}
		case soc.MailArrived:
			m := int(a.Interface)
			if p := n.process[(m-device.MailboxProcess)%device.Slots]; p != nil && p.OnMail != nil {
				w.after(200, n.alive(func() {
					for {
						src, words, ok := n.SOC.TakeMail(m)
						if !ok {
							return
						}
						p.OnMail(src, words)
					}
				}))
			}
		case soc.WordsWritten:
			if p := n.process[a.Slot]; p != nil && p.OnWords != nil {
				p.OnWords()
			}
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
	if d >= n.deadline || d >= 1<<62 {
		return
	}
	n.deadline = d
	n.world.after(d-n.world.now, n.alive(func() {
		if n.deadline == d {
			n.deadline = 1 << 62
		}
		n.Event(&soc.Event{Kind: soc.Tick})
	}))
}

func (n *Node) transmit(f *wire.Frame) {
	w := n.world
	dst := int(f.DstNode)
	if dst >= len(w.nodes) {
		w.pool.Put(f)
		return
	}
	if w.observer != nil {
		w.observer.sent(n, f)
	}
	n.out = n.link.Carry(w.now, f, n.out[:0])
	if w.observer != nil {
		w.observer.carried(n.out)
	}
	w.sent++
	order := w.sent
	for _, d := range n.out {
		g := d.Frame
		if w.cfg.Costs != nil {
			d.At += w.cfg.Costs.later(g)
		}
		w.after(d.At-w.now, func() {
			if w.observer != nil {
				w.observer.arrived(g, order)
			}
			w.nodes[dst].Event(&soc.Event{Kind: soc.FrameArrived, Frame: g})
		})
	}
}

// Node is a device.Bus whose owner is the simulation.

// Window implements device.Bus.
func (n *Node) Window(id device.WindowID) device.Window { return device.Window{Access: &n.windows[id]} }

// Serve implements device.Bus. It is not used: the world serves the node.
func (n *Node) Serve(context.Context, device.Handler) error {
	return errors.New("a simulated node is served by its world")
}

// Post runs f after the current event.
func (n *Node) Post(f func()) { n.world.after(0, n.alive(f)) }

// PageIn implements space.Machine: the pages are there when their duration has passed.
func (n *Node) PageIn(slot int, op *space.Op, long bool) {
	var d int64
	if costs := n.world.cfg.Costs; costs != nil {
		d = costs.work(n, slot, op, long)
	} else if d = 4500 + n.world.memoryTime(); long {
		d += 20000
	}
	n.world.after(d, n.alive(func() {
		op.Start()
		op.Paged = n.process[slot].PageIn(op.VA, op.Pages, op.Write)
		op.End()
		op.Done()
	}))
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
		o.wrote(n, off, v)
	}
	n.do(n.SOC.Store(n.world.now, x.id, off, width, v, n.actions[:0]))
	return nil
}
