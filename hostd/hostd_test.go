package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/config"
	"github.com/exanet/pfd/internal/sockets"
	"github.com/exanet/pfd/link/handover"
	"github.com/exanet/pfd/link/hosts"
)

const (
	childEnv = "HOSTD_TEST_MAIN"
	// patience is reached only by a hang.
	patience = 2 * time.Minute
)

// TestMain runs exanet-hostd itself in processes that a test has started for that.
func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		main()
	}
	os.Exit(m.Run())
}

// hostd is a real process of this program.
type hostd struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines chan string // of its log
	done  chan struct{}
}

func start(t *testing.T, r *rig, args ...string) *hostd {
	t.Helper()
	h := &hostd{t: t, lines: make(chan string, 1000), done: make(chan struct{})}
	h.cmd = exec.Command(os.Args[0], append([]string{"--hosts", r.file, "--name", "a", "--pfd", r.pfd, "--log-level", "debug"}, args...)...)
	h.cmd.Env = append(os.Environ(), childEnv+"=1", "NOTIFY_SOCKET="+r.notify)
	out, err := h.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(h.done)
		for s := bufio.NewScanner(out); s.Scan(); {
			h.lines <- s.Text()
		}
		_ = h.cmd.Wait() // the tests look at the exit code
		close(h.lines)
	}()
	t.Cleanup(func() {
		_ = h.cmd.Process.Kill()
		<-h.done
	})
	return h
}

// await waits for a line of the log that contains each of parts.
func (h *hostd) await(parts ...string) {
	h.t.Helper()
	var seen []string
	for limit := time.After(patience); ; {
		select {
		case line, ok := <-h.lines:
			if !ok {
				h.t.Fatalf("exanet-hostd has ended without a line with %q:\n%s", parts, strings.Join(seen, "\n"))
			}
			seen = append(seen, line)
			missing := false
			for _, p := range parts {
				missing = missing || !strings.Contains(line, p)
			}
			if !missing {
				return
			}
		case <-limit:
			h.t.Fatalf("no line with %q:\n%s", parts, strings.Join(seen, "\n"))
		}
	}
}

func (h *hostd) signal(s syscall.Signal) {
	h.t.Helper()
	if err := h.cmd.Process.Signal(s); err != nil {
		h.t.Fatal(err)
	}
}

func (h *hostd) code() int {
	h.t.Helper()
	select {
	case <-h.done:
	case <-time.After(patience):
		h.t.Fatal("exanet-hostd does not end")
	}
	return h.cmd.ProcessState.ExitCode()
}

// rig is a cluster of hosts a, where exanet-hostd runs, and b, which the test plays.
type rig struct {
	t         *testing.T
	dir, file string
	pfd       string // the control socket of a's pfd, which the test plays
	a, b      string // addresses
	notify    string
}

var rigs atomic.Uint32

func newRig(t *testing.T) *rig {
	t.Helper()
	// Addresses that no other test uses, so that the ports are free.
	n := uint32(os.Getpid())<<5 + rigs.Add(1)
	ip := fmt.Sprintf("127.%d.%d", n>>8&0xff, n&0xff)
	r := &rig{t: t, dir: filepath.Join(t.TempDir(), "c"), a: ip + ".1:9480", b: ip + ".2:9480"}
	r.pfd, r.file = filepath.Join(t.TempDir(), "pfd.sock"), filepath.Join(r.dir, hosts.FileName)
	if _, err := hosts.Init(r.dir, "lab", []hosts.New{{Name: "a", Address: r.a, Nodes: 1}, {Name: "b", Address: r.b, Nodes: 1}}, time.Now()); err != nil {
		t.Fatal(err)
	}
	return r
}

