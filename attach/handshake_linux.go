package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"syscall"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/keeper"
	"github.com/exanet/pfd/internal/limits"
	"github.com/exanet/pfd/internal/sockets"
	"github.com/exanet/pfd/internal/version"
)

// Product names this release, for the other side and for users.
func Product() string { return "exanet " + version.String() }

// Dial connects to the attachment socket at path. If nothing listens there, the error matches
// ErrNoDaemon and says how to start a pfd. The server can access the caller's memory, so it must
// be root, the caller's own user, one of trust, or, for the machine's own socket (sockets.Root),
// the user for whom root created its directory; otherwise the error matches ErrStranger.
func Dial(ctx context.Context, path string, trust ...uint32) (*Conn, error) {
	c, err := dialPatiently(ctx, path)
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		why := sockets.Why(path, err)
		if why != "" {
			why += "; "
		}
		return nil, fmt.Errorf("%w at %s: %sstart one with \"pfd --nodes 2 --socket PATH\", or name the socket of one that runs (its attachment socket is PATH.attach): %w", ErrNoDaemon, path, why, err)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		why := cmp.Or(sockets.Why(path, err), "this user may not open the socket: ask for a pfd whose socket is open to it")
		return nil, fmt.Errorf("attach at %s: %s: %w", path, why, err)
	case err != nil:
		return nil, fmt.Errorf("attach at %s: %w", path, limits.Explain(err))
	}
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("attach at %s: not a unix socket", path), c.Close())
	}
	conn, err := newConn(uc, false)
	if err != nil {
		return nil, errors.Join(err, uc.Close())
	}
	conn.trust = trust
	if uid := conn.peer.UID; !sockets.Trusted(path, uid, trust) {
		return nil, errors.Join(fmt.Errorf("attach at %s: %w: uid %d would access the memory of this process: name it (rdma.Options.Trust) if it may", path, ErrStranger, uid), conn.Close())
	}
	return conn, nil
}

// How long a client waits while too many connect. Values below are defined by this project.
const (
	crowdedFirst = time.Millisecond
	crowdedMost  = 100 * time.Millisecond
	crowdedTime  = HandshakeTimeout
)

// dialPatiently connects, and retries if other clients have filled the listener's queue, which is
// EAGAIN (unix(7)).
func dialPatiently(ctx context.Context, path string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, crowdedTime)
	defer cancel()
	var d net.Dialer
	for pause := crowdedFirst; ; pause = min(2*pause, crowdedMost) {
		c, err := d.DialContext(ctx, "unixpacket", path)
		if !errors.Is(err, syscall.EAGAIN) {
			return c, err
		}
		select {
		// Spread the retries of several clients.
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: too many others connect at the moment: try again later", err)
		}
	}
}

// patient returns ctx with a deadline after HandshakeTimeout, unless it has its own.
func patient(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, HandshakeTimeout)
}

// Handshake sends the hello, maps the memory that pfd creates for the attachment (Pages) and
// receives the welcome. The caller then owns three descriptors (memfd, eventfd, netlink socket).
// Handshake starts the process's keeper, and its helper if pfd asks for one; both end with the
// connection. A refusal is a *RefusedError; another protocol version is a *VersionError that names
// both. After an error no descriptor stays open, and the caller still closes the connection.
func (c *Conn) Handshake(ctx context.Context, h Hello) (Welcome, Descriptors, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	if h.Product == "" {
		h.Product = Product()
	}
	var err error
	if c.keeper == nil {
		if c.keeper, err = keeper.StartFor(c.peer.PID); err != nil {
			return Welcome{}, nil, fmt.Errorf("attaching: %w", limits.Explain(err))
		}
	}
	va, proof := c.keeper.Proof()
	h.ProofVA, h.Proof = device.VA(va), proof
	msg, err := h.Append(nil)
	if err != nil {
		return Welcome{}, nil, err
	}
	if err := c.Send(msg); err != nil {
		return Welcome{}, nil, err
	}
	b, fds, err := c.receiveAnswer(ctx, h.Product)
	if err != nil {
		return Welcome{}, nil, err
	}
	w, err := c.finishHandshake(ctx, b, fds, h.Product)
	if err != nil {
		fds.Close()
		return Welcome{}, nil, err
	}
	return w, fds, nil
}

