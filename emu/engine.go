package emu

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/internal/owner"
	"github.com/exanet/pfd/internal/threads"
	"github.com/exanet/pfd/internal/turnstile"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/r5"
	"github.com/exanet/pfd/soc/record"
	"github.com/exanet/pfd/soc/wire"
	"github.com/exanet/pfd/space"
	"github.com/exanet/pfd/trace"
)

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
	if last := uint64(cfg.Base) + uint64(cfg.Nodes) - 1; last > atomics.MaxNode {
		return nil, fmt.Errorf("%w: nodes %d to %d: the highest id is %d (docs/spec/gsas.md 1): give a lower base", ErrConfig, cfg.Base, last, atomics.MaxNode)
	}
	if err := cfg.Link.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if cfg.VABits < device.MinVABits || cfg.VABits > device.MaxVABits {
		return nil, fmt.Errorf("%w: %d bits of virtual address: give %d to %d", ErrConfig, cfg.VABits, device.MinVABits, device.MaxVABits)
	}
	e := &Engine{
		cfg: cfg, log: cfg.Log, pool: new(wire.Pool), base: time.Now(),
		slowUsers: map[uint32]int64{}, unseenUsers: map[uint32]int64{}, owners: map[uint32]*treeOwner{}, lateOf: map[uint32]int{}, threads: threads.New(), held: turnstile.New(),
	}
	e.apart.owner = &e.thread
	var err error
	if e.loop, err = owner.New[*call](owner.User[*slot](processes{e})); err != nil {
		return nil, fmt.Errorf("emulated machine: %w", err)
	}
	e.apart.ended = e.loop.Send
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
	others := r5.Others{}
	for i := range cfg.Nodes {
		n := &node{index: i, flight: newFlight(&cfg.Link, i, e.pool)}
		if cfg.Outside != nil {
			n.outside = cfg.Outside(i)
		}
		n.soc = soc.New(soc.Config{
			ID: cfg.Base + device.NodeID(i), VABits: cfg.VABits, NoTXFIFO: cfg.NoTXFIFO, Stall: cfg.Stall, SVA: cfg.Outside == nil, Queues: n.outside.DMA != nil, Windows: true, GSAS: cfg.Outside == nil || n.outside.Words != nil,
			Epoch: e.epoch, Pool: e.pool, BTCM: n.outside.BTCM, Firmware: cfg.Firmware,
			Route: e.routes, Base: cfg.Base, Nodes: uint32(cfg.Nodes), Others: others,
		})
		n.due = n.deadline()
		n.bus = &bus{engine: e, node: n}
		for w := range n.windows {
			n.windows[w] = device.Window{Access: &window{engine: e, node: n, id: device.WindowID(w)}}
		}
		e.nodes = append(e.nodes, n)
	}
	return e, nil
}

// Nodes returns the number of nodes. Any goroutine.
func (e *Engine) Nodes() int { return len(e.nodes) }

// Base returns the id of the first node. Any goroutine.
func (e *Engine) Base() device.NodeID { return e.cfg.Base }

// Bus returns the way to a node's registers. Any goroutine.
func (e *Engine) Bus(node int) device.Bus { return e.nodes[node].bus }

// Space returns what pages in for the driver of a node. Any goroutine.
func (e *Engine) Space(node int) space.Machine { return &bus{e, e.nodes[node]} }

// Run drives the machine until ctx ends. It must be called once.
func (e *Engine) Run(ctx context.Context) error {
	if !e.started.CompareAndSwap(false, true) {
		return fmt.Errorf("%w: Run called twice", ErrConfig)
	}
	if made, wanted := e.threads.Prepare(); made < wanted {
		e.log.Warn("few threads can be made: page-ins are refused sooner where memory hangs: raise pids.max (TasksMax) or ulimit -u", "made", made, "wanted", wanted)
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
		_ = e.loop.Close() // it holds only descriptors
	})
}

// Firmware returns the optimizations that the nodes' firmware goes without. Any goroutine.
func (e *Engine) Firmware() r5.Options { return e.cfg.Firmware }

// Node returns a node's machine for reading. On the owning goroutine.
func (e *Engine) Node(i int) *soc.Node { return e.nodes[i].soc }

// Accesses returns a node's counts. On the owning goroutine.
func (e *Engine) Accesses(nodeIndex int) Accesses { return e.nodes[nodeIndex].accesses }

// RecordHeader returns the header of a recording of this engine (package record).
func (e *Engine) RecordHeader() record.Header {
	return record.Header{
		Nodes: len(e.nodes), Base: e.cfg.Base, VABits: e.cfg.VABits, NoTXFIFO: e.cfg.NoTXFIFO, Stall: e.cfg.Stall, SVA: e.cfg.Outside == nil, Queues: e.nodes[0].outside.DMA != nil, Windows: true, GSAS: e.cfg.Outside == nil || e.nodes[0].outside.Words != nil,
		Epoch: e.epoch, Started: e.base.UnixNano(), Firmware: e.cfg.Firmware,
	}
}

// Record makes the engine record the inputs of all nodes. It must be called before Run and before
// any access to a window. The recording of a node that is driven from another process is incomplete:
// its btcm changes without the engine. When off, recording costs one pointer check.
func (e *Engine) Record(w *record.Writer) { e.recorder = w }
