package scenario

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/sim"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc/link"
	"github.com/exanet/pfd/soc/wire"
)

// inject schedules an injection.
func (r *run) inject(in *Inject) {
	nodes := in.Nodes
	if nodes == nil {
		for i := range r.seats {
			nodes = append(nodes, i)
		}
	}
	each := func(at Duration, do func(s *seat)) {
		r.world.After(int64(at), func() {
			for _, n := range nodes {
				do(r.seats[n])
			}
		})
	}
	// while does something from in.From until in.Until, which explains failures of transfers.
	while := func(why string, do func(s *seat, on bool)) {
		each(in.From, func(s *seat) { do(s, true); r.doom(s, why); s.harms = append(s.harms, why) })
		each(in.Until, func(s *seat) {
			do(s, false)
			i := slices.Index(s.harms, why)
			s.harms = slices.Delete(s.harms, i, i+1)
		})
	}
	// gone ends the process of a node, and in.Until starts the node's driver and the next process.
	gone := func(why string, do func(n *sim.Node)) {
		var down []*seat
		each(in.From, func(s *seat) {
			if !s.dead {
				down = append(down, s)
				r.down(s, why, true)
				do(r.world.Node(s.node))
			}
		})
		r.world.After(int64(in.Until), func() {
			for _, s := range down {
				if err := r.world.Node(s.node).Restart(); err != nil {
					r.wrong("node %d starts again: %v", s.node, err)
				}
				r.revive(s)
			}
		})
	}
	switch in.What {
	case "link-down":
		while("its link was down", func(s *seat, on bool) { r.world.Node(s.node).Cut(on) })
	case "link-cut":
		r.cutLink(in)
	case "pfd-stopped":
		while("its pfd was stopped", func(s *seat, on bool) { r.world.Node(s.node).Stop(on) })
	case "withdraw":
		while("rights were withdrawn", func(s *seat, on bool) {
			if s.muted = on && !s.dead; !s.dead {
				s.Mute(on)
			}
		})
	case "pfd-killed":
		gone("its pfd was killed", func(n *sim.Node) { n.Stop(true) })
	case "power":
		gone("its node had no power", func(n *sim.Node) { n.Stop(true); n.Power() })
	case "reset":
		gone("its node was reset", func(n *sim.Node) { n.Stop(true); n.Reset() })
	case "evict":
		each(in.From, func(s *seat) { s.Evict(0, s.size) })
	case "kill":
		each(in.From, r.kill)
	case "unmap":
		const why = "its memory was unmapped"
		each(in.From, func(s *seat) { s.Unmap(0, max(s.size, 1)); r.doom(s, why); s.harms = append(s.harms, why) })
	case "abort":
		each(in.From, r.abort)
	case "forge":
		for _, n := range nodes {
			r.foreign(n, in, func(p *sim.Process, rng *rand.Rand) {
				m := mailbox.RAPF{
					PDID: p.Domain.PDID, Claimed: p.Domain.PDID, Transaction: device.TransactionID(rng.IntN(8)), Sequence: device.Sequence(1 + rng.IntN(64)), Fail: rng.IntN(2) == 0,
				}
				p.Send(2, device.NodeID(rng.IntN(len(r.seats))), device.MailboxRequest, m.Encode())
			})
		}
	case "hostile":
		for _, n := range nodes {
			r.foreign(n, in, func(p *sim.Process, rng *rand.Rand) {
				p.Misbehave(rng, memoryBase)
				r.world.Stranger(rng, memoryBase)
			})
		}
	case "replay", "evict-again":
		r.sometimes = append(r.sometimes, in)
	default:
		again := func(s *seat) { r.world.Node(s.node).Disturb(r.disturbance(s.node)) }
		each(in.From, again)
		if in.Until != 0 {
			each(in.Until, again)
		}
	}
}

// withdraws reports whether a process withdraws rights.
func (r *run) withdraws() bool {
	return slices.ContainsFunc(r.file.Inject, func(in Inject) bool { return in.What == "withdraw" })
}

// covers reports whether an injection into frames concerns those that a node sends at a time.
func (j *Inject) covers(node int, now Duration) bool {
	return now >= j.From && (j.Until == 0 || now < j.Until) && (j.Nodes == nil || slices.Contains(j.Nodes, node))
}

// disturbance returns what the links do to the frames of a node now.
func (r *run) disturbance(node int) link.Injection {
	v := link.Injection{Routes: r.file.Topology.Routes}
	for i := range r.file.Inject {
		in := &r.file.Inject[i]
		to := map[string]*int{
			"lose-data": &v.LoseData, "lose-ack": &v.LoseAck, "lose-nack": &v.LoseNack, "lose-request": &v.LoseRAPF, "lose-read": &v.LoseRead,
			"lose-answer": &v.LoseAnswer, "duplicate": &v.Duplicate, "delay": &v.Delay, "tear": &v.Tear, "corrupt": &v.Corrupt,
		}[in.What]
		if to != nil && in.covers(node, Duration(r.world.Now())) {
			*to = max(*to, int(in.Probability*1e6))
			v.DelayMax = max(v.DelayMax, int64(in.Most))
		}
	}
	return v
}

