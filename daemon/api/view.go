package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/domain"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/internal/tally"
	"github.com/exanet/pfd/internal/version"
	"github.com/exanet/pfd/proc"
	"github.com/exanet/pfd/soc/r5"
)

// endpoints are what the control socket answers. The slices in the answers are
// never nil, so that JSON has [] and not null.
func (d *Daemon) endpoints() []endpoint {
	node := []string{"node"}
	return []endpoint{
		{path: control.PathStatus, answer: d.viewStatus},
		{path: control.PathNodes, keys: node, answer: d.viewNodes},
		{path: control.PathDomains, keys: node, answer: d.viewDomains},
		{path: control.PathChannels, keys: node, answer: d.viewChannels},
		{path: control.PathTransactions, keys: node, answer: d.viewTransactions},
		{path: control.PathSMMU, keys: node, answer: d.viewSMMU},
		{path: control.PathFIFO, keys: node, answer: d.viewFIFO},
		{path: control.PathCounters, keys: node, answer: d.viewCounters},
		{path: control.PathFaults, keys: []string{"node", "n"}, answer: d.viewFaults},
		{path: control.PathRegisters, keys: []string{"node", "window"}, answer: d.viewRegisters},
		{path: control.PathTrace, answer: d.viewTrace},
		{path: control.PathMonitor, keys: node, stream: d.monitor},
		{path: control.PathCapture, keys: []string{"node", "snap"}, stream: d.serveCapture},
		{path: control.PathGrant, keys: []string{"node", "slot", "pdid"}, answer: d.grant, post: true},
		{path: control.PathKick, keys: []string{"node", "slot"}, answer: d.kick, post: true},
	}
}

