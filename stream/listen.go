package stream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
)

const network = "exanet"

// firstFree is where Listen begins to look for a free port. Defined by this project.
const firstFree = 49152

var errUnaccepted = errors.New("nobody has accepted the connection")

// Addr is the address of an end, a net.Addr. The port of an end that has dialed is a number of its
// own, to which nobody can dial.
type Addr struct {
	Node      device.NodeID
	Interface uint8 // of the process, 16 to 31: rdma.Info.Interface
	Port      uint32
}

// Network returns "exanet".
func (a Addr) Network() string { return network }

// String returns the text form, exanet:NODE/INTERFACE/PORT, in decimal numbers.
func (a Addr) String() string {
	return fmt.Sprintf("%s:%d/%d/%d", network, uint32(a.Node), a.Interface, a.Port)
}

// ParseAddr parses the text form. Errors are *net.AddrError.
func ParseAddr(s string) (a Addr, err error) {
	bad := func(why string) error { return &net.AddrError{Err: why, Addr: s} }
	rest, ok := strings.CutPrefix(s, network+":")
	f := strings.Split(rest, "/")
	if !ok || len(f) != 3 {
		return a, bad("an address has the form exanet:NODE/INTERFACE/PORT")
	}
	var n [3]uint64
	for i, limit := range []uint64{device.NodeIDMask, device.MailboxProcess + device.Slots - 1, 1<<32 - 1} {
		name := []string{"node", "interface", "port"}[i]
		if n[i], err = strconv.ParseUint(f[i], 10, 64); err != nil || n[i] > limit || f[i][0] == '+' {
			return a, bad(fmt.Sprintf("the %s is not a number from 0 to %d", name, limit))
		}
	}
	if n[1] < device.MailboxProcess {
		return a, bad(fmt.Sprintf("interface %d is no process's: %d to %d are", n[1], device.MailboxProcess, device.MailboxProcess+device.Slots-1))
	}
	return Addr{device.NodeID(n[0]), uint8(n[1]), uint32(n[2])}, nil
}

// Dial connects to a listener of a process that admits this one: of its group, or by its Accept
// and AcceptGroup options. addr has the form exanet:NODE/INTERFACE/PORT. Errors are *net.OpError
// and match syscall.ECONNREFUSED if nobody listens there, syscall.ETIMEDOUT if nobody answers for
// 5 seconds, *net.AddrError if it is no address, rdma.ErrRequest if it is the endpoint's own, or
// ctx's.
func Dial(ctx context.Context, ep *rdma.Endpoint, addr string) (*Conn, error) {
	a, err := ParseAddr(addr)
	var c *Conn
	if err == nil {
		c, err = dial(ctx, ep, a)
	}
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = os.ErrDeadlineExceeded
		}
		return nil, &net.OpError{Op: "dial", Net: network, Addr: a, Err: err}
	}
	return c, nil
}

func dial(ctx context.Context, ep *rdma.Endpoint, a Addr) (*Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s, err := stackOf(ep)
	if err != nil {
		return nil, err
	}
	if a.Node == s.h.node && a.Interface == s.h.iface {
		return nil, fmt.Errorf("%w: it is this endpoint's own: attach another one", rdma.ErrRequest)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	e, err := s.h.dial(s.now(), a.Node, a.Interface, a.Port)
	if err != nil {
		return nil, err
	}
	c := connOf(e)
	if !s.until(&c.opener, ctx.Done(), c.advance, func() bool { return e.err != nil || !e.dialing() }) || e.err != nil {
		if err = e.err; err == nil {
			err = ctx.Err()
		}
		e.close(s.now())
		c.advance()
		s.plan(e)
		return nil, err
	}
	return c, nil
}

// Listener accepts connections to one port, a net.Listener.
type Listener struct {
	s    *stack
	addr Addr
	// The stack's lock guards the fields below.
	queue  []*Conn
	closed bool
	w      waiter
	turn   chan struct{} // one Accept waits at a time
}

// Listen listens on a port of the endpoint. addr has the form exanet:NODE/INTERFACE/PORT, with the
// endpoint's own node and interface, or :PORT. Port 0 is one that is free: see Listener.Addr. Errors are *net.OpError
// and match syscall.EADDRINUSE, syscall.EADDRNOTAVAIL or *net.AddrError.
func Listen(ep *rdma.Endpoint, addr string) (*Listener, error) {
	l, err := listen(ep, addr)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	return l, nil
}

func listen(ep *rdma.Endpoint, addr string) (*Listener, error) {
	i := ep.Info()
	if strings.HasPrefix(addr, ":") {
		addr = fmt.Sprintf("%s:%d/%d/%s", network, uint32(i.Node), i.Interface, addr[1:])
	}
	a, err := ParseAddr(addr)
	if err != nil {
		return nil, err
	}
	if a.Node != i.Node || int(a.Interface) != i.Interface {
		return nil, fmt.Errorf("%w: %v is not an address of this endpoint, which is %v", syscall.EADDRNOTAVAIL, a, Addr{i.Node, uint8(i.Interface), a.Port})
	}
	s, err := stackOf(ep)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	for p := uint32(firstFree); a.Port == 0; p++ {
		if s.listeners[p] == nil {
			a.Port = p
		}
	}
	if s.listeners[a.Port] != nil {
		return nil, fmt.Errorf("%w: port %d", syscall.EADDRINUSE, a.Port)
	}
	l := &Listener{s: s, addr: a, w: newWaiter(), turn: make(chan struct{}, 1)}
	s.listeners[a.Port] = l
	s.h.backlog[a.Port] = 0
	return l, nil
}

// Accept waits for the next connection. After Close it returns an error that matches net.ErrClosed.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.accept()
	if err != nil {
		return nil, &net.OpError{Op: "accept", Net: network, Addr: l.addr, Err: err}
	}
	return c, nil
}

func (l *Listener) accept() (*Conn, error) {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until(&l.w, nil, s.mail, func() bool { return l.closed || s.err != nil || len(l.queue) > 0 })
	switch {
	case l.closed:
		return nil, net.ErrClosed
	case len(l.queue) == 0:
		return nil, s.err
	}
	c := l.queue[0]
	l.queue = slices.Delete(l.queue, 0, 1)
	s.h.backlog[l.addr.Port]--
	return c, nil
}

// Close ends the listener, and resets the connections that nobody has accepted. A second Close
// returns an error that matches net.ErrClosed.
func (l *Listener) Close() error {
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.closed {
		return &net.OpError{Op: "close", Net: network, Addr: l.addr, Err: net.ErrClosed}
	}
	l.closed = true
	delete(s.listeners, l.addr.Port)
	delete(s.h.backlog, l.addr.Port)
	for _, c := range l.queue {
		c.e.fail(s.now(), errUnaccepted)
		c.e.close(s.now())
		c.advance()
	}
	s.plan(nil)
	l.queue = nil
	l.w.signal(s)
	return nil
}

// Addr returns the listener's address, which Dial takes.
func (l *Listener) Addr() net.Addr { return l.addr }
