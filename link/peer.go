package link

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/soc/wire"
)

// peer is the link to one other host of the table. Its goroutine, run, makes sessions of the
// connections that arrive, one after the other.
type peer struct {
	l      *Links
	host   Host
	own    Range
	dials  bool // this side does
	ctx    context.Context
	cancel context.CancelFunc
	struck atomic.Bool   // no longer in the table
	again  atomic.Bool   // a link is wanted, and at once
	ended  chan struct{} // run has returned
	after  []*peer       // had some of the nodes before

	arrived  chan *conn
	poked    chan struct{}     // something that run looks at has changed
	commands chan func() error // run calls them; an error ends the connections
	address  atomic.Pointer[string]

	queues [classes]*queue
	udp    *queue // datagrams, if the host has UDP

	ready struct {
		sync.Mutex
		phase  phase       // changed by run only
		said   wire.Ready  // the sink's last LinkReady
		silent atomic.Bool // the peer does not answer
	}
	asleep  atomic.Bool // a record in a queue wakes run
	knocked atomic.Bool // a knock has succeeded since nothing uses the link

	forged, bad, framesIn, octetsIn atomic.Uint64
	told                            atomic.Uint64 // messages of pfds, both ways
	rtt                             atomic.Int64

	mu       sync.Mutex // run changes these; number and open are changed by others, too
	state    State
	since    time.Time
	wanting  bool         // connections are taken
	number   uint64       // of the link that is being dialed; it grows, also over a restart
	open     [places]bool // its connections that are there, or on the way
	cutUntil time.Time
	// for Info: the phase is phaseUp, and draining
	connected, drains bool

	err      string
	errAt    time.Time
	connects uint64

	// Of run.
	dialed   string // the address of the present connections
	changed  State  // what Config.Changed was called with
	draining bool
	drained  atomic.Bool
	socket   net.Conn // UDP
}

// phase says whether frames reach the other host, or are kept for it.
type phase uint8

const (
	phaseDown   phase = iota
	phaseAsleep       // closed since nothing used it: records in the queues wait for the next session
	phaseWaking       // as phaseAsleep, and the next session is on its way
	phaseUp
)

func (l *Links) newPeer(h Host, own Range, after []*peer) *peer {
	p := &peer{
		l: l, host: h, own: own, dials: own.First < h.Nodes.First, after: after,
		ended: make(chan struct{}), arrived: make(chan *conn), poked: make(chan struct{}, 1), commands: make(chan func() error),
		queues: [classes]*queue{newQueue(highSize), newQueue(bulkSize)},
		number: uint64(time.Now().UnixNano()), state: Connecting, since: time.Now(), dialed: h.Address, changed: Connecting,
	}
	p.address.Store(&h.Address)
	p.ready.said = wire.ReadyAll
	if h.UDP {
		p.udp = newQueue(bulkSize)
		p.udp.cut = cutFrame
	}
	return p
}

// poke makes run look.
func (p *peer) poke() {
	select {
	case p.poked <- struct{}{}:
	default:
	}
}

// do lets run call f, and waits for that. It returns false if the peer has ended.
func (p *peer) do(f func() error) bool {
	done := make(chan struct{})
	select {
	case p.commands <- func() error {
		defer close(done)
		return f()
	}:
		<-done
		return true
	case <-p.ended:
		return false
	}
}

// note remembers an error for Info, and logs one that is new.
func (p *peer) note(err error) {
	p.mu.Lock()
	text := truncate(plain(err.Error()), maxRefusal) // some of it is the peer's
	known := p.err == text
	p.err, p.errAt = text, time.Now()
	p.mu.Unlock()
	level := slog.LevelWarn
	if known || errors.Is(err, errStopped) || errors.Is(err, net.ErrClosed) {
		level = slog.LevelDebug
	}
	p.l.log.Log(context.Background(), level, "link", "host", p.host.Name, "error", text)
}

