package netlink

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMain lets the test binary be another process, which forges messages or receives them on an
// inherited descriptor.
func TestMain(m *testing.M) {
	switch os.Getenv("NETLINK_TEST_CHILD") {
	case "":
		os.Exit(m.Run())
	case "forge":
		childForge()
	case "receive":
		childReceive()
	}
}

// childForge sends faults from its own socket, with the given port id (0: any), and prints the
// kernel's answer to each.
func childForge() {
	to, _ := strconv.ParseUint(os.Args[1], 10, 32)
	own, _ := strconv.ParseUint(os.Args[2], 10, 32)
	fd, err := openPort(uint32(own))
	if err != nil {
		fmt.Println(err)
		return
	}
	for i := range 3 {
		f := testFault(i)
		b, err := AppendMessage(nil, &f, 1, uint32(own))
		if err == nil {
			err = unix.Sendto(fd, b, unix.MSG_DONTWAIT, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: uint32(to)})
		}
		fmt.Println(err)
	}
}

// childReceive receives three faults on descriptor 3 from the given port and pid and prints them.
func childReceive() {
	port, _ := strconv.ParseUint(os.Args[1], 10, 32)
	pid, _ := strconv.ParseInt(os.Args[2], 10, 32)
	uid, _ := strconv.ParseUint(os.Args[3], 10, 32)
	r, err := FromFD(3, Credentials{Port: uint32(port), PID: int32(pid), UID: uint32(uid)})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("ready")
	for range 3 {
		f, err := r.Receive()
		if err != nil {
			fmt.Println(err)
			return
		}
		text, _ := f.AppendText(nil)
		fmt.Println(string(text))
	}
	fmt.Printf("%+v\n", r.Counters())
}

