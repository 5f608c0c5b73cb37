// Package live follows a running pfd by its control interface. It polls pfd and computes the
// changes per second, where the time of faults goes, and the transfers in flight.
package live

import (
	"context"
	"slices"
	"time"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/maybe"
)

// Rates are events per second. A rate that pfd does not disclose to this user is not known.
type Rates struct {
	Transfers   maybe.Number `json:"transfers_per_s"` // completed transfers
	Failed      maybe.Number `json:"failed_per_s"`    // transfers that failed
	Bytes       maybe.Number `json:"bytes_per_s"`     // of completed transfers
	Faults      maybe.Number `json:"faults_per_s"`
	Retransmits maybe.Number `json:"retransmits_per_s"` // blocks that a node retransmitted
}

func unknownRates() Rates {
	n := maybe.Unknown()
	return Rates{n, n, n, n, n}
}

func (r *Rates) add(o Rates) {
	r.Transfers += o.Transfers
	r.Failed += o.Failed
	r.Bytes += o.Bytes
	r.Faults += o.Faults
	r.Retransmits += o.Retransmits
}

// Node is a node with its rates.
type Node struct {
	control.Node
	Rates Rates `json:"rates"`
}

// Domain is a domain with its rates and its transfers in flight.
type Domain struct {
	control.Domain
	Rates    Rates `json:"rates"`
	Ongoing  int   `json:"channels_ongoing"`
	InFlight int   `json:"blocks_in_flight"`
	Paused   int   `json:"blocks_paused"`
}

// View is the state of a pfd at one moment, as its user may see it.
type View struct {
	Version  int               `json:"version"` // of the control interface
	Time     time.Time         `json:"time"`
	Seconds  float64           `json:"interval_s"` // that the rates cover; 0: no rates are known yet
	Status   control.Status    `json:"status"`
	Total    Rates             `json:"total"`
	Nodes    []Node            `json:"nodes"`
	Domains  []Domain          `json:"domains"`
	Channels []control.Channel `json:"channels"` // with a transfer in flight
	FIFOs    []control.FIFO    `json:"fifos"`    // without their entries
	// Stages of the newest resolved faults: those since the last View, or the previous ones if
	// there are none.
	Stages []Stage `json:"stages"`
}

// Follower follows one pfd. It is not safe for concurrent use.
type Follower struct {
	client *control.Client
	last   *look
	stages []Stage
}

// Follow returns a Follower that uses a client.
func Follow(c *control.Client) *Follower { return &Follower{client: c} }

// Next polls pfd and returns its View. The first View, and the first after a restart of pfd,
// has no rates.
func (f *Follower) Next(ctx context.Context) (View, error) {
	now, err := ask(ctx, f.client)
	if err != nil {
		f.last = nil
		return View{}, err
	}
	v := now.view(f.last)
	if len(v.Stages) == 0 && f.stages != nil {
		v.Stages = f.stages
	}
	f.last, f.stages = now, v.Stages
	return v, nil
}

// look holds pfd's answers of one poll.
type look struct {
	at       time.Time
	status   control.Status
	nodes    []control.Node
	domains  []control.Domain
	channels []control.Channel
	fifos    []control.FIFO
	counters map[counter]uint64
	faults   []control.Fault
}

type counter struct {
	node int
	name string
}

func ask(ctx context.Context, c *control.Client) (*look, error) {
	l := &look{at: time.Now(), counters: map[counter]uint64{}}
	var counters []control.Counter
	for _, get := range []func() error{
		func() (err error) { l.status, err = c.Status(ctx); return },
		func() (err error) { l.nodes, err = c.Nodes(ctx, control.AllNodes); return },
		func() (err error) { l.domains, err = c.Domains(ctx, control.AllNodes); return },
		func() (err error) { l.channels, err = c.Channels(ctx, control.AllNodes); return },
		func() (err error) { l.fifos, err = c.FIFOs(ctx, control.AllNodes); return },
		func() (err error) { counters, err = c.Counters(ctx, control.AllNodes); return },
		func() (err error) { l.faults, err = c.Faults(ctx, control.AllNodes, 0); return },
	} {
		if err := get(); err != nil {
			return nil, err
		}
	}
	for _, c := range counters {
		l.counters[counter{c.Node, c.Name}] = c.Value
	}
	return l, nil
}

