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

// peer is what obeys orders: a test process that this one has started, or a process, or
// a part of this one, at the other end of a connection.
type peer struct {
	name   string
	lines  *lines
	cmd    *exec.Cmd    // of a child
	stderr *tail        // of a child
	end    func() error // ends it
	slot   int

	once sync.Once
	err  error // of the end
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
	kill := func() { _ = p.cmd.Process.Kill() } // too late is no error
	// The process ends when its orders do, and gives its slot back in good order.
	forget := context.AfterFunc(ctx, func() {
		_ = stdin.Close() // closed already is as good
		time.AfterFunc(endPatience, kill)
	})
	p.end = func() error {
		// It may be closed already, where the context has ended.
		err := stdin.Close()
		if errors.Is(err, os.ErrClosed) {
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

// connected returns the target at the other end of a connection. done, where it is not
// nil, says how it ended.
func connected(c net.Conn, done <-chan error) *peer {
	return &peer{name: "target", lines: newLines(c, c), stderr: &tail{}, end: func() error {
		err := c.Close()
		if done != nil {
			err = errors.Join(err, <-done)
		}
		return err
	}}
}

// pid returns that of a child.
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

// gone says why a process does not answer: how it ended and its last words.
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

// close ends what obeys, if there is one, and waits for it. It may be called again.
func (p *peer) close() error {
	if p == nil {
		return nil
	}
	p.once.Do(func() { p.err = p.end() })
	return p.err
}

// skipped is what a test process says that the machine cannot do.
type skipped struct{ text string }

func (s *skipped) Error() string        { return s.text }
func (s *skipped) Is(target error) bool { return target == ErrSkipped }

// errProcess says that a test process is gone or does not follow the protocol.
var errProcess = errors.New("test process")

// maxLine bounds a line of the protocol, bytes.
const maxLine = 1 << 20

// lines reads and writes the protocol's lines.
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

// receive reads one line; its error is io.EOF at the end.
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

// tail keeps the last words of a process.
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
