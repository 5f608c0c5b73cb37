package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/api"
	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/daemon/domain"
	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/internal/limits"
	"github.com/exanet/pfd/internal/version"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/space/proc"
)

// Daemon is one pfd: it listens from New on and works in Run.
type Daemon struct {
	cfg     Config                 // as pfd was started
	tune    atomic.Pointer[Config] // as it is now: Reload changes it
	log     *slog.Logger
	machine session.Machine
	began   time.Time
	state   atomic.Pointer[string]

	host       *session.Host
	groups     *domain.Directory
	api        *api.Server
	claims     *claims
	upkeep     *upkeep
	sockets    *sockets
	metricsTCP net.Listener   // nil: none
	trace      *registerTrace // nil: none
	hosts      *hosts         // nil: this machine has no links to other hosts
	opened     []func() error // by New, each to be closed
}

// New checks the configuration and makes the sockets. The machine is not
// touched before Run.
func New(cfg Config, m session.Machine) (_ *Daemon, err error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	d := &Daemon{cfg: cfg, log: cfg.Log, machine: m, began: time.Now()}
	d.tune.Store(&cfg)
	d.setState(control.StateReady)
	if d.groups, err = d.cfg.directory(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	sc := session.Config{
		Machine: m, Log: cfg.Log, Groups: d.groups, Now: d.now,
		Settings: func() session.Settings { return d.tune.Load().settings() },
		Observe:  func(n *session.Node, rec *fault.Record) { d.api.Observe(n, rec) },
		Discard:  cfg.Discard,
		FromPeer: func(n *session.Node, from mailbox.Source, words []uint64) {
			if d.hosts == nil { // between hosts the table has the ranges, and nothing is claimed
				d.claims.fromPeer(n, from, words)
			}
		},
	}
	if cfg.Trace != "" {
		if d.trace, err = startTrace(cfg.Trace, func() time.Duration { return time.Since(d.began) }); err != nil {
			return nil, err
		}
		sc.Bus = d.trace.log.Bus
		d.opened = append(d.opened, d.trace.close)
	}
	if d.host, err = session.New(sc); err != nil {
		return nil, err
	}
	d.opened = append(d.opened, d.host.Close)
	if e, ok := m.(emulated); ok {
		d.hosts = e.hosts
		d.hosts.host = d.host
	}
	d.claims = newClaims(d.host, d.groups, d.log)
	ac := api.Config{Host: d.host, Log: cfg.Log, Now: d.now, Status: d.status, Counters: d.counters, Traced: cfg.Traced}
	if d.hosts != nil {
		ac.Links = d.hosts
	}
	d.api, err = api.New(ac)
	if err != nil {
		return nil, err
	}
	d.opened = append(d.opened, d.api.Close)
	if cfg.Sandbox != SandboxStrict { // it permits none of these calls anyway
		if err := proc.MayMove(); err != nil {
			cfg.Log.Warn("pfd cannot touch the memory of processes itself: a memory helper serves each of them", "err", err)
		}
	}
	if d.sockets, err = listen(cfg.Socket, cfg.MakeDirectory, d.hosts != nil); err != nil {
		return nil, err
	}
	d.opened = append(d.opened, d.sockets.Close)
	if d.metricsTCP, err = api.ListenMetrics(cfg.MetricsListen); err != nil {
		return nil, err
	} else if d.metricsTCP != nil {
		d.opened = append(d.opened, d.metricsTCP.Close)
	}
	d.upkeep = &upkeep{
		log: d.log, limit: cfg.LogLimit, host: d.host, sockets: d.sockets, unsaid: make(chan string, 1),
		draining: func() bool { return *d.state.Load() == control.StateDraining },
	}
	// With fewer, pfd would start and could serve nobody.
	if err := limits.Room(spareDescriptors); err != nil {
		return nil, fmt.Errorf("no room for processes: %w", err)
	}
	return d, nil
}

// spareDescriptors is how many descriptors pfd needs beside its own to serve two processes
// and a client of its control socket. Defined by this project.
const spareDescriptors = 32

// close closes what New has opened.
func (d *Daemon) close() error {
	var errs []error
	for _, f := range d.opened {
		if err := f(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (d *Daemon) setState(s string) { d.state.Store(&s) }

// stateNow returns the state for people, who also see that pfd waits for a device.
func (d *Daemon) stateNow() string {
	s := *d.state.Load()
	if s == control.StateReady && slices.ContainsFunc(d.host.Nodes(), (*session.Node).Down) {
		return control.StateReconnecting
	}
	return s
}

// status returns what the daemon says of itself.
func (d *Daemon) status() control.Status {
	tune := d.tune.Load()
	return control.Status{
		Version: control.Version, DaemonVersion: version.String(), Protocol: attach.Protocol,
		PID: os.Getpid(), UID: uint32(os.Geteuid()), Device: d.cfg.Device,
		Socket: d.cfg.Socket, AttachSocket: control.AttachSocket(d.cfg.Socket),
		State: d.stateNow(), UptimeNS: d.now(), Nodes: len(d.host.Nodes()),
		SourceFaults: d.cfg.SourceFaults, Record: d.cfg.Record, Trace: d.cfg.Trace,
		TimeoutUS: tune.TimeoutUS, GuardUS: tune.GuardUS,
	}
}

// counters returns metrics of the log and of the trace of registers.
func (d *Daemon) counters() (list []control.Counter) {
	if t := d.trace; t != nil {
		list = append(list, control.Counter{Name: "trace_lines_lost_total", Value: t.spool.Stats().Lost, Help: "lines of --trace-registers that could not be written"})
	}
	if l := d.cfg.LogLimit; l != nil {
		list = append(list, control.Counter{Name: "log_lines_held_back_total", Value: l.Suppressed(), Help: "log lines that the limit held back"})
	}
	if f := d.cfg.LogFile; f != nil {
		list = append(list, control.Counter{Name: "log_lines_lost_total", Value: f.Stats().Lost, Help: "log lines that could not be written: disk full, or a reader that does not read"})
	}
	return list
}

// uptime is for the log.
func (d *Daemon) uptime() time.Duration { return time.Since(d.began).Round(time.Millisecond) }

// now is the daemon's monotonic clock, nanoseconds.
func (d *Daemon) now() int64 { return int64(time.Since(d.began)) }

// Run serves until ctx ends. Then it lets running transfers finish for a bounded time, ends
// the attachments and returns nil. An error means that pfd could not start or that the device
// failed. A Daemon runs once.
func (d *Daemon) Run(ctx context.Context) error {
	defer func() {
		if err := d.close(); err != nil {
			d.log.Debug("closing", "err", err)
		}
	}()
	// Draining needs the machine after ctx has ended.
	machineCtx, stopMachine := context.WithCancel(context.Background())
	failed := make(chan error, 1+len(d.host.Nodes()))
	var workers sync.WaitGroup
	workers.Go(func() { failed <- d.machine.Run(machineCtx) })
	for _, n := range d.host.Nodes() {
		workers.Go(func() { failed <- d.host.ServeNode(machineCtx, n) })
	}

	err := d.startNodes(ctx, failed)
	var accepting <-chan struct{}
	if err == nil && ctx.Err() == nil {
		accepting, err = d.serve(ctx, failed)
	}
	stopMachine()
	workers.Wait()
	// Posted functions run no more: sessions that still wait for one return.
	d.host.Stop()
	if accepting != nil {
		// A handshake may block in the kernel, for a peer in the middle of an exec.
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

// serve serves requests and attachments until ctx ends or the device fails, and then ends the
// attachments. The channel that it returns is closed when the last connection to the
// attachment socket has been served.
func (d *Daemon) serve(ctx context.Context, failed <-chan error) (<-chan struct{}, error) {
	metrics := []net.Listener{d.sockets.metrics}
	if d.metricsTCP != nil {
		metrics = append(metrics, d.metricsTCP)
	}
	defer d.api.Serve(d.sockets.control, metrics...)()
	acceptCtx, stopAccepting := context.WithCancel(context.Background())
	accepting := make(chan struct{})
	go func() {
		defer close(accepting)
		if err := d.host.Accept(acceptCtx, d.sockets.attach); err != nil {
			d.log.Error("attachment socket", "err", err)
		}
	}()

	d.log.Info("ready", "nodes", len(d.host.Nodes()), "device", d.cfg.Device,
		"socket", d.cfg.Socket, "attach", control.AttachSocket(d.cfg.Socket))
	d.upkeep.ready(fmt.Sprintf("\nSTATUS=%d nodes\nMAINPID=%d", len(d.host.Nodes()), os.Getpid()))
	keepCtx, stopKeeping := context.WithCancel(context.Background())
	var keeper sync.WaitGroup
	keeper.Go(func() { d.upkeep.keep(keepCtx) })
	if d.hosts != nil {
		keeper.Go(func() { d.hosts.serve(keepCtx, d.sockets.hosts) })
	}
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
	d.upkeep.notify("STOPPING=1")
	d.host.Drain()
	stopAccepting()
	if failure != nil {
		d.host.End(attach.ReasonDevice)
	} else {
		d.drain(failed)
	}
	return accepting, failure
}

// startNodes initializes all nodes.
func (d *Daemon) startNodes(ctx context.Context, failed <-chan error) error {
	done := d.host.Start()
	for range d.host.Nodes() {
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
	if d.host.Features().Reconnect == nil {
		return nil // an emulated network has no other pfd
	}
	return d.claims.claim(ctx)
}

// drain waits for running transfers, ends the attachments and waits for them. DrainTime bounds
// each wait.
func (d *Daemon) drain(failed <-chan error) {
	d.log.Info("draining")
	wait := d.tune.Load().DrainTime
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	d.waitTransfers(ctx)

	d.host.End(attach.ReasonShutdown)
	gone := make(chan struct{})
	go func() {
		d.host.Wait()
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

// waitTransfers waits until no transfer is under way, or ctx ends. It may poll, since it runs
// once in a daemon's life.
func (d *Daemon) waitTransfers(ctx context.Context) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		busy := false
		for _, n := range d.host.Nodes() {
			if n.Down() {
				continue // its attachments have ended with its device
			}
			err := d.host.Own(ctx, n, func() error {
				ongoing, err := api.Ongoing(n)
				busy = busy || ongoing
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