// finishHandshake maps the pages of message b, confirms that, starts a memory helper if pfd asks for
// one, and receives the welcome.
func (c *Conn) finishHandshake(ctx context.Context, b []byte, fds Descriptors, product string) (Welcome, error) {
	if _, err := decode(b, TypeMemory, headerSize); err != nil {
		return Welcome{}, err
	}
	if len(fds) != MemoryFDs {
		return Welcome{}, fmt.Errorf("%w: a memory with %d descriptors, not %d", ErrMessage, len(fds), MemoryFDs)
	}
	var err error
	if c.pages, err = MapMemory(fds[MemoryPagesFD]); err != nil {
		return Welcome{}, err
	}
	if err := c.Send(appendBare(nil, TypeMapped, product), c.keeper.PIDFD()); err != nil {
		return Welcome{}, err
	}
	b, more, err := c.receiveAnswer(ctx, product)
	if err != nil {
		return Welcome{}, err
	}
	if asked, err := DecodeHelperRequest(b); err == nil {
		err := c.startHelper(asked, more)
		more.Close()
		if err != nil {
			return Welcome{}, fmt.Errorf("attach: start the memory helper that pfd asks for: %w", limits.Explain(err))
		}
		if b, more, err = c.receiveAnswer(ctx, product); err != nil {
			return Welcome{}, err
		}
	}
	if len(more) != 0 {
		more.Close()
		return Welcome{}, fmt.Errorf("%w: a welcome with %d descriptors", ErrMessage, len(more))
	}
	return DecodeWelcome(b)
}

// Pages returns the memory that Handshake has mapped.
func (c *Conn) Pages() *Pages { return c.pages }

// receiveAnswer receives one answer of pfd to a handshake; an answer that ends the handshake is an
// error.
func (c *Conn) receiveAnswer(ctx context.Context, product string) ([]byte, Descriptors, error) {
	var buf [MaxMessage]byte
	n, fds, err := c.Receive(ctx, buf[:])
	if errors.Is(err, io.EOF) {
		return nil, nil, fmt.Errorf("attach: pfd closed the connection without an answer: see its log: %w", io.ErrUnexpectedEOF)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("attaching: %w", err)
	}
	if err := endingError(buf[:n], len(fds), product); err != nil {
		fds.Close()
		return nil, nil, err
	}
	return buf[:n], fds, nil
}

// endingError returns the error for an answer that ends a handshake.
func endingError(b []byte, fds int, product string) error {
	h, err := DecodeHeader(b)
	switch {
	case err != nil:
		return err
	case h.Protocol != Protocol:
		return &VersionError{Own: Protocol, Peer: h.Protocol, OwnProduct: product, PeerProduct: h.Product}
	case h.Type == TypeRefused:
		r, err := DecodeRefused(b)
		if err != nil {
			return err
		}
		return r
	case h.Type == TypeEnded && fds == 0:
		m, err := DecodeEnded(b)
		if err != nil {
			return err
		}
		return fmt.Errorf("attach: pfd ended the attachment at once (%v): see its log, and try again: %w", m.Reason, io.ErrUnexpectedEOF)
	}
	return nil
}

