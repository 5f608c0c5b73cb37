package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/limits"
	"github.com/exanet/pfd/internal/quota"
	"github.com/exanet/pfd/proc"
)

// Config is what the daemon gives its Server.
type Config struct {
	Host Host
	Log  *slog.Logger
	Now  func() int64 // the clock of the faults, nanoseconds
	// Status returns what the daemon says of itself: all that does not depend on the peer.
	Status func() control.Status
	// Counters returns metrics of the daemon's own files.
	Counters func() []control.Counter
	// Traced returns what the probe has measured; nil: pfd keeps no trace.
	Traced func() (any, error)
}

// Server answers requests. It owns what only the control interface needs: who follows the
// faults, the histograms of their stages, and what was copied last for those who do not see
// everything.
type Server struct {
	cfg       Config
	log       *slog.Logger
	host      Host
	features  *session.Features
	self      *proc.Process // pfd, for what it has pinned
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
		accounts     looks[[device.Slots]*session.Info]
	}
}

// New makes a Server. It answers from Serve on.
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

// Close releases what New has opened.
func (srv *Server) Close() error { return srv.self.Close() }

// leftTime is between two looks at whether the client of a stream has left. Defined by this
// project.
const leftTime = 5 * time.Second

// stream returns a context that ends when the client of a stream leaves, or pfd ends.
// Package http does not see one leave that has sent more than its request.
func (srv *Server) stream(r *http.Request) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(r.Context())
	go func() {
		defer cancel()
		tick := time.NewTicker(leftTime)
		defer tick.Stop()
		for {
			select {
			case <-srv.host.Draining():
				return
			case <-ctx.Done():
				return
			case <-tick.C:
				if c, ok := ctx.Value(connKey{}).(*peerConn); ok && c.left() {
					return
				}
			}
		}
	}()
	return ctx, cancel
}

// refusals counts the connections that pfd did not serve.
func (srv *Server) refusals() []control.Counter {
	refused, dropped := srv.host.Refused()
	return []control.Counter{
		{Node: control.AllNodes, Name: control.CounterRefused, Value: refused, Help: "attachments refused"},
		{Node: control.AllNodes, Name: control.CounterDropped, Value: dropped + srv.dropped.Load(), Help: "connections closed at once: their user has too many"},
	}
}

// pinned sums what is locked or pinned in pfd and in the processes; one that is
// attached twice counts once. -1: it could not be read of one of them.
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

// pinnedOf returns a process's VmLck + VmPin; 0 of a process that has gone; -1 if the kernel
// does not say.
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
		if i := n.Attached(slot); i != nil {
			list = append(list, i.Process)
		}
	}
	return list
}