// undialed notes why a connection that was wanted could not be made.
func (p *peer) undialed(err error) {
	p.mu.Lock()
	up := p.state == Up && !p.dials && !p.host.UDP
	p.mu.Unlock()
	if up {
		err = fmt.Errorf("unused, but the link stays up: this host could not ask host %s for it again: %w", p.host.Name, err)
	}
	p.note(err)
}

// claim takes a place in the link that is being dialed. The side that does not dial has the place of a
// connection that asks the other one to dial, also while a link is up.
func (p *peer) claim() (number uint64, class int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for class, open := range p.open {
		wanting := p.wanting || !p.dials && p.state != CutOff
		if wanting && !open && p.dials != (class == classKnock) {
			p.open[class] = true
			return p.number, class, true
		}
	}
	return 0, 0, false
}

// release returns a place.
func (p *peer) release(number uint64, class int) {
	p.mu.Lock()
	if p.number == number {
		p.open[class] = false
	}
	p.mu.Unlock()
	p.poke()
}

// redial begins a new link to dial.
func (p *peer) redial() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.number, p.open = max(p.number+1, uint64(time.Now().UnixNano())), [places]bool{}
}

// lacking returns the number of connections that this side must dial.
func (p *peer) lacking() (tcp int, udp bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for class, open := range p.open {
		if p.wanting && !open && p.dials != (class == classKnock) {
			tcp++
		}
	}
	return tcp, p.wanting && p.host.UDP && p.socket == nil
}

// dialing reports whether a connection is of the present link, as far as this side decides that.
func (p *peer) dialing(c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.dials || c.number == p.number
}

// cutFor returns the time until the end of a cut.
func (p *peer) cutFor() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(time.Until(p.cutUntil), 0)
}

// awaitUncut waits until a cut ends, at most until the deadline: the peer that dials then needs not
// dial again.
func (p *peer) awaitUncut(deadline time.Time) {
	t := time.NewTimer(min(p.cutFor(), time.Until(deadline)))
	defer t.Stop()
	select {
	case <-t.C:
	case <-p.ctx.Done():
	}
}

// moved reports whether the host has got another address, once for each.
func (p *peer) moved() bool {
	address := *p.address.Load()
	if address == p.dialed {
		return false
	}
	p.dialed = address
	if p.socket != nil {
		hangUp(p.socket)
		p.socket = nil
	}
	return true
}

// look brings the state up to date.
func (p *peer) look() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, phase := time.Now(), p.ready.phase
	cut, works := now.Before(p.cutUntil), phase == phaseUp || phase == phaseAsleep
	state := Connecting
	switch {
	case p.struck.Load():
		state = Gone
	case cut:
		state = CutOff
	case works && p.draining && p.drained.Load():
		state = Drained
	case works && p.draining:
		state = Draining
	case phase == phaseUp:
		state = Up
	case phase == phaseAsleep:
		state = Idle
	case p.state == Unreachable, p.state == Connecting && now.Sub(p.since) >= p.l.cfg.Timing.Unreachable:
		state = Unreachable
	}
	if state != p.state {
		p.state, p.since = state, now
	}
	p.connected, p.drains = phase == phaseUp, p.draining
	p.wanting = !cut && !works
}

// report tells the sink if the link can take frames, when that has changed.
func (p *peer) report() {
	p.ready.Lock()
	defer p.ready.Unlock()
	ready := wire.ReadyAll
	switch {
	case p.ready.phase == phaseDown || p.ready.silent.Load() || p.queues[classHigh].isFull() || p.udp != nil && p.udp.isFull():
		ready = wire.NotReady
	case p.queues[classBulk].isFull():
		ready = wire.ReadyShort
	}
	if ready != p.ready.said {
		p.ready.said = ready
		p.l.sink.LinkReady(p.host.Nodes.First, p.host.Nodes.Last, ready)
	}
}

// enter changes the phase.
func (p *peer) enter(now phase) {
	p.ready.Lock()
	if now == phaseUp && p.ready.phase == phaseDown {
		p.l.sink.LinkUp(p.host.Nodes.First, p.host.Nodes.Last) // before another goroutine can report
	}
	p.ready.phase = now
	p.ready.silent.Store(false)
	p.ready.Unlock()
	if now == phaseUp {
		p.mu.Lock()
		p.connects++
		p.mu.Unlock()
	}
	p.asleep.Store(now == phaseAsleep)
	p.look()
	p.report()
}