// AwaitHello receives a process's hello. It answers an invalid one with a refusal and returns the
// error.
func (c *Conn) AwaitHello(ctx context.Context) (Hello, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	var buf [MaxMessage]byte
	n, fds, err := c.Receive(ctx, buf[:])
	withFDs := len(fds)
	c.discard(ctx, fds)
	if errors.Is(err, ErrMessage) {
		return Hello{}, errors.Join(err, c.Refuse(CodeProtocol, 0, err.Error()))
	}
	if err != nil {
		return Hello{}, err
	}
	h, err := DecodeHeader(buf[:n])
	switch {
	case err != nil:
		return Hello{}, errors.Join(err, c.Refuse(CodeProtocol, 0, err.Error()))
	case h.Protocol != Protocol:
		err := &VersionError{Own: Protocol, Peer: h.Protocol, OwnProduct: Product(), PeerProduct: h.Product}
		return Hello{}, errors.Join(err, c.Refuse(CodeVersion, h.Type, err.Error()))
	case h.Type != TypeHello:
		err := fmt.Errorf("%w: type %d instead of a hello (%d)", ErrMessage, h.Type, TypeHello)
		return Hello{}, errors.Join(err, c.Refuse(unknownOr(h.Type, CodeProtocol), h.Type, err.Error()))
	case withFDs != 0:
		err := fmt.Errorf("%w: a hello with %d descriptors: it carries none", ErrMessage, withFDs)
		return Hello{}, errors.Join(err, c.Refuse(CodeProtocol, h.Type, err.Error()))
	}
	hello, err := DecodeHello(buf[:n])
	if err != nil {
		return Hello{}, errors.Join(err, c.Refuse(CodeProtocol, h.Type, err.Error()))
	}
	return hello, nil
}

// unknownOr returns CodeUnknownType for a type that this version does not have, else known.
func unknownOr(t Type, known Code) Code {
	if t < TypeHello || t > TypeUnthread {
		return CodeUnknownType
	}
	return known
}

// Refuse answers message type refused with code and a text that says what to do.
func (c *Conn) Refuse(code Code, refused Type, text string) error {
	r := RefusedError{Product: Product(), Code: code, Refused: refused, Text: text}
	return c.Send(r.Append(nil))
}

// Offer sends a process the attachment's pages and a netlink socket, and waits until it has mapped
// the pages and named its keeper, which Peer then returns. After that no process can remove the
// pages. The caller still owns the descriptors. Offer answers any other message with a refusal and
// returns the error.
func (c *Conn) Offer(ctx context.Context, m *Memory, netlink int) error {
	if err := c.TakeDescriptors(); err != nil {
		return err
	}
	if err := c.Send(appendBare(nil, TypeMemory, Product()), m.FD(), m.WakeFD(), netlink); err != nil {
		return err
	}
	var buf [MaxMessage]byte
	n, fds, err := c.Receive(ctx, buf[:])
	defer func() { c.discard(ctx, fds) }()
	if err == nil {
		err = c.passRights(false) // no other is accepted
	}
	if err == nil {
		_, err = decode(buf[:n], TypeMapped, headerSize)
	}
	if err == nil && len(fds) != 1 {
		err = fmt.Errorf("%w: a mapped with %d descriptors, not one, a pidfd of the keeper", ErrMessage, len(fds))
	}
	if err == nil {
		err = m.Seal()
	}
	if err == nil {
		c.peer.Keeper = fds.Take(0)
	}
	if errors.Is(err, ErrMessage) || errors.Is(err, ErrMemory) {
		return errors.Join(err, c.Refuse(CodeProtocol, TypeMapped, err.Error()))
	}
	if errors.Is(err, sockets.ErrDescriptors) {
		return errors.Join(err, c.Refuse(CodeInternal, TypeMapped, "pfd: "+sockets.ErrDescriptors.Error()))
	}
	return err
}

// Welcome answers a hello, after Offer, with the process's configuration.
func (c *Conn) Welcome(w Welcome) error {
	if w.Product == "" {
		w.Product = Product()
	}
	msg, err := w.Append(nil)
	if err != nil {
		return err
	}
	return c.Send(msg)
}

// End tells the process that its attachment has ended, and shuts down the connection, which Serve
// closes. pfd calls it after Pages.End, when nothing of the domain is in flight or pfd itself ends.
func (c *Conn) End(r Reason, text string) error {
	e := Ended{Product: Product(), Reason: r, Text: text}
	return errors.Join(c.Send(e.Append(nil)), c.shutdown())
}