// view returns what has changed since an earlier look; last is nil if there is none.
func (l *look) view(last *look) View {
	v := View{
		Version: control.Version, Time: l.at, Status: l.status,
		Nodes: []Node{}, Domains: []Domain{}, Channels: []control.Channel{}, FIFOs: []control.FIFO{}, Stages: []Stage{},
	}
	if last != nil && (last.status.PID != l.status.PID || last.status.UptimeNS > l.status.UptimeNS) {
		last = nil // another pfd
	}
	if last != nil {
		v.Seconds = l.at.Sub(last.at).Seconds()
	}
	for _, c := range l.channels {
		if c.State == control.ChannelOngoing {
			v.Channels = append(v.Channels, c)
		}
	}
	for _, f := range l.fifos {
		f.Entries = []control.FIFOEntry{}
		v.FIFOs = append(v.FIFOs, f)
	}
	for _, d := range l.domains {
		w := Domain{Domain: d}
		var was control.Domain // zero for a new domain
		if last != nil {
			if i := slices.IndexFunc(last.domains, func(o control.Domain) bool {
				return o.Node == d.Node && o.Slot == d.Slot && o.Generation == d.Generation
			}); i >= 0 {
				was = last.domains[i]
			}
		}
		w.Rates = v.transfers(d.Transfers, was.Transfers)
		w.Rates.Faults = v.rate(maybe.Number(d.Faults), maybe.Number(was.Faults))
		for _, c := range v.Channels {
			if c.Node == d.Node && c.Slot == d.Slot {
				w.Ongoing++
				w.InFlight += c.InFlight
				w.Paused += c.Paused
			}
		}
		v.Domains = append(v.Domains, w)
	}
	for i, n := range l.nodes {
		w := Node{Node: n, Rates: unknownRates()}
		if last != nil && i < len(last.nodes) {
			w.Rates = v.transfers(n.Transfers, last.nodes[i].Transfers)
			for name, rate := range map[string]*maybe.Number{control.CounterFaults: &w.Rates.Faults, "retransmits_total": &w.Rates.Retransmits} {
				*rate = v.rate(l.counter(n.Index, name), last.counter(n.Index, name))
			}
		}
		own := slices.ContainsFunc(l.domains, func(d control.Domain) bool { return d.Node == n.Index })
		if n.Transfers == nil && last != nil && (own || l.status.SeesAll) { // this user sees only its own domains
			w.Rates.Transfers, w.Rates.Failed, w.Rates.Bytes = 0, 0, 0
			for _, d := range v.Domains {
				if d.Node == n.Index {
					w.Rates.Transfers += d.Rates.Transfers
					w.Rates.Failed += d.Rates.Failed
					w.Rates.Bytes += d.Rates.Bytes
				}
			}
		}
		if own || l.status.SeesAll {
			v.Total.add(w.Rates)
		}
		v.Nodes = append(v.Nodes, w)
	}
	if len(l.domains) == 0 && !l.status.SeesAll {
		v.Total = unknownRates()
	}
	// since has the last completed fault of each node at the last look. A fault that was in
	// flight then counts as new when it completes; otherwise slow faults would never be shown.
	since := map[int]int64{}
	if last != nil {
		for _, f := range last.faults {
			if f.RAPFNS >= 0 {
				since[f.Node] = max(since[f.Node], f.TimeNS+f.RAPFNS)
			}
		}
	}
	v.Stages = Stages(slices.DeleteFunc(slices.Clone(l.faults), func(f control.Fault) bool { return f.TimeNS+f.RAPFNS <= since[f.Node] }))
	return v
}

// counter returns a counter of a node, if pfd discloses it.
func (l *look) counter(node int, name string) maybe.Number {
	if n, ok := l.counters[counter{node, name}]; ok {
		return maybe.Number(n)
	}
	return maybe.Unknown()
}

// rate returns the growth of a counter per second.
func (v *View) rate(now, was maybe.Number) maybe.Number {
	if v.Seconds <= 0 {
		return maybe.Unknown()
	}
	return now.Since(was) / maybe.Number(v.Seconds)
}

// transfers returns the rates of transfers, if pfd discloses them; was is nil if there were
// none.
func (v *View) transfers(now, was *control.Transfers) Rates {
	r := unknownRates()
	if now == nil {
		return r
	}
	if was == nil {
		was = &control.Transfers{}
	}
	of := func(now, was uint64) maybe.Number { return v.rate(maybe.Number(now), maybe.Number(was)) }
	r.Transfers, r.Failed, r.Bytes = of(now.Completed, was.Completed), of(now.Failed, was.Failed), of(now.Bytes, was.Bytes)
	return r
}