// lose drops what is queued.
func (p *peer) lose() {
	p.enter(phaseDown) // before anything is dropped
	for _, q := range p.queues {
		q.end()
	}
	if p.udp != nil {
		p.udp.end()
	}
}

// tellChanged tells of a link that has come up, or ended.
func (p *peer) tellChanged(s State) {
	if s != p.changed && p.l.cfg.Changed != nil {
		p.l.cfg.Changed(p.host.Name, s)
	}
	p.changed = s
}

// genuine reports whether a frame comes from the peer's nodes, goes to ours, and is not of a process of
// another host, and counts others. The answers, kinds Ack and Link, have the PDID of the domain that
// they answer for. A message of a thread whose tree is not open to the peer is not genuine either. It is
// not counted: the owner of the tree may not have answered yet.
func (p *peer) genuine(f *wire.Frame) bool {
	answers := f.Kind == wire.Ack || f.Kind == wire.Link
	if !p.host.Nodes.Contains(f.SrcNode) || !p.own.Contains(f.DstNode) || !answers && p.l.view().claimed(f.SrcPDID, p.host.Name) {
		p.forged.Add(1)
		return false
	}
	if f.Kind != wire.Message || f.SrcInterface < device.MailboxThread {
		return true
	}
	r, _ := atomics.DecodeRequest(f.Message[:1]) // the tree of any message of a thread is at this place
	return p.l.cfg.May != nil && p.l.cfg.May(p.host.Name, r.Protection)
}

// control queues a record that is not a frame.
func (p *peer) control(class, kind int, content []byte) put {
	done := p.queues[class].control(kind, content)
	p.queued(done)
	return done
}

// send queues a frame.
func (p *peer) send(f *wire.Frame) {
	q := p.queues[classBulk]
	switch {
	case p.udp != nil:
		q = p.udp
	case high(f):
		q = p.queues[classHigh]
	}
	p.queued(q.frame(f))
}

// queued does what follows from a change of a queue.
func (p *peer) queued(done put) {
	if done == putFull {
		p.report()
	}
	if p.asleep.Load() {
		p.poke()
	}
}

// flush sees to it that the frames leave that were sent.
func (p *peer) flush() {
	for _, q := range p.queues {
		q.flush()
	}
	if p.udp != nil {
		p.udp.flush()
	}
}

// run is the peer's goroutine.
func (p *peer) run() {
	defer close(p.ended)
	for _, q := range p.after {
		<-q.ended
		p.draining = p.draining || q.draining && q.host.Name == p.host.Name
	}
	p.after = nil
	if p.draining {
		p.l.sink.Drain(p.host.Nodes.First, p.host.Nodes.Last, true)
	}
	p.report() // not ready: the sink takes nodes for ready until it is told
	var have [classes]*conn
	timing := &p.l.cfg.Timing
	backoff, first := timing.BackoffMin, time.Duration(0)
	for p.await(&have, first, &backoff) {
		conns, began := have, time.Now()
		have = [classes]*conn{}
		next, err := p.carry(conns)
		if !errors.Is(err, errIdle) {
			p.note(err)
		}
		if next != nil {
			have[next.class] = next
		}
		// A link that breaks at once is not dialed at once.
		if first = backoff; time.Since(began) >= timing.Heartbeat {
			backoff, first = timing.BackoffMin, 0
		} else {
			backoff = min(2*backoff, timing.BackoffMax)
		}
	}
	for _, c := range have {
		if c != nil {
			c.close()
		}
	}
	p.lose()
	p.tellChanged(Connecting)
	if p.socket != nil {
		hangUp(p.socket)
	}
	if p.struck.Load() {
		if p.draining {
			p.l.sink.Drain(p.host.Nodes.First, p.host.Nodes.Last, false)
		}
		p.l.sink.Gone(p.host.Nodes.First, p.host.Nodes.Last)
	}
}

