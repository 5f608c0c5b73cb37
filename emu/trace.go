package emu

import (
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/trace"
)

// showAfter is how long the engine must be idle before it passes on what it has recorded, in ns:
// while it works, records wait. Defined by this project.
const showAfter = 50_000

// seenTime is how long a batch waits until a process says when it saw its transfer's end: the process
// may have to be woken for that. Defined by this project.
const seenTime = time.Millisecond

// maxFinishing limits the blocks that wait until their transfer's done is published. Those beyond are
// recorded without it. Defined by this project.
const maxFinishing = 64

func newTracer(log *trace.Log, e *Engine) (tracer, error) {
	if log == nil {
		log = new(trace.Log)
	}
	base, err := trace.Base(e.Now)
	return tracer{log: log, base: base}, err
}

// traceRefused records the blocks whose refusal a node has reported, together with the actions that it
// requests.
func (e *Engine) traceRefused(n *node, actions []soc.Action) {
	list := n.soc.Refusals()
	if len(list) == 0 || !trace.On() {
		return
	}
	t := &e.tracer
	now := t.base + e.Now() // the machines' clock does not advance during a pass
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

// over reports whether actions end a channel's transfer.
func over(actions []soc.Action, slot, channel uint8) bool {
	for i := range actions {
		if a := &actions[i]; a.Kind == soc.DescriptorChanged && a.Slot == slot && a.Channel == channel && final(a.Done) {
			return true
		}
	}
	return false
}

func final(done uint32) bool { return done == device.DoneCompleted || done == device.DoneFailed }

// stamp returns the time that is passed to a node, by CLOCK_MONOTONIC.
func (t *tracer) stamp(now int64) int64 { return t.base + max(now, t.seen) }

// tracePublishing reads the time before a done is published: the time at which the process says that it
// saw it must not be earlier.
func (e *Engine) tracePublishing() {
	if t := &e.tracer; len(t.finishing) > 0 {
		t.published = t.base + e.Now()
	}
}

// tracePublished completes the records of a channel whose done the process can see now.
func (e *Engine) tracePublished(n *node, a *soc.Action) {
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

// showTrace passes the waiting records on, with the times at which the processes saw their transfers' end.
// If a process has not reported that yet the batch waits, up to seenTime.
func (e *Engine) showTrace(now int64) {
	t := &e.tracer
	list := t.log.Waiting()
	for i := range list {
		r := &list[i]
		if r.Kind != trace.Block || r.Times[trace.BlockPublished] == 0 || e.nodeOf(device.NodeID(r.Node)) == nil {
			continue
		}
		n := e.nodeOf(device.NodeID(r.Node))
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

// untilShown limits a sleep while a batch waits to be passed on.
func (t *tracer) untilShown(timeout time.Duration) time.Duration {
	if len(t.log.Waiting()) > 0 && (timeout < 0 || timeout > seenTime) {
		return seenTime
	}
	return timeout
}

// told returns a time that a channel's process reports; 0 if there is no such process, or the channel
// belongs to the firmware.
func (t *tracer) told(n *node, slot, channel uint8, of func(*attach.Pages, int) int64) int64 {
	if int(slot) >= len(n.slots) || channel >= device.WriteChannels || n.slots[slot] == nil {
		return 0
	}
	return of(n.slots[slot].att.Pages, int(channel))
}

// traceDoorbell notes that a process rings the doorbell of a channel. The process has seen the end of the
// channel's previous transfer, and what it reports from now on belongs to the next one.
func (e *Engine) traceDoorbell(s *slot, ch int) {
	t := &e.tracer
	if !t.on || ch >= device.WriteChannels {
		return
	}
	t.seen = e.Now() // the time at which the process says that it rang must not be later
	list := t.log.Waiting()
	for i := range list {
		r := &list[i]
		if r.Kind == trace.Block && r.Node == uint32(s.node.soc.ID()) && int(r.Slot) == s.index && int(r.Channel) == ch &&
			r.Times[trace.BlockPublished] != 0 && r.Times[trace.BlockSeen] == 0 {
			r.Times[trace.BlockSeen] = s.att.Pages.Seen(ch)
		}
	}
	s.att.Pages.SetSeen(ch, 0)
}

// watchTrace tells the processes when tracing starts or stops, and tells its readers which processes there
// are.
func (e *Engine) watchTrace() {
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
