package emu

import (
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/trace"
)

// showAfter is how long the engine has been idle when what it has recorded is shown,
// ns (ours): while it works, records wait.
const showAfter = 50_000

// seenTime is how long a batch waits for a process to say when it saw its transfer's end
// (ours): it may have to be woken for that.
const seenTime = time.Millisecond

// maxFinishing bounds the blocks that wait for their transfer's done to be published
// (ours): what is beyond is recorded without.
const maxFinishing = 64

// tracer records the blocks that were refused. It belongs to the engine goroutine.
type tracer struct {
	log       *trace.Log
	base      int64 // CLOCK_MONOTONIC at Engine.base
	on        bool  // the processes know that somebody looks
	seen      int64 // Engine.Now at a later look than the machines' clock had
	published int64 // when a done was published, before the process could see it
	finishing []finishing
}

// finishing is a block's record that waits for its transfer's done to be published.
type finishing struct {
	node   *node
	slot   uint8
	record trace.Record
}

func newTracer(log *trace.Log, e *Engine) (tracer, error) {
	if log == nil {
		log = new(trace.Log)
	}
	base, err := trace.Base(e.Now)
	return tracer{log: log, base: base}, err
}

// refused records what a node told of refused blocks, and what it wants done beside.
func (e *Engine) refused(n *node, actions []soc.Action) {
	list := n.soc.Refusals()
	if len(list) == 0 || !trace.On() {
		return
	}
	t := &e.tracer
	now := t.base + e.Now() // the machines' clock stands still in a pass
	for i := range list {
		r := &list[i]
		rec := trace.Record{
			Kind: trace.Block, Slot: r.Slot, Channel: r.Channel,
			Node: uint32(n.soc.ID()), Source: uint32(n.soc.ID()),
			Transaction: uint16(r.Transaction), Sequence: uint16(r.Sequence),
			Status: uint16(r.Status), Again: uint32(r.Again), Obeyed: r.Obeyed,
		}
		if s := n.slots[r.Slot%device.Slots]; s != nil {
			rec.Process = uint32(s.att.PID)
		}
		rec.Times[trace.BlockSent], rec.Times[trace.BlockEnded] = r.Sent, now
		if r.First {
			rec.Flags |= trace.First
			rec.Times[trace.BlockKicked] = r.Kicked
			rec.Times[trace.BlockRung] = t.told(n, r.Slot, r.Channel, (*attach.Pages).Rung)
		}
		if r.Final {
			rec.Flags |= trace.Final
			if len(t.finishing) < maxFinishing && over(actions, r.Slot, r.Channel) {
				t.finishing = append(t.finishing, finishing{n, r.Slot, rec})
				continue
			}
		}
		t.log.Add(&rec)
	}
}

// over tells whether actions end a channel's transfer.
func over(actions []soc.Action, slot, channel uint8) bool {
	for i := range actions {
		if a := &actions[i]; a.Kind == soc.DescriptorChanged && a.Slot == slot && a.Channel == channel && final(a.Done) {
			return true
		}
	}
	return false
}

func final(done uint32) bool { return done == device.DoneCompleted || done == device.DoneFailed }

// stamp gives the time that a node is told, by CLOCK_MONOTONIC.
func (t *tracer) stamp(now int64) int64 { return t.base + max(now, t.seen) }

// publishing takes the time before a done is published: what the process says of when it
// saw that must not be earlier.
func (e *Engine) publishing() {
	if t := &e.tracer; len(t.finishing) > 0 {
		t.published = t.base + e.Now()
	}
}

// published takes that a channel's done is the process's to see.
func (e *Engine) published(n *node, a *soc.Action) {
	t := &e.tracer
	if len(t.finishing) == 0 || !final(a.Done) {
		return
	}
	kept := t.finishing[:0]
	for i := range t.finishing {
		f := &t.finishing[i]
		if f.node != n || f.slot != a.Slot || f.record.Channel != a.Channel {
			kept = append(kept, *f)
			continue
		}
		f.record.Times[trace.BlockPublished] = t.published
		t.log.Add(&f.record)
	}
	t.finishing = kept
}

// show shows what waits, with what the processes have seen meanwhile. Where one has not
// said that yet the batch waits for it, up to seenTime.
func (e *Engine) show(now int64) {
	t := &e.tracer
	list := t.log.Waiting()
	for i := range list {
		r := &list[i]
		if r.Kind != trace.Block || r.Times[trace.BlockPublished] == 0 || int(r.Node) >= len(e.nodes) {
			continue
		}
		n := e.nodes[r.Node]
		if r.Times[trace.BlockSeen] != 0 {
			continue
		}
		r.Times[trace.BlockSeen] = t.told(n, r.Slot, r.Channel, (*attach.Pages).Seen)
		if r.Times[trace.BlockSeen] != 0 || n.slots[r.Slot] == nil {
			continue
		}
		if t.base+now-r.Times[trace.BlockPublished] < int64(seenTime) {
			return
		}
	}
	t.log.Show()
}

// untilShown bounds a sleep where a batch waits to be shown.
func (t *tracer) untilShown(timeout time.Duration) time.Duration {
	if len(t.log.Waiting()) > 0 && (timeout < 0 || timeout > seenTime) {
		return seenTime
	}
	return timeout
}

// told gives what a channel's process says of a time; 0 where there is no such
// process, or the channel is the firmware's.
func (t *tracer) told(n *node, slot, channel uint8, of func(*attach.Pages, int) int64) int64 {
	if int(slot) >= len(n.slots) || channel >= device.WriteChannels || n.slots[slot] == nil {
		return 0
	}
	return of(n.slots[slot].att.Pages, int(channel))
}

// rings takes that a process rings for a channel: it has seen the end of the channel's
// former transfer, and what it says of that is of the next one from now on.
func (e *Engine) rings(s *slot, ch int) {
	t := &e.tracer
	if !t.on || ch >= device.WriteChannels {
		return
	}
	t.seen = e.Now() // the process's word of when it rang must not be later
	list := t.log.Waiting()
	for i := range list {
		r := &list[i]
		if r.Kind == trace.Block && int(r.Node) == s.node.index && int(r.Slot) == s.index && int(r.Channel) == ch &&
			r.Times[trace.BlockPublished] != 0 && r.Times[trace.BlockSeen] == 0 {
			r.Times[trace.BlockSeen] = s.att.Pages.Seen(ch)
		}
	}
	s.att.Pages.SetSeen(ch, 0)
}

// watch tells the processes when tracing begins or ends, and its readers which processes
// there are.
func (e *Engine) watch() {
	t := &e.tracer
	on := trace.On()
	if on == t.on {
		return
	}
	t.on = on
	for s := range e.attached {
		s.att.Pages.SetWatched(on)
		t.client(s, 0)
	}
	if on {
		t.log.Announce()
	}
}

// client records that a process is attached, or with trace.Final that it was.
func (t *tracer) client(s *slot, flags uint8) {
	if t.on && s.att.PID != 0 {
		t.log.Add(&trace.Record{
			Kind: trace.Client, Flags: flags, Node: uint32(s.node.soc.ID()), Slot: uint8(s.index), Process: uint32(s.att.PID),
		})
	}
}
