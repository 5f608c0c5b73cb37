package handover

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/limits"
	"github.com/exanet/pfd/internal/memfd"
	"github.com/exanet/pfd/internal/sockets"
)

const (
	// sendTime bounds the wait for a peer that does not read. Defined by this project.
	sendTime = 2 * time.Second
	// fdRoom is for how many descriptors of a message the kernel finds room; a message has at
	// most one. Defined by this project.
	fdRoom = 4
	// DeadTime is how long a TCP connection may be without an answer from the peer's machine.
	// Defined by this project.
	DeadTime = 5 * time.Second
)

// ErrStranger means that the peer's user may run neither exanet-hostd nor pfd.
var ErrStranger = errors.New("another user")

// Conn is a connection between exanet-hostd and pfd. One goroutine may receive while another
// sends. Close may be called at any time.
type Conn struct {
	c     *net.UnixConn
	pfd   bool // this side is pfd
	cred  unix.Ucred
	input []byte
}

// Dial connects exanet-hostd to the socket of pfd, PATH.hosts. The user who listens there must be
// one of those that trusted accepts: the error matches ErrStranger otherwise.
func Dial(path string, trusted func(uid uint32) bool) (*Conn, error) {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	return newConn(c, false, trusted)
}

// Accept makes a connection of pfd's side of one that it has accepted. The peer's user must be one
// of those that trusted accepts: the error matches ErrStranger otherwise, and c has been closed.
func Accept(c *net.UnixConn, trusted func(uid uint32) bool) (*Conn, error) {
	return newConn(c, true, trusted)
}

func newConn(c *net.UnixConn, pfd bool, trusted func(uid uint32) bool) (*Conn, error) {
	conn := &Conn{c: c, pfd: pfd, input: make([]byte, MaxMessage+1)}
	err := sockets.Control(c, func(fd int) error {
		cred, err := sockets.Peer(fd)
		if err != nil {
			return err
		}
		conn.cred = *cred
		if !trusted(cred.Uid) {
			return fmt.Errorf("%w: the peer is process %d of uid %d", ErrStranger, cred.Pid, cred.Uid)
		}
		return sockets.PassRights(fd, pfd)
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("socket between exanet-hostd and pfd: %w", err), c.Close())
	}
	return conn, nil
}

// Peer returns the process id and the user of the peer.
func (c *Conn) Peer() (pid int, uid uint32) { return int(c.cred.Pid), c.cred.Uid }

// Close closes the connection.
func (c *Conn) Close() error { return c.c.Close() }

// Send sends a message, with a descriptor if its kind has one, which the caller still owns. If the
// peer does not read, Send returns after two seconds with an error that matches
// os.ErrDeadlineExceeded.
func (c *Conn) Send(m *Message, descriptor syscall.Conn) error {
	b, err := m.Encode()
	if err != nil {
		return err
	}
	if (descriptor != nil) != (m.Descriptors() == 1) {
		return fmt.Errorf("%w: it has %d descriptors", ErrMessage, m.Descriptors())
	}
	if err := c.c.SetWriteDeadline(time.Now().Add(sendTime)); err != nil {
		return fmt.Errorf("send to the peer: %w", err)
	}
	write := func(oob []byte) error {
		_, _, err := c.c.WriteMsgUnix(b, oob, nil)
		return err
	}
	if descriptor == nil {
		err = write(nil)
	} else {
		err = sockets.Control(descriptor, func(fd int) error { return write(unix.UnixRights(fd)) })
	}
	if err != nil {
		return fmt.Errorf("send to the peer: %w", limits.Explain(err))
	}
	return nil
}

// Receive returns the next message, and its descriptor or nil: the caller must close it. The end of
// the connection is io.EOF. A message that does not follow the protocol, that comes from the wrong
// side, or that has too many or too few descriptors is an error that matches ErrMessage; its
// descriptors have been closed. The same holds for sockets.ErrDescriptors, if this process has no
// room for a descriptor.
func (c *Conn) Receive() (*Message, *os.File, error) {
	oob := make([]byte, unix.CmsgSpace(4*fdRoom))
	n, oobn, flags, _, err := c.c.ReadMsgUnix(c.input, oob)
	fds, rerr := sockets.Rights(oob[:oobn])
	var m *Message
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), err == nil && n == 0 && len(fds) == 0:
		err = io.EOF // a peer that closes with unread data causes a reset
	case err != nil:
		err = fmt.Errorf("read from the peer: %w", err)
	case rerr != nil:
		err = fmt.Errorf("%w: control data: %w", ErrMessage, rerr)
	case flags&unix.MSG_TRUNC != 0:
		err = fmt.Errorf("%w: it has more than %d bytes", ErrMessage, MaxMessage)
	case sockets.Lost(flags, len(fds), fdRoom) != nil && c.pfd:
		err = fmt.Errorf("read from the peer: %w", sockets.ErrDescriptors)
	case flags&unix.MSG_CTRUNC != 0:
		err = fmt.Errorf("%w: it has more than %d descriptors", ErrMessage, fdRoom)
	default:
		if m, err = Decode(c.input[:n]); err == nil {
			err = c.fits(m, len(fds))
		}
	}
	if err != nil {
		for _, fd := range fds {
			// The close of a socket of another process must not linger here.
			_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{}) // fails for all else
			_ = unix.Close(fd)                                                             // nothing was written through it
		}
		return nil, nil, err
	}
	if len(fds) == 0 {
		return m, nil, nil
	}
	return m, os.NewFile(uintptr(fds[0]), "from the peer"), nil
}

