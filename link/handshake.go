package link

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/exanet/pfd/device"
)

// Limits of accepted connections that are not part of a link yet (defined by this project): maxPending of
// those that have shown no certificate, maxVerified of those with one certificate. Beyond them the oldest is
// closed: one that makes progress is done long before.
const (
	maxPending  = 64
	maxVerified = 4
)

// pending is a connection that is not part of a link yet.
type pending struct {
	c        net.Conn
	dialed   *peer // nil: accepted
	number   uint64
	class    int
	deadline time.Time
	serial   string // of its certificate; "": none yet
}

// Take takes a connected socket. dialed is the host that was dialed, "" if the connection was
// accepted. Take returns at once and closes c if it is of no use.
func (l *Links) Take(c net.Conn, dialed string) {
	h := &pending{c: c, deadline: time.Now().Add(l.cfg.Timing.Handshake)}
	useless := l.admit(h, dialed)
	if useless != nil {
		hangUp(useless)
	}
}

// admit starts the goroutine of a connection. It returns a connection to close: this one, or the oldest
// of too many.
func (l *Links) admit(h *pending, dialed string) (useless net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.ctx == nil || l.stopped:
		return h.c
	case dialed != "":
		ok := false
		if h.dialed = l.peers[dialed]; h.dialed != nil {
			h.number, h.class, ok = h.dialed.claim()
		}
		if !ok {
			return h.c // more than are wanted
		}
	}
	l.pending = append(l.pending, h)
	useless = l.crowded("", maxPending)
	l.wg.Add(1)
	go func() {
		defer l.wg.Done()
		l.shake(h)
		l.mu.Lock()
		defer l.mu.Unlock()
		if i := slices.Index(l.pending, h); i >= 0 {
			l.pending = slices.Delete(l.pending, i, i+1)
		}
	}()
	return useless
}

// verified counts a connection whose certificate the cluster's authority has issued: nobody without one can
// have it closed.
func (l *Links) verified(h *pending, c *x509.Certificate) {
	l.mu.Lock()
	h.serial = serial(c)
	useless := l.crowded(h.serial, maxVerified)
	l.mu.Unlock()
	if useless != nil {
		hangUp(useless)
	}
}

// crowded returns the oldest of the accepted connections with a certificate, to close it, if there are more than
// most. l.mu is held.
func (l *Links) crowded(serial string, most int) (useless net.Conn) {
	same := func(p *pending) bool { return p.dialed == nil && p.serial == serial }
	count := 0
	for _, p := range l.pending {
		if same(p) {
			count++
		}
	}
	if count <= most {
		return nil
	}
	i := slices.IndexFunc(l.pending, same)
	useless = l.pending[i].c
	l.pending = slices.Delete(l.pending, i, i+1)
	return useless
}

// shake brings a connection to its peer, or closes it.
func (l *Links) shake(h *pending) {
	defer context.AfterFunc(l.ctx, func() { hangUp(h.c) })()
	c, p, err := l.greet(h)
	if err == nil && c.class == classKnock {
		if h.dialed != nil {
			p.knocked.Store(true)
			linger(h.c)
			p.release(h.number, h.class)
		} else {
			hangUp(h.c)
			p.again.Store(true)
			p.poke()
		}
		return
	}
	if err == nil {
		select {
		case p.arrived <- c:
			return
		case <-p.ctx.Done():
			err = fmt.Errorf("host %s is no longer in the table", p.host.Name)
		}
	}
	linger(h.c)
	if h.dialed != nil {
		h.dialed.release(h.number, h.class)
		p = h.dialed
	}
	switch {
	case h.dialed != nil:
		p.undialed(err)
		return
	case p != nil:
		p.note(err)
		return
	}
	l.stranger(h.c, err)
}

// stranger logs the error of a connection of which no host of the table is known to be the origin:
// as a warning at most once a second, since anybody may cause it. A host that needs a connection no more ends it
// before the first byte.
func (l *Links) stranger(c net.Conn, err error) {
	level := slog.LevelDebug
	l.mu.Lock()
	if time.Since(l.warned) >= time.Second && !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.EOF) {
		l.warned, level = time.Now(), slog.LevelWarn
	}
	l.mu.Unlock()
	l.log.Log(context.Background(), level, "a connection did not become a link", "from", c.RemoteAddr(), "error", plain(err.Error()))
}

// linger closes a connection after the peer has, or soon: closing it earlier would reset it, and
// the peer would lose the reason.
func linger(c net.Conn) {
	_ = c.SetDeadline(time.Now().Add(lingerTime))
	_, _ = io.CopyN(io.Discard, c, 64<<10)
	hangUp(c)
}

// lingerTime limits linger (defined by this project).
const lingerTime = 200 * time.Millisecond

