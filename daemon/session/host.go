package session

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/limits"
	"github.com/exanet/pfd/internal/quota"
	"github.com/exanet/pfd/netlink"
	"github.com/exanet/pfd/trace"
)

// New returns a Host of the machine's nodes. The machine is not touched before Start.
func New(cfg Config) (_ *Host, err error) {
	d := &Host{
		cfg: cfg, log: cfg.Log, machine: cfg.Machine, features: cfg.Machine.Features(),
		handshakes: quota.New(cfg.Settings().HandshakesPerUID, attach.MaxConns, quota.Privileged),
		regions:    quotaOfFiles(regionsPerUID, allRegions),
		watches:    quotaOfFiles(sharesPerUID, allShares),
		tables:     quota.New(tablesPerUID, allTables, quota.Privileged),
		rings:      quotaOfFiles(ringsPerUID, allRings),
		stopped:    make(chan struct{}),
		leaving:    make(chan struct{}),
		live:       map[*session]struct{}{},
	}
	d.shares = quotaOfShares(&d.features)
	d.trees = newTrees(d, d.features.GSAS)
	d.program = sync.OnceValues(func() (*os.File, error) { return copyOf(d.exe) })
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	base, err := trace.Base(cfg.Now)
	if err != nil {
		return nil, fmt.Errorf("the clock of the records: %w", err)
	}
	for i := range cfg.Machine.Nodes() {
		n := &Node{d: d, index: i, bus: cfg.Machine.Bus(i), pageIns: cfg.Machine.Space(i), log: cfg.Log.With("node", int(d.features.Base)+i)}
		n.known.Store(uint32(d.features.Base) + uint32(i)) // until its device says it (start)
		if cfg.Bus != nil {
			n.bus = cfg.Bus(n.bus, i)
		}
		n.records = newRecords(n, base)
		d.nodes = append(d.nodes, n)
		if n.sender, err = netlink.OpenSender(); err != nil {
			return nil, fmt.Errorf("netlink socket for fault messages: %w", err)
		}
	}
	if d.exe, err = os.Open("/proc/self/exe"); err != nil {
		return nil, fmt.Errorf("opening our own program: %w: %s", err, limits.RemedyOr(err, "is /proc mounted?"))
	}
	return d, nil
}

func newRecords(n *Node, base int64) *records {
	f := &n.d.features
	r := &records{log: new(trace.Log), post: n.bus.Post, base: base, id: n.ID, process: n.pid}
	if f.Log != nil {
		r.log, r.post = f.Log, nil
	}
	if f.Server != nil {
		r.server = func() int { return f.Server(n.index) }
	}
	return r
}

// Close closes the files that New has opened.
func (d *Host) Close() error {
	var errs []error
	if d.exe != nil {
		errs = append(errs, d.exe.Close())
	}
	for _, n := range d.nodes {
		if n.sender != nil {
			errs = append(errs, n.sender.Close())
		}
	}
	return errors.Join(errs...)
}

// Start initializes all nodes on the owning goroutine. The channel that it returns receives
// the outcome of each.
func (d *Host) Start() <-chan error {
	done := make(chan error, len(d.nodes))
	for _, n := range d.nodes {
		n.bus.Post(func() { done <- n.initialize() })
	}
	return done
}

// Accept serves the attachment socket until ctx ends. Attachments that stand then go on until
// they are ended.
func (d *Host) Accept(ctx context.Context, l *net.UnixListener) error {
	return attach.Serve(ctx, l, d.handle, func() { d.dropped.Add(1) })
}

// ServeNode delivers a node's interrupts until ctx ends. If the device goes, it ends the
// node's attachments, and waits for the device if that may come back.
func (d *Host) ServeNode(ctx context.Context, n *Node) error {
	var gone atomic.Int64 // how often the device has gone
	for {
		err := n.bus.Serve(ctx, n)
		reconnect := d.features.Reconnect
		if err == nil || ctx.Err() != nil || reconnect == nil || !n.started.Load() {
			return err
		}
		times := gone.Add(1)
		n.down.Store(true)
		d.log.Warn("the device is gone: its attachments end", "node", n.Number(), "why", err)
		d.endNode(ctx, n)
		if err := reconnect(ctx, n.index); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("node %d: its device does not come back: %w", n.Number(), err)
		}
		n.bus.Post(func() {
			if err := n.initialize(); err != nil {
				// The device is gone again, which Serve will report, or is of another kind.
				d.log.Error("the device came back and cannot be used", "node", n.Number(), "err", err)
				return
			}
			if gone.Load() == times {
				n.down.Store(false)
				d.log.Info("the device is there again", "node", n.Number())
			}
		})
	}
}

// endNode ends a node's sessions and waits for them.
func (d *Host) endNode(ctx context.Context, n *Node) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		busy := false
		d.mu.Lock()
		for s := range d.live {
			if s.n == n {
				busy = true
				s.end(attach.ReasonDevice)
			}
		}
		d.mu.Unlock()
		if !busy {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// adopt logs what an earlier pfd has left on a node. On the owning goroutine,
// before the node is initialized, which ends it.
func (n *Node) adopt() {
	var live []device.PDID
	r := device.Reader{Bus: n.bus}
	for slot := range uint32(device.Slots) {
		if v := r.Read64(device.PL, device.PLPDCfg+8*slot); v&device.CfgEnable != 0 {
			live = append(live, device.PDID(v&device.PDIDMask))
		}
	}
	if len(live) > 0 {
		n.log.Warn("domains of an earlier pfd are ended: their processes attach again", "pdids", live)
	}
}

// initialize starts the node, and ends what an earlier pfd has left on its device. On the
// owning goroutine.
func (n *Node) initialize() error {
	n.broken = nil
	if n.d.features.Reconnect != nil {
		n.adopt()
	}
	if err := n.start(); err != nil {
		return err
	}
	n.started.Store(true)
	return nil
}
