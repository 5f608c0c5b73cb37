// Package link carries frames between the pfds of several hosts (spec/hosts.md). A link to another
// host is two TCP connections with TLS 1.3: one for frames that must not wait behind data, and one
// for the rest. The package does not dial and does not listen: it asks for connections by Wants and
// takes connected sockets by Take, so that its process needs no access to a network.
//
// The package repeats nothing. A connection that breaks loses what was under way, and the firmware
// of the nodes retransmits it when the link is up again.
package link

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/soc/wire"
)

// Limits (defined by this project).
const (
	// MaxTell is the largest message of Tell, in bytes.
	MaxTell = 256
	// MaxHosts is the largest number of hosts in a table.
	MaxHosts = 1024
)

// Errors of the methods of Links. Match them with errors.Is.
var (
	// ErrTable means that a table is not valid, or contradicts the identity of this pfd.
	ErrTable = errors.New("link: the table of hosts is refused")
	// ErrHost means that no other host of the table has this name.
	ErrHost = errors.New("link: no such host")
	// ErrDown means that the link to the host is not up.
	ErrDown = errors.New("link: the link is down")
	// ErrFull means that the link's queue is full.
	ErrFull = errors.New("link: the queue of the link is full")
	// ErrSize means that a message is longer than MaxTell.
	ErrSize = errors.New("link: the message is too long")
)

// Sink takes what arrives. An emu.Engine is one. Its methods must return without waiting for
// anything, and must not call Links.
type Sink interface {
	// Arrive takes a batch of frames. The frames and their payloads are the sink's until it calls
	// done, which it must do once, on any goroutine. done does not block. Arrive is called on the
	// goroutine that reads the connection. It returns true without waiting; or it has called left once, on
	// another goroutine, which goes on reading in place of the caller, and returns false at any time.
	Arrive(frames []*wire.Frame, done, left func()) bool
	// LinkReady says which blocks the nodes first to last can be sent now. It is called with
	// NotReady for a new host, with ReadyAll when a link comes up, with NotReady before anything of a
	// link is lost, and when a queue becomes full or is half empty: if it is the one of class bulk, with
	// ReadyShort.
	LinkReady(first, last device.NodeID, ready wire.Ready)
	// LinkUp says, before LinkReady, that the link to the nodes first to last is a new one: frames on the
	// former one may be lost.
	LinkUp(first, last device.NodeID)
	// Drain says that no new transfers to the nodes first to last, or from them, should begin, or that
	// they may again.
	Drain(first, last device.NodeID, on bool)
	// Underway calls f, on any goroutine, with the number of transfers to the nodes first to last, or from them, that
	// are still running.
	Underway(first, last device.NodeID, f func(transfers int))
	// Gone says that the host of the nodes first to last is no longer in the table: nothing will
	// reach them until LinkReady says so.
	Gone(first, last device.NodeID)
}

// Config configures Links.
type Config struct {
	// Identity has the numbers that this pfd was started with. A table must agree with it.
	Identity Identity
	Log      *slog.Logger // nil: nothing is logged
	// Told is called with each message that another host sent by Tell, in the order in which that
	// host sent them. The message is valid during the call. Nil: messages are dropped.
	Told func(host string, message []byte)
	// Changed is called with Up when a link comes up. When it ends, after all calls of Told, it is called
	// with Connecting, or, if both sides have closed it and nothing is lost, with Idle. Nil: not called. Told
	// and Changed delay only the link that calls them.
	Changed func(host string, s State)
	// May reports whether the threads of a host may use the pages of a tree (docs/spec/gsas.md). Messages of
	// others are dropped. Nil: none may.
	May    func(host string, tree atomics.Protection) bool
	Timing Timing // zero fields: the defaults
}

