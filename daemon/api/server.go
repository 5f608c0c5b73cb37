package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/internal/limits"
	"github.com/exanet/pfd/internal/quota"
	"github.com/exanet/pfd/internal/tally"
	"github.com/exanet/pfd/space/proc"
)

// Config configures a Server.
type Config struct {
	Host Host
	Log  *slog.Logger
	Now  func() int64 // the clock of the faults, nanoseconds
	// Status returns the fields of the status that do not depend on the peer.
	Status func() control.Status
	// Counters returns further counters of the daemon.
	Counters func() []control.Counter
	// Links are the links to other hosts; nil: the machine has none.
	Links Links
	// Traced returns the measurements of the probe; nil: pfd keeps none.
	Traced func() (any, error)
}

// Links are the links to other hosts. Its methods are safe for concurrent use.
type Links interface {
	View() control.Hosts
	// Drain and Cut return an error that matches link.ErrHost if there is no such host.
	Drain(host string, on bool) error
	Cut(host string, d time.Duration) error
}

// Server answers requests. It owns the state that only the control interface needs: the clients
// that follow the faults, the histograms of the faults' stages, and the last results for peers
// that do not see everything.
type Server struct {
	cfg       Config
	log       *slog.Logger
	host      Host
	features  *session.Features
	self      *proc.Process // pfd, for its pinned memory
	times     []stageTimes  // by node, each owned by the node's owner
	monitors  *quota.Quota
	watchers  watchers // the clients that follow the faults
	capturing atomic.Bool
	dropped   atomic.Uint64 // connections
	budget    budget
	looks     struct {
		channels     looks[[]channel]
		transactions looks[transactions]
		faults       looks[[]session.Fault]
		smmu         looks[[device.Slots]control.SMMUBank]
		fifos        looks[[]fifo]
		domains      looks[[]domainOf]
		nodes        looks[control.Node]
		attachments  looks[[device.Slots]*session.Info]
		threads      looks[map[atomics.Thread]holder]
	}
}

// holder is the attachment of a thread.
type holder struct{ slot, pid int }

// New returns a Server.
func New(cfg Config) (*Server, error) {
	self, err := proc.LookSelf()
	if err != nil {
		return nil, fmt.Errorf("looking at our own /proc: %w: %s", err, limits.RemedyOr(err, "is /proc mounted?"))
	}
	srv := &Server{
		cfg: cfg, log: cfg.Log, host: cfg.Host, features: cfg.Host.Features(), self: self,
		times:    make([]stageTimes, len(cfg.Host.Nodes())),
		monitors: quota.New(monitorsPerUID, allMonitors, quota.Privileged),
	}
	return srv, nil
}

// Close closes the file that New has opened.
func (srv *Server) Close() error { return srv.self.Close() }

// refusals returns the counters of connections that pfd did not serve.
func (srv *Server) refusals() []control.Counter {
	refused, dropped := srv.host.Refused()
	return []control.Counter{
		{Node: control.AllNodes, Name: control.CounterRefused, Value: refused, Help: "attachments refused"},
		{Node: control.AllNodes, Name: control.CounterDropped, Value: dropped + srv.dropped.Load(), Help: "connections closed at once: their user has too many"},
	}
}

// pinned sums the locked and pinned memory of pfd and of the processes, of which each counts
// once. -1: the kernel does not tell it of one of them.
func (srv *Server) pinned(processes []*proc.Process) int64 {
	sum := pinnedOf(srv.self)
	counted := map[int]bool{os.Getpid(): true}
	for _, p := range processes {
		if counted[p.PID()] {
			continue
		}
		counted[p.PID()] = true
		n := pinnedOf(p)
		if n < 0 || sum < 0 {
			return -1
		}
		sum += n
	}
	return sum
}

// pinnedOf returns a process's VmLck + VmPin, 0 for a process that has ended, and -1 if the
// kernel does not tell.
func pinnedOf(p *proc.Process) int64 {
	n, err := p.Locked()
	switch {
	case err == nil:
		return n
	case errors.Is(err, proc.ErrGone), errors.Is(err, proc.ErrClosed):
		return 0
	}
	return -1
}

// processes lists the attached processes. On the owning goroutine.
func processes(n *session.Node) (list []*proc.Process) {
	for slot := range device.Slots {
		if i := n.Info(slot); i != nil {
			list = append(list, i.Process)
		}
	}
	return list
}

// numbers are the sums of a user's attachments to a node, since each began.
type numbers struct {
	fault.Counts
	invalidated   tally.Invalidated
	node, domains int
	processes     []*proc.Process
}

// numbers returns a peer's numbers for each node.
func (srv *Server) numbers(ctx context.Context, q *query) (list []numbers, _ error) {
	looks, err := srv.looks.attachments.lookAlways(ctx, srv.host, q, func(n *session.Node) (v [device.Slots]*session.Info, _ error) {
		for slot := range v {
			v[slot] = n.Info(slot)
		}
		return v, nil
	})
	for _, l := range looks {
		own := numbers{node: l.n.Number(), domains: l.count(q.peer)}
		for slot, i := range l.v {
			if i != nil && q.peer.sees(l.tenants[slot].UID) {
				own.Add(&i.Faults)
				own.invalidated = own.invalidated.Plus(i.Invalidated)
				own.processes = append(own.processes, i.Process)
			}
		}
		list = append(list, own)
	}
	return list, err
}

// counters lists them as counters; none if the peer has no domain.
func (o *numbers) counters() []control.Counter {
	if o.domains == 0 {
		return nil
	}
	list := append(faultCounters(&o.Counts), invalidationCounters(o.invalidated)...)
	for i := range list {
		list[i].Node = o.node
	}
	return list
}

// count counts the slots that a peer has.
func (s *seen[T]) count(p Peer) (n int) {
	for _, t := range s.tenants {
		if t.PDID != 0 && p.sees(t.UID) {
			n++
		}
	}
	return n
}
