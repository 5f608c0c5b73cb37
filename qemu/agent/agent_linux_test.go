package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// ends returns both ends of a port.
func ends(t *testing.T) (host, guest net.Conn) {
	t.Helper()
	host, guest = net.Pipe()
	t.Cleanup(func() { _ = host.Close(); _ = guest.Close() })
	return host, guest
}

// served runs the guest's side until the host's side is closed.
func served(t *testing.T) net.Conn {
	t.Helper()
	host, guest := ends(t)
	over := make(chan struct{})
	go func() { defer close(over); serve(newStream(guest), func(int64) {}) }()
	t.Cleanup(func() { _ = host.Close(); <-over })
	return host
}

func TestRun(t *testing.T) {
	for _, c := range []struct {
		name        string
		args        []string
		in          string
		code        int
		out, errors string
	}{
		{"output", []string{"sh", "-c", "echo out; echo err >&2"}, "", 0, "out\n", "err\n"},
		{"exit code", []string{"sh", "-c", "exit 7"}, "", 7, "", ""},
		{"signal", []string{"sh", "-c", "kill -9 $$"}, "", 137, "", ""},
		{"input", []string{"cat"}, strings.Repeat("0123456789", 20000), 0, strings.Repeat("0123456789", 20000), ""},
		{"what stays in the background does not hold it up", []string{"sh", "-c", "sleep 5 & echo on"}, "", 0, "on\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out, said bytes.Buffer
			code, err := converse(newStream(served(t)), Command{Exec: Exec{Args: c.args}, Stdin: strings.NewReader(c.in), Stdout: &out, Stderr: &said})
			if err != nil || code != c.code || out.String() != c.out || said.String() != c.errors {
				t.Errorf("exit code %d, error %v, %d bytes of output, %q; want %d, %d bytes, %q", code, err, out.Len(), said.String(), c.code, len(c.out), c.errors)
			}
		})
	}
}

// A command that is too long for the guest is refused at once.
func TestLongCommand(t *testing.T) {
	host := served(t)
	over := make(chan error, 1)
	go func() {
		_, err := converse(newStream(host), Command{Exec: Exec{Args: []string{"true", strings.Repeat("x", maxLine)}}})
		over <- err
	}()
	select {
	case err := <-over:
		if !errors.Is(err, ErrMessage) || errors.Is(err, ErrGone) {
			t.Errorf("%v", err)
		}
	case <-time.After(2 * time.Minute):
		t.Error("the too long command is not refused at once")
	}
}

func TestNotStarted(t *testing.T) {
	code, err := converse(newStream(served(t)), Command{Exec: Exec{Args: []string{"/no/such/program"}}})
	if !errors.Is(err, ErrStart) || code != codeNotStarted {
		t.Errorf("exit code %d, error %v", code, err)
	}
}