// each calls f on the owning goroutine for the nodes that a query asks for.
func (d *Daemon) each(ctx context.Context, q *query, f func(n *node) error) error {
	for _, n := range d.nodes {
		if q.node != control.AllNodes && q.node != n.index {
			continue
		}
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, ownerTime)
			defer cancel()
			return d.own(ctx, n, func() error { return f(n) })
		}()
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *Daemon) viewStatus(ctx context.Context, q *query) (any, error) {
	s := control.Status{
		Version: control.Version, DaemonVersion: version.String(), Protocol: attach.Protocol,
		PID: os.Getpid(), UID: uint32(os.Geteuid()), Device: d.cfg.Device,
		Socket: d.cfg.Socket, AttachSocket: control.AttachSocket(d.cfg.Socket),
		State: d.stateNow(), UptimeNS: d.now(), Nodes: len(d.nodes),
		SourceFaults: d.cfg.SourceFaults, Record: d.cfg.Record, Trace: d.cfg.Trace,
	}
	s.SeesAll = q.peer.all
	tune := d.tune.Load()
	s.TimeoutUS, s.GuardUS = tune.TimeoutUS, tune.GuardUS
	var processes []*proc.Process
	if !q.peer.all {
		own, err := d.numbers(ctx, q)
		if err != nil {
			return nil, err
		}
		for i := range own {
			s.Domains += own[i].domains
			s.Faults += own[i].Entries
			processes = append(processes, own[i].processes...)
		}
		s.PinnedBytes, s.Handshakes = -1, -1
		if s.Domains > 0 {
			s.PinnedBytes = d.pinned(processes)
		}
		return s, nil
	}
	s.Handshakes = d.handshakes.Total()
	err := d.each(ctx, &query{node: control.AllNodes}, func(n *node) error {
		s.Domains += len(n.domains.Domains())
		s.Faults += n.faults.Stats().Total.Entries
		processes = append(processes, n.processes()...)
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.PinnedBytes = d.pinned(processes)
	return s, nil
}

// processes lists the attached processes. On the owning goroutine.
func (n *node) processes() (list []*proc.Process) {
	for _, s := range n.sessions {
		if s != nil {
			list = append(list, s.process)
		}
	}
	return list
}

// pinned sums what is locked or pinned in pfd and in the processes; one that is
// attached twice counts once. -1: it could not be read of one of them.
func (d *Daemon) pinned(processes []*proc.Process) int64 {
	sum := pinnedOf(d.self)
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

// pinnedOf gives a process's VmLck + VmPin; a process that has gone has none;
// -1: the kernel does not say.
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

func (d *Daemon) viewNodes(ctx context.Context, q *query) (any, error) {
	r := control.Nodes{Version: control.Version, SeesAll: q.peer.all, Nodes: []control.Node{}}
	looks, err := d.looks.nodes.lookAlways(ctx, d, q, func(n *node) (control.Node, error) {
		v, err := readNode(n.bus, n.index)
		v.Domains = len(n.domains.Domains())
		if ended := d.features.Ended; ended != nil {
			v.Transfers = viewTransfers(ended(n.index).Sum())
		}
		return v, err
	})
	for _, l := range looks {
		v := l.v
		if !q.peer.all {
			v.Domains, v.IRQStatus, v.Transfers = l.count(q.peer), 0, nil // not what others do
		}
		if firmware := d.features.Firmware; firmware != nil {
			v.Firmware = firmware()
		}
		r.Nodes = append(r.Nodes, v)
	}
	return r, err
}

func (d *Daemon) viewDomains(ctx context.Context, q *query) (any, error) {
	r := control.Domains{Version: control.Version, SeesAll: q.peer.all, Domains: []control.Domain{}}
	looks, err := d.looks.domains.look(ctx, d, q, func(n *node) (list []domainOf, _ error) {
		for _, dom := range n.domains.Domains() {
			v := domainOf{Domain: d.viewDomain(n, &dom)}
			if s := n.sessions[dom.Slot]; s != nil {
				v.process = s.process
			}
			list = append(list, v)
		}
		return list, nil
	})
	for _, l := range looks {
		for _, v := range l.v {
			if !q.peer.sees(v.UID) {
				continue
			}
			if v.process != nil {
				v.PinnedBytes = pinnedOf(v.process)
			}
			r.Domains = append(r.Domains, v.Domain)
		}
	}
	return r, err
}

// domainOf is a domain and its process, nil where the session has gone.
type domainOf struct {
	control.Domain
	process *proc.Process
}

// viewDomain shows a domain, but for what is pinned. On the owning goroutine.
func (d *Daemon) viewDomain(n *node, dom *domain.Domain) control.Domain {
	v := control.Domain{
		Node: n.index, Slot: dom.Slot, PDID: uint16(dom.PDID), Generation: uint32(dom.Generation), UID: dom.UID, PID: dom.PID,
		Group: dom.Group, Member: dom.Member, Interface: dom.Interface,
		Peers: []uint16{}, State: dom.State.String(),
	}
	for _, p := range dom.Peers {
		v.Peers = append(v.Peers, uint16(p))
	}
	if s := n.sessions[dom.Slot]; s != nil {
		v.Method, v.Policy = s.method.String(), s.policy.String()
		v.AgeNS = int64(s.since(d.now()))
		stats := n.faults.Stats()
		now, base := &stats.Slots[dom.Slot], &s.joined.base
		v.Faults = now.Entries - base.Entries
		v.PagesIn = now.Pages - base.Pages
		v.Failed = now.RAPFFail - base.RAPFFail
		gone := s.invalidated()
		v.Invalidations, v.InvalidationPages, v.Contentions = gone.Calls, gone.Pages, gone.Conflicts
		if ended := d.features.Ended; ended != nil {
			v.Transfers = viewTransfers(ended(n.index).Slots[dom.Slot].Less(s.joined.ended))
		}
	}
	return v
}

func viewTransfers(s tally.Sum) *control.Transfers {
	return &control.Transfers{Completed: s.Completed, Failed: s.Failed, Bytes: s.Bytes}
}

// statusTexts say why a transfer failed (spec/messages.md 1, reserved_1).
var statusTexts = [...]string{
	device.StatusNone:       "",
	device.StatusSlaveError: "page fault that was never resolved",
	device.StatusDecode:     "bad descriptor, or an address that is not mapped or not permitted",
	device.StatusNoContext:  "no receive context at the target",
	device.StatusCorrupt:    "packets kept arriving corrupted",
	device.StatusDomain:     "protection domain unknown or not admitted at the target",
	device.StatusReserved:   "reserved code",
	device.StatusBufferFull: "destination buffer full",
	device.StatusLimit:      "retransmission limit",
	device.StatusAborted:    "aborted by the process",
	device.StatusGone:       "domain or node gone",
	device.StatusMemory:     "the kernel does not bring memory in",
}

// ongoing tells whether a transfer is under way in the channel.
func (c *channel) ongoing() bool {
	if c.channel < device.WriteChannels {
		return c.descriptor.Done == device.DoneOngoing
	}
	return c.descriptor.Done == device.DoneReadOngoing
}

// state names a channel's done value (001 tables 2.2, 3.4).
func (c *channel) stateName() string {
	switch done := c.descriptor.Done; {
	case done == device.DoneCompleted:
		return "completed"
	case done == device.DoneFailed:
		return "failed"
	case c.ongoing():
		return control.ChannelOngoing
	case c.channel < device.WriteChannels && done == device.DoneInitialized:
		return "initialized"
	case c.channel < device.WriteChannels && done == device.DoneReset,
		c.channel >= device.WriteChannels && done == device.DoneReadReset:
		return "reset"
	}
	return "unknown"
}

func (d *Daemon) viewChannels(ctx context.Context, q *query) (any, error) {
	r := control.Channels{Version: control.Version, SeesAll: q.peer.all, Channels: []control.Channel{}}
	looks, err := d.looks.channels.look(ctx, d, q, readChannels)
	for _, l := range looks {
		for i := range l.v {
			c := &l.v[i]
			// A slot's former transfers stand there until a new one begins.
			if !l.seesDomain(q.peer, c.slot, c.state.PDID, c.state.Generation) {
				continue
			}
			d, s := &c.descriptor, &c.state
			v := control.Channel{
				Node: l.n.index, Slot: c.slot, Channel: c.channel, PDID: uint16(s.PDID),
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

// transactions is such a list, and its clock at that moment.
type transactions struct {
	list []r5.TransactionInfo
	now  int64
}

func (d *Daemon) viewTransactions(ctx context.Context, q *query) (any, error) {
	r := control.Transactions{Version: control.Version, SeesAll: q.peer.all, Transactions: []control.Transaction{}}
	inFlight := d.features.Transactions
	if inFlight == nil {
		return nil, &failure{http.StatusNotImplemented, control.CodeNotSupported, fmt.Sprintf(
			"the transactions of --device %s are its firmware's, in the process or machine that has the device, and no register tells them: see `exanetctl channel` for the transfers and how many of their blocks are paused, and `exanetctl counter` for retransmissions and NACKs", d.cfg.Device)}
	}
	looks, err := d.looks.transactions.look(ctx, d, q, func(n *node) (v transactions, _ error) {
		v.list, v.now = inFlight(n.index)
		return v, nil
	})
	for _, l := range looks {
		now := l.v.now
		for i := range l.v.list {
			t := &l.v.list[i]
			if !l.sees(q.peer, t.Slot, t.PDID, max(now-t.Began, 0)) {
				continue
			}
			v := control.Transaction{
				Node: l.n.index, ID: uint16(t.ID), Slot: t.Slot, Channel: t.Channel, PDID: uint16(t.PDID),
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

func (d *Daemon) viewSMMU(ctx context.Context, q *query) (any, error) {
	r := control.SMMU{Version: control.Version, SeesAll: q.peer.all, Banks: []control.SMMUBank{}}
	looks, err := d.looks.smmu.look(ctx, d, q, func(n *node) (list [device.Slots]control.SMMUBank, err error) {
		for i := range list {
			if !q.peer.all && n.sessions[i] == nil {
				continue // nobody who asks so sees it
			}
			if list[i], err = readBank(n.bus, n.index, i); err != nil {
				return list, err
			}
		}
		return list, nil
	})
	for _, l := range looks {
		for i, b := range l.v {
			if !l.sees(q.peer, i, l.tenants[i].pdid, 0) {
				continue
			}
			if b.FSR == 0 && !q.peer.all {
				// What stands there may be a fault of the slot's former domain.
				b.FAR, b.FSYNR0, b.FSYNR1, b.FaultWrite = 0, 0, 0, false
			}
			r.Banks = append(r.Banks, b)
		}
	}
	return r, err
}

func (d *Daemon) viewFIFO(ctx context.Context, q *query) (any, error) {
	r := control.FIFOs{Version: control.Version, SeesAll: q.peer.all, FIFOs: []control.FIFO{}}
	looks, err := d.looks.fifos.lookAlways(ctx, d, q, readFIFOs)
	for _, l := range looks {
		for _, v := range l.v {
			f := control.FIFO{
				Node: l.n.index, Name: "rxfifo", Entries: []control.FIFOEntry{},
				Depth: int(l.n.caps.Load() >> device.CapsDepthShift & device.CapsDepthMask),
			}
			if v.source {
				f.Name = "txfifo"
			}
			for _, e := range v.entries {
				if !l.seesPDID(q.peer, e.PDID) {
					continue
				}
				f.Entries = append(f.Entries, control.FIFOEntry{
					SourceNode: uint32(e.Source), Transaction: uint16(e.Transaction),
					Sequence: uint16(e.Sequence), PDID: uint16(e.PDID),
					Process: e.Process, VA: control.Hex(e.VA()),
					Response: e.Response, RemainingBytes: e.remaining,
				})
			}
			// How full it is tells of others.
			f.Level, f.Highest = len(f.Entries), -1
			if q.peer.all {
				f.Level, f.Highest, f.Overflow = v.level, v.highest, v.overflow
			}
			r.FIFOs = append(r.FIFOs, f)
		}
	}
	return r, err
}

func (d *Daemon) viewCounters(ctx context.Context, q *query) (any, error) {
	r := control.Counters{Version: control.Version, SeesAll: q.peer.all, Counters: []control.Counter{}}
	if !q.peer.all {
		own, err := d.numbers(ctx, q)
		for i := range own {
			r.Counters = append(r.Counters, own[i].counters()...)
		}
		return r, err
	}
	if q.node == control.AllNodes {
		r.Counters = append(r.Counters, control.Counter{
			Node: control.AllNodes, Name: control.CounterRefused, Value: d.refused.Load(),
			Help: "attachments refused",
		}, control.Counter{
			Node: control.AllNodes, Name: control.CounterDropped, Value: d.dropped.Load(),
			Help: "connections closed at once: their user has too many",
		})
	}
	err := d.each(ctx, q, func(n *node) error {
		list, err := n.counters()
		r.Counters = append(r.Counters, list...)
		return err
	})
	return r, err
}

// faultCounters lists what the fault driver counts for domains.
func faultCounters(t *fault.Counts) []control.Counter {
	return []control.Counter{
		{Name: control.CounterFaults, Value: t.Entries, Help: "faults of known domains that were served"},
		{Name: "faults_local_total", Value: t.Local, Help: "of these, at a source"},
		{Name: "faults_remote_total", Value: t.Remote, Help: "of these, at a destination"},
		{Name: control.CounterMinor, Value: t.Minor, Help: "page-ins that needed no device"},
		{Name: control.CounterMajor, Value: t.Major, Help: "page-ins that read from a device"},
		{Name: control.CounterPermission, Value: t.Permission, Help: "page-ins that copied a page before a write"},
		{Name: "faults_duplicate_total", Value: t.Duplicates, Help: "entries that a block already waited for"},
		{Name: "faults_delegated_total", Value: t.Delegated, Help: "faults that the process was asked to page in"},
		{Name: control.CounterPagesIn, Value: t.Pages, Help: "pages made resident by pfd, or by processes that it had asked; not those of method touch"},
		{Name: "faults_stalled_total", Value: t.Stalls, Help: "accesses that waited in the SMMU for their page (pfd --fault-mode stall)"},
		{Name: control.CounterAhead, Value: t.Ahead, Help: "pages that policy adaptive had brought in ahead of their use"},
		{Name: control.CounterUnused, Value: t.Unused, Help: "of these, those whose use never showed"},
		{Name: control.CounterRAPF, Value: t.RAPF, Help: "retransmissions asked for by pfd"},
		{Name: control.CounterFailed, Value: t.RAPFFail, Help: "blocks ended by the fail bit"},
		{Name: "rapf_unsent_total", Value: t.Refused + t.Busy, Help: "retransmission requests that the packetizer did not take"},
	}
}

// goneCounters lists what was taken away, with ODP's names (docs/service.md).
func goneCounters(i tally.Invalidated) []control.Counter {
	return []control.Counter{
		{Name: control.CounterInvalidated, Value: i.Calls, Help: "calls that took pages away which the device could use, as far as they are seen"},
		{Name: control.CounterInvalidations, Value: i.Pages, Help: "pages that the device had and that were taken away; for emulated nodes those that an access found gone"},
		{Name: control.CounterConflicts, Value: i.Conflicts, Help: "page-ins that met pages which were just being taken away"},
	}
}

// counters lists a node's counters, the driver's first, without the hardware's while the
// device is gone. On the owning goroutine.
func (n *node) counters() ([]control.Counter, error) {
	hw, err := readCounters(n.bus)
	away := errors.Is(err, device.ErrGone)
	if err != nil && !away {
		return nil, err
	}
	s := n.faults.Stats()
	t := &s.Total
	sent := n.sender.Counters()
	n.asking.Lock()
	n.strays += n.sender.Drain()
	n.asking.Unlock()
	list := append(faultCounters(t), []control.Counter{
		{Name: "faults_dropped_total", Value: t.Dropped + s.BadPage + s.Invalid, Help: "entries that were not served: the guard time-out recovers"},
		{Name: control.CounterInterrupts, Value: s.Interrupts, Help: "interrupts that the fault driver took"},
		{Name: "faults_unrecorded_total", Value: s.Unrecorded, Help: "faults of which no record tells: more waited than pfd remembers"},
		{Name: control.CounterUnattributed, Value: s.UnknownPDID, Help: "entries of a PDID that no domain has"},
		{Name: "netlink_sent_total", Value: sent.Sent, Help: "fault messages sent to processes"},
		{Name: "netlink_full_total", Value: sent.Full, Help: "fault messages not sent: the process does not read"},
		{Name: "netlink_failed_total", Value: sent.NoReceiver + sent.Failed, Help: "fault messages not sent for another reason"},
		{Name: "netlink_strays_total", Value: n.strays, Help: "messages of others to pfd's own netlink socket, thrown away"},
		{Name: control.CounterMailbox, Value: n.mailbox, Help: "messages drained from pfd's mailboxes"},
		{Name: control.CounterAttached, Value: n.attached, Help: "processes attached"},
		{Name: control.CounterEnded, Value: n.ended, Help: "attachments ended"},
	}...)
	if n.accesses != nil {
		a := n.accesses()
		list = append(list,
			control.Counter{Name: control.CounterLeases, Value: a.LeasesLost, Help: "memory accesses that slept so long that their domain is served apart"},
			control.Counter{Name: control.CounterKicksMuted, Value: a.Muted, Help: "times that a process was not looked at for a while: its user kicked too often for nothing"},
			control.Counter{Name: control.CounterCallsRefused, Value: a.Refused, Help: "page-ins and memory accesses that were refused: no thread was left for a call that may hang"},
			control.Counter{Name: control.CounterShared, Value: a.Shared, Help: "walks and moves of shared memory that took no system call"},
			control.Counter{Name: control.CounterSharedMissed, Value: a.SharedMissed, Help: "walks of shared memory that met a page which pfd had not entered, or which was absent"})
	}
	gone := n.invalidated
	if n.invalidations != nil {
		for _, v := range n.invalidations() {
			gone = gone.Plus(v)
		}
	}
	for _, s := range n.sessions {
		if s != nil {
			gone = gone.Plus(s.told())
		}
	}
	list = append(list, goneCounters(gone)...)
	for c := range device.Counters {
		if away {
			break
		}
		list = append(list, control.Counter{Name: c.String() + "_total", Value: hw[c], Help: counterHelp[c]})
	}
	for i := range list {
		list[i].Node = n.index
	}
	return list, nil
}

func (d *Daemon) viewFaults(ctx context.Context, q *query) (any, error) {
	r := control.Faults{Version: control.Version, SeesAll: q.peer.all, Faults: []control.Fault{}}
	looks, err := d.looks.faults.lookAlways(ctx, d, q, func(n *node) ([]ownFault, error) {
		many := control.MaxFaults
		if q.peer.all {
			many = q.n // the others' questions share an answer
		}
		return d.ownFaults(n, many), nil
	})
	for _, l := range looks {
		for i := range l.v {
			if f := &l.v[i]; q.peer.shows(&f.owner) {
				r.Faults = append(r.Faults, d.viewFault(l.n.index, &f.Record, &f.owner))
			}
		}
	}
	slices.SortStableFunc(r.Faults, func(a, b control.Fault) int { return cmp.Compare(a.TimeNS, b.TimeNS) })
	if len(r.Faults) > q.n {
		r.Faults = r.Faults[len(r.Faults)-q.n:]
	}
	return r, err
}

// began gives the time of a record's first stage.
func began(rec *fault.Record) int64 {
	if rec.Interrupt != 0 {
		return rec.Interrupt
	}
	return rec.Drained
}

func viewFault(index int, rec *fault.Record) control.Fault {
	start := began(rec)
	after := func(t int64) int64 {
		if t == 0 {
			return -1
		}
		return t - start
	}
	took := stagesOf(rec)
	f := control.Fault{
		Node: index, Slot: rec.Slot, PDID: uint16(rec.PDID), Page: control.Hex(rec.Page),
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

func (d *Daemon) viewTrace(_ context.Context, q *query) (any, error) {
	if d.cfg.Traced == nil {
		return nil, &failure{http.StatusNotFound, control.CodeNotFound, "this pfd keeps no trace: run `exanetctl trace on`, or start it with --trace"}
	}
	if !q.peer.all {
		return nil, &failure{http.StatusForbidden, control.CodeForbidden,
			"the trace is of all users' faults: ask with CAP_SYS_PTRACE, as root has it, or as the user that pfd runs as"}
	}
	v, err := d.cfg.Traced()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(v)
	return control.Trace{Version: control.Version, Report: text}, err
}

func (d *Daemon) viewRegisters(ctx context.Context, q *query) (any, error) {
	if !q.peer.all {
		return nil, &failure{http.StatusForbidden, control.CodeForbidden,
			"registers hold what belongs to all users: ask with CAP_SYS_PTRACE, as root has it, or as the user that pfd runs as"}
	}
	r := control.Registers{Version: control.Version, Registers: []control.Register{}}
	for _, reg := range device.Registers() {
		if q.window != "" && q.window != reg.Window.String() {
			continue
		}
		if reg.Cap&device.CapsPeek != 0 {
			continue // eight thousand, which the channels and the FIFOs show
		}
		// An array at a time: the owner has other things to do in between.
		err := d.each(ctx, q, func(n *node) error {
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

// nodeNames says which nodes there are, for people.
func (d *Daemon) nodeNames() string {
	if len(d.nodes) == 1 {
		return fmt.Sprintf("node %d only", d.nodes[0].id())
	}
	return fmt.Sprintf("nodes %d to %d", d.nodes[0].id(), d.nodes[len(d.nodes)-1].id())
}

// uptime is for the log.
func (d *Daemon) uptime() time.Duration { return time.Since(d.began).Round(time.Millisecond) }
