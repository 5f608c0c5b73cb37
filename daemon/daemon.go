package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/domain"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/internal/limits"
	"github.com/exanet/pfd/internal/quota"
	"github.com/exanet/pfd/internal/tally"
	"github.com/exanet/pfd/netlink"
	"github.com/exanet/pfd/proc"
	"github.com/exanet/pfd/trace"
)

// Daemon is one pfd: it listens from New on and works in Run.
type Daemon struct {
	cfg      Config                 // as pfd was started
	tune     atomic.Pointer[Config] // as it is now: Reload changes it
	log      *slog.Logger
	machine  Machine
	features Features // the machine's
	nodes    []*node
	sockets  *sockets
	groups   *domain.Directory
	began    time.Time

	trace      *registerTrace           // of the register accesses, nil: none
	self       *proc.Process            // pfd, for what it has pinned
	exe        *os.File                 // pfd's executable
	program    func() (*os.File, error) // what memory helpers run; made when one is needed
	handshakes *quota.Quota
	refused    atomic.Uint64
	dropped    atomic.Uint64 // connections
	regions    *quota.Quota  // userfaultfds that are served
	shares     *quota.Quota  // ranges that are shared
	watches    *quota.Quota  // userfaultfds of them
	tables     *quota.Quota  // page tables of what is shared
	turns      quota.Turns   // of calls that map and unmap it
	metricsTCP net.Listener  // nil: none
	scraped    scraped
	monitors   *quota.Quota
	capturing  atomic.Bool
	budget     budget
	looks      struct {
		channels     looks[[]channel]
		transactions looks[transactions]
		faults       looks[[]ownFault]
		smmu         looks[[device.Slots]control.SMMUBank]
		fifos        looks[[]fifo]
		domains      looks[[]domainOf]
		nodes        looks[control.Node]
		accounts     looks[[]account]
	}
	state      atomic.Pointer[string]
	initialize func(*node) error // of a node; set before the first one starts
	claims     claims
	unsaid     chan string // a READY that did not reach the service manager

	// stopped is closed when the owning goroutine runs posted functions no more.
	stopped chan struct{}

	mu       sync.Mutex
	live     map[*session]struct{}
	draining bool
	leaving  chan struct{}              // closed when draining becomes true
	watchers atomic.Pointer[[]*watcher] // who follows the faults
	sessions sync.WaitGroup
}

// New checks the configuration and makes the sockets. The machine is not
// touched before Run.
func New(cfg Config, m Machine) (*Daemon, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	features := m.Features()
	d := &Daemon{
		cfg: cfg, log: cfg.Log, machine: m, features: features, began: time.Now(),
		regions:    quotaOfFiles(regionsPerUID, allRegions),
		shares:     quotaOfShares(&features),
		watches:    quotaOfFiles(sharesPerUID, allShares),
		tables:     quota.New(tablesPerUID, allTables, quota.Privileged),
		handshakes: quota.New(cfg.HandshakesPerUID, attach.MaxConns, quota.Privileged),
		monitors:   quota.New(monitorsPerUID, allMonitors, quota.Privileged),
		unsaid:     make(chan string, 1),
		stopped:    make(chan struct{}),
		leaving:    make(chan struct{}),
		live:       map[*session]struct{}{},
	}
	d.program = sync.OnceValues(func() (*os.File, error) { return copyOf(d.exe) })
	d.tune.Store(&cfg)
	d.setState(control.StateReady)
	d.scraped.look = d.metrics
	var err error
	if d.groups, err = d.cfg.directory(); err != nil {
		return nil, err
	}
	if cfg.Trace != "" {
		if d.trace, err = startTrace(cfg.Trace, func() time.Duration { return time.Since(d.began) }); err != nil {
			return nil, err
		}
	}
	base, err := trace.Base(d.now)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the clock of the records: %w", err), d.close())
	}
	for i := range m.Nodes() {
		n := &node{index: i, bus: m.Bus(i), log: cfg.Log.With("node", i)}
		if count := d.features.Accesses; count != nil {
			n.accesses = func() emu.Accesses { return count(i) }
		}
		if count := d.features.Invalidations; count != nil {
			n.invalidations = func() [device.Slots]tally.Invalidated { return count(i) }
		}
		if d.trace != nil {
			n.bus = d.trace.log.Bus(n.bus, i)
		}
		n.records = newRecords(&d.features, n, base)
		d.nodes = append(d.nodes, n)
	}
	if d.exe, err = os.Open("/proc/self/exe"); err != nil {
		return nil, errors.Join(fmt.Errorf("opening our own program: %w: %s", err, limits.RemedyOr(err, "is /proc mounted?")), d.close())
	}
	if d.self, err = proc.LookSelf(); err != nil {
		return nil, errors.Join(fmt.Errorf("looking at our own /proc: %w: %s", err, limits.RemedyOr(err, "is /proc mounted?")), d.close())
	}
	if cfg.Sandbox != SandboxStrict { // which keeps none of these calls, nor does the unit
		if err := proc.MayMove(); err != nil {
			cfg.Log.Warn("pfd cannot touch the memory of processes itself: a memory helper serves each of them", "err", err)
		}
	}
	for _, n := range d.nodes {
		if n.sender, err = netlink.OpenSender(); err != nil {
			return nil, errors.Join(fmt.Errorf("netlink socket for fault messages: %w", err), d.close())
		}
	}
	if d.sockets, err = listen(cfg.Socket, cfg.MakeDirectory); err != nil {
		return nil, errors.Join(err, d.close())
	}
	if d.metricsTCP, err = listenMetrics(cfg.MetricsListen); err != nil {
		return nil, errors.Join(err, d.close())
	}
	// With less, pfd would start and could not accept anybody.
	if err := limits.Room(spareDescriptors); err != nil {
		return nil, errors.Join(fmt.Errorf("no room for processes: %w", err), d.close())
	}
	return d, nil
}