// await waits until both connections of a link are there. It returns false when the peer ends.
func (p *peer) await(have *[classes]*conn, first time.Duration, backoff *time.Duration) bool {
	var (
		timing  = &p.l.cfg.Timing
		want    = time.Now().Add(first) // of the next Want
		asked   time.Time               // of the last one
		wake    = time.Now().Add(timing.Wake)
		partial time.Time // since when one connection is there
		timer   = time.NewTimer(0)
	)
	defer timer.Stop()
	if !p.dials && p.ready.phase == phaseDown { // the other side will dial
		want = time.Now().Add(timing.BackoffMax)
	}
	drop := func() {
		for i, c := range have {
			if c != nil {
				c.close()
				have[i] = nil
			}
		}
		partial = time.Time{}
		p.redial()
	}
	for {
		p.look()
		p.ask()
		now, cut := time.Now(), p.cutFor()
		if p.moved() || cut > 0 || !partial.IsZero() && now.Sub(partial) >= timing.Handshake {
			drop()
		}
		switch one := have[0] != nil || have[1] != nil; {
		case p.ready.phase == phaseAsleep && (one || p.again.Swap(false) || p.dials && now.After(wake) || !p.queues[classHigh].empty() || !p.queues[classBulk].empty()):
			p.enter(phaseWaking)
		case p.ready.phase == phaseWaking && p.state == Unreachable:
			p.lose()
			p.tellChanged(Connecting)
		case p.ready.phase == phaseWaking && now.Sub(p.since) >= silentLooks*timing.Heartbeat:
			p.ready.silent.Store(true)
			p.report()
		}
		tcp, udp := p.lacking()
		if have[0] != nil && have[1] != nil && !udp {
			return true
		}
		if !p.dials && (have[0] != nil || have[1] != nil) {
			tcp = 0
		}
		if (tcp > 0 || udp) && !now.Before(want) {
			for range tcp {
				p.l.want(Want{Host: p.host.Name})
			}
			if udp {
				p.l.want(Want{Host: p.host.Name, UDP: true})
			}
			asked, want = now, now.Add(*backoff)
			switch {
			case !p.dials && p.ready.phase == phaseDown:
				want = now.Add(timing.BackoffMax)
			case p.state == Unreachable: // before that, a cable that is back is to be noticed soon
				*backoff = min(2**backoff, timing.BackoffMax)
			}
		}
		wait := timing.Unreachable
		if p.draining || p.ready.phase == phaseWaking {
			wait = timing.Heartbeat
		}
		for _, at := range []time.Duration{cut, want.Sub(now)} {
			if at > 0 {
				wait = min(wait, at)
			}
		}
		timer.Reset(wait)
		select {
		case <-p.ctx.Done():
			return false
		case <-timer.C:
		case <-p.poked:
			if p.ready.phase != phaseAsleep && p.again.Swap(false) && p.dials {
				want = asked.Add(timing.BackoffMin)
			}
		case f := <-p.commands:
			if f() != nil {
				drop()
				p.lose()
				p.tellChanged(Connecting)
			}
		case c := <-p.arrived:
			if !p.dialing(c) {
				c.close()
				continue
			}
			if old := have[1-c.class]; old != nil && old.number > c.number {
				c.close()
				continue
			}
			for i, h := range have {
				if h != nil && (h.number != c.number || i == c.class) {
					h.close() // of a link that the dialing side has left
					have[i] = nil
				}
			}
			have[c.class] = c
			if partial.IsZero() {
				partial = time.Now()
			}
		}
	}
}

// Errors that end a session.
var (
	errStruck   = errors.New("the host is no longer in the table")
	errStopped  = errors.New("pfd stops")
	errCut      = errors.New("cut by a command")
	errMoved    = errors.New("the host has another address in the table")
	errReplaced = errors.New("the other side has dialed a new link")
	errWorn     = errors.New("the connections need new keys")
	errSilent   = errors.New("nothing arrives")
	errStuck    = errors.New("the network does not answer")
	errIdle     = errors.New("nothing uses the link") // and nothing is lost
)

