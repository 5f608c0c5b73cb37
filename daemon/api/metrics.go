package api

import (
	"context"
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/internal/version"
	"github.com/exanet/pfd/space/proc"
)

// metrics returns all metrics in Prometheus' text format 0.0.4: every counter of every node,
// the stages of the faults, pinned memory, and pfd itself.
func (srv *Server) metrics(ctx context.Context) ([]byte, error) {
	s := &scrape{}
	if err := srv.scrape(ctx, s); err != nil {
		return nil, err
	}
	return gather(s, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
}

// metricsFor returns all metrics to a peer that sees everything, and other peers' own counters
// to them.
func (srv *Server) metricsFor(ctx context.Context, q *query) ([]byte, error) {
	if q.peer.All {
		return srv.metrics(ctx)
	}
	own, err := srv.numbers(ctx, q)
	if err != nil {
		return nil, err
	}
	s := &scrape{}
	for i := range own {
		node := strconv.Itoa(own[i].node)
		for _, c := range own[i].counters() {
			s.nodeCounter(node, &c)
		}
		if own[i].domains > 0 {
			s.gauge("domains", "protection domains in use", float64(own[i].domains), "node", node)
		}
	}
	s.gauge("sees_all", "1: the metrics are of all processes; 0: of the asking user's processes, since they attached", 0)
	s.gauge("build_info", "1, with the version", 1, "version", version.String())
	return gather(s)
}

// A node has some 250 series. In a pfd with more than manyNodes, the nodes that are not yet used
// share one set, with the label nodeIdle. Values below are defined by this project.
const (
	manyNodes = 8
	nodeIdle  = "idle"
)

// unused reports whether all counters of a node are 0.
func unused(list []control.Counter) bool {
	return !slices.ContainsFunc(list, func(c control.Counter) bool { return c.Value != 0 })
}

// scrape adds all metrics of pfd and its nodes.
func (srv *Server) scrape(ctx context.Context, s *scrape) error {
	var attached []*proc.Process
	idle, windows := 0, 0
	err := srv.host.Each(ctx, control.AllNodes, func(n *session.Node) error {
		node := strconv.Itoa(n.Number())
		list, err := nodeCounters(srv.features, n)
		if err != nil {
			return err
		}
		live := n.Manager().Domains()
		s.gauge("domains", "protection domains in use", float64(len(live)), "node", node)
		for i := range live {
			windows += len(live[i].Windows)
		}
		if m := srv.features.Sharing; m != nil {
			s.shadow(m, n.Index(), node)
		}
		attached = append(attached, processes(n)...)
		if len(srv.host.Nodes()) > manyNodes && len(live) == 0 && unused(list) {
			// All counters of such nodes are 0, and so are their sums.
			if idle++; idle > 1 {
				return nil
			}
			node = nodeIdle
		}
		for _, c := range list {
			s.nodeCounter(node, &c)
		}
		if ended := srv.features.Transfers; ended != nil {
			s.transfers(node, ended(n.Index()))
		}
		t := n.Stats().Total
		s.counter("fault_entries_total", "faults by the side of the transfer", t.Local, "node", node, "side", "local")
		s.counter("fault_entries_total", "faults by the side of the transfer", t.Remote, "node", node, "side", "remote")
		s.stages(node, &srv.times[n.Index()])
		return nil
	})
	if err != nil {
		return err
	}
	s.gauge("pinned_bytes", "memory locked or pinned in pfd and in the attached processes, -1 unknown", float64(srv.pinned(attached)))
	for _, c := range append(srv.refusals(), srv.cfg.Counters()...) {
		s.counter(c.Name, c.Help, c.Value)
	}
	s.gauge("handshakes", "attachments begun and not finished", float64(srv.host.Handshakes().Total()))
	s.gauge("memory_windows", "ranges of memory that processes have opened to peers", float64(windows))
	s.gauge("rings", "descriptors on which processes wait", float64(srv.host.Rings()))
	for uid, bytes := range srv.host.GSASUsed() {
		s.gauge("gsas_bytes", "memory of the global shared address space that is allocated, by user", float64(bytes), "uid", strconv.FormatUint(uint64(uid), 10))
	}
	if links := srv.cfg.Links; links != nil {
		s.hosts(links.View())
	}
	s.gauge("nodes", "nodes of this pfd", float64(len(srv.host.Nodes())))
	s.gauge("nodes_idle", "nodes that were never used, whose metrics have the label node=\""+nodeIdle+"\"", float64(idle))
	s.gauge("build_info", "1, with the version", 1, "version", version.String())
	if recording := srv.features.Recording; recording != nil {
		value := 0.0
		if recording() {
			value = 1
		}
		s.gauge("recording", "1 while the machine's inputs are recorded, 0 after the file could not hold them", value)
	}
	return nil
}
