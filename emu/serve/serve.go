// Package serve puts the emulated nodes behind vfio-user sockets, each as a PCI device. A pfd in
// another process, or a virtual machine, drives them. The nodes access the memory that the driver has
// mapped for DMA, through the tables that it keeps there (shadow translation).
//
// A device keeps its state when its driver disconnects. The driver's mappings end at that moment, and
// every later access ends as a slave error.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/internal/memfd"
	"github.com/exanet/pfd/soc/link"
	"github.com/exanet/pfd/soc/r5"
	"github.com/exanet/pfd/soc/smmu"
	"github.com/exanet/pfd/soc/wire"
	"github.com/exanet/pfd/space"
	"github.com/exanet/pfd/space/view"
	"github.com/exanet/pfd/vfio/user"
)

// PCI identity (spec/hardware.md 2). Values below are defined by this project.
const (
	PCIVendor   = 0x1234
	PCIDevice   = 0xe4a0
	PCIClass    = 0x028000 // network controller, other
	PCIRevision = 1

	// MSIXBAR holds the vector table at its start and the pending bits in its
	// middle; BARs 0 to 4 are the windows in the order of device.WindowID.
	MSIXBAR     = 5
	msixBARSize = 4 << 10
	pbaOffset   = 0x800
)

// Limits of a Config.
const (
	MaxNodes  = emu.MaxNodes
	MinVABits = device.MinVABits
	MaxVABits = device.MaxVABits
)

// ErrFirmware means that a word of Config.Firmware names no optimization.
var ErrFirmware = r5.ErrOption

// ErrLink means that Config.Link is invalid.
var ErrLink = link.ErrOption

// Config configures a Machine.
type Config struct {
	Nodes    int
	VABits   int  // 0: 48
	NoTXFIFO bool // source faults by time-out
	// Firmware names the optimizations that the firmware has, as r5.ParseOptions takes them; "": all.
	Firmware string
	Log      *slog.Logger
	// Link describes the nodes' links to each other.
	Link link.Options
	// OnLink changes frames on their way (emu.Config). For tests.
	OnLink func(*wire.Frame) *wire.Frame
}

// Machine is a set of emulated nodes with their servers.
type Machine struct {
	engine *emu.Engine
	log    *slog.Logger
	nodes  []*node
}

type node struct {
	index  int
	engine *emu.Engine
	server *user.Server
	btcm   []byte
	fd     int
	after  *sync.Mutex // guards accesses to all nodes after the engine's end

	memory [device.Slots]*memory // engine goroutine
}

// New builds the machine. Run serves it. Errors match emu.ErrConfig or r5.ErrOption (ErrFirmware), or
// come from making the btcm memory.
func New(cfg Config) (*Machine, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	firmware, err := r5.ParseOptions(cfg.Firmware)
	if err != nil {
		return nil, err
	}
	m, after := &Machine{log: cfg.Log}, &sync.Mutex{}
	if cfg.Nodes < 1 || cfg.Nodes > emu.MaxNodes {
		return nil, fmt.Errorf("%w: %d nodes: give 1 to %d", emu.ErrConfig, cfg.Nodes, emu.MaxNodes)
	}
	for i := range cfg.Nodes {
		n := &node{index: i, fd: -1, after: after}
		m.nodes = append(m.nodes, n)
		if err := n.makeBTCM(); err != nil {
			return nil, errors.Join(fmt.Errorf("node %d: memory of btcm: %w", i, err), m.Close())
		}
	}
	m.engine, err = emu.New(emu.Config{
		Nodes: cfg.Nodes, VABits: cfg.VABits, NoTXFIFO: cfg.NoTXFIFO, Firmware: firmware, Log: cfg.Log, Link: cfg.Link, OnLink: cfg.OnLink,
		Spin: -1, // the servers of registers borrow the engine; it sleeps meanwhile
		Outside: func(i int) emu.Outside {
			n := m.nodes[i]
			return emu.Outside{
				BTCM: n.btcm, Memory: n.slotMemory, DMA: driverMemory{n}, Words: words(n),
				Remote: func() bool { return n.server.DMA().Remote() },
			}
		},
	})
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	for _, n := range m.nodes {
		n.engine = m.engine
		if n.server, err = user.New(n.config(cfg.Log), (*pci)(n)); err != nil {
			return nil, errors.Join(err, m.Close())
		}
	}
	return m, nil
}