// sent does what replay and evict-again do to a frame that a node sends.
func (r *run) sent(f *wire.Frame) {
	for _, in := range r.sometimes {
		if !in.covers(int(f.SrcNode), Duration(r.world.Now())) || r.rng.Float64() >= in.Probability {
			continue
		}
		s := r.seats[f.SrcNode]
		switch {
		case in.What == "replay":
			r.world.Again(f, 1+r.rng.Int64N(int64(in.Most)))
		case f.Kind == wire.Message && f.MessageLen > 0 && mailbox.OpcodeOf(f.Message[0]) == mailbox.OpRAPF && !s.dead:
			s.Evict(0, s.size)
		}
	}
}

// cutLink schedules the cut of a link. Transfers whose frames pass it may fail.
func (r *run) cutLink(in *Inject) {
	a, b, _ := in.ends()
	passes := func(from, to int) bool {
		for from != to {
			l, _ := r.net.Next(from, to)
			next := r.net.Links[l].To
			if from == a && next == b || from == b && next == a {
				return true
			}
			from = next
		}
		return false
	}
	for i := range r.jobs {
		if j := &r.jobs[i]; passes(j.From, j.To) || passes(j.To, j.From) {
			j.doomed = "a link on its way was cut"
		}
	}
	r.world.After(int64(in.From), func() { r.world.CutLink(a, b, true) })
	r.world.After(int64(in.Until), func() { r.world.CutLink(a, b, false) })
}

// doom notes why transfers of a process that have started may fail.
func (r *run) doom(s *seat, why string) {
	for i := range r.jobs {
		if j := &r.jobs[i]; j.ended < 0 && j.started > 0 && (j.src == s || j.dst == s) {
			j.doomed = why
		}
	}
}

// down ends a node's process. back: another one follows, and transfers that start until then wait.
func (r *run) down(s *seat, why string, back bool) {
	r.doom(s, why)
	s.dead, s.back, s.muted = true, back, false
	for i := range r.jobs { // nobody is told how they end
		if j := &r.jobs[i]; j.ended < 0 && j.started > 0 && j.initiator() == s {
			r.end(j, device.StatusGone)
		}
	}
}

// revive starts the next process of a node, which has the memory of the transfers that have not begun.
func (r *run) revive(s *seat) {
	late := s.late
	s.late = nil
	s.channels()
	if err := r.attach(s); err != nil { // no place yet
		s.late = late
		r.world.After(int64(reviveAgain), func() { r.revive(s) })
		return
	}
	s.dead = false
	for i := range r.jobs {
		switch j := &r.jobs[i]; {
		case j.dst != s && j.src != s:
		case j.ended < 0 && !j.issued:
			r.describe(j)
		case j.dst == s:
			j.lost = true
		}
	}
	s.before = s.outside()
	for _, j := range late {
		r.start(j)
	}
}

// kill ends a process as its exit does.
func (r *run) kill(s *seat) {
	if s.dead {
		return
	}
	r.down(s, "a process of it was killed", false)
	if err := r.world.Node(s.node).Kill(s.Process); err != nil {
		r.wrong("%v", err)
	}
}

// abort aborts the transfers of a process.
func (r *run) abort(s *seat) {
	for i := range r.jobs {
		j := &r.jobs[i]
		if j.initiator() != s || j.started == 0 || j.ended >= 0 || s.dead {
			continue
		}
		switch {
		case s.read[j.channel] == j && j.Read:
			j.doomed = "it was aborted"
			r.request(j, 0)
		case s.write[j.channel] == j:
			j.doomed = "it was aborted"
			d := j.desc
			d.Abort = true
			s.Write(j.channel, d)
		}
	}
}

// Values of injections (defined by this project).
const (
	forged      = 100 // messages that a foreign process sends
	reviveAgain = 100_000
)

// foreign makes a process of another user on a node do something forged times while an injection lasts.
func (r *run) foreign(node int, in *Inject, do func(p *sim.Process, rng *rand.Rand)) {
	p, err := r.world.Node(node).AttachEmpty(2000+uint32(node), memoryBase, 1)
	if err != nil {
		r.wrong("node %d: %v", node, err)
		return
	}
	rng := rand.New(rand.NewPCG(r.file.Seed, uint64(node)))
	for range forged {
		r.world.After(int64(in.From)+rng.Int64N(int64(in.Until-in.From)), func() {
			if r.world.Node(node).Processes()[p.Domain.Slot] == p && !r.seats[node].dead {
				do(p, rng)
			}
		})
	}
}

// ends returns the nodes of the link of link-cut.
func (j *Inject) ends() (a, b int, err error) {
	if n, err := fmt.Sscanf(j.Link, "%d-%d", &a, &b); err != nil || n != 2 || fmt.Sprintf("%d-%d", a, b) != j.Link {
		return 0, 0, fmt.Errorf("link is %.40q: want two nodes, as \"0-4\"", j.Link)
	}
	return a, b, nil
}