// Timing has the times of the links. Zero means the default.
type Timing struct {
	// Heartbeat is the time between two looks at the connections of a link; 150 ms. Each seventh
	// look sends heartbeats, and so does one after which frames were sent. If the peer is silent
	// during three looks with an unanswered heartbeat, the link is not ready; if a connection is
	// silent during twenty, the link ends.
	Heartbeat time.Duration
	// Handshake is the time that a new connection may take until it is part of a link; 5 s.
	Handshake time.Duration
	// Unreachable is the time after which a host without a link counts as unreachable; 5 s.
	Unreachable time.Duration
	// Idle is the time without a frame and a message of Tell after which a link is closed, if the side that does
	// not dial can knock; 60 s. Wake is the time after which the side that dials brings an idle link up, to see
	// that it can; 10 min.
	Idle, Wake time.Duration
	// BackoffMin and BackoffMax are the shortest and the longest time between two Wants for one
	// connection; 100 ms and 1 s.
	BackoffMin, BackoffMax time.Duration
}

// Want asks for one connection to a host. The receiver answers by Take, by TakeUDP, or, if it
// could not connect, by Failed. It may be asked again before it has answered, and then need not
// dial twice at once.
type Want struct {
	Host string
	UDP  bool // a connected UDP socket is wanted, not a TCP connection
}

// Links are the links of a pfd to all other hosts. Its methods may be called on any goroutine,
// except where they say otherwise.
type Links struct {
	cfg    Config
	log    *slog.Logger
	wants  chan Want
	sink   Sink                    // set by Run
	routes atomic.Pointer[[]*peer] // by their nodes, which do not overlap
	sent   []*peer                 // what Send has sent to and Flush has not; Send's and Flush's
	now    atomic.Pointer[view]    // the table in use
	wg     sync.WaitGroup

	mu      sync.Mutex
	ctx     context.Context // set by Run
	peers   map[string]*peer
	ending  []*peer // struck, for Info
	stopped bool    // Run is about to return
	pending []*pending
	warned  time.Time // of the last warning of a stranger
}

// view is a table with its credentials. It is not changed.
type view struct {
	table  Table
	self   Host
	blocks []Host // by their PDIDs
	keys   *keys  // nil without TLS
}

// New returns the links of a pfd. They are down until Run is called and SetTable has named hosts.
func New(cfg Config) *Links {
	t := &cfg.Timing
	for d, standard := range map[*time.Duration]time.Duration{
		&t.Heartbeat: 150 * time.Millisecond, &t.Handshake: 5 * time.Second, &t.Unreachable: 5 * time.Second, &t.Idle: time.Minute, &t.Wake: 10 * time.Minute,
		&t.BackoffMin: 100 * time.Millisecond, &t.BackoffMax: time.Second,
	} {
		if *d <= 0 {
			*d = standard
		}
	}
	l := &Links{cfg: cfg, log: cfg.Log, wants: make(chan Want, 3*MaxHosts), peers: map[string]*peer{}}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	l.now.Store(new(view))
	l.routes.Store(new([]*peer))
	return l
}

// Run carries frames until ctx is done. It returns when all connections are closed and all
// goroutines have ended. It must be called once.
func (l *Links) Run(ctx context.Context, sink Sink) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l.mu.Lock()
	l.ctx, l.sink = ctx, sink
	for _, p := range l.peers {
		l.start(p)
	}
	l.mu.Unlock()
	<-ctx.Done()
	l.mu.Lock()
	l.stopped = true
	l.mu.Unlock()
	l.wg.Wait()
	return nil
}

// start starts a peer's goroutine. l.mu is held.
func (l *Links) start(p *peer) {
	switch {
	case l.stopped:
		p.cancel = func() {}
		close(p.ended)
		return
	case l.ctx == nil:
		return
	}
	p.ctx, p.cancel = context.WithCancel(l.ctx)
	l.wg.Add(1)
	go func() {
		defer l.wg.Done()
		defer p.cancel()
		p.run()
	}()
}

