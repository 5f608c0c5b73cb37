package stream

import (
	"fmt"
	"syscall"
	"time"

	"github.com/exanet/pfd/device"
)

// Times and limits of a host. Values below are defined by this project (docs/streams.md).
const (
	beatEvery  = int64(time.Second)      // a sign of life, to each peer
	maxSilent  = 60                      // beats that a peer leaves unanswered: it has stopped for good
	tombstone  = int64(10 * time.Second) // a connect may be overtaken that long
	maxBuried  = maxEnds                 // ends of peers that are remembered so, unless they were this host's
	maxBacklog = 128                     // connections that wait for Accept
)

// source is the wired origin of a message.
type source struct {
	node  device.NodeID
	iface uint8
	pdid  device.PDID
}

// peerEnd names an end at a peer.
type peerEnd struct {
	peer
	id uint32
}

// memory makes the memory of ends.
type memory interface {
	// equip provides an end's ring, copy, and self.
	equip(e *end) error
	// put takes the memory back; retired: something may still be written into it.
	put(e *end, retired bool)
	// arrived adds an end to the backlog of a listener.
	arrived(port uint32, e *end)
}

// host is all connections of one endpoint: a machine without I/O of its own, like end.
type host struct {
	out outside
	mem memory

	node       device.NodeID
	iface      uint8
	generation device.Generation

	lastID  uint32
	ends    map[uint32]*end
	byPeer  map[peerEnd]*end // those that know their peer's id
	buried  map[peerEnd]int64
	sweep   int64
	backlog map[uint32]int // of each listener's port
	life    map[peer]*life
	due     int64    // the earliest deadline that came since the caller's last step, which resets it
	unsent  []answer // for which no channel was free
	dropped uint64   // messages of nobody
}

// answer is an answer to a peer's message.
type answer struct {
	to peer
	m  message
}

// life is when a peer last showed a sign of life, and when this process shows the next. A peer's
// silence is counted in beats of this process that have ended since: while pfd or this process is
// stopped there are none, and the silence says nothing of the peer.
type life struct {
	seen, beat int64
	silent     int
	by         *end // that wrote the last beat
}

func newHost(out outside, mem memory) *host {
	return &host{
		out: out, mem: mem, ends: map[uint32]*end{}, byPeer: map[peerEnd]*end{}, buried: map[peerEnd]int64{},
		backlog: map[uint32]int{}, life: map[peer]*life{}, due: never,
	}
}

// add makes an end with its memory.
func (h *host) add() (*end, error) {
	e := &end{out: h.out, host: h}
	e.s.due, e.r.due = never, never
	if err := h.mem.equip(e); err != nil {
		return nil, err
	}
	for e.id == 0 || h.ends[e.id] != nil {
		h.lastID++
		e.id = h.lastID
	}
	h.ends[e.id] = e
	return e, nil
}

// dial makes an end that asks for a connection.
func (h *host) dial(now int64, node device.NodeID, iface uint8, port uint32) (*end, error) {
	e, err := h.add()
	if err != nil {
		return nil, err
	}
	e.peer, e.port = peer{node: node, iface: iface}, port
	e.dial(now)
	return e, nil
}

// remove forgets an end that is finished. A repeated connect of its peer may still arrive.
func (h *host) remove(now int64, e *end) {
	delete(h.ends, e.id)
	if k := (peerEnd{e.peer, e.peerID}); h.byPeer[k] == e {
		delete(h.byPeer, k)
		h.buried[k] = now + tombstone
	}
	h.mem.put(e, e.retired())
}

// poll polls an end, and removes it once it is finished.
func (h *host) poll(now int64, e *end) {
	e.poll(now)
	if err := e.vanished; err != nil {
		e.vanished = nil
		h.gone(now, e.peer, fmt.Errorf("%w: %w", syscall.ECONNRESET, err))
	}
	if e.over() && h.ends[e.id] == e {
		h.remove(now, e)
		return
	}
	h.due = min(h.due, e.deadline())
}

// visit polls an end unless it is idle and nobody has polled it since. It reports whether it did.
func (h *host) visit(now int64, e *end) bool {
	if !e.polled && e.idle(now) {
		return false
	}
	h.poll(now, e)
	e.polled = false
	return true
}

// connection takes a message of kind 13.
func (h *host) connection(now int64, from source, words []uint64) {
	m, err := decodeMessage(words)
	p := peer{from.node, from.iface, from.pdid, m.generation}
	if err == nil && m.op == opConnect {
		h.connect(now, p, &m)
		return
	}
	e := h.ends[m.to]
	if m.to == 0 {
		e = h.byPeer[peerEnd{p, m.from}]
	}
	if e != nil && !e.from(p) {
		e = nil
	}
	switch {
	case e == nil && err == nil && m.op == opShutdown && m.flags&flagAnswer == 0:
		if len(h.buried) < maxBuried {
			h.buried[peerEnd{p, m.from}] = now + tombstone
		}
		h.answer(p, message{op: opShutdown, to: m.from, flags: flagAnswer | flagUnknown})
		return
	case e == nil && err == nil && m.op == opAccept: // this end gave up
		h.answer(p, message{op: opShutdown, from: m.to, to: m.from, flags: flagReset})
		return
	case e == nil:
		h.dropped++
		return
	case err != nil:
		e.fail(now, fmt.Errorf("%w: %w", syscall.ECONNRESET, err))
	case m.op == opAccept && e.dialing():
		e.peer = p
		e.deaf = e.err != nil // it gave up, and said that it writes nothing
		e.opened(now, m.from, remoteEnd{m.ring, m.size, m.words})
		h.byPeer[peerEnd{p, m.from}] = e
		h.live(now, p)
		e.poll(now)
	case m.op == opReject && e.dialing():
		why := "nobody listens on the port"
		if m.flags == reasonRoom {
			why = "the peer has no memory for another connection"
		}
		e.refused(now, why)
	case m.op == opShutdown:
		e.peerShutdown(now, m.flags)
	}
	h.poll(now, e)
}

