package handover

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/leak"
	"github.com/exanet/pfd/internal/sockets"
)

func anyone(uint32) bool { return true }

// pair returns a connection of exanet-hostd, its raw descriptor for packets that it would not send,
// and the connection of pfd's side.
func pair(t testing.TB) (hostd *Conn, raw *net.UnixConn, pfd *Conn) {
	t.Helper()
	hostd, raw, pfd = pairAt(t, filepath.Join(t.TempDir(), "s"))
	t.Cleanup(func() { hostd.Close(); pfd.Close() })
	return hostd, raw, pfd
}

func pairAt(t testing.TB, path string) (hostd *Conn, raw *net.UnixConn, pfd *Conn) {
	t.Helper()
	l, file, err := sockets.Listen("unixpacket", path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	defer file.Remove()
	if hostd, err = Dial(path, anyone); err != nil {
		t.Fatal(err)
	}
	c, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	if pfd, err = Accept(c, anyone); err != nil {
		t.Fatal(err)
	}
	return hostd, hostd.c, pfd
}

// connected returns a TCP connection and its other end.
func connected(t testing.TB) (a, b *net.TCPConn) {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr)); err != nil {
		t.Fatal(err)
	}
	if b, err = l.AcceptTCP(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// A socket and credentials arrive, usable and close-on-exec.
func TestHandover(t *testing.T) {
	hostd, _, pfd := pair(t)
	if pid, uid := pfd.Peer(); pid != os.Getpid() || uid != uint32(os.Getuid()) {
		t.Errorf("the peer is process %d of %d", pid, uid)
	}
	a, b := connected(t)
	if err := a.SetLinger(1000); err != nil {
		t.Fatal(err)
	}
	if err := hostd.Send(&Message{Socket: &Socket{Dialed: "b"}}, a); err != nil {
		t.Fatal(err)
	}
	a.Close()
	m, f, err := pfd.Receive()
	if err != nil || m.Socket == nil || m.Socket.Dialed != "b" {
		t.Fatalf("%+v, %v", m, err)
	}
	if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %#x, %v", flags, err)
	}
	c, err := m.Socket.NetConn(f)
	if err != nil {
		t.Fatal(err)
	}
	err = sockets.Control(c.(*net.TCPConn), func(fd int) error {
		l, err := unix.GetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER)
		if err == nil && l.Onoff != 0 {
			err = errors.New("the socket lingers")
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if got, err := io.ReadAll(b); string(got) != "hello" || err != nil {
		t.Errorf("%q, %v", got, err)
	}

	creds := Credentials{"certificate", "key", "ca"}
	mem, err := creds.Seal()
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	if _, err := mem.WriteAt([]byte("x"), 0); err == nil {
		t.Error("the credentials can be changed")
	}
	table := golden[0].m
	if err := hostd.Send(&table, mem); err != nil {
		t.Fatal(err)
	}
	if m, f, err = pfd.Receive(); err != nil || m.Table == nil {
		t.Fatalf("%+v, %v", m, err)
	}
	if got, err := ReadCredentials(f); err != nil || *got != creds {
		t.Errorf("%+v, %v", got, err)
	}

	if err := pfd.Send(&Message{Want: &Want{Host: "b"}}, nil); err != nil {
		t.Fatal(err)
	}
	if m, f, err := hostd.Receive(); err != nil || m.Want == nil || f != nil {
		t.Errorf("%+v, %v, %v", m, f, err)
	}
	pfd.Close()
	if m, _, err := hostd.Receive(); err != io.EOF {
		t.Errorf("%+v, %v", m, err)
	}
}

// Messages with too many or too few descriptors, from the wrong side, cut, or of other descriptors
// than they say are errors, and no descriptor is left.
func TestBadDescriptors(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	n, path := int(null.Fd()), filepath.Join(t.TempDir(), "s")
	leak.Rounds(t, 3, func(int) {
		for _, c := range []struct {
			name, packet string
			fds          []int
			want         string
		}{
			{"too few", `{"socket":{}}`, nil, "0 descriptors, want 1"},
			{"too many", `{"socket":{}}`, []int{n, n}, "2 descriptors, want 1"},
			{"more than there is room for", `{"socket":{}}`, []int{n, n, n, n, n, n}, "more than 4 descriptors"},
			{"a descriptor for nothing", golden[3].text, []int{n}, "1 descriptors, want 0"},
			{"a table without its credentials", golden[0].text, nil, "0 descriptors, want 1"},
			{"garbage", `{`, []int{n}, "EOF"},
			{"from the wrong side", `{"want":{"host":"a"}}`, nil, "the other side"},
			{"too long", strings.Repeat(" ", MaxMessage+2), []int{n}, "more than 65536 bytes"},
		} {
			hostd, raw, pfd := pairAt(t, path)
			var oob []byte
			if c.fds != nil {
				oob = unix.UnixRights(c.fds...)
			}
			if _, _, err := raw.WriteMsgUnix([]byte(c.packet), oob, nil); err != nil {
				t.Fatal(err)
			}
			m, f, err := pfd.Receive()
			if !errors.Is(err, ErrMessage) || m != nil || f != nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %+v, %v, want %q", c.name, m, err, c.want)
			}
			hostd.Close()
			pfd.Close()
		}
	})
	// The other way the kernel (6.16) or Receive refuses any descriptor.
	hostd, _, pfd := pair(t)
	if _, _, err := pfd.c.WriteMsgUnix([]byte(`{"want":{"host":"a"}}`), unix.UnixRights(n), nil); err == nil {
		if m, f, err := hostd.Receive(); err == nil {
			t.Errorf("%+v with %v", m, f)
		}
	}
	if err := hostd.Send(&Message{Socket: &Socket{}}, nil); !errors.Is(err, ErrMessage) {
		t.Errorf("a socket without a descriptor: %v", err)
	}
}

// NetConn accepts only connected sockets of the right type, and ReadCredentials only sealed memory.
func TestWrongFiles(t *testing.T) {
	a, _ := connected(t)
	udp, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	hostd, _, _ := pair(t)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for name, c := range map[string]struct {
		s Socket
		c syscall.Conn
	}{
		"a listener":         {Socket{}, l},
		"a unix socket":      {Socket{}, hostd.c},
		"TCP for UDP":        {Socket{UDP: true}, a},
		"UDP for TCP":        {Socket{}, udp},
		"no socket, but TCP": {Socket{}, null},
	} {
		if conn, err := c.s.NetConn(dup(t, c.c)); !errors.Is(err, ErrMessage) {
			t.Errorf("%s: %v, %v", name, conn, err)
		}
	}
	// These fail alone.
	reset, other := connected(t)
	if err := errors.Join(other.SetLinger(0), other.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := reset.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		s Socket
		c syscall.Conn
	}{"UDP not connected": {Socket{UDP: true}, udp}, "a connection that was reset": {Socket{}, reset}} {
		if conn, err := c.s.NetConn(dup(t, c.c)); !errors.Is(err, unix.ENOTCONN) || errors.Is(err, ErrMessage) {
			t.Errorf("%s: %v, %v", name, conn, err)
		}
	}
	for name, c := range map[string]syscall.Conn{"a device": null, "a socket": a} {
		if got, err := ReadCredentials(dup(t, c)); !errors.Is(err, ErrMessage) {
			t.Errorf("credentials from %s: %+v, %v", name, got, err)
		}
	}
	big := Credentials{Key: strings.Repeat("k", MaxMessage)}
	if f, err := big.Seal(); err == nil {
		f.Close()
		t.Error("credentials of any size are sealed")
	}
}

func dup(t *testing.T, c syscall.Conn) *os.File {
	t.Helper()
	n := -1
	err := sockets.Control(c, func(fd int) (err error) {
		n, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(n), "dup")
}

// A peer of another user is refused on both sides, and its connection closed.
func TestStranger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, _, err := sockets.Listen("unixpacket", path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	nobody := func(uint32) bool { return false }
	if c, err := Dial(path, nobody); !errors.Is(err, ErrStranger) {
		t.Errorf("%v, %v", c, err)
	}
	c, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	if c, err := Accept(c, nobody); !errors.Is(err, ErrStranger) {
		t.Errorf("%v, %v", c, err)
	}
}