// fits returns an error unless the peer may send m with so many descriptors.
func (c *Conn) fits(m *Message, descriptors int) error {
	if m.FromHostd() != c.pfd {
		return fmt.Errorf("%w: the other side sends such messages", ErrMessage)
	}
	if descriptors != m.Descriptors() {
		return fmt.Errorf("%w: it has %d descriptors, want %d", ErrMessage, descriptors, m.Descriptors())
	}
	return nil
}

// NetConn returns the connection of the descriptor that came with a Socket, and closes the
// descriptor. It must be a socket of the internet, of the type that the message says: the error
// matches ErrMessage otherwise. Any other error concerns this socket alone: its peer may have ended
// the connection already.
func (s *Socket) NetConn(f *os.File) (net.Conn, error) {
	defer f.Close()
	want := unix.SOCK_STREAM
	if s.UDP {
		want = unix.SOCK_DGRAM
	}
	err := sockets.Control(f, func(fd int) error {
		for _, o := range []struct {
			name   string
			option int
			want   []int
		}{
			{"SO_TYPE", unix.SO_TYPE, []int{want}}, {"SO_DOMAIN", unix.SO_DOMAIN, []int{unix.AF_INET, unix.AF_INET6}}, {"SO_ACCEPTCONN", unix.SO_ACCEPTCONN, []int{0}},
		} {
			v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, o.option)
			if err != nil { // no socket
				return fmt.Errorf("%w: %w", ErrMessage, os.NewSyscallError("getsockopt "+o.name, err))
			}
			if !slices.Contains(o.want, v) {
				return fmt.Errorf("%w: %s is %d, want %d", ErrMessage, o.name, v, o.want)
			}
		}
		// exanet-hostd may have made it linger, which would hold up a Close here.
		if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{}); err != nil {
			return os.NewSyscallError("setsockopt SO_LINGER", err)
		}
		_, err := unix.Getpeername(fd)
		return os.NewSyscallError("getpeername", err)
	})
	if err != nil {
		return nil, fmt.Errorf("socket of exanet-hostd: %w", err)
	}
	c, err := net.FileConn(f)
	if tc, ok := c.(*net.TCPConn); ok {
		// FileConn has replaced what exanet-hostd had set.
		if err = tc.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: DeadTime / 2, Interval: time.Second, Count: 3}); err != nil {
			err = errors.Join(err, c.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("socket of exanet-hostd: %w", limits.Explain(err))
	}
	return c, nil
}

// Credentials is the material for TLS, each part as text in PEM.
type Credentials struct {
	Certificate string `json:"certificate"` // of this host
	Key         string `json:"key"`
	CA          string `json:"ca"` // certificates of the cluster's certificate authority
}

// sealed are the seals of a file of credentials: it is complete and does not change.
const sealed = unix.F_SEAL_WRITE | unix.F_SEAL_GROW | unix.F_SEAL_SHRINK

// Seal returns the credentials in a sealed file without a name (memfd_create(2)).
func (c *Credentials) Seal() (*os.File, error) {
	b, err := json.Marshal(c)
	if err == nil && len(b) > MaxMessage {
		err = fmt.Errorf("they have %d bytes, at most %d are possible", len(b), MaxMessage)
	}
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err)
	}
	fd, err := memfd.New("exanet-credentials", int64(len(b)), 0, 0)
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err)
	}
	f := os.NewFile(uintptr(fd), "credentials")
	if _, err = f.WriteAt(b, 0); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sealed)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("credentials: %w", err), f.Close())
	}
	return f, nil
}

// ReadCredentials reads the file that came with a Table, and closes it. Errors match ErrMessage.
func ReadCredentials(f *os.File) (*Credentials, error) {
	defer f.Close()
	var seals int
	// Seals exist only on a memfd, so a read of it cannot block, either.
	err := sockets.Control(f, func(fd int) (err error) {
		seals, err = unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
		return os.NewSyscallError("fcntl F_GET_SEALS", err)
	})
	if err == nil && seals&sealed != sealed {
		err = fmt.Errorf("seals %#x, want %#x", seals, sealed)
	}
	var b []byte
	if err == nil {
		b, err = io.ReadAll(io.NewSectionReader(f, 0, MaxMessage))
	}
	c := new(Credentials)
	if err == nil {
		err = json.Unmarshal(b, c)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: credentials: %w", ErrMessage, err)
	}
	return c, nil
}