// from reports whether a peer may speak for the other end of e.
func (e *end) from(p peer) bool {
	if e.dialing() {
		return p.node == e.peer.node && p.iface == e.peer.iface
	}
	return p == e.peer
}

// connect takes a connect. It is answered alike however often it comes.
func (h *host) connect(now int64, p peer, m *message) {
	k := peerEnd{p, m.from}
	if e := h.byPeer[k]; e != nil {
		if e.err == nil && !e.peerShut {
			e.answer()
		}
		return
	}
	waiting, listens := h.backlog[m.to]
	switch {
	case h.buried[k] > now:
		return
	case !listens:
		h.answer(p, message{op: opReject, to: m.from, flags: reasonPort})
		return
	case waiting >= maxBacklog:
		return // it is asked for again
	}
	e, err := h.add()
	if err != nil {
		h.answer(p, message{op: opReject, to: m.from, flags: reasonRoom})
		return
	}
	e.peer, e.port, e.accepted = p, m.to, true
	e.opened(now, m.from, remoteEnd{m.ring, m.size, m.words})
	h.byPeer[k] = e
	h.live(now, p)
	h.backlog[m.to]++
	h.mem.arrived(m.to, e)
	e.answer()
}

// answer sends an answer, now or at the next step. If it is lost it is asked for again.
func (h *host) answer(p peer, m message) {
	if len(h.unsent) > 0 || !h.out.post(&end{peer: p}, &m) {
		if len(h.unsent) < maxBacklog {
			h.unsent = append(h.unsent, answer{p, m})
			h.due = 0
		}
	}
}

// answerAll sends the answers for which no channel was free.
func (h *host) answerAll() {
	for len(h.unsent) > 0 && h.out.post(&end{peer: h.unsent[0].to}, &h.unsent[0].m) {
		h.unsent = h.unsent[1:]
	}
}

// live makes sure that a peer's life is watched.
func (h *host) live(now int64, p peer) {
	if h.life[p] == nil {
		h.life[p] = &life{seen: now, beat: now + beatEvery}
		h.due = min(h.due, now+beatEvery)
	}
}

// short takes a message of kind 12.
func (h *host) short(now int64, from source, words []uint64) (e *end) {
	s, err := decodeShort(words)
	e = h.ends[s.to]
	if e == nil || e.dialing() || from != (source{e.peer.node, e.peer.iface, e.peer.pdid}) {
		h.dropped++
		return nil
	}
	e.seen = now
	if err == nil {
		err = e.r.message(&s)
	}
	if err != nil {
		e.fail(now, fmt.Errorf("%w: %w", syscall.ECONNRESET, err))
	}
	h.poll(now, e)
	return e
}

// gone resets all connections to a peer that has ended.
func (h *host) gone(now int64, p peer, err error) {
	for _, e := range h.ends {
		if e.peer == p && !e.dialing() {
			e.gone(now, err)
			h.poll(now, e)
		}
	}
}

// watch sends answers and signs of life, and ends connections to peers that have not shown one for
// long. It returns when to call it again.
func (h *host) watch(now int64) (next int64) {
	if now >= h.sweep {
		h.sweep = now + tombstone
		for k, until := range h.buried {
			if until <= now {
				delete(h.buried, k)
			}
		}
	}
	next = never
	if h.answerAll(); len(h.unsent) > 0 {
		next = now + busyAgain
	}
	var due map[peer]*end
	for p, l := range h.life {
		if l.beat <= now {
			if due == nil {
				due = map[peer]*end{}
			}
			due[p] = nil
			l.beat = now + beatEvery
		}
		next = min(next, l.beat)
	}
	if due == nil {
		return next
	}
	for _, e := range h.ends {
		if e.silent() {
			continue
		}
		if _, ok := due[e.peer]; ok {
			due[e.peer] = e
			if l := h.life[e.peer]; e.seen > l.seen {
				l.seen, l.silent = e.seen, 0
			}
		}
	}
	for p, e := range due {
		switch l := h.life[p]; {
		case e == nil:
			delete(h.life, p)
		case l.silent >= maxSilent:
			h.gone(now, p, fmt.Errorf("%w: the peer has shown no sign of life for %d s", syscall.ECONNRESET, maxSilent*beatEvery/1e9))
		case l.by != nil && l.by.r.flying: // pfd does not serve it
		case e.beat(now):
			l.by = e
			l.silent++
		}
	}
	return next
}
