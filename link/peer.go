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
	again  atomic.Bool   // what lacks is asked for at once
	ended  chan struct{} // run has returned
	after  []*peer       // had some of the nodes before

	arrived chan *conn
	poked   chan struct{} // something that run looks at has changed

	queues [classes]*queue
	udp    *queue // datagrams, if the host has UDP

	ready struct {
		sync.Mutex
		up     bool        // the link is up
		said   wire.Ready  // the sink's last LinkReady
		silent atomic.Bool // the peer does not answer
	}

	forged, bad, framesIn, octetsIn atomic.Uint64
	rtt                             atomic.Int64

	mu       sync.Mutex
	state    State
	since    time.Time
	up       bool
	number   uint64        // of the link that is being dialed; it grows, also over a restart
	open     [classes]bool // its connections that are there, or on the way
	cutUntil time.Time
	severed  error // why the connections are to end, nil if they are not
	address  string
	draining bool
	drained  bool
	drain    bool // the sink has not been told of draining
	err      string
	errAt    time.Time
	connects uint64
	socket   net.Conn // UDP
	over     bool     // run ends, and takes no socket
	begun    bool     // run has begun, and a former peer with these nodes has ended

	telling sync.Mutex // keeps what the sink is told of drains in order
}

func (l *Links) newPeer(h Host, own Range, after []*peer) *peer {
	p := &peer{
		l: l, host: h, own: own, dials: own.First < h.Nodes.First, after: after,
		ended: make(chan struct{}), arrived: make(chan *conn), poked: make(chan struct{}, 1),
		queues: [classes]*queue{newQueue(highSize), newQueue(bulkSize)},
		number: uint64(time.Now().UnixNano()), state: Connecting, since: time.Now(), address: h.Address,
	}
	p.ready.said = wire.ReadyAll
	for _, q := range after {
		q.mu.Lock()
		p.draining = p.draining || q.draining && q.host.Name == h.Name
		q.mu.Unlock()
	}
	p.drain = p.draining
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

// claim takes a place in the link that is being dialed.
func (p *peer) claim() (number uint64, class int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.dials || p.up || time.Now().Before(p.cutUntil) {
		return 0, 0, false
	}
	for class, open := range p.open {
		if !open {
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
	p.number, p.open = max(p.number+1, uint64(time.Now().UnixNano())), [classes]bool{}
}

// lacking returns the number of connections that this side must dial.
func (p *peer) lacking() (tcp int, udp bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Now().Before(p.cutUntil) {
		return 0, false
	}
	for _, open := range p.open {
		if p.dials && !open {
			tcp++
		}
	}
	return tcp, p.host.UDP && p.socket == nil
}

// dialing reports whether a connection is of the present link, as far as this side decides that.
func (p *peer) dialing(c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.dials || c.number == p.number
}

// unreachable reports whether the host has been without a link for long.
func (p *peer) unreachable() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state == Unreachable
}

// cutFor returns the time until the end of a cut.
func (p *peer) cutFor() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(time.Until(p.cutUntil), 0)
}

// sever returns why the connections are to end, once for each cause, nil if they are not.
func (p *peer) sever() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	why := p.severed
	p.severed = nil
	return why
}

// move takes the present address of the host. If it is another one, the link ends; the socket that is
// returned is to be closed.
func (p *peer) move(address string) (socket net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if address != p.address {
		socket, p.socket = p.socket, nil
		p.address, p.severed = address, errMoved
	}
	return socket
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

// look brings the state up to date.
func (p *peer) look() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	state := Connecting
	switch {
	case p.struck.Load():
		state = Gone
	case now.Before(p.cutUntil):
		state = CutOff
	case p.up && p.drained:
		state = Drained
	case p.up && p.draining:
		state = Draining
	case p.up:
		state = Up
	case p.state == Unreachable, p.state == Connecting && now.Sub(p.since) >= p.l.cfg.Timing.Unreachable:
		state = Unreachable
	}
	if state != p.state {
		p.state, p.since = state, now
	}
}

// report tells the sink if the link can take frames, when that has changed.
func (p *peer) report() {
	p.ready.Lock()
	defer p.ready.Unlock()
	ready := wire.ReadyAll
	switch {
	case !p.ready.up || p.ready.silent.Load() || p.queues[classHigh].isFull() || p.udp != nil && p.udp.isFull():
		ready = wire.NotReady
	case p.queues[classBulk].isFull():
		ready = wire.ReadyShort
	}
	if ready != p.ready.said {
		p.ready.said = ready
		p.l.sink.LinkReady(p.host.Nodes.First, p.host.Nodes.Last, ready)
	}
}

