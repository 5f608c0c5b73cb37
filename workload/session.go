package workload

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/internal/maybe"
)

// Options say where the two test processes attach, and how.
type Options struct {
	Socket   string // control socket of pfd
	From, To int    // nodes of the initiator and of the target
	// ToSocket is the control socket of the target's pfd, where that is another
	// (Pair); "": Socket.
	ToSocket string
	// Group is what both attach in; "": one that nobody else has.
	Group  string
	Method string // page-in method: gup, touch, uffd, populate
	Policy string // p1, p4, pa, adaptive
	// Trust are users whose pfd may reach the memory of the test processes, besides those
	// that every process trusts (rdma.Options).
	Trust []uint32
	// Command starts a test process: it runs Process on its standard streams.
	Command []string
	// Env is added to the environment of the test processes.
	Env []string
}

// Daemon is what is asked of pfd: a control.Client.
type Daemon interface {
	Status(ctx context.Context) (control.Status, error)
	Nodes(ctx context.Context, node int) ([]control.Node, error)
	Domains(ctx context.Context, node int) ([]control.Domain, error)
	Counters(ctx context.Context, node int) ([]control.Counter, error)
	Faults(ctx context.Context, node, n int) ([]control.Fault, error)
}

// Session is an initiator and a target, attached. It is used by one goroutine.
type Session struct {
	initiator, target *peer
	daemon            int  // pid
	unseen            bool // pfd is in another PID namespace, or /proc hides it
	transfers         uint64
	arrived           bool // the last of these
	seed              uint64
	warm              string // the target's buffer for warming up
}

// ErrNode says that pfd has no such node.
var ErrNode = errors.New("no such node")

// Open starts both processes and has them attach. seed is the patterns'.
func Open(ctx context.Context, d Daemon, o Options, seed uint64) (*Session, error) {
	status, err := d.Status(ctx)
	if err != nil {
		return nil, err
	}
	nodes, err := d.Nodes(ctx, control.AllNodes)
	if err != nil {
		return nil, err
	}
	from, err := nodeID(nodes, o.From)
	if err != nil {
		return nil, err
	}
	to, err := nodeID(nodes, o.To)
	if err != nil {
		return nil, err
	}
	name := o.Group
	if name == "" {
		if name, err = groupName(); err != nil {
			return nil, err
		}
	}
	s := &Session{daemon: status.PID, seed: seed}
	_, err = pinned(status.PID)
	s.unseen = err != nil
	if s.initiator, err = start(ctx, "initiator", o); err != nil {
		return nil, err
	}
	if s.target, err = start(ctx, "target", o); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	at := attachment{Socket: o.Socket, Node: from, Group: name, Method: o.Method, Policy: o.Policy, Trust: o.Trust}
	target := at
	target.Node = to
	if o.ToSocket != "" {
		target.Socket = o.ToSocket
	}
	a, b, err := s.both(order{Op: opAttach, Attach: at}, order{Op: opAttach, Attach: target})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.initiator.slot, s.target.slot = a.Attached.Slot, b.Attached.Slot
	return s, nil
}

// nodeID gives the coordinates of the node of an index.
func nodeID(nodes []control.Node, index int) (uint32, error) {
	for _, n := range nodes {
		if n.Index == index {
			return n.ID, nil
		}
	}
	return 0, fmt.Errorf("%w: node %d: this pfd has %d, counted from 0 (pfd --nodes)", ErrNode, index, len(nodes))
}

// skipped is what a test process says that the machine cannot do.
type skipped struct{ text string }

func (s *skipped) Error() string        { return s.text }
func (s *skipped) Is(target error) bool { return target == ErrSkipped }

// groupName gives a group to the session alone.
func groupName() (string, error) {
	var b [6]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("random group name: %w", err)
	}
	return "workload-" + hex.EncodeToString(b[:]), nil
}

// both gives each process an order, and takes the replies: they work at the
// same time.
func (s *Session) both(initiator, target order) (a, b reply, err error) {
	if err := errors.Join(s.initiator.send(initiator), s.target.send(target)); err != nil {
		return a, b, err
	}
	a, err1 := s.initiator.receive()
	b, err2 := s.target.receive()
	return a, b, errors.Join(err1, err2)
}

// Transfer is one transfer to make.
type Transfer struct {
	Size                 uint64
	SrcOffset, DstOffset uint64 // of the buffers, from a 16 KiB boundary
	Src, Dst             State
	Waiting              Waiting // Poll or Wait
	Timeout              time.Duration
	// Warm has a small write into present memory come right before, which is not
	// measured: pfd and its threads are then awake, as they are where transfers
	// follow one another. Otherwise they have gone to sleep while the buffers
	// were made and checked.
	Warm bool
	// Read has the initiator read the target's buffer: Src is the target's then.
	Read   bool
	Urgent bool // high class
}

// Outcome is how a transfer went.
type Outcome struct {
	Arrived bool
	Latency time.Duration // from the initiator's call to its seeing the end
	Pinned  maybe.Number  // VmLck + VmPin of the three processes, bytes
	// Failure is why the transfer did not arrive; Wrong is what is wrong with a
	// buffer.
	Failure, Wrong string
}

