package attach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/exanet/pfd/internal/version"
)

// Product names this release to the other side and to people.
func Product() string { return "exanet " + version.String() }

// Dial connects to the attachment socket at path. An error for a socket at
// which nobody listens matches ErrNoDaemon and says how to start one.
func Dial(ctx context.Context, path string) (*Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unixpacket", path)
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%w at %s: start one with \"pfd --nodes 2 --socket PATH\", or name the socket of one that runs (its attachment socket is PATH.attach): %w", ErrNoDaemon, path, err)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return nil, fmt.Errorf("attaching at %s: this user may not open the socket: ask for a pfd whose socket is open to it: %w", path, err)
	case err != nil:
		return nil, fmt.Errorf("attaching at %s: %w", path, err)
	}
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("attaching at %s: not a unix socket", path), c.Close())
	}
	conn, err := newConn(uc, false)
	if err != nil {
		return nil, errors.Join(err, uc.Close())
	}
	return conn, nil
}

// Handshake says hello and takes the answer: a welcome with its three
// descriptors (memfd, eventfd, netlink socket), which are then the caller's.
// A refusal is a *RefusedError; another protocol version is a *VersionError
// that names both. With any error no descriptor stays open; the connection is
// the caller's to close.
func (c *Conn) Handshake(ctx context.Context, h Hello) (Welcome, Descriptors, error) {
	ctx, cancel := context.WithTimeout(ctx, HandshakeTimeout)
	defer cancel()
	if h.Product == "" {
		h.Product = Product()
	}
	msg, err := h.Append(nil)
	if err != nil {
		return Welcome{}, nil, err
	}
	if err := c.Send(msg); err != nil {
		return Welcome{}, nil, err
	}
	var buf [MaxMessage]byte
	n, fds, err := c.Receive(ctx, buf[:])
	if errors.Is(err, io.EOF) {
		return Welcome{}, nil, fmt.Errorf("attaching: pfd closed the connection without an answer: see its log: %w", io.ErrUnexpectedEOF)
	}
	if err != nil {
		return Welcome{}, nil, fmt.Errorf("attaching: %w", err)
	}
	w, err := answer(buf[:n], len(fds), h.Product)
	if err != nil {
		fds.Close()
		return Welcome{}, nil, err
	}
	return w, fds, nil
}

// answer reads pfd's answer to a hello.
func answer(b []byte, fds int, own string) (Welcome, error) {
	h, err := DecodeHeader(b)
	switch {
	case err != nil:
		return Welcome{}, err
	case h.Protocol != Protocol:
		return Welcome{}, &VersionError{Own: Protocol, Peer: h.Protocol, OwnProduct: own, PeerProduct: h.Product}
	case h.Type == TypeRefused:
		r, err := DecodeRefused(b)
		if err != nil {
			return Welcome{}, err
		}
		return Welcome{}, r
	case h.Type == TypeEnded && fds == 0:
		m, err := DecodeEnded(b)
		if err != nil {
			return Welcome{}, err
		}
		return Welcome{}, fmt.Errorf("attaching: pfd ended the attachment at once (%v): see its log, and try again: %w", m.Reason, io.ErrUnexpectedEOF)
	}
	w, err := DecodeWelcome(b)
	if err != nil {
		return Welcome{}, err
	}
	if fds != WelcomeFDs {
		return Welcome{}, fmt.Errorf("%w: a welcome with %d descriptors, want %d", ErrMessage, fds, WelcomeFDs)
	}
	return w, nil
}

// AwaitHello takes a process's hello. Whatever is wrong with it is answered
// with a refusal, and returned.
func (c *Conn) AwaitHello(ctx context.Context) (Hello, error) {
	ctx, cancel := context.WithTimeout(ctx, HandshakeTimeout)
	defer cancel()
	var buf [MaxMessage]byte
	n, fds, err := c.Receive(ctx, buf[:])
	withFDs := len(fds)
	fds.Close()
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
		err := fmt.Errorf("%w: type %d where a hello (%d) is due", ErrMessage, h.Type, TypeHello)
		return Hello{}, errors.Join(err, c.Refuse(unknownOr(h.Type, CodeProtocol), h.Type, err.Error()))
	case withFDs != 0:
		err := fmt.Errorf("%w: a hello with %d descriptors, want none", ErrMessage, withFDs)
		return Hello{}, errors.Join(err, c.Refuse(CodeProtocol, h.Type, err.Error()))
	}
	hello, err := DecodeHello(buf[:n])
	if err != nil {
		return Hello{}, errors.Join(err, c.Refuse(CodeProtocol, h.Type, err.Error()))
	}
	return hello, nil
}

// unknownOr gives CodeUnknownType for a type that this version does not have.
func unknownOr(t Type, known Code) Code {
	if t < TypeHello || t > TypeUnregister {
		return CodeUnknownType
	}
	return known
}

// Refuse answers message type refused with code and a text that names the
// remedy.
func (c *Conn) Refuse(code Code, refused Type, text string) error {
	r := RefusedError{Product: Product(), Code: code, Refused: refused, Text: text}
	return c.Send(r.Append(nil))
}

// Welcome answers a hello with what the process has been given. The
// descriptors stay the caller's.
func (c *Conn) Welcome(w Welcome, memfd, eventfd, netlink int) error {
	if w.Product == "" {
		w.Product = Product()
	}
	msg, err := w.Append(nil)
	if err != nil {
		return err
	}
	return c.Send(msg, memfd, eventfd, netlink)
}

// End tells the process that its attachment is over, and closes the connection.
// pfd calls it when nothing of the domain is in flight any more, after
// Pages.End.
func (c *Conn) End(r Reason, text string) error {
	e := Ended{Product: Product(), Reason: r, Text: text}
	err := c.Send(e.Append(nil))
	return errors.Join(err, c.Close())
}