// An abandoned session, even in the middle of a line, does not disturb the next one on its
// port, and its command is killed.
func TestNextSession(t *testing.T) {
	host := served(t)
	b, err := json.Marshal(Message{Session: "old", Exec: &Exec{Args: []string{"sleep", "60"}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := host.Write(append(append(b, '\n'), `{"session":"old","stdin":"AA`...)); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	code, err := converse(newStream(host), Command{Exec: Exec{Args: []string{"echo", "new"}}, Stdout: &out})
	if err != nil || code != 0 || out.String() != "new\n" {
		t.Errorf("exit code %d, error %v, output %q", code, err, out.String())
	}
}

func TestTerminal(t *testing.T) {
	var out bytes.Buffer
	code, err := converse(newStream(served(t)), Command{Exec: Exec{Args: []string{"sh", "-c", "test -t 0 && stty size"}, TTY: &Size{Rows: 33, Columns: 99}}, Stdout: &out})
	if err != nil || code != 0 || out.String() != "33 99\r\n" {
		t.Errorf("exit code %d, error %v, output %q", code, err, out.String())
	}
}

// The host is notified when a guest ends.
func TestGone(t *testing.T) {
	host, guest := ends(t)
	go func() {
		_, _ = newStream(guest).receive()
		_ = guest.Close()
	}()
	if _, err := converse(newStream(host), Command{Exec: Exec{Args: []string{"true"}}}); !errors.Is(err, ErrGone) {
		t.Errorf("error %v, want ErrGone", err)
	}
}

// The host does not wait for a command to read its input after the command has ended.
func TestNobodyReads(t *testing.T) {
	code, err := converse(newStream(served(t)), Command{Exec: Exec{Args: []string{"sleep", "0.1"}}, Stdin: strings.NewReader(strings.Repeat("x", 8<<20))})
	if err != nil || code != 0 {
		t.Errorf("exit code %d, error %v", code, err)
	}
}

// The guest notices a disconnect of the host while the command reads nothing, and kills the
// command.
func TestHostGoes(t *testing.T) {
	host, guest := ends(t)
	over := make(chan struct{})
	go func() { defer close(over); serve(newStream(guest), func(int64) {}) }()
	r, w := io.Pipe()
	full := make(chan struct{})
	var taken atomic.Int64
	go func() {
		b := make([]byte, chunk)
		for {
			if _, err := w.Write(b); err != nil {
				return
			}
			if taken.Add(1) == window {
				close(full)
			}
		}
	}()
	t.Cleanup(func() { _ = r.Close() })
	out, begun := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, err := converse(newStream(host), Command{Exec: Exec{Args: []string{"sh", "-c", "echo begun; exec sleep 600"}}, Stdin: r, Stdout: begun})
		if !errors.Is(err, ErrGone) {
			t.Errorf("error %v, want ErrGone", err)
		}
	}()
	if _, err := out.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	<-full
	if err := host.Close(); err != nil {
		t.Error(err)
	}
	for _, c := range []chan struct{}{ended, over} {
		select {
		case <-c:
		case <-time.After(2 * time.Minute):
			t.Fatal("a side does not notice")
		}
	}
	// The pipe to the command takes two messages, and one waits for room.
	if n := taken.Load(); n > window+4 {
		t.Errorf("the host has accepted %d messages for a command that reads none: want %d and a few", n, window)
	}
}

// flicker is a port whose driver notices the previous host's disconnect late: before each read
// that returns data, some reads return an end.
type flicker struct {
	net.Conn
	ends, left int
}

func (f *flicker) Read(b []byte) (int, error) {
	if f.left > 0 {
		f.left--
		return 0, io.EOF
	}
	f.left = f.ends
	return f.Conn.Read(b)
}

// A session survives an end of its port that belongs to the previous session.
func TestLateEnd(t *testing.T) {
	host, guest := ends(t)
	over := make(chan struct{})
	go func() {
		defer close(over)
		serve(newStream(port{&flicker{Conn: guest, ends: 2}}), func(int64) {})
	}()
	var out bytes.Buffer
	code, err := converse(newStream(host), Command{Exec: Exec{Args: []string{"sh", "-c", "read a; echo $a"}}, Stdin: strings.NewReader("word\n"), Stdout: &out})
	if err != nil || code != 0 || out.String() != "word\n" {
		t.Errorf("exit code %d, error %v, output %q", code, err, out.String())
	}
	if err := host.Close(); err != nil {
		t.Error(err)
	}
	<-over
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{`{"session":"a","exec":{"args":["sh"],"tty":{"rows":1,"columns":2}}}`, `{"session":"a","stdin":"AA=="}`, `{"session":"a","exit":{"code":3}}`, `{`, `{"session":"a","exec":{}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := Decode(line)
		if err != nil {
			if !errors.Is(err, ErrMessage) {
				t.Errorf("error %v", err)
			}
			return
		}
		if m.Session == "" || m.Exec != nil && len(m.Exec.Args) == 0 {
			t.Errorf("%q is decoded as %+v", line, m)
		}
	})
}