// carry carries frames over a link until it ends. It returns the first connection of the next link
// if the peer has dialed one meanwhile.
func (p *peer) carry(conns [classes]*conn) (next *conn, err error) {
	s := &session{
		p: p, sink: p.l.sink, conns: conns, ended: make(chan error, 1),
		done: make(chan struct{}), started: time.Now(),
	}
	for class, q := range p.queues {
		var direct func([]byte) (bool, error)
		if conns[class].framed != nil {
			direct = conns[class].try
		}
		q.begin(direct)
		s.before[class] = q.total()
	}
	if p.udp != nil {
		err = s.datagrams()
	}
	if err == nil {
		err = p.l.permits(s)
	}
	if err == nil {
		level := slog.LevelInfo
		if p.ready.phase != phaseDown {
			level = slog.LevelDebug
		}
		p.again.Store(false)
		p.enter(phaseUp)
		p.l.log.Log(context.Background(), level, "link up", "host", p.host.Name, "nodes", p.host.Nodes)
		p.tellChanged(Up)
		for class, c := range conns {
			r := &reader{s: s, c: c, size: batchFirst, free: make(chan *batch, maxBatches)}
			r.left = func() { go s.do(r.run) }
			s.spawn(r.run)
			s.spawn(func() error { return s.send(p.queues[class], c.write, c.flush) })
		}
		next, err = s.watch()
	}
	state := Connecting
	if errors.Is(err, errIdle) {
		state = Idle
	} else {
		p.lose()
	}
	close(s.done)
	for _, c := range conns {
		if state == Idle {
			c.finish()
		} else {
			c.close()
		}
	}
	if p.socket != nil {
		_ = p.socket.SetReadDeadline(time.Now()) // ends the reader, not the socket
	}
	s.wg.Wait()
	p.rtt.Store(0)
	if state == Idle {
		p.enter(phaseAsleep)
		p.l.log.Debug("link idle", "host", p.host.Name)
	}
	p.tellChanged(state)
	p.redial()
	return next, err
}

// watch waits for the end of a session. It sends heartbeats.
func (s *session) watch() (next *conn, err error) {
	p := s.p
	tick := time.NewTicker(p.l.cfg.Timing.Heartbeat)
	defer tick.Stop()
	v, arrived := vigil{s: s}, p.arrived
	for {
		select {
		case <-p.ctx.Done():
			if p.struck.Load() {
				return next, errStruck
			}
			return next, errStopped
		case err := <-s.ended:
			return next, err
		case f := <-p.commands:
			if err := f(); err != nil {
				return next, err
			}
			p.look()
		case c := <-arrived:
			if !p.dialing(c) || c.number <= s.conns[0].number {
				c.close() // of a link before
				continue
			}
			if next = c; !s.sealed.Load() {
				return next, errReplaced
			}
			arrived = nil // the peer has closed the link and uses it again: the second connection waits
		case <-p.poked:
			if !s.sealed.Load() {
				p.again.Store(false)
			}
			p.look()
			if p.moved() {
				return next, errMoved
			}
			if err := p.l.permits(s); err != nil {
				return next, err
			}
		case <-tick.C:
			if err := p.l.valid(s); err != nil {
				return next, err
			}
			p.ask()
			if s.worn() {
				return next, errWorn
			}
			for _, c := range s.conns {
				if c.stuck(p.l.cfg.Timing.Heartbeat) {
					return next, errStuck
				}
			}
			if !v.look() {
				return next, fmt.Errorf("%w for %v", errSilent, deadLooks*p.l.cfg.Timing.Heartbeat)
			}
		}
	}
}

// ask asks the sink whether transfers are under way, for a host that drains.
func (p *peer) ask() {
	if !p.draining {
		return
	}
	p.l.sink.Underway(p.host.Nodes.First, p.host.Nodes.Last, func(transfers int) {
		if drained := transfers == 0; p.drained.Swap(drained) != drained {
			p.poke()
		}
	})
}