// spareDescriptors is what pfd needs beside its own descriptors to serve two processes
// and a client of its control socket. The value is defined by this project.
const spareDescriptors = 32

// close gives back what New made.
func (d *Daemon) close() error {
	var errs []error
	if d.trace != nil {
		errs = append(errs, d.trace.close())
	}
	if d.self != nil {
		errs = append(errs, d.self.Close())
	}
	if d.exe != nil {
		errs = append(errs, d.exe.Close())
	}
	for _, n := range d.nodes {
		if n.sender != nil {
			errs = append(errs, n.sender.Close())
		}
	}
	if d.sockets != nil {
		errs = append(errs, d.sockets.Close())
	}
	if d.metricsTCP != nil {
		if err := d.metricsTCP.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (d *Daemon) setState(s string) { d.state.Store(&s) }

// now is the daemon's monotonic clock, nanoseconds.
func (d *Daemon) now() int64 { return int64(time.Since(d.began)) }

// Run works until ctx ends; then it lets running transfers finish for a bounded
// time, ends the attachments and returns nil. An error means that pfd could not
// start or that the device is gone. A Daemon runs once.
func (d *Daemon) Run(ctx context.Context) error {
	defer func() {
		if err := d.close(); err != nil {
			d.log.Debug("closing", "err", err)
		}
	}()
	// The machine outlives ctx: draining needs it.
	machineCtx, stopMachine := context.WithCancel(context.Background())
	failed := make(chan error, 1+len(d.nodes))
	var workers sync.WaitGroup
	workers.Go(func() { failed <- d.machine.Run(machineCtx) })
	for _, n := range d.nodes {
		workers.Go(func() { failed <- d.serveNode(machineCtx, n) })
	}

	err := d.startNodes(ctx, failed)
	var accepting <-chan struct{}
	if err == nil && ctx.Err() == nil {
		accepting, err = d.serve(ctx, failed)
	}
	stopMachine()
	workers.Wait()
	// Nothing posted runs any more: sessions that still wait for it give up.
	close(d.stopped)
	if accepting != nil {
		// A handshake may sleep in the kernel (a peer in the middle of an exec).
		select {
		case <-accepting:
		case <-time.After(d.tune.Load().DrainTime):
			d.log.Warn("a connection to the attachment socket is still being served: not waiting any longer")
		}
	}
	if err != nil {
		d.log.Error("stopped", "after", d.uptime(), "err", err)
	} else {
		d.log.Info("stopped", "after", d.uptime())
	}
	return err
}

// serve takes requests and attachments until ctx ends or the device fails, and
// ends the attachments. The channel that it gives is closed when the last
// connection to the attachment socket is over.
func (d *Daemon) serve(ctx context.Context, failed <-chan error) (<-chan struct{}, error) {
	srv := controlServer(d.log, len(d.nodes), d.endpoints(), d.metricsFor, d.budget.wait)
	defer d.serveMetrics()()
	httpDone := make(chan struct{})
	go func() {
		defer close(httpDone)
		if err := srv.Serve(newPeerListener(d.sockets.control, &d.dropped)); !errors.Is(err, http.ErrServerClosed) {
			d.log.Error("control socket", "err", err)
		}
	}()
	defer func() {
		// Bounded: whoever asks now waits ownerTime at most.
		stop, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := srv.Shutdown(stop); err != nil {
			srv.Close()
		}
		<-httpDone
	}()
	acceptCtx, stopAccepting := context.WithCancel(context.Background())
	accepting := make(chan struct{})
	go func() {
		defer close(accepting)
		if err := attach.Serve(acceptCtx, d.sockets.attach, d.handle, func() { d.dropped.Add(1) }); err != nil {
			d.log.Error("attachment socket", "err", err)
		}
	}()

	d.log.Info("ready", "nodes", len(d.nodes), "device", d.cfg.Device,
		"socket", d.cfg.Socket, "attach", control.AttachSocket(d.cfg.Socket))
	d.ready(fmt.Sprintf("\nSTATUS=%d nodes\nMAINPID=%d", len(d.nodes), os.Getpid()))
	keepCtx, stopKeeping := context.WithCancel(context.Background())
	var keeper sync.WaitGroup
	keeper.Go(func() { d.keep(keepCtx) })
	defer keeper.Wait()
	defer stopKeeping()

	var failure error
	select {
	case failure = <-failed:
		if failure == nil {
			failure = errors.New("it stopped without being asked")
		}
		d.setState(control.StateFailed)
		failure = fmt.Errorf("the device failed: %w", failure)
	case <-ctx.Done():
		d.setState(control.StateDraining)
	}
	d.notify("STOPPING=1")
	d.stopEntering()
	stopAccepting()
	if failure != nil {
		d.endSessions(attach.ReasonDevice)
	} else {
		d.drain(failed)
	}
	return accepting, failure
}

// notify tells whether the service manager has been told.
func (d *Daemon) notify(state string) bool {
	err := notify(state)
	if err != nil {
		what, _, _ := strings.Cut(state, "\n")
		d.log.Warn("service manager not told", "what", what, "err", err)
	}
	return err == nil
}

// startNodes initializes all nodes on the owning goroutine.
func (d *Daemon) startNodes(ctx context.Context, failed <-chan error) error {
	d.claims = newClaims(d.groups)
	d.initialize = func(n *node) error { return n.start(d.tune.Load(), d.groups, d.now, d.observe) }
	done := make(chan error, len(d.nodes))
	for _, n := range d.nodes {
		n.bus.Post(func() { done <- d.startNode(n) })
	}
	for range d.nodes {
		select {
		case err := <-done:
			if err != nil {
				return fmt.Errorf("starting the device: %w", err)
			}
		case err := <-failed:
			return fmt.Errorf("starting the device: %w", err)
		case <-ctx.Done():
			return nil
		}
	}
	return d.claim(ctx)
}

// drain ends an orderly pfd: no new attachments, running transfers may finish,
// then every attachment is torn down. Both waits are bounded by DrainTime.
func (d *Daemon) drain(failed <-chan error) {
	d.log.Info("draining")
	wait := d.tune.Load().DrainTime
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	d.waitTransfers(ctx)

	d.endSessions(attach.ReasonShutdown)
	gone := make(chan struct{})
	go func() {
		d.sessions.Wait()
		close(gone)
	}()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-gone:
	case err := <-failed:
		d.log.Error("the device failed while draining", "err", err)
	case <-timer.C:
		d.log.Warn("accesses are still in flight: not waiting any longer", "after", wait)
	}
}

// waitTransfers waits until no transfer is under way, or ctx ends. It looks
// again every few milliseconds: it runs once in a daemon's life.
func (d *Daemon) waitTransfers(ctx context.Context) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		busy := false
		for _, n := range d.nodes {
			if n.down.Load() {
				continue // its attachments have ended with its device
			}
			err := d.own(ctx, n, func() error {
				list, err := usedChannels(n)
				for i := range list {
					busy = busy || list[i].ongoing()
				}
				return err
			})
			if err != nil {
				d.log.Warn("transfers are still under way: not waiting any longer", "err", err)
				return
			}
		}
		if !busy {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// errStopped says that the owning goroutine runs nothing any more.
var errStopped = errors.New("pfd is stopping")

// own runs f on the goroutine that owns the node's windows and gives its error.
// When ctx or the daemon ends before f has begun it gives that error and f never
// runs; so f may write to what its caller goes on using.
func (d *Daemon) own(ctx context.Context, n *node, f func() error) error {
	const queued, taken, givenUp = 0, 1, 2
	var state atomic.Int32
	done := make(chan error, 1)
	n.bus.Post(func() {
		if state.CompareAndSwap(queued, taken) {
			done <- f()
		}
	})
	var err error
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		err = ctx.Err()
	case <-d.stopped:
		err = errStopped
	}
	if state.CompareAndSwap(queued, givenUp) {
		return err
	}
	// It runs now, and nothing that the owner runs blocks.
	return <-done
}

// nodeByID gives the node with a node id, nil if there is none.
func (d *Daemon) nodeByID(id device.NodeID) *node {
	for _, n := range d.nodes {
		if n.id() == id {
			return n
		}
	}
	return nil
}
