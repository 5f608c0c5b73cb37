package api

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/tally"
	"github.com/exanet/pfd/soc/r5"
	"github.com/exanet/pfd/space/proc"
)

func (srv *Server) viewStatus(ctx context.Context, q *query) (any, error) {
	s := srv.cfg.Status()
	s.SeesAll = q.peer.All
	var attached []*proc.Process
	if !q.peer.All {
		own, err := srv.numbers(ctx, q)
		if err != nil {
			return nil, err
		}
		for i := range own {
			s.Domains += own[i].domains
			s.Faults += own[i].Entries
			attached = append(attached, own[i].processes...)
		}
		s.PinnedBytes, s.Handshakes = -1, -1
		if s.Domains > 0 {
			s.PinnedBytes = srv.pinned(attached)
		}
		return s, nil
	}
	s.Handshakes = srv.host.Handshakes().Total()
	err := srv.host.Each(ctx, control.AllNodes, func(n *session.Node) error {
		s.Domains += len(n.Manager().Domains())
		s.Faults += n.Stats().Total.Entries
		attached = append(attached, processes(n)...)
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.PinnedBytes = srv.pinned(attached)
	return s, nil
}

func (srv *Server) viewNodes(ctx context.Context, q *query) (any, error) {
	r := control.Nodes{Version: control.Version, SeesAll: q.peer.All, Nodes: []control.Node{}}
	looks, err := srv.looks.nodes.lookAlways(ctx, srv.host, q, func(n *session.Node) (control.Node, error) {
		v, err := readNode(n.Bus(), n.Number())
		v.Domains = len(n.Manager().Domains())
		if ended := srv.features.Transfers; ended != nil {
			v.Transfers = viewTransfers(ended(n.Index()).Sum())
		}
		return v, err
	})
	for _, l := range looks {
		v := l.v
		if !q.peer.All {
			v.Domains, v.IRQStatus, v.Transfers = l.count(q.peer), 0, nil // these show what others do
		}
		if firmware := srv.features.Firmware; firmware != nil {
			v.Firmware = firmware()
		}
		r.Nodes = append(r.Nodes, v)
	}
	return r, err
}

func (srv *Server) viewDomains(ctx context.Context, q *query) (any, error) {
	r := control.Domains{Version: control.Version, SeesAll: q.peer.All, Domains: []control.Domain{}}
	looks, err := srv.looks.domains.look(ctx, srv.host, q, func(n *session.Node) (list []domainOf, _ error) {
		for _, dom := range n.Manager().Domains() {
			list = append(list, domainOf{dom, n.Info(dom.Slot)})
		}
		return list, nil
	})
	for _, l := range looks {
		for i := range l.v {
			dom := &l.v[i]
			if !q.peer.sees(dom.UID) {
				continue
			}
			v := viewDomain(l.n.Number(), dom)
			if dom.info != nil {
				v.PinnedBytes = pinnedOf(dom.info.Process)
			}
			r.Domains = append(r.Domains, v)
		}
	}
	return r, err
}

// viewDomain shows a domain, except what is pinned.
func viewDomain(node int, dom *domainOf) control.Domain {
	v := control.Domain{
		Node: node, Slot: dom.Slot, PDID: uint16(dom.PDID), Generation: uint32(dom.Generation), UID: dom.UID, PID: dom.PID,
		Group: dom.Group, Member: dom.Member, Interface: dom.Interface,
		Peers: []uint16{}, Windows: []control.MemoryWindow{}, State: dom.State.String(),
	}
	for _, p := range dom.Peers {
		v.Peers = append(v.Peers, uint16(p))
	}
	for _, w := range dom.Windows {
		v.Windows = append(v.Windows, control.MemoryWindow{
			Address: control.Hex(w.VA), SizeBytes: w.Bytes, Peer: uint16(w.Peer), Rights: strings.Split(w.Rights.String(), "+"),
		})
	}
	if i := dom.info; i != nil {
		v.Method, v.Policy, v.AgeNS, v.Rings = i.Method.String(), i.Policy.String(), i.AgeNS, i.Rings
		v.Faults, v.PagesIn, v.Failed = i.Faults.Entries, i.Faults.Pages, i.Faults.RAPFFail
		v.Invalidations, v.InvalidationPages, v.Contentions = i.Invalidated.Calls, i.Invalidated.Pages, i.Invalidated.Conflicts
		if i.Transfers != nil {
			v.Transfers = viewTransfers(*i.Transfers)
		}
	}
	return v
}

func viewTransfers(s tally.Sum) *control.Transfers {
	return &control.Transfers{Completed: s.Completed, Failed: s.Failed, Bytes: s.Bytes}
}

func (srv *Server) viewChannels(ctx context.Context, q *query) (any, error) {
	r := control.Channels{Version: control.Version, SeesAll: q.peer.All, Channels: []control.Channel{}}
	looks, err := srv.looks.channels.look(ctx, srv.host, q, readChannels)
	for _, l := range looks {
		for i := range l.v {
			c := &l.v[i]
			// A slot shows transfers of its former domain until a new one begins.
			if !l.ownsDomain(q.peer, c.slot, c.state.PDID, c.state.Generation) {
				continue
			}
			d, s := &c.descriptor, &c.state
			v := control.Channel{
				Node: l.n.Number(), Slot: c.slot, Channel: c.channel, PDID: uint16(s.PDID),
				State: c.stateName(), Status: d.Status,
				Src: control.Hex(d.Src), Dst: control.Hex(d.Dst),
				SizeBytes: uint64(d.Size), IssuedBytes: uint64(s.Issued),
				Blocks: int(s.Blocks), Acked: int(s.Acked), InFlight: s.InFlight, Paused: s.Paused, Retransmitted: s.Retransmitted,
				DstNode: uint32(d.DstNode), DstPDID: uint16(s.DstPDID), AgeNS: -1,
			}
			if s.Live {
				v.Class, v.Window, v.AgeNS = r5.Class(s.Class).String(), s.Window, s.AgeNS
				v.OldestSequence, v.NewestSequence = uint16(s.Oldest), uint16(s.Newest)
			}
			if int(v.Status) < len(statusTexts) {
				v.StatusText = statusTexts[v.Status]
			}
			r.Channels = append(r.Channels, v)
		}
	}
	return r, err
}

func (srv *Server) viewTransactions(ctx context.Context, q *query) (any, error) {
	r := control.Transactions{Version: control.Version, SeesAll: q.peer.All, Transactions: []control.Transaction{}}
	inFlight := srv.features.Transactions
	if inFlight == nil {
		return nil, &failure{http.StatusNotImplemented, control.CodeNotSupported, fmt.Sprintf(
			"only the firmware of --device %s knows its transactions, and no register shows them: see `exanetctl channel` for the transfers and how many of their blocks are paused, and `exanetctl counter` for retransmissions and NACKs", srv.cfg.Status().Device)}
	}
	looks, err := srv.looks.transactions.look(ctx, srv.host, q, func(n *session.Node) (v transactions, _ error) {
		v.list, v.now = inFlight(n.Index())
		return v, nil
	})
	for _, l := range looks {
		now := l.v.now
		for i := range l.v.list {
			t := &l.v.list[i]
			if !l.owns(q.peer, t.Slot, t.PDID, max(now-t.Began, 0)) {
				continue
			}
			v := control.Transaction{
				Node: l.n.Number(), ID: uint16(t.ID), Slot: t.Slot, Channel: t.Channel, PDID: uint16(t.PDID),
				DstNode: uint32(t.Node), DstPDID: uint16(t.DestinationPDID), State: t.State, Class: t.Class.String(),
				Sending: t.Sending, Words: t.Words, Sequence: uint16(t.Sequence), First: uint16(t.First),
				Block: t.Block, Blocks: t.Blocks, Acked: t.Acked, OffsetBytes: t.Offset, LengthBytes: t.Length,
				Attempts: t.Attempts, RAPFs: t.RAPFs, LastCode: uint8(t.LastCode),
				AgeNS: max(now-t.Began, 0), DueNS: -1,
			}
			if t.Due != 0 {
				v.DueNS = max(t.Due-now, 0)
			}
			r.Transactions = append(r.Transactions, v)
		}
	}
	return r, err
}

func (srv *Server) viewSMMU(ctx context.Context, q *query) (any, error) {
	r := control.SMMU{Version: control.Version, SeesAll: q.peer.All, Banks: []control.SMMUBank{}}
	looks, err := srv.looks.smmu.look(ctx, srv.host, q, func(n *session.Node) (list [device.Slots]control.SMMUBank, err error) {
		for i := range list {
			if !q.peer.All && n.Tenant(i).PDID == 0 {
				continue // only a peer that sees everything would see it
			}
			if list[i], err = readBank(n.Bus(), n.Number(), i); err != nil {
				return list, err
			}
		}
		return list, nil
	})
	for _, l := range looks {
		for i, b := range l.v {
			if !l.owns(q.peer, i, l.tenants[i].PDID, 0) {
				continue
			}
			if b.FSR == 0 && !q.peer.All {
				// The registers may show a fault of the slot's former domain.
				b.FAR, b.FSYNR0, b.FSYNR1, b.FaultWrite = 0, 0, 0, false
			}
			r.Banks = append(r.Banks, b)
		}
	}
	return r, err
}

func (srv *Server) viewFIFO(ctx context.Context, q *query) (any, error) {
	r := control.FIFOs{Version: control.Version, SeesAll: q.peer.All, FIFOs: []control.FIFO{}}
	looks, err := srv.looks.fifos.lookAlways(ctx, srv.host, q, readFIFOs)
	for _, l := range looks {
		for _, v := range l.v {
			f := control.FIFO{
				Node: l.n.Number(), Name: "rxfifo", Entries: []control.FIFOEntry{},
				Depth: int(l.n.Caps() >> device.CapsDepthShift & device.CapsDepthMask),
			}
			if v.source {
				f.Name = "txfifo"
			}
			for _, e := range v.entries {
				if !l.ownsPDID(q.peer, e.PDID) {
					continue
				}
				f.Entries = append(f.Entries, control.FIFOEntry{
					SourceNode: uint32(e.Source), Transaction: uint16(e.Transaction),
					Sequence: uint16(e.Sequence), PDID: uint16(e.PDID),
					Process: e.Process, VA: control.Hex(e.VA()),
					Response: e.Response, RemainingBytes: e.remaining,
				})
			}
			// The level shows what others do.
			f.Level, f.Highest = len(f.Entries), -1
			if q.peer.All {
				f.Level, f.Highest, f.Overflow = v.level, v.highest, v.overflow
			}
			r.FIFOs = append(r.FIFOs, f)
		}
	}
	return r, err
}

func (srv *Server) viewCounters(ctx context.Context, q *query) (any, error) {
	r := control.Counters{Version: control.Version, SeesAll: q.peer.All, Counters: []control.Counter{}}
	if !q.peer.All {
		own, err := srv.numbers(ctx, q)
		for i := range own {
			r.Counters = append(r.Counters, own[i].counters()...)
		}
		return r, err
	}
	if q.node == control.AllNodes {
		r.Counters = append(r.Counters, srv.refusals()...)
	}
	err := srv.host.Each(ctx, q.node, func(n *session.Node) error {
		list, err := nodeCounters(srv.features, n)
		r.Counters = append(r.Counters, list...)
		return err
	})
	return r, err
}

func (srv *Server) viewFaults(ctx context.Context, q *query) (any, error) {
	r := control.Faults{Version: control.Version, SeesAll: q.peer.All, Faults: []control.Fault{}}
	looks, err := srv.looks.faults.lookAlways(ctx, srv.host, q, func(n *session.Node) ([]session.Fault, error) {
		many := control.MaxFaults
		if q.peer.All {
			many = q.n // other peers share a result
		}
		return n.Faults(many), nil
	})
	for _, l := range looks {
		for i := range l.v {
			if f := &l.v[i]; q.peer.shows(&f.Tenant) {
				r.Faults = append(r.Faults, srv.viewFault(l.n.Number(), f))
			}
		}
	}
	slices.SortStableFunc(r.Faults, func(a, b control.Fault) int { return cmp.Compare(a.TimeNS, b.TimeNS) })
	if len(r.Faults) > q.n {
		r.Faults = r.Faults[len(r.Faults)-q.n:]
	}
	return r, err
}

// shows reports whether a peer may see a fault that belongs to an attachment.
func (p Peer) shows(t *session.Tenancy) bool { return p.All || t.PID != 0 && p.sees(t.UID) }

// viewFault shows a fault.
func (srv *Server) viewFault(node int, rec *session.Fault) control.Fault {
	start := rec.Began()
	after := func(t int64) int64 {
		if t == 0 {
			return -1
		}
		return t - start
	}
	took := stagesOf(&rec.Record)
	age := max(srv.cfg.Now()-start, 0)
	f := control.Fault{
		Node: node, Slot: rec.Slot, PDID: uint16(rec.PDID), Page: control.Hex(rec.Page),
		PID: rec.Tenant.PID, AgeNS: age, UnixNS: time.Now().UnixNano() - age,
		Write: rec.Write, Method: rec.Method.String(), Policy: rec.Policy.String(),
		Outcome: rec.Outcome.String(), SourceNode: uint32(rec.Source), Block: rec.Block,
		Transaction: uint16(rec.Transaction), Sequence: uint16(rec.Sequence),
		TimeNS: start, DrainedNS: after(rec.Drained), StartedNS: after(rec.Started),
		ResidentNS: after(rec.Resident), RAPFNS: after(rec.Answered),
		Stages: control.FaultStages{Drain: took[stageDrain], Queue: took[stageQueue], PageIn: took[stagePageIn], Answer: took[stageAnswer], Total: took[stageTotal]},
	}
	if rec.Cause != nil {
		f.Reason = rec.Cause.Error()
	}
	if rec.Resident != 0 {
		f.Kind = rec.Kind.String()
	}
	return f
}

func (srv *Server) viewTrace(_ context.Context, q *query) (any, error) {
	if srv.cfg.Traced == nil {
		return nil, &failure{http.StatusNotFound, control.CodeNotFound, "this pfd keeps no trace: run `exanetctl trace on`, or start it with --trace"}
	}
	if !q.peer.All {
		return nil, forbidden("the trace is of all users' faults")
	}
	v, err := srv.cfg.Traced()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(v)
	return control.Trace{Version: control.Version, Report: text}, err
}

func (srv *Server) viewRegisters(ctx context.Context, q *query) (any, error) {
	if !q.peer.All {
		return nil, forbidden("registers show data of all users")
	}
	r := control.Registers{Version: control.Version, Registers: []control.Register{}}
	for _, reg := range device.Registers() {
		if q.window != "" && q.window != reg.Window.String() {
			continue
		}
		if reg.Cap&device.CapsPeek != 0 {
			continue // eight thousand registers, which the channels and the FIFOs show
		}
		// Read one array at a time, so that the owner can do other work in between.
		err := srv.host.Each(ctx, q.node, func(n *session.Node) error {
			list, err := readRegister(n, &reg)
			r.Registers = append(r.Registers, list...)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(r.Registers, func(a, b control.Register) int { return cmp.Compare(a.Node, b.Node) })
	return r, nil
}