// greet makes TLS and exchanges HELLO. The peer is returned as soon as it is known, also with an
// error.
func (l *Links) greet(h *pending) (*conn, *peer, error) {
	_ = h.c.SetDeadline(h.deadline)
	view := l.view()
	c := &conn{raw: h.c, stream: h.c, number: h.number, class: h.class}
	if view.keys != nil {
		if err := c.secure(l.ctx, view, h.dialed); err != nil {
			return nil, nil, h.explain(view, err)
		}
		l.verified(h, c.chain[0])
	}
	own := view.hello(l.cfg.Identity)
	if h.dialed != nil {
		own.Class, own.Link = h.class, number16(h.number)
		if err := c.record(recordHello, encodeHello(own)); err != nil {
			return nil, nil, fmt.Errorf("sending HELLO: %w", err)
		}
	}
	content, err := readRecord(c.stream, recordHello)
	if err != nil {
		return nil, nil, fmt.Errorf("waiting for HELLO: %w", h.explain(view, l.alert(view, err)))
	}
	theirs, err := decodeHello(content)
	if err != nil {
		return nil, nil, err
	}
	p, err := l.accept(c, view, own, theirs, h)
	if err != nil {
		_ = c.record(recordRefusal, []byte(truncate(err.Error(), maxRefusal)))
		if p != nil && (view.keys == nil || view.keys.permits(c.chain, p.host) != nil) {
			p = nil // the name proves nothing: p's state does not change
		}
		return nil, p, err
	}
	c.peer = p
	if h.dialed != nil {
		err = c.record(recordReady, nil)
	} else {
		p.awaitUncut(h.deadline)
		own.Class, own.Link = theirs.Class, theirs.Link
		if err = c.record(recordHello, encodeHello(own)); err == nil {
			_, err = readRecord(c.stream, recordReady)
		}
	}
	if err != nil {
		return nil, p, fmt.Errorf("HELLO: %w", l.alert(view, err))
	}
	if c.framed != nil {
		c.framed.gather()
	}
	return c, p, h.c.SetDeadline(time.Time{})
}

// secure makes TLS.
func (c *conn) secure(ctx context.Context, view *view, dialed *peer) error {
	c.framed = &framed{Conn: c.raw}
	conf := view.keys.config(view.self.Name)
	var t *tls.Conn
	if dialed != nil {
		t = tls.Client(c.framed, conf)
	} else {
		t = tls.Server(c.framed, conf)
	}
	if err := t.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("TLS: %w", err)
	}
	c.stream, c.chain = t, t.ConnectionState().PeerCertificates
	return nil
}

// alert explains the end of a connection by the peer's TLS: it does not say more than that, but the
// reason is nearly always our certificate.
func (l *Links) alert(view *view, err error) error {
	var a tls.AlertError
	var op *net.OpError
	if view.keys != nil && (errors.As(err, &a) || errors.As(err, &op) && op.Op == "remote error") {
		return fmt.Errorf("the other side does not trust certificate %s: its log has the reason: %w", describe(view.keys.leaf), err)
	}
	return err
}

// explain explains an error that comes of TLS on one side only, or of a pfd without a table.
func (h *pending) explain(view *view, err error) error {
	var header tls.RecordHeaderError
	switch {
	case errors.Is(err, errTLS) && view.self.Name == "":
		return fmt.Errorf("%w, and no list of hosts is in effect here: `exanetctl host` says why", err)
	case errors.Is(err, errTLS):
		return fmt.Errorf("%w, and host %s has tls = \"off\": use the same hosts.toml on both hosts", err, view.self.Name)
	case errors.As(err, &header):
		return fmt.Errorf("%w: the other side does not speak TLS, and host %s has tls = \"on\": use the same hosts.toml on both hosts", err, view.self.Name)
	case h.dialed != nil && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)):
		or := ""
		if view.keys == nil {
			or = `, or has tls = "on"`
		}
		return fmt.Errorf("%w: pfd on the other host does not run%s, or has no list of hosts in effect, or another one: `exanetctl host` there says which", err, or)
	}
	return err
}

// accept finds the peer of a HELLO and judges it.
func (l *Links) accept(c *conn, view *view, own, theirs *hello, h *pending) (*peer, error) {
	if theirs.Version != version { // all else may mean something else there
		return nil, judge(theirs, own, Host{Name: theirs.Host})
	}
	p := l.peer(theirs.Host)
	switch {
	case h.dialed != nil && p != h.dialed:
		return nil, fmt.Errorf("host %.64s answers where host %s dialed host %s: compare the addresses in hosts.toml", theirs.Host, own.Host, h.dialed.host.Name)
	case p == nil:
		return nil, fmt.Errorf("host %.64s, nodes %v, is not in the table of host %s: use the same hosts.toml on both hosts",
			theirs.Host, Range{theirs.Nodes[0], theirs.Nodes[1]}, own.Host)
	case theirs.Cluster != own.Cluster: // named first, since the certificate says it, too
		return nil, judge(theirs, own, p.host)
	case view.keys != nil:
		// The certificate must cover what the peer claims. If it does not, this may be anybody: p's
		// state does not change.
		if err := view.keys.permits(c.chain, Host{Name: p.host.Name, Nodes: Range{theirs.Nodes[0], theirs.Nodes[1]}}); err != nil {
			return nil, err
		}
	}
	if err := judge(theirs, own, p.host); err != nil {
		return p, err
	}
	number, err := theirs.number()
	switch {
	case err != nil:
		return p, err
	case h.dialed != nil && (number != h.number || theirs.Class != h.class):
		return p, fmt.Errorf("%w: HELLO repeats class %d and link %s, want %d and %s", errRecord, theirs.Class, theirs.Link, h.class, number16(h.number))
	case h.dialed == nil && p.dials != (theirs.Class == classKnock):
		return p, fmt.Errorf("host %s dials, but host %s has the lower nodes and dials: give each host its own nodes", theirs.Host, own.Host)
	}
	c.number, c.class = number, theirs.Class
	return p, nil
}

// record writes a record at once.
func (c *conn) record(kind int, content []byte) error {
	return c.write(appendControl(nil, kind, content))
}

// hello returns this host's HELLO without class and link.
func (v *view) hello(id Identity) *hello {
	return &hello{
		Version: version, Cluster: v.table.Cluster, Host: v.self.Name, PDIDs: v.self.PDIDs,
		Groups: groupsText(id.Groups), Nodes: [2]device.NodeID{v.self.Nodes.First, v.self.Nodes.Last},
	}
}

func encodeHello(h *hello) []byte {
	b, _ := json.Marshal(h) // a struct of strings and numbers
	return b
}

func truncate(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}