// edit replaces a part of hosts.toml.
func (r *rig) edit(old, new string) {
	r.t.Helper()
	b, err := os.ReadFile(r.file)
	if err != nil || !bytes.Contains(b, []byte(old)) {
		r.t.Fatalf("%q is not in %s: %v", old, b, err)
	}
	if err := os.WriteFile(r.file, bytes.Replace(b, []byte(old), []byte(new), 1), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// pfd is a played pfd.
type pfd struct {
	t    *testing.T
	l    *net.UnixListener
	file *sockets.File
	*handover.Conn
}

func (r *rig) listen() *pfd {
	r.t.Helper()
	l, f, err := sockets.Listen("unixpacket", r.pfd+sockets.HostsSuffix, 0o600)
	if err != nil {
		r.t.Fatal(err)
	}
	// As pfd's: the table comes before the connection is accepted.
	if err := sockets.Control(l, func(fd int) error { return sockets.PassRights(fd, true) }); err != nil {
		r.t.Fatal(err)
	}
	p := &pfd{t: r.t, l: l, file: f}
	r.t.Cleanup(p.end)
	return p
}

func (p *pfd) end() {
	p.l.Close()
	_ = p.file.Remove() // fails in the cleanup of a pfd that has ended
	if p.Conn != nil {
		p.Conn.Close()
	}
}

// accept accepts exanet-hostd and returns the table that it sends first.
func (p *pfd) accept() *handover.Table {
	p.t.Helper()
	if err := p.l.SetDeadline(time.Now().Add(patience)); err != nil {
		p.t.Fatal(err)
	}
	c, err := p.l.AcceptUnix()
	if err != nil {
		p.t.Fatal(err)
	}
	if p.Conn, err = handover.Accept(c, func(uint32) bool { return true }); err != nil {
		p.t.Fatal(err)
	}
	return p.table()
}

func (p *pfd) next() (*handover.Message, *os.File) {
	p.t.Helper()
	limit := time.AfterFunc(patience, func() { p.Conn.Close() })
	defer limit.Stop()
	m, f, err := p.Receive()
	if err != nil {
		p.t.Fatal(err)
	}
	return m, f
}

func (p *pfd) table() *handover.Table {
	p.t.Helper()
	m, f := p.next()
	if m.Table == nil {
		p.t.Fatalf("%+v, want a table", m)
	}
	if m.Table.TLS {
		if c, err := handover.ReadCredentials(f); err != nil || !strings.Contains(c.Key, "PRIVATE KEY") {
			p.t.Errorf("credentials: %v", err)
		}
	}
	return m.Table
}

func (p *pfd) socket(want handover.Socket) net.Conn {
	p.t.Helper()
	m, f := p.next()
	if m.Socket == nil || *m.Socket != want {
		p.t.Fatalf("%+v, want %+v", m, want)
	}
	c, err := m.Socket.NetConn(f)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { c.Close() })
	return c
}

func (p *pfd) want(w handover.Want) {
	p.t.Helper()
	if err := p.Send(&handover.Message{Want: &w}, nil); err != nil {
		p.t.Fatal(err)
	}
}

// talk checks that bytes pass both ways.
func talk(t *testing.T, a, b net.Conn) {
	t.Helper()
	for _, c := range [][2]net.Conn{{a, b}, {b, a}} {
		if err := errors.Join(a.SetDeadline(time.Now().Add(patience)), b.SetDeadline(time.Now().Add(patience))); err != nil {
			t.Fatal(err)
		}
		if _, err := c[0].Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 5)
		if _, err := io.ReadFull(c[1], got); err != nil || string(got) != "hello" {
			t.Fatalf("%q, %v", got, err)
		}
	}
}

