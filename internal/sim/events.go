package sim

import (
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/gsas"
	"github.com/exanet/pfd/soc/pldma"
	"github.com/exanet/pfd/soc/wire"
	"github.com/exanet/pfd/space"
)

// eventKind is the type of an event.
type eventKind uint8

const (
	called      eventKind = iota // run is called
	ticked                       // the node's deadline has come
	arrived                      // a frame has arrived
	walked                       // a walk has ended
	moved                        // a move has ended
	interrupted                  // an interrupt has reached the driver
	mailed                       // a process looks into its mailbox
	paged                        // a page-in has ended
	operated                     // an operation of a GSAS unit is performed
	passed                       // a frame has left over a link of the topology
	hopped                       // a frame has reached a node that passes it on
	linkReady                    // a node's link on the way to another node takes blocks, or is full
)

// event is something that happens at one time.
type event struct {
	kind eventKind
	node *Node
	// machine is the node's when the event was scheduled: an event of one that has been replaced
	// since is dropped. Frames arrive at any machine, and have none.
	machine *soc.Node
	life    uint32 // the same of the node's driver, for calls and page-ins
	process *Process
	frame   *wire.Frame
	access  *pldma.Access // unchanged until the node has the answer
	op      *space.Op
	run     func()

	operation *gsas.Access
	hop       hop
	number    uint64     // the link, the deadline, the frame's number, the vector, the mailbox, the slot or the node
	ready     wire.Ready // of linkReady
}

// entry is the place of an event in the queue.
type entry struct {
	at    int64 // ns
	order uint64
	index uint32 // of the event in the queue's pool
}

func (e *entry) before(f *entry) bool {
	return e.at < f.at || e.at == f.at && e.order < f.order
}

// eventQueue is a queue of events in the order of their times, and of their scheduling where those
// are equal: a heap in which each entry has four children, so that most of a path lies in few
// lines of the cache. The events themselves do not move.
type eventQueue struct {
	heap  []entry
	pool  []event
	free  []uint32
	order uint64
}

func (q *eventQueue) len() int { return len(q.heap) }

// next returns when the first event happens. The queue must not be empty.
func (q *eventQueue) next() int64 { return q.heap[0].at }

// push schedules an event, and returns it to be filled in.
func (q *eventQueue) push(at int64) *event {
	var index uint32
	if n := len(q.free); n > 0 {
		index, q.free = q.free[n-1], q.free[:n-1]
	} else {
		index = uint32(len(q.pool))
		q.pool = append(q.pool, event{})
	}
	q.order++
	e := entry{at, q.order, index}
	i := len(q.heap)
	q.heap = append(q.heap, e)
	for i > 0 {
		parent := (i - 1) / 4
		if !e.before(&q.heap[parent]) {
			break
		}
		q.heap[i] = q.heap[parent]
		i = parent
	}
	q.heap[i] = e
	return &q.pool[index]
}

// pop removes the first event and returns it with its time. The queue must not be empty.
func (q *eventQueue) pop() (at int64, ev event) {
	first := q.heap[0]
	n := len(q.heap) - 1
	last := q.heap[n]
	q.heap = q.heap[:n]
	for i := 0; n > 0; {
		least := i
		for c := 4*i + 1; c < min(4*i+5, n); c++ {
			if q.heap[c].before(&last) && (least == i || q.heap[c].before(&q.heap[least])) {
				least = c
			}
		}
		if least == i {
			q.heap[i] = last
			break
		}
		q.heap[i] = q.heap[least]
		i = least
	}
	ev = q.pool[first.index]
	q.pool[first.index] = event{}
	q.free = append(q.free, first.index)
	return first.at, ev
}

// never is the deadline of a node that has none.
const never = 1 << 62

// happen performs an event.
func (w *World) happen(e *event) {
	n := e.node
	if e.machine != nil && (e.machine != n.SOC || e.life != n.life && (e.kind == called || e.kind == paged)) {
		return
	}
	if n != nil && n.stopped && (e.kind == called || e.kind == interrupted || e.kind == paged) {
		n.held = append(n.held, *e)
		return
	}
	switch e.kind {
	case called:
		e.run()
	case ticked:
		if n.deadline == int64(e.number) {
			n.deadline = never
		}
		n.Event(&soc.Event{Kind: soc.Tick})
	case arrived:
		if w.observer != nil {
			w.observer.Arrived(e.frame, e.number)
		}
		n.Event(&soc.Event{Kind: soc.FrameArrived, Frame: e.frame})
	case walked:
		absent, denied := e.process.walk(e.access.VA, e.access.Pages(), e.access.Write)
		n.Event(&soc.Event{Kind: soc.Walked, Access: e.access.ID, Absent: absent, Denied: denied})
	case moved:
		acc, p := e.access, e.process
		ok := p.move(acc.VA, acc.Data, acc.Write)
		w.digest.Mix(uint64(acc.VA))
		w.digest.Mix(uint64(len(acc.Data)))
		if w.observer != nil && acc.Write && ok {
			w.observer.Landed(p, acc)
		}
		n.Event(&soc.Event{Kind: soc.Moved, Access: acc.ID, OK: ok})
	case interrupted:
		n.handler.Interrupt(int(e.number))
	case mailed:
		p, m := e.process, int(e.number)
		for {
			src, words, ok := n.SOC.TakeMail(m)
			if !ok {
				return
			}
			p.OnMail(src, words)
		}
	case paged:
		e.op.Start()
		e.op.Paged = n.process[e.number].PageIn(e.op.VA, e.op.Pages, e.op.Write)
		e.op.End()
		e.op.Done()
	case operated:
		ev := soc.Event{Kind: soc.AtomicDone, Access: e.operation.ID, Status: atomics.NoMemory}
		if n.Operate != nil {
			var values []uint64
			ev.Status, values = n.Operate(e.operation)
			ev.N = copy(ev.Words[:atomics.MaxValues], values)
		}
		w.digest.Mix(e.operation.Back)
		n.Event(&ev)
	case passed:
		w.net.passed(int(e.number))
	case linkReady:
		n.Event(&soc.Event{Kind: soc.LinkReady, Destination: e.number, Ready: e.ready})
	case hopped:
		w.net.hopped(e.hop, e.frame, e.number)
	}
}
