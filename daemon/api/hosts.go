package api

import (
	"context"
	"errors"
	"math"
	"net/http"
	"slices"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/internal/logs"
	"github.com/exanet/pfd/link"
)

// viewHosts shows the links to other hosts.
func (srv *Server) viewHosts(_ context.Context, q *query) (any, error) {
	r := control.Hosts{Hosts: []control.Host{}}
	if srv.cfg.Links != nil {
		r = srv.cfg.Links.View()
	}
	r.Version, r.SeesAll = control.Version, q.peer.All
	if !q.peer.All { // the rest shows what others do
		for i, h := range r.Hosts {
			r.Hosts[i] = control.Host{
				Name: h.Name, Address: h.Address, FirstNode: h.FirstNode, LastNode: h.LastNode,
				State: h.State, SinceNS: h.SinceNS, Connected: h.Connected, Draining: h.Draining, TLS: h.TLS, UDP: h.UDP, RTTNS: h.RTTNS,
			}
		}
	}
	return r, nil
}

// drainHost lets no new transfers to a host begin, or lets them again.
func (srv *Server) drainHost(ctx context.Context, q *query) (any, error) {
	return srv.changeHost(ctx, q, "drain", func(l Links) error {
		if err := l.Drain(q.host, q.on); err != nil {
			return err
		}
		// The nodes are told through their owner's inbox. A transfer that begins after the answer finds
		// them told.
		return srv.host.Each(ctx, control.AllNodes, func(*session.Node) error { return nil })
	})
}

// cutHost ends the connections to a host for some time.
func (srv *Server) cutHost(ctx context.Context, q *query) (any, error) {
	return srv.changeHost(ctx, q, "cut", func(l Links) error { return l.Cut(q.host, q.pause) })
}

func (srv *Server) changeHost(ctx context.Context, q *query, what string, change func(Links) error) (any, error) {
	if !q.peer.All {
		return nil, forbidden("the links to other hosts carry the transfers of all users")
	}
	err := link.ErrHost
	if srv.cfg.Links != nil {
		err = change(srv.cfg.Links)
	}
	if errors.Is(err, link.ErrHost) && srv.cfg.Links != nil && srv.cfg.Links.View().Self == q.host {
		return nil, &failure{http.StatusNotFound, control.CodeNotFound, q.host + " is this host: name another one of `exanetctl host`"}
	}
	if errors.Is(err, link.ErrHost) {
		return nil, &failure{http.StatusNotFound, control.CodeNotFound, "no host " + q.host + ": `exanetctl host` lists them"}
	}
	if err != nil {
		return nil, err
	}
	srv.log.Info("link to another host: "+what, "host", q.host, "on", q.on, "for", q.pause, logs.KeyUID, q.peer.UID)
	v, err := srv.viewHosts(ctx, q)
	if r, ok := v.(control.Hosts); ok {
		r.Hosts = slices.DeleteFunc(r.Hosts, func(h control.Host) bool { return h.Name != q.host })
		v = r
	}
	return v, err
}

// hosts adds the metrics of the links to other hosts; none without a table of hosts.
func (s *scrape) hosts(r control.Hosts) {
	if r.Cluster == "" && r.Refused == "" {
		return
	}
	flag := func(on bool) float64 {
		if on {
			return 1
		}
		return 0
	}
	s.gauge("hostd_connected", "1 while exanet-hostd is connected", flag(r.Hostd))
	left := math.Inf(1)
	if r.Certificate != "" {
		left = float64(r.CertificateLeftNS) / 1e9
	}
	s.gauge("hosts_certificate_seconds", "until the certificate of this host, or that of its authority, ends; +Inf without TLS", left)
	s.gauge("hosts_refused", "1 while the newest table of hosts is not in effect", flag(r.Refused != ""))
	for i := range r.Hosts {
		h := &r.Hosts[i]
		drains := h.State == control.HostDraining || h.State == control.HostDrained
		s.gauge("link_up", "1 while the link to a host is up", flag(h.State == control.HostUp || drains && h.Connected), "host", h.Name)
		s.gauge("link_idle", "1 while the link to a host is closed since nothing uses it: the next transfer brings it up", flag(h.State == control.HostIdle || drains && !h.Connected), "host", h.Name)
		s.gauge("link_draining", "1 while no new transfers to a host begin, by exanetctl host drain, also if it cannot be reached", flag(h.Draining), "host", h.Name)
		s.gauge("link_unreachable", "1 while a host cannot be reached: transfers to it wait", flag(h.State == control.HostUnreachable), "host", h.Name)
		s.gauge("link_rtt_seconds", "round trip of the last heartbeat of the link; 0: it has no connection, or had no heartbeat yet", float64(h.RTTNS)/1e9, "host", h.Name)
		s.gauge("link_queued_bytes", "bytes that wait to be sent", float64(h.QueuedHighBytes), "host", h.Name, "class", "high")
		s.gauge("link_queued_bytes", "bytes that wait to be sent", float64(h.QueuedBulkBytes), "host", h.Name, "class", "bulk")
		for _, c := range []struct {
			name, help string
			value      uint64
		}{
			{"link_connects_total", "times that the link came up", h.Connects},
			{"link_frames_sent_total", "frames sent to a host", h.FramesSent},
			{"link_frames_received_total", "frames received from a host", h.FramesReceived},
			{"link_bytes_sent_total", "bytes of all records sent to a host, also those without frames, before encryption", h.BytesSent},
			{"link_bytes_received_total", "bytes of all records received from a host, also those without frames, before encryption; by UDP of the frames only", h.BytesReceived},
			{"link_dropped_total", "frames that were not sent: the link was down or its queue full", h.Dropped},
			{"link_forged_total", "records in the name of a node that is not the host's, or to one that is not of this pfd", h.Forged},
			{"link_bad_total", "connections that ended since a record could not be decoded", h.Bad},
		} {
			s.counter(c.name, c.help, c.value, "host", h.Name)
		}
	}
}