func peer(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Sockets are accepted and dialed, with their options, and outlive exanet-hostd.
func TestSockets(t *testing.T) {
	r := newRig(t)
	p := r.listen()
	h := start(t, r, "--listen", r.a)
	if table := p.accept(); table.Self != "a" || len(table.Hosts) != 2 || !table.TLS || table.Hosts[1].Address != r.b {
		t.Errorf("%+v", table)
	}
	h.await("listening")

	outside := peer(t, r.a)
	in := p.socket(handover.Socket{})
	talk(t, outside, in)

	b, err := net.Listen("tcp", r.b)
	if err != nil {
		t.Fatal(err)
	}
	p.want(handover.Want{Host: "b"})
	out := p.socket(handover.Socket{Dialed: "b"})
	var there net.Conn
	for there == nil || there.RemoteAddr().String() != out.LocalAddr().String() { // a dial may try more than once
		if there, err = b.Accept(); err != nil {
			t.Fatal(err)
		}
		defer there.Close()
	}
	talk(t, out, there)
	for name, c := range map[string]net.Conn{"accepted": in, "dialed": out} {
		for _, o := range [][3]int{
			{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1}, {unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
			{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 5000}, {unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, 128 << 10}, {unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3},
		} {
			err := sockets.Control(c.(*net.TCPConn), func(fd int) error {
				if got, err := unix.GetsockoptInt(fd, o[0], o[1]); err != nil || got != o[2] {
					return fmt.Errorf("option %d is %d, want %d: %w", o[1], got, o[2], err)
				}
				return nil
			})
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}

	b.Close()
	for host, text := range map[string]string{"b": "connection refused", "a": "no other host of this name", "x": "no other host of this name"} {
		p.want(handover.Want{Host: host})
		m, _ := p.next()
		for m.Failed != nil && strings.Contains(m.Failed.Text, "timeout") { // a dial may take 1 s: the machine is busy
			p.want(handover.Want{Host: host})
			m, _ = p.next()
		}
		if m.Failed == nil || m.Failed.Host != host || !strings.Contains(m.Failed.Text, text) {
			t.Errorf("%s: %+v", host, m.Failed)
		}
	}

	h.signal(syscall.SIGKILL)
	h.code()
	talk(t, outside, in)
	talk(t, out, there)

	// Another one takes its place.
	start(t, r, "--listen", r.a)
	p.accept()
	talk(t, peer(t, r.a), p.socket(handover.Socket{}))
}

// A socket of UDP is connected both ways.
func TestUDP(t *testing.T) {
	r := newRig(t)
	p := r.listen()
	start(t, r, "--listen", r.a)
	p.accept()
	from, err := net.ResolveUDPAddr("udp", r.b)
	if err != nil {
		t.Fatal(err)
	}
	to, err := net.ResolveUDPAddr("udp", r.a)
	if err != nil {
		t.Fatal(err)
	}
	b, err := net.DialUDP("udp", from, to)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	p.want(handover.Want{Host: "b", UDP: true})
	talk(t, p.socket(handover.Socket{Dialed: "b", UDP: true}), b)
}

// pfd may start after exanet-hostd and again. Without it nobody is served.
func TestPFDAgain(t *testing.T) {
	r := newRig(t)
	h := start(t, r, "--listen", r.a)
	h.await("waiting for pfd", "no such file or directory")
	if _, err := peer(t, r.a).Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("a connection without a pfd: %v", err)
	}
	p := r.listen()
	p.accept()
	p.end()
	h.await("pfd is away")
	p = r.listen()
	p.accept()
	talk(t, peer(t, r.a), p.socket(handover.Socket{}))
	for _, m := range []handover.Message{
		{Refused: &handover.Refused{Text: "--node-base is 7, and the list says 0"}}, {State: &handover.State{Host: "b", State: "up"}},
	} {
		if err := p.Send(&m, nil); err != nil {
			t.Fatal(err)
		}
	}
	h.await("pfd refuses the list", "--node-base is 7, and the list says 0")
	h.await("link", "to=b", "state=up")
	// A message that only exanet-hostd sends ends the connection, and the next one begins.
	if err := p.Send(&handover.Message{Failed: &handover.Failed{Host: "b"}}, nil); err != nil {
		t.Fatal(err)
	}
	h.await("pfd is away", "the other side sends such messages")
	p.accept()
}

// SIGHUP reads the file again; a bad one changes nothing and its line is in the log.
func TestReload(t *testing.T) {
	r := newRig(t)
	p := r.listen()
	h := start(t, r, "--listen", r.a)
	p.accept()
	r.edit(r.b, "192.0.2.7:1")
	h.signal(syscall.SIGHUP)
	if table := p.table(); table.Hosts[1].Address != "192.0.2.7:1" {
		t.Errorf("%+v", table)
	}
	r.edit("0x200-0x2ff", "0x100-0x2ff")
	h.signal(syscall.SIGHUP)
	h.await("hosts not reloaded", r.file+`:15: host b: pdids \"0x100-0x2ff\" overlap pdids \"0x100-0x1ff\" of host a (line 9)`)
	if err := os.Remove(filepath.Join(r.dir, "a.key")); err != nil {
		t.Fatal(err)
	}
	r.edit("0x100-0x2ff", "0x200-0x2ff")
	h.signal(syscall.SIGHUP)
	h.await("hosts not reloaded", "without its key")
	p.Conn.Close()
	if table := p.accept(); table.Hosts[1].Address != "192.0.2.7:1" || table.Hosts[1].PDIDs[0] != 0x200 {
		t.Errorf("after a bad file: %+v", table)
	}
	r.edit("cluster =", "tls = \"off\"\ntrusted-network = \"0.0.0.0/0\"\ncluster =")
	h.signal(syscall.SIGHUP)
	if table := p.table(); table.TLS {
		t.Errorf("%+v", table)
	}
}

// The service manager is told, and SIGTERM ends the program at once.
func TestServiceManager(t *testing.T) {
	r := newRig(t)
	r.notify = filepath.Join(t.TempDir(), "n")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: r.notify, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	told := func(want string) {
		t.Helper()
		b := make([]byte, 1000)
		if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(b); err != nil || !strings.HasPrefix(string(b[:n]), want) {
			t.Fatalf("%q, %v, want %q", b[:n], err, want)
		}
	}
	p := r.listen()
	h := start(t, r, "--listen", r.a)
	told("READY=1\nSTATUS=host a of lab: pfd is away, 0 of 1 links up")
	p.accept()
	told("READY=1\nSTATUS=host a of lab: pfd is connected, 0 of 1")
	h.signal(syscall.SIGHUP)
	told("RELOADING=1\nMONOTONIC_USEC=")
	told("READY=1\n")
	h.signal(syscall.SIGTERM)
	told("STOPPING=1\n")
	if c := h.code(); c != config.ExitOK {
		t.Errorf("exit code %d", c)
	}
}

// Without TLS only the trusted network is served.
func TestTrustedNetwork(t *testing.T) {
	r := newRig(t)
	ip, _, _ := net.SplitHostPort(r.a)
	r.edit("cluster =", fmt.Sprintf("tls = \"off\"\ntrusted-network = \"%s/30\"\ncluster =", ip))
	p := r.listen()
	start(t, r, "--listen", r.a)
	if table := p.accept(); table.TLS {
		t.Errorf("%+v", table)
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}}
	c, err := d.Dial("tcp", r.a)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("a stranger's connection: %v", err)
	}
	d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(strings.TrimSuffix(r.b, ":9480"))}
	if c, err = d.Dial("tcp", r.a); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	talk(t, c, p.socket(handover.Socket{}))
}