// Do makes both buffers anew, transfers, and checks every byte. An error says
// that the session is of no use any more; the outcome may still tell why.
func (s *Session) Do(t Transfer) (Outcome, error) {
	s.transfers++
	s.arrived = false
	src := prepare{State: t.Src, Size: t.Size, Offset: t.SrcOffset, Seed: word(s.seed, 2*s.transfers)}
	dst := prepare{State: t.Dst, Size: t.Size, Offset: t.DstOffset, Seed: word(s.seed, 2*s.transfers+1)}
	mine, theirs := src, dst
	if t.Read {
		mine, theirs = dst, src
	}
	_, b, err := s.both(order{Op: opPrepare, Prepare: mine}, order{Op: opPrepare, Prepare: theirs})
	if err != nil {
		return Outcome{}, err
	}
	var out Outcome
	w := writeOrder{Remote: b.Remote, Waiting: t.Waiting, Timeout: t.Timeout, Read: t.Read, Urgent: t.Urgent}
	if t.Warm {
		if err := s.makeWarm(); err != nil {
			return out, err
		}
		w.Warm = s.warm
	}
	r, err := s.initiator.call(order{Op: opWrite, Write: w})
	if err != nil {
		return out, err
	}
	s.arrived = r.Outcome.Done
	out.Arrived, out.Failure, out.Latency = r.Outcome.Done, r.Outcome.Error, time.Duration(r.Outcome.LatencyNS)
	if out.Pinned, err = s.pinned(); err != nil {
		return out, err
	}
	if r.Outcome.Stuck {
		return out, fmt.Errorf("%w: %s", errProcess, out.Failure)
	}
	want := verify{Arrived: out.Arrived, Source: src.content(), SourceData: src.data()}
	// What cannot be written must be as it was; elsewhere blocks that came
	// before the failure may have been written.
	want.Partial = !out.Arrived && t.Dst != ReadOnly && t.Dst != Unmapped
	look := [2]order{{Op: opVerify}, {Op: opVerify, Verify: want}}
	if t.Read {
		look[0], look[1] = look[1], look[0]
	}
	a, b, err := s.both(look[0], look[1])
	if err != nil {
		return out, err
	}
	if t.Read {
		a, b = b, a
	}
	for _, side := range []struct {
		name    string
		verdict verdict
	}{{"source", a.Verdict}, {"destination", b.Verdict}} {
		if !side.verdict.ok() && out.Wrong == "" {
			out.Wrong = fmt.Sprintf("%s buffer: %v", side.name, side.verdict)
		}
	}
	return out, nil
}

// makeWarm has both processes make their buffers for warming up, once.
func (s *Session) makeWarm() error {
	if s.warm != "" {
		return nil
	}
	_, b, err := s.both(order{Op: opWarm}, order{Op: opWarm})
	s.warm = b.Remote
	return err
}

// pinned sums VmLck and VmPin of the three processes.
func (s *Session) pinned() (maybe.Number, error) {
	var sum int64
	for _, p := range []struct {
		name string
		pid  int
	}{{"initiator", s.initiator.pid()}, {"target", s.target.pid()}, {"pfd", s.daemon}} {
		if p.pid == s.daemon && s.unseen {
			continue
		}
		n, err := pinned(p.pid)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", p.name, err)
		}
		sum += n
	}
	if s.unseen {
		return maybe.Unknown(), nil
	}
	return maybe.Number(sum), nil
}

// Close ends both processes and waits for them.
func (s *Session) Close() error {
	var errs []error
	for _, p := range []*peer{s.initiator, s.target} {
		if p != nil {
			errs = append(errs, p.close())
		}
	}
	return errors.Join(errs...)
}

// peer is a test process, as its parent has it.
type peer struct {
	name   string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stderr *tail
	lines  *lines
	slot   int
	forget func() bool // the context

	once sync.Once
	err  error // of the end
}

// endPatience is how long a test process may take to end by itself.
const endPatience = 5 * time.Second

func start(ctx context.Context, name string, o Options) (*peer, error) {
	if len(o.Command) == 0 {
		return nil, fmt.Errorf("%w: no command for the test processes", ErrRequest)
	}
	p := &peer{name: name, stderr: &tail{}}
	p.cmd = exec.Command(o.Command[0], o.Command[1:]...)
	p.cmd.Env = append(os.Environ(), o.Env...)
	p.cmd.Stderr = p.stderr
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("%w %s: %w", errProcess, name, err)
	}
	p.stdin = stdin
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("%w %s: %w", errProcess, name, err)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w %s: %w", errProcess, name, err)
	}
	p.lines = newLines(stdout, stdin)
	// The process ends when its orders do, and gives its slot back in good order.
	p.forget = context.AfterFunc(ctx, func() {
		_ = stdin.Close() // closed already is as good
		time.AfterFunc(endPatience, p.kill)
	})
	return p, nil
}

// kill ends a process that does not end by itself. Too late is no error.
func (p *peer) kill() { _ = p.cmd.Process.Kill() }

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

// close ends the process and waits for it. It may be called again.
func (p *peer) close() error {
	p.once.Do(func() {
		// It may be closed already, where the context has ended.
		if err := p.stdin.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			p.err = err
		}
		kill := time.AfterFunc(endPatience, p.kill)
		err := p.cmd.Wait()
		kill.Stop()
		p.forget()
		if err != nil {
			p.err = errors.Join(p.err, fmt.Errorf("%s: %w", p.name, err))
		}
	})
	return p.err
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