// setUp says that the link is up or not.
func (p *peer) setUp(up bool) {
	p.mu.Lock()
	p.up = up
	if up {
		p.connects++
	}
	p.mu.Unlock()
	p.look()
	p.ready.Lock()
	p.ready.up = up
	p.ready.silent.Store(false)
	p.ready.Unlock()
	if up {
		p.l.sink.LinkUp(p.host.Nodes.First, p.host.Nodes.Last)
	}
	p.report()
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
	if done == putFull {
		p.report()
	}
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
	if q.frame(f) == putFull {
		p.report()
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
	}
	p.after = nil
	p.mu.Lock()
	p.begun = true
	p.mu.Unlock()
	p.report() // not ready: the sink takes nodes for ready until it is told
	var have [classes]*conn
	timing := &p.l.cfg.Timing
	backoff, first := timing.BackoffMin, time.Duration(0)
	for p.await(&have, first, &backoff) {
		conns, began := have, time.Now()
		have = [classes]*conn{}
		next, err := p.carry(conns)
		p.note(err)
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
	p.mu.Lock()
	socket := p.socket
	p.over = true
	p.mu.Unlock()
	if socket != nil {
		hangUp(socket)
	}
	p.look()
	p.telling.Lock()
	defer p.telling.Unlock()
	if p.struck.Load() {
		p.mu.Lock()
		draining := p.draining
		p.mu.Unlock()
		if draining {
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
		partial time.Time               // since when one connection is there
		timer   = time.NewTimer(0)
	)
	defer timer.Stop()
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
		p.tellDrain()
		now := time.Now()
		cut := p.cutFor()
		if p.sever() != nil || cut > 0 || !partial.IsZero() && now.Sub(partial) >= timing.Handshake {
			drop()
		}
		tcp, udp := p.lacking()
		if have[0] != nil && have[1] != nil && !udp {
			return true
		}
		if (tcp > 0 || udp) && !now.Before(want) {
			for range tcp {
				p.l.want(Want{Host: p.host.Name})
			}
			if udp {
				p.l.want(Want{Host: p.host.Name, UDP: true})
			}
			want = now.Add(*backoff)
			if p.unreachable() { // before that, a cable that is back is to be noticed soon
				*backoff = min(2**backoff, timing.BackoffMax)
			}
		}
		wait := timing.Unreachable
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
			if p.again.Swap(false) {
				want = time.Now()
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
		p.setUp(true)
		p.l.log.Info("link up", "host", p.host.Name, "nodes", p.host.Nodes)
		if p.l.cfg.Changed != nil {
			p.l.cfg.Changed(p.host.Name, true)
		}
		for class, c := range conns {
			r := &reader{s: s, c: c, free: make(chan *batch, maxBatches)}
			r.left = func() { go s.do(r.run) }
			s.spawn(r.run)
			s.spawn(func() error { return s.send(p.queues[class], c.write, c.flush) })
		}
		next, err = s.watch()
	}
	p.setUp(false) // before anything is dropped
	close(s.done)
	for _, c := range conns {
		c.close()
	}
	for _, q := range p.queues {
		q.end()
	}
	if p.udp != nil {
		p.udp.end()
		p.mu.Lock()
		socket := p.socket
		p.mu.Unlock()
		switch {
		case socket == nil:
		case p.ctx.Err() != nil:
			hangUp(socket)
		default:
			_ = socket.SetReadDeadline(time.Now()) // ends the reader, not the socket
		}
	}
	s.wg.Wait()
	p.rtt.Store(0)
	if p.l.cfg.Changed != nil && s.watched {
		p.l.cfg.Changed(p.host.Name, false)
	}
	p.redial()
	return next, err
}

// watch waits for the end of a session. It sends heartbeats.
func (s *session) watch() (next *conn, err error) {
	s.watched = true
	p := s.p
	tick := time.NewTicker(p.l.cfg.Timing.Heartbeat)
	defer tick.Stop()
	v := vigil{s: s}
	for {
		select {
		case <-p.ctx.Done():
			if p.struck.Load() {
				return nil, errStruck
			}
			return nil, errStopped
		case err := <-s.ended:
			return nil, err
		case c := <-p.arrived:
			if !p.dialing(c) || c.number <= s.conns[0].number {
				c.close() // of a link before
				continue
			}
			return c, errReplaced
		case <-p.poked:
			p.look()
			p.tellDrain()
			if err := p.sever(); err != nil {
				return nil, err
			}
			if err := p.l.permits(s); err != nil {
				return nil, err
			}
		case <-tick.C:
			if err := p.l.valid(s); err != nil {
				return nil, err
			}
			p.tellDrain()
			if s.worn() {
				return nil, errWorn
			}
			for _, c := range s.conns {
				if c.stuck(p.l.cfg.Timing.Heartbeat) {
					return nil, errStuck
				}
			}
			if !v.look() {
				return nil, fmt.Errorf("%w for %v", errSilent, deadLooks*p.l.cfg.Timing.Heartbeat)
			}
		}
	}
}

// tellDrain tells the sink of Drain, and asks it whether transfers are under way.
func (p *peer) tellDrain() {
	p.telling.Lock()
	defer p.telling.Unlock()
	p.mu.Lock()
	if !p.begun || p.over {
		p.mu.Unlock()
		return
	}
	tell, on, ask := p.drain, p.draining, p.draining && !p.drained
	p.drain = false
	p.mu.Unlock()
	first, last := p.host.Nodes.First, p.host.Nodes.Last
	if tell {
		p.l.sink.Drain(first, last, on)
	}
	if ask {
		p.l.sink.Underway(first, last, func(transfers int) {
			p.mu.Lock()
			p.drained = p.draining && transfers == 0
			p.mu.Unlock()
			p.look()
		})
	}
}