func TestBadUsage(t *testing.T) {
	r := newRig(t)
	used, err := net.Listen("tcp", r.a)
	if err != nil {
		t.Fatal(err)
	}
	defer used.Close()
	base := []string{"--pfd", r.pfd, "--hosts", r.file, "--name", "a"}
	other := filepath.Join(t.TempDir(), "other.toml")
	if err := os.WriteFile(other, []byte("cluster = \"lab\"\n\nhost = 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"x"}, config.ExitUsage, `accepts only flags, not "x"`},
		{[]string{"--host", "a"}, config.ExitUsage, "unknown flag: --host"},
		{[]string{"--log-level", "loud"}, config.ExitUsage, `--log-level "loud": want debug`},
		{[]string{"--listen", "9480"}, config.ExitUsage, `--listen: address "9480": want HOST:PORT`},
		{[]string{"--name", "c"}, config.ExitUsage, `no host "c": its hosts are a, b: name this one with --name`},
		{[]string{"--name", ""}, config.ExitUsage, "name this one with --name"},
		{[]string{"--name", "b", "--hosts", other}, config.ExitUsage, other + ":3: "},
		{[]string{"--hosts", other + "x"}, config.ExitUsage, "no such file or directory: copy it from where exanetctl host init was run"},
		{nil, config.ExitFailed, "address already in use: end the program that listens there, give host a another port in " + r.file + ", or name another address with --listen"},
		{[]string{"--listen", "192.0.2.1:1"}, config.ExitFailed, "name another address with --listen"},
		{[]string{"--check"}, config.ExitOK, r.file + " is valid for host a\n"},
		{[]string{"--version"}, config.ExitOK, "exanet-hostd version "},
		{[]string{"--help"}, config.ExitOK, "SIGHUP makes it read the list"},
	} {
		var out bytes.Buffer
		args := append(base[:len(base):len(base)], c.args...)
		if code := run(context.Background(), args, &out, &out); code != c.code || !strings.Contains(out.String(), c.want) {
			t.Errorf("%v: exit code %d, want %d, %s\twant %s", c.args, code, c.code, out.String(), c.want)
		}
	}
	if err := os.Remove(filepath.Join(r.dir, "a.key")); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if code := run(context.Background(), append(base, "--check"), &out, &out); code != config.ExitUsage || !strings.Contains(out.String(), r.file+":5: host a: certificate "+r.dir+"/a.pem without its key") {
		t.Errorf("exit code %d, %s", code, out.String())
	}
}

// Root's exanet-hostd takes the pfd of a user who alone makes sockets in the directory; others do not.
func TestTrusts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it gives directories to another user")
	}
	own, open := filepath.Join(t.TempDir(), "own"), filepath.Join(t.TempDir(), "open")
	for dir, mode := range map[string]os.FileMode{own: 0o755, open: 0o777} {
		if err := errors.Join(os.Mkdir(dir, mode), os.Chmod(dir, mode), os.Chown(dir, 1001, 1001)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		dir       string
		uid, euid int
		want      bool
	}{
		{own, 1001, 0, true}, {own, 1002, 0, false}, {own, 1001, 1002, false}, {open, 1001, 0, false}, {own, 0, 0, true}, {own + "x", 1001, 0, false},
	} {
		if got := trusts(filepath.Join(c.dir, "pfd.sock.hosts"), uint32(c.uid), c.euid); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