// SetTable replaces the table of hosts. It returns ErrTable, with the values of both sides, if the
// table contradicts the identity of this pfd or itself; then the former table stays in use. A host
// that the new table does not have is gone. Links that the new credentials or the revoked
// certificates do not permit end. Connections that lack are asked for again at once, also if the
// table is the same as before.
func (l *Links) SetTable(t Table) error {
	v, err := newView(t, l.cfg.Identity)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrTable, err)
	}
	l.replace(t, v)
	return nil
}

// replace puts a table into use.
func (l *Links) replace(t Table, v *view) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.now.Swap(v)
	l.ending = slices.DeleteFunc(l.ending, func(p *peer) bool {
		select {
		case <-p.ended:
			return true
		default: // it may still tell the sink of its end
			return false
		}
	})
	peers := map[string]*peer{}
	for _, h := range v.table.Hosts {
		if p := l.peers[h.Name]; p != nil && p.same(h, v, old) && h.Name != t.Self {
			peers[h.Name] = p
			p.address.Store(&h.Address)
		}
	}
	for name, p := range l.peers {
		if peers[name] == nil {
			p.struck.Store(true)
			if p.cancel != nil {
				p.cancel()
			} else {
				close(p.ended)
			}
			l.ending = append(l.ending, p)
		}
	}
	for _, h := range v.table.Hosts {
		if h.Name == t.Self || peers[h.Name] != nil {
			continue
		}
		var before []*peer
		l.ending = slices.DeleteFunc(l.ending, func(p *peer) bool {
			taken := p.host.Name == h.Name || overlap(p.host.Nodes, h.Nodes)
			if taken {
				before = append(before, p)
			}
			return taken
		})
		p := l.newPeer(h, v.self.Nodes, before)
		peers[h.Name] = p
		l.start(p)
	}
	l.peers = peers
	routes := slices.Collect(maps.Values(peers))
	routes = append(routes, l.ending...)
	slices.SortFunc(routes, func(a, b *peer) int { return cmp.Compare(a.host.Nodes.First, b.host.Nodes.First) })
	l.routes.Store(&routes)
	for _, p := range peers {
		p.again.Store(true)
		p.poke()
	}
}

// want asks for a connection. If the receiver is far behind, the Want comes again later.
func (l *Links) want(w Want) {
	select {
	case l.wants <- w:
	default:
	}
}

// view returns the table in use.
func (l *Links) view() *view { return l.now.Load() }

// peer returns the peer of a name, nil if there is none.
func (l *Links) peer(name string) *peer {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.peers[name]
}

// permits checks a session against the table in use.
func (l *Links) permits(s *session) error {
	v := l.view()
	for _, c := range s.conns {
		switch {
		case (v.keys == nil) != (c.framed == nil):
			return errors.New("TLS was switched in the table")
		case v.keys == nil:
			continue
		}
		if err := v.keys.trusts(c.chain); err != nil {
			return err
		}
		if err := v.keys.permits(c.chain, s.p.host); err != nil {
			return err
		}
	}
	return nil
}

// valid checks that the peer's certificates are not past their time.
func (l *Links) valid(s *session) error {
	for _, c := range s.conns {
		if c.chain != nil && time.Now().After(c.chain[0].NotAfter) {
			return fmt.Errorf("certificate %s of host %s has expired: issue a new one", describe(c.chain[0]), s.p.host.Name)
		}
	}
	return nil
}

// TakeUDP takes a UDP socket that is connected to a host of the table, and closes it if there
// is one already.
func (l *Links) TakeUDP(host string, c net.Conn) {
	useless := c
	_ = l.change(host, func(p *peer) error { // without a host the socket is of no use
		if p.host.UDP && p.socket == nil {
			useless, p.socket = nil, c
		}
		return nil
	})
	if useless != nil {
		hangUp(useless)
	}
}

