package workload

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// peer carries out orders: a child process, or a process or goroutine at the other end of a
// connection.
type peer struct {
	name   string
	lines  *lines
	cmd    *exec.Cmd    // of a child
	stderr *tail        // of a child
	end    func() error // ends the peer
	slot   int

	once sync.Once
	err  error // the result of end
}

// endPatience is how long a test process may take to end by itself.
const endPatience = 5 * time.Second

func start(ctx context.Context, name string, o Options) (*peer, error) {
	if len(o.Command) == 0 {
		return nil, fmt.Errorf("%w: no command for the test processes", ErrRequest)
	}
	p := &peer{name: name, stderr: &tail{}, cmd: exec.Command(o.Command[0], o.Command[1:]...)}
	p.cmd.Env = append(os.Environ(), o.Env...)
	p.cmd.Stderr = p.stderr
	stdin, err := p.cmd.StdinPipe()
	stdout, outErr := p.cmd.StdoutPipe()
	if err = errors.Join(err, outErr); err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("%w %s: %w", errProcess, name, err)
	}
	p.lines = newLines(stdout, stdin)
	kill := func() { _ = p.cmd.Process.Kill() } // fails only if it has ended
	// At the end of its orders the process detaches and ends.
	forget := context.AfterFunc(ctx, func() {
		_ = stdin.Close() // fails only if it is closed
		time.AfterFunc(endPatience, kill)
	})
	p.end = func() error {
		err := stdin.Close()
		if errors.Is(err, os.ErrClosed) { // the context has ended
			err = nil
		}
		late := time.AfterFunc(endPatience, kill)
		if e := p.cmd.Wait(); e != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", name, e))
		}
		late.Stop()
		forget()
		return err
	}
	return p, nil
}

// connected returns the target at the other end of a connection. done, if not nil, receives
// the error with which the target ended.
func connected(c net.Conn, done <-chan error) *peer {
	return &peer{name: "target", lines: newLines(c, c), stderr: &tail{}, end: func() error {
		err := c.Close()
		if done != nil {
			err = errors.Join(err, <-done)
		}
		return err
	}}
}

// pid returns the process number of a child.
func (p *peer) pid() int { return p.cmd.Process.Pid }

func (p *peer) send(o order) error {
	if err := p.lines.send(o); err != nil {
		return p.gone(err)
	}
	return nil
}

func (p *peer) receive() (reply, error) {
	var r reply
	if err := p.lines.receive(&r); err != nil {
		return r, p.gone(err)
	}
	if r.Error != "" {
		if r.Skipped {
			return r, &skipped{p.name + ": " + r.Error}
		}
		return r, fmt.Errorf("%s: %w", p.name, errors.New(r.Error))
	}
	return r, nil
}

func (p *peer) call(o order) (reply, error) {
	if err := p.send(o); err != nil {
		return reply{}, err
	}
	return p.receive()
}

// gone closes a peer that does not answer, and returns an error with the cause and the last
// lines of its standard error.
func (p *peer) gone(cause error) error {
	end := p.close()
	text := strings.TrimSpace(p.stderr.String())
	switch {
	case text != "":
		return fmt.Errorf("%w %s ended (%w): %s", errProcess, p.name, errors.Join(cause, end), text)
	case end != nil:
		return fmt.Errorf("%w %s ended: %w", errProcess, p.name, end)
	}
	return fmt.Errorf("%w %s ended: %w", errProcess, p.name, cause)
}

// close ends the peer and waits for it. It may be called again and on a nil peer.
func (p *peer) close() error {
	if p == nil {
		return nil
	}
	p.once.Do(func() { p.err = p.end() })
	return p.err
}

// skipped is the error of a test process on a machine that cannot carry out the order.
type skipped struct{ text string }

func (s *skipped) Error() string        { return s.text }
func (s *skipped) Is(target error) bool { return target == ErrSkipped }

// errProcess means that a test process has ended or does not follow the protocol.
var errProcess = errors.New("test process")

// maxLine is the largest size of a line of the protocol, in bytes.
const maxLine = 1 << 20

// lines reads and writes lines of the protocol.
type lines struct {
	scan *bufio.Scanner
	enc  *json.Encoder
}

func newLines(r io.Reader, w io.Writer) *lines {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 4096), maxLine)
	return &lines{scan: s, enc: json.NewEncoder(w)}
}

func (l *lines) send(v any) error {
	if err := l.enc.Encode(v); err != nil {
		return fmt.Errorf("%w: %w", errProcess, err)
	}
	return nil
}

// receive reads one line. It returns io.EOF at the end.
func (l *lines) receive(v any) error {
	if !l.scan.Scan() {
		if err := l.scan.Err(); err != nil {
			return fmt.Errorf("%w: %w", errProcess, err)
		}
		return io.EOF
	}
	if err := json.Unmarshal(l.scan.Bytes(), v); err != nil {
		return fmt.Errorf("%w: not a line of the protocol: %w", errProcess, err)
	}
	return nil
}

// tail keeps the end of a process's standard error.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

const tailSize = 4 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(b)
	if n := t.buf.Len() - tailSize; n > 0 {
		t.buf.Next(n)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}