// child runs the test binary as another process until it ends and returns its output's lines.
func child(t *testing.T, mode string, files []*os.File, args ...string) []string {
	t.Helper()
	c := exec.Command(os.Args[0], args...)
	c.Env = append(os.Environ(), "NETLINK_TEST_CHILD="+mode)
	c.ExtraFiles = files
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("child: %v: %s", err, out)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

func testFault(i int) Fault {
	f := Fault{Source: 3, Transaction: 7, Sequence: 11, PDID: 13, VA: 0x1000, Write: true, Pages: 1}
	f.VA += 0x1000 << (8 * i) // 0x2000, 0x101000, 0x10001000
	f.Pages += uint16(i)
	return f
}

// openPort creates a socket with the given port id.
func openPort(port uint32) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_USERSOCK)
	if err != nil {
		return -1, err
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port}); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func openSender(t *testing.T) *Sender {
	t.Helper()
	s, err := OpenSender()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func us(s *Sender) Credentials {
	return Credentials{Port: s.Port(), PID: int32(os.Getpid()), UID: uint32(os.Getuid())}
}

// receive creates a receiver as pfd and the library do together.
func receive(t *testing.T, s *Sender) (*Receiver, uint32) {
	t.Helper()
	f, port, err := NewReceiver(s.Port())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd, err := unix.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	return fromFD(t, fd, us(s)), port
}

// receiveOpen creates a receiver whose socket is not connected, so that only the library's own
// checks apply.
func receiveOpen(t *testing.T, from Credentials) (*Receiver, uint32) {
	t.Helper()
	fd, port, err := open()
	if err != nil {
		t.Fatal(err)
	}
	return fromFD(t, fd, from), port
}

func fromFD(t *testing.T, fd int, from Credentials) *Receiver {
	t.Helper()
	r, err := FromFD(fd, from)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func (r *Receiver) want(t *testing.T, want Fault) {
	t.Helper()
	if got, err := r.Receive(); err != nil || got != want {
		t.Fatalf("received %+v %v, want %+v", got, err, want)
	}
}

// poll receives without waiting; it returns false if no valid message has arrived.
func (r *Receiver) poll() (f Fault, ok bool, err error) {
	for {
		got := false
		if err := r.raw.Control(func(fd uintptr) { got = r.recvmsg(fd) }); err != nil || !got {
			return Fault{}, false, err
		}
		if f, ok, err := r.judge(); ok || err != nil {
			return f, ok, err
		}
	}
}

func TestSendReceive(t *testing.T) {
	s := openSender(t)
	r, port := receive(t, s)
	if port == s.Port() || port == 0 {
		t.Fatalf("ports %d and %d", s.Port(), port)
	}
	for i := range 3 {
		if err := s.Send(port, testFault(i)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		r.want(t, testFault(i))
	}
	if c := r.Counters(); c != (ReceiverCounters{Received: 3}) {
		t.Errorf("receiver %+v", c)
	}
	if c := s.Counters(); c != (SenderCounters{Sent: 3}) {
		t.Errorf("sender %+v", c)
	}
}

// TestAnotherProcessReceives passes the socket to another process, as Attach does.
func TestAnotherProcessReceives(t *testing.T) {
	s := openSender(t)
	f, port, err := NewReceiver(s.Port())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := exec.Command(os.Args[0], fmt.Sprint(s.Port()), fmt.Sprint(os.Getpid()), fmt.Sprint(os.Getuid()))
	c.Env = append(os.Environ(), "NETLINK_TEST_CHILD=receive")
	c.ExtraFiles = []*os.File{f}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	var got []string
	for lines.Scan() {
		got = append(got, lines.Text())
		if len(got) == 1 {
			for i := range 3 {
				if err := s.Send(port, testFault(i)); err != nil {
					t.Error(err)
				}
			}
		}
	}
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
	want := []string{"ready"}
	for i := range 3 {
		f := testFault(i)
		text, _ := f.AppendText(nil)
		want = append(want, string(text))
	}
	want = append(want, "{Received:3 Forged:0 Malformed:0 Overruns:0}")
	if strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("the other process received %q, want %q", got, want)
	}
}

// TestConnectedRefusesOthers: only the sender can reach, or fill, the socket that pfd creates.
func TestConnectedRefusesOthers(t *testing.T) {
	s := openSender(t)
	r, port := receive(t, s)
	other := openSender(t)
	if err := other.Send(port, testFault(0)); !errors.Is(err, ErrNoReceiver) {
		t.Errorf("another socket of this process: %v", err)
	}
	for _, line := range child(t, "forge", nil, fmt.Sprint(port), "0") {
		if line != unix.ECONNREFUSED.Error() {
			t.Errorf("another process: %s", line)
		}
	}
	if err := s.Send(port, testFault(1)); err != nil {
		t.Fatal(err)
	}
	r.want(t, testFault(1))
	if c := r.Counters(); c != (ReceiverCounters{Received: 1}) {
		t.Errorf("%+v", c)
	}
}

// TestForgedIsDropped: messages of another port id, from this process or another, are counted and
// dropped.
func TestForgedIsDropped(t *testing.T) {
	s := openSender(t)
	r, port := receiveOpen(t, us(s))
	if err := openSender(t).Send(port, testFault(0)); err != nil {
		t.Fatal(err)
	}
	for _, line := range child(t, "forge", nil, fmt.Sprint(port), "0") {
		if line != "<nil>" {
			t.Fatalf("the forger could not send: %s", line)
		}
	}
	if err := s.Send(port, testFault(2)); err != nil {
		t.Fatal(err)
	}
	r.want(t, testFault(2))
	if c := r.Counters(); c != (ReceiverCounters{Received: 1, Forged: 4}) {
		t.Errorf("%+v", c)
	}
}

// Messages to the sender's own socket are discarded and counted, each time the socket is full.
func TestStraysAreDrained(t *testing.T) {
	s, stranger := openSender(t), openSender(t)
	for range 2 {
		var sent uint64
		for ; ; sent++ {
			if err := stranger.Send(s.Port(), testFault(0)); errors.Is(err, ErrFull) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if n := s.Drain(); n != sent || n == 0 {
			t.Errorf("%d messages drained of %d", n, sent)
		}
	}
	if n := s.Drain(); n != 0 {
		t.Errorf("%d messages drained of none", n)
	}
	// It still sends.
	r, port := receive(t, s)
	if err := s.Send(port, testFault(1)); err != nil {
		t.Fatal(err)
	}
	r.want(t, testFault(1))
	if err := s.Close(); err != nil || s.Drain() != 0 {
		t.Errorf("closed: %v", err)
	}
}

// TestPortTakenOver: after the sender has closed, another process takes its port id. Its
// credentials expose it, even on a connected socket.
func TestPortTakenOver(t *testing.T) {
	s := openSender(t)
	r, port := receive(t, s)
	own := s.Port()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, line := range child(t, "forge", nil, fmt.Sprint(port), fmt.Sprint(own)) {
		if line != "<nil>" {
			t.Fatalf("the forger could not send: %s", line)
		}
	}
	// The forger has ended. The sender opens its port again, and its messages arrive after the
	// forged ones.
	fd, err := openPort(own)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	f := testFault(2)
	b, err := AppendMessage(nil, &f, 1, own)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port}); err != nil {
		t.Fatal(err)
	}
	r.want(t, f)
	if c := r.Counters(); c != (ReceiverCounters{Received: 1, Forged: 3}) {
		t.Errorf("%+v", c)
	}
}

// TestCredentials: the port id alone is not enough.
func TestCredentials(t *testing.T) {
	s := openSender(t)
	for name, from := range map[string]Credentials{
		"another pid": {Port: s.Port(), PID: int32(os.Getpid()) + 1, UID: uint32(os.Getuid())},
		"another uid": {Port: s.Port(), PID: int32(os.Getpid()), UID: uint32(os.Getuid()) + 1},
		"the kernel":  {Port: 0},
	} {
		r, port := receiveOpen(t, from)
		if err := s.Send(port, testFault(0)); err != nil {
			t.Fatal(err)
		}
		if f, ok, err := r.poll(); ok || err != nil {
			t.Fatalf("%s: received %+v %v", name, f, err)
		}
		if c := r.Counters(); c != (ReceiverCounters{Forged: 1}) {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

// TestFull: sending to a process that does not read returns ErrFull at once and never blocks, and
// no accepted message is lost.
func TestFull(t *testing.T) {
	s := openSender(t)
	r, port := receive(t, s)
	sent := 0
	for ; sent < 1<<20; sent++ {
		err := s.Send(port, testFault(0))
		if errors.Is(err, ErrFull) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("full after %d messages", sent)
	if c := s.Counters(); c.Full != 1 || c.Sent != uint64(sent) || sent == 1<<20 {
		t.Fatalf("%+v after %d", c, sent)
	}
	got := 0
	for {
		_, ok, err := r.poll()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		got++
	}
	if c := r.Counters(); got != sent || c.Overruns != 0 {
		t.Errorf("received %d of %d, %+v", got, sent, c)
	}
	if err := s.Send(port, testFault(1)); err != nil {
		t.Fatalf("after the receiver has read: %v", err)
	}
	r.want(t, testFault(1))
}

func TestNoReceiver(t *testing.T) {
	s := openSender(t)
	r, port := receive(t, s)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	for _, p := range []uint32{port, 0} {
		if err := s.Send(p, testFault(0)); !errors.Is(err, ErrNoReceiver) {
			t.Errorf("port %d: %v", p, err)
		}
	}
	bad := testFault(0)
	bad.Pages = 0
	if err := s.Send(port, bad); !errors.Is(err, ErrRange) {
		t.Errorf("no pages: %v", err)
	}
	if c := s.Counters(); c != (SenderCounters{NoReceiver: 2, Failed: 1}) {
		t.Errorf("%+v", c)
	}
}

// TestMalformed: invalid messages from the right sender.
func TestMalformed(t *testing.T) {
	s := openSender(t)
	r, port := receive(t, s)
	good, err := AppendMessage(nil, &Fault{VA: 0x1000, Pages: 1}, 1, s.Port())
	if err != nil {
		t.Fatal(err)
	}
	to := &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port}
	for _, b := range [][]byte{
		{}, {1}, good[:20], append(good[:len(good):len(good)], good...), make([]byte, 16),
		append(good[:len(good):len(good)], make([]byte, 4096)...),
	} {
		if err := unix.Sendto(s.fd, b, unix.MSG_DONTWAIT, to); err != nil {
			// The kernel refuses an empty message.
			if len(b) == 0 {
				continue
			}
			t.Fatalf("%d bytes: %v", len(b), err)
		}
	}
	if err := s.Send(port, testFault(0)); err != nil {
		t.Fatal(err)
	}
	r.want(t, testFault(0))
	if c := r.Counters(); c.Received != 1 || c.Malformed < 5 || c.Malformed > 6 || c.Forged != 0 {
		t.Errorf("%+v", c)
	}
}

func TestCloseEndsReceive(t *testing.T) {
	s := openSender(t)
	r, port := receive(t, s)
	done := make(chan error)
	go func() {
		_, err := r.Receive()
		for err == nil {
			_, err = r.Receive()
		}
		done <- err
	}()
	if err := s.Send(port, testFault(0)); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, ErrClosed) {
		t.Errorf("Receive ended with %v", err)
	}
	if err := r.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if _, err := r.Receive(); !errors.Is(err, ErrClosed) {
		t.Errorf("Receive after Close: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("second Close of the sender: %v", err)
	}
	if err := s.Send(port, testFault(0)); !errors.Is(err, ErrClosed) {
		t.Errorf("Send after Close: %v", err)
	}
}

func TestFromFDRefuses(t *testing.T) {
	p, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	defer w.Close()
	fd, err := unix.Dup(int(p.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := FromFD(fd, Credentials{}); err == nil {
		t.Error("a pipe was taken for a netlink socket")
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); !errors.Is(err, unix.EBADF) {
		t.Errorf("the descriptor is still open: %v", err)
	}
	if _, err := FromFD(-1, Credentials{}); err == nil {
		t.Error("descriptor -1 was taken")
	}
}

func TestSendAllocatesNothing(t *testing.T) {
	s := openSender(t)
	r, port := receive(t, s)
	f := testFault(2)
	if n := testing.AllocsPerRun(100, func() {
		if err := s.Send(port, f); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a message", n)
	}
	_ = r
}

func BenchmarkSendReceive(b *testing.B) {
	s, err := OpenSender()
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	file, port, err := NewReceiver(s.Port())
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	fd, err := unix.Dup(int(file.Fd()))
	if err != nil {
		b.Fatal(err)
	}
	r, err := FromFD(fd, us(s))
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	f := testFault(2)
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Send(port, f); err != nil {
			b.Fatal(err)
		}
		if got, err := r.Receive(); err != nil || got != f {
			b.Fatal(got, err)
		}
	}
}

// TestDriversForm: on a board a driver in the kernel sends the faults. Its message is a string with
// its NUL (000 table 3.1), in a header without port id and number.
func TestDriversForm(t *testing.T) {
	s := openSender(t) // in the kernel's place, whose port id nobody else can use
	r, port := receive(t, s)
	const text = "01234503a7123453f12345beef1"
	want, err := ParseFault([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, headerSize, 64)
	b = append(b, text+"\x00"...)
	binary.NativeEndian.PutUint32(b[headerLength:], uint32(len(b)))
	binary.NativeEndian.PutUint16(b[headerType:], MessageType)
	to := &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port}
	for len(b)%headerAlign != 0 {
		b = append(b, 0)
	}
	if err := unix.Sendto(s.fd, b, unix.MSG_DONTWAIT, to); err != nil {
		t.Fatal(err)
	}
	r.want(t, want)
}