// Wants returns the channel of connections that lack. The host with the higher node ids asks for a
// TCP connection by which it asks the other one to dial.
func (l *Links) Wants() <-chan Want { return l.wants }

// Failed says that a connection that was wanted could not be made, and why. The text becomes
// the last error of the link in Info.
func (l *Links) Failed(host string, udp bool, text string) {
	if p := l.peer(host); p != nil {
		p.undialed(errors.New(text))
	}
}

// route returns the peer of a node, nil if no other host has it.
func (l *Links) route(id device.NodeID) *peer {
	routes := *l.routes.Load()
	i, _ := slices.BinarySearchFunc(routes, id, func(p *peer, id device.NodeID) int {
		if p.host.Nodes.Last < id {
			return -1
		}
		return 1
	})
	if i < len(routes) && routes[i].host.Nodes.Contains(id) {
		return routes[i]
	}
	return nil
}

// Reaches reports whether id is a node of another host of the table, whether its link is up or not.
// The nodes of a host that is gone count until the next table.
func (l *Links) Reaches(id device.NodeID) bool { return l.route(id) != nil }

// Send sends a frame to a node of another host. It never blocks and copies what it keeps. A frame
// for a link that is down, or whose queue is full, is dropped and counted. Send must be called on
// one goroutine at a time.
func (l *Links) Send(f *wire.Frame) {
	if p := l.route(f.DstNode); p != nil {
		p.send(f)
		if !slices.Contains(l.sent, p) {
			l.sent = append(l.sent, p)
		}
	}
}

// Flush sees to it that the frames leave that were sent since the last call. It does not wait. It
// belongs to Send's goroutine.
func (l *Links) Flush() {
	for i, p := range l.sent {
		p.flush()
		l.sent[i] = nil
	}
	l.sent = l.sent[:0]
}

// Info returns the state of all links, in the order of their nodes.
func (l *Links) Info() []Info {
	var list []Info
	for _, p := range *l.routes.Load() {
		list = append(list, p.info(l.view()))
	}
	return list
}

// Cut ends the connections to a host and lets none be made for a time. It is for tests.
func (l *Links) Cut(host string, d time.Duration) error {
	return l.change(host, func(p *peer) error {
		p.mu.Lock()
		p.cutUntil = time.Now().Add(d)
		p.mu.Unlock()
		p.look()
		return errCut
	})
}

// Drain with on true says that no new transfers to a host should begin; with on false that they may
// again. The sink has been told when it returns.
func (l *Links) Drain(host string, on bool) error {
	return l.change(host, func(p *peer) error {
		p.draining = on
		p.drained.Store(false)
		p.l.sink.Drain(p.host.Nodes.First, p.host.Nodes.Last, on)
		p.ask()
		p.look()
		return nil
	})
}

// change lets the goroutine of a peer call f. An error of f ends its connections.
func (l *Links) change(host string, f func(*peer) error) error {
	l.mu.Lock()
	p := l.peers[host]
	running := l.ctx != nil
	l.mu.Unlock()
	if p == nil || !running || !p.do(func() error { return f(p) }) {
		return fmt.Errorf("%w: %s", ErrHost, host)
	}
	return nil
}

// Tell sends a message to the pfd of another host. Messages to one host arrive in order. Those that
// were not delivered when the link broke are lost: Config.Changed says so to both sides.
func (l *Links) Tell(host string, message []byte) error {
	p := l.peer(host)
	switch {
	case p == nil:
		return fmt.Errorf("%w: %s", ErrHost, host)
	case len(message) > MaxTell:
		return fmt.Errorf("%w: %d bytes, at most %d", ErrSize, len(message), MaxTell)
	}
	p.told.Add(1)
	switch p.control(classHigh, recordTold, message) {
	case putRefused:
		return fmt.Errorf("%w: host %s", ErrDown, host)
	case putNoRoom:
		return fmt.Errorf("%w: host %s", ErrFull, host)
	}
	return nil
}