// makeBTCM makes the memory that the driver maps, too. The driver cannot change its size.
func (n *node) makeBTCM() (err error) {
	if n.fd, err = memfd.New("exanet-btcm", int64(device.BTCM.Size()), 0, unix.F_SEAL_SEAL); err != nil {
		return err
	}
	if n.btcm, err = unix.Mmap(n.fd, 0, int(device.BTCM.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return os.NewSyscallError("mmap", err)
	}
	return os.NewSyscallError("madvise", unix.Madvise(n.btcm, unix.MADV_DONTDUMP))
}

func (n *node) config(log *slog.Logger) user.Config {
	c := user.Config{
		Identity: user.Identity{Vendor: PCIVendor, Device: PCIDevice, Class: PCIClass, Revision: PCIRevision},
		MSIX:     user.MSIX{Vectors: device.Vectors, BAR: MSIXBAR, PBA: pbaOffset},
		Run:      n.run,
		Log:      log.With("node", n.index),
	}
	for w := range device.Windows {
		c.BARs[w] = user.BAR{Size: uint64(w.Size())}
	}
	c.BARs[MSIXBAR] = user.BAR{Size: msixBARSize}
	// The driver may map the descriptors, but not the doorbell pages: a write there has an effect.
	btcm := &c.BARs[device.BTCM]
	btcm.Areas, btcm.FD = []user.Area{{Offset: device.BTCMDescriptors, Size: device.BTCMDoorbells}}, n.fd
	// A SEND of one word (a RAPF or a doorbell) of the first channel of each slot's process.
	for slot := range device.Slots {
		c.IOEvents = append(c.IOEvents, user.IOEvent{
			BAR:    int(device.PKTZ),
			Offset: uint64(device.MailboxProcess+slot)*device.PageSize + device.PktzSend,
			Size:   8, Value: 1,
		})
	}
	// The doorbell of the commands in memory.
	c.IOEvents = append(c.IOEvents, user.IOEvent{
		BAR: int(device.PL), Offset: device.PLCommandQueue + device.QueueDoorbell, Size: 4, Value: 1,
	})
	return c
}

// driverMemory is the driver's memory. It finds the server late because that is made after the engine.
type driverMemory struct{ n *node }

// Read implements emu.DMA.
func (m driverMemory) Read(addr uint64, p []byte) error { return m.n.server.DMA().Read(addr, p) }

// Write implements emu.DMA.
func (m driverMemory) Write(addr uint64, p []byte) error { return m.n.server.DMA().Write(addr, p) }

// words returns the driver's memory for atomic operations, nil if the processor lacks some of them.
func words(n *node) emu.Words {
	if !view.CanPerform() {
		return nil
	}
	return driverWords{n}
}

// driverWords is the driver's memory as that of the trees.
type driverWords struct{ n *node }

// Do implements emu.Words. The driver says that a page is present only while it is mapped and in memory.
func (w driverWords) Do(op atomics.Op, at uint64, args *[atomics.MaxArgs]uint64) (values [atomics.MaxValues]uint64, ok bool) {
	err := w.n.server.DMA().Do(at, op.Bytes(), func(b []byte) { values = view.Perform(op, b, args) })
	return values, err == nil
}

// PageIn implements emu.Words.
func (driverWords) PageIn(uint64) error { return errAbsent }

// errAbsent means that the driver has not mapped a page that it says is present.
var errAbsent = errors.New("not mapped by the driver")

// run lends the engine to the goroutine of the driver's connection.
func (n *node) run(f func()) {
	if !n.engine.Lend(f) {
		// The engine has ended, and only connections are left.
		n.after.Lock()
		defer n.after.Unlock()
		f()
	}
}

// Engine returns the engine, for tests and for reading.
func (m *Machine) Engine() *emu.Engine { return m.engine }

// Server returns a node's server.
func (m *Machine) Server(node int) *user.Server { return m.nodes[node].server }

// SocketPath returns the socket of a node in a directory.
func SocketPath(dir string, node int) string {
	return filepath.Join(dir, fmt.Sprintf("node%d.sock", node))
}

// Run serves the nodes at SocketPath of dir until ctx ends (it then returns nil) or a socket fails.
// ready, if not nil, is called once when clients can connect to all sockets. Run must be called at
// most once, and Close after it.
func (m *Machine) Run(ctx context.Context, dir string, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs, listening := make(chan error, len(m.nodes)+1), make(chan struct{}, len(m.nodes))
	var all sync.WaitGroup
	all.Go(func() { errs <- m.engine.Run(ctx) })
	for _, n := range m.nodes {
		all.Go(func() { _ = m.engine.Bus(n.index).Serve(ctx, vectors{n.server}) })
		all.Go(func() {
			if err := n.server.Serve(ctx, SocketPath(dir, n.index), func() { listening <- struct{}{} }); err != nil {
				errs <- fmt.Errorf("node %d: %w", n.index, err)
				cancel()
			}
		})
	}
	waiting := len(m.nodes)
	for waiting > 0 && ctx.Err() == nil {
		select {
		case <-listening:
			waiting--
		case <-ctx.Done():
		}
	}
	if waiting == 0 && ready != nil {
		ready()
	}
	all.Wait()
	close(errs)
	var out error
	for err := range errs {
		out = errors.Join(out, err)
	}
	return out
}

// Close releases the memory and the servers. The machine must not be running.
func (m *Machine) Close() error {
	var errs []error
	for _, n := range m.nodes {
		if n.server != nil {
			n.server.Close()
		}
		if n.btcm != nil {
			errs = append(errs, os.NewSyscallError("munmap", unix.Munmap(n.btcm)))
			n.btcm = nil
		}
		if n.fd >= 0 {
			errs = append(errs, os.NewSyscallError("close", unix.Close(n.fd)))
			n.fd = -1
		}
	}
	return errors.Join(errs...)
}

// vectors passes a node's interrupts to its driver.
type vectors struct{ server *user.Server }

func (v vectors) Interrupt(vector int) { _ = v.server.Interrupt(vector) } // fails only for another vector than 0..3

// pci is a node as user.Device. Its methods must be called by the owner of the engine.
type pci node

func (p *pci) Read(bar int, offset uint64, size int) uint64 {
	if bar >= int(device.Windows) {
		return 0
	}
	v, _ := p.engine.Bus(p.index).Window(device.WindowID(bar)).Load(uint32(offset), size) // the emulated windows return no errors
	return v
}

func (p *pci) Write(bar int, offset uint64, size int, value uint64) {
	if bar >= int(device.Windows) {
		return
	}
	w := p.engine.Bus(p.index).Window(device.WindowID(bar))
	switch size { // the emulated windows return no errors
	case 4:
		_ = w.Write32(uint32(offset), uint32(value))
	case 8:
		_ = w.Write64(uint32(offset), value)
	default:
		// Ignored and counted, like a read of that width.
		p.engine.Node(p.index).Load(device.WindowID(bar), uint32(offset), size)
	}
}

// Reset restores the node's state after power-on: it clears everything that CTRL.reset clears, and sets
// the registers of the control page. Counters keep their values.
func (p *pci) Reset(user.ResetKind) {
	w := p.engine.Bus(p.index).Window(device.PL)
	for _, r := range []struct{ offset, value uint32 }{
		{device.PLCtrl, device.CtrlReset},
		{device.PLIRQMask, 0},
		{device.PLNodeID, uint32(p.index)},
		{device.PLTimeoutUS, device.TimeoutReset},
		{device.PLGuardUS, device.GuardReset},
		{device.PLOutstanding, device.OutstandingReset},
	} {
		_ = w.Write32(r.offset, r.value)
	}
}

// slotMemory returns the memory of a slot by its current tables.
func (n *node) slotMemory(slot int, t smmu.Tables) space.Space {
	if m := n.memory[slot]; m != nil && m.tables == t {
		return m
	}
	// There is a server: the engine calls this when it runs, which is after New.
	n.memory[slot] = newMemory(n.server.DMA(), t)
	return n.memory[slot]
}
