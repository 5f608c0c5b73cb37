package scenario

import (
	"fmt"
	"slices"

	"github.com/exanet/pfd/device"
)

// Report is the result of a run. Its JSON is the same, to the byte, for the same scenario and seed.
type Report struct {
	Seed       uint64  `json:"seed"`
	Network    string  `json:"network"`
	Nodes      int     `json:"nodes"`
	Content    bool    `json:"content"` // memory had content
	EndNS      int64   `json:"end_ns"`  // simulated: when the last transfer ended
	Events     uint64  `json:"events"`
	Frames     uint64  `json:"frames"`
	Transfers  int     `json:"transfers"`
	Completed  int     `json:"completed"`
	Failed     []Count `json:"failed"` // by status
	Unfinished int     `json:"unfinished"`
	Groups     []Group `json:"groups"`
	Counters   []Tally `json:"counters"` // of the nodes together, except zeros
	Links      []Link  `json:"links"`    // of a topology, the busiest first
	Digest     string  `json:"digest"`   // of all that the machines did
	Done       []Done  `json:"-"`        // by transfer
}

// Count is how many transfers ended with a status.
type Count struct {
	Status    int `json:"status"`
	Transfers int `json:"transfers"`
}

// Tally is a counter of the hardware.
type Tally struct {
	Name  string `json:"name"`
	Value uint64 `json:"value"`
}

// Group is the result of one workload.
type Group struct {
	Kind      string `json:"kind"`
	Transfers int    `json:"transfers"`
	Completed int    `json:"completed"`
	Bytes     uint64 `json:"bytes"` // of completed transfers
	BeginNS   int64  `json:"begin_ns"`
	EndNS     int64  `json:"end_ns"`
	P50NS     int64  `json:"p50_ns"` // from a transfer's start to its end
	P90NS     int64  `json:"p90_ns"`
	P99NS     int64  `json:"p99_ns"`
	MaxNS     int64  `json:"max_ns"`
}

// Rate returns the group's bits a second, 0 if nothing was transferred.
func (g *Group) Rate() float64 {
	if g.EndNS <= g.BeginNS {
		return 0
	}
	return float64(g.Bytes) * 8e9 / float64(g.EndNS-g.BeginNS)
}

// Link counts the frames that one link of a topology has carried.
type Link struct {
	From      int    `json:"from"`
	To        int    `json:"to"`
	Frames    uint64 `json:"frames"`
	Bytes     uint64 `json:"bytes"`
	BusyNS    int64  `json:"busy_ns"`
	StoppedNS int64  `json:"stopped_ns"` // frames waited while the next node had no room
	Highest   int    `json:"highest"`    // most frames in a queue
	Waiting   int    `json:"waiting"`    // most frames of the node itself that waited for room
	PausedNS  int64  `json:"paused_ns"`  // the node itself issued no blocks to some nodes because of that
}

// Level is how many frames are in the queue of a link, and how many of the node itself wait for room there.
type Level struct {
	At              int64 // ns
	From, To        int
	Queued, Waiting int
}

// Done is the result of one transfer.
type Done struct {
	Kind           string // of its workload
	Read           bool
	From, To, Size int
	BeginNS, EndNS int64 // BeginNS 0: it has not started; EndNS -1: it has not ended
	Status         uint8
}

func (r *run) report() *Report {
	w := r.world
	p := &Report{
		Seed: r.file.Seed, Network: r.file.Topology.Kind, Nodes: len(r.seats), Content: r.content,
		Events: w.Events(), Frames: w.Frames(), Transfers: len(r.jobs), Digest: fmt.Sprintf("%016x", w.Digest()),
		Failed: []Count{}, Groups: []Group{}, Counters: []Tally{}, Links: []Link{},
	}
	var failed [device.Statuses]int
	took := make([][]int64, len(r.file.Workload))
	groups := make([]Group, len(r.file.Workload))
	for i := range r.jobs {
		j := &r.jobs[i]
		g := &groups[j.Group]
		p.Done = append(p.Done, Done{r.file.Workload[j.Group].Kind, j.Read, j.From, j.To, j.Size, j.started, j.ended, j.status})
		g.Transfers++
		if g.Kind = r.file.Workload[j.Group].Kind; j.started > 0 && (g.BeginNS == 0 || j.started < g.BeginNS) {
			g.BeginNS = j.started
		}
		p.EndNS = max(p.EndNS, j.ended)
		switch {
		case j.ended < 0:
			p.Unfinished++
			p.EndNS = w.Now()
		case j.status == 0:
			p.Completed++
			g.Completed++
			g.Bytes += uint64(j.Size)
			g.EndNS = max(g.EndNS, j.ended)
			took[j.Group] = append(took[j.Group], j.ended-j.started)
		default:
			failed[j.status%device.Statuses]++
		}
	}
	for i := range groups {
		if g, t := &groups[i], took[i]; len(t) > 0 {
			slices.Sort(t)
			at := func(percent int) int64 { return t[(len(t)-1)*percent/100] }
			g.P50NS, g.P90NS, g.P99NS, g.MaxNS = at(50), at(90), at(99), t[len(t)-1]
		}
		if groups[i].Transfers > 0 {
			p.Groups = append(p.Groups, groups[i])
		}
	}
	for status, n := range failed {
		if n > 0 {
			p.Failed = append(p.Failed, Count{status, n})
		}
	}
	for c := range device.Counters {
		sum := uint64(0)
		for i := range r.seats {
			sum += w.Node(i).SOC.Count(device.Counter(c))
		}
		if sum > 0 {
			p.Counters = append(p.Counters, Tally{device.Counter(c).String(), sum})
		}
	}
	if r.net == nil {
		return p
	}
	p.Network = r.net.Name
	for i, u := range w.Links() {
		if u.Frames > 0 {
			l := r.net.Links[i]
			p.Links = append(p.Links, Link{l.From, l.To, u.Frames, u.Bytes, u.Busy, u.Stopped, u.Highest, u.Waiting, u.Paused})
		}
	}
	slices.SortStableFunc(p.Links, func(a, b Link) int { return int(min(max(b.BusyNS-a.BusyNS, -1), 1)) })
	return p
}
