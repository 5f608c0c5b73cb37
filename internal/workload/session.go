package workload

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/maybe"
	"github.com/exanet/pfd/internal/procstatus"
	"github.com/exanet/pfd/rdma"
)

// Options describe where and how the two test processes attach.
type Options struct {
	Socket   string // control socket of pfd
	From, To int    // nodes of the initiator and of the target, by their ids; AnyNode until SetNodes
	// ToSocket is the control socket of the target's pfd if it has its own pfd
	// (Pair); "" means Socket.
	ToSocket string
	// Group is the group of both attachments; "" means a fresh random name.
	Group  string
	Method string // page-in method: gup, touch, uffd, populate
	Policy string // p1, p4, pa, adaptive
	// Trust lists users whose pfd may access the memory of the test processes, in addition
	// to those that every process trusts (rdma.Options).
	Trust []uint32
	// Command starts a test process, which runs Process on its standard streams.
	Command []string
	// Env is added to the environment of the test processes.
	Env []string
}

// AnyNode stands for a node that SetNodes chooses.
const AnyNode = control.AllNodes

// SetNodes replaces AnyNode: the initiator's by d's first node, the target's by d's second one if target is
// nil, else by target's first one.
func (o *Options) SetNodes(ctx context.Context, d, target Daemon) error {
	if o.From != AnyNode && o.To != AnyNode {
		return nil
	}
	nodes, err := d.Nodes(ctx, control.AllNodes)
	if err == nil && len(nodes) == 0 {
		err = fmt.Errorf("%w: pfd has none at the moment", ErrNode)
	}
	if err != nil {
		return err
	}
	if o.From == AnyNode {
		o.From = nodes[0].Index
	}
	if o.To == AnyNode && target != nil {
		other := Options{From: AnyNode}
		err = other.SetNodes(ctx, target, nil)
		o.To = other.From
	} else if o.To == AnyNode {
		o.To = nodes[0].Index + 1
	}
	return err
}

// Daemon is the part of control.Client that this package uses.
type Daemon interface {
	Status(ctx context.Context) (control.Status, error)
	Nodes(ctx context.Context, node int) ([]control.Node, error)
	Domains(ctx context.Context, node int) ([]control.Domain, error)
	Counters(ctx context.Context, node int) ([]control.Counter, error)
	Faults(ctx context.Context, node, n int) ([]control.Fault, error)
}

// ErrNode means that pfd has no such node.
var ErrNode = errors.New("no such node")

// sides describe where initiator and target attach. A target that serves a name (ServePerf)
// sets its node itself.
type sides struct {
	daemon   int // pid
	from, to attachment
}

func (o *Options) sides(ctx context.Context, d Daemon, name string) (s sides, err error) {
	status, err := d.Status(ctx)
	if err != nil {
		return s, err
	}
	nodes, err := d.Nodes(ctx, control.AllNodes)
	if err != nil {
		return s, err
	}
	s.daemon = status.PID
	s.from = attachment{Socket: o.Socket, Group: o.Group, Method: o.Method, Policy: o.Policy, Trust: o.Trust}
	if s.from.Group == "" {
		if s.from.Group, err = groupName(); err != nil {
			return s, err
		}
	}
	s.to = s.from
	s.to.Socket = cmp.Or(o.ToSocket, o.Socket)
	if s.from.Node, err = nodeID(nodes, o.From); err == nil && name == "" {
		s.to.Node, err = nodeID(nodes, o.To)
	}
	return s, err
}

// nodeID checks that a node is one of nodes.
func nodeID(nodes []control.Node, id int) (uint32, error) {
	var has []string
	for _, n := range nodes {
		if n.Index == id {
			return n.ID, nil
		}
		has = append(has, strconv.Itoa(n.Index))
	}
	return 0, fmt.Errorf("%w: node %d: this pfd has %s (pfd --nodes, --node-base)", ErrNode, id, strings.Join(has, ", "))
}

// groupName returns a random group name for one session.
func groupName() (string, error) {
	var b [6]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("random group name: %w", err)
	}
	return "workload-" + hex.EncodeToString(b[:]), nil
}

// Session is an attached pair of initiator and target. It is not safe for concurrent use.
type Session struct {
	initiator, target *peer
	daemon            int   // pid
	pids              []int // the processes whose pinned memory is measured
	transfers         uint64
	arrived           bool // the last transfer
	seed              uint64
	folio             Folio       // of the buffers that were made last
	warm              rdma.Remote // the target's buffer for warming up
}

// Open starts both processes and attaches them. seed is the seed of the patterns.
func Open(ctx context.Context, d Daemon, o Options, seed uint64) (*Session, error) {
	at, err := o.sides(ctx, d, "")
	if err != nil {
		return nil, err
	}
	s := &Session{daemon: at.daemon, seed: seed}
	if s.initiator, err = start(ctx, "initiator", o); err != nil {
		return nil, err
	}
	if s.target, err = start(ctx, "target", o); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.pids = []int{s.initiator.pid(), s.target.pid()}
	// pfd may be in another PID namespace, or /proc may hide it.
	if _, err := pinned(at.daemon); err == nil {
		s.pids = append(s.pids, at.daemon)
	}
	a, b, err := s.both(order{Op: opAttach, Attach: at.from}, order{Op: opAttach, Attach: at.to})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.initiator.slot, s.target.slot = a.Attached.Slot, b.Attached.Slot
	return s, nil
}

// both sends each process an order, so that they work at the same time, and receives the
// replies.
func (s *Session) both(initiator, target order) (a, b reply, err error) {
	if err := errors.Join(s.initiator.send(initiator), s.target.send(target)); err != nil {
		return a, b, err
	}
	a, err1 := s.initiator.receive()
	b, err2 := s.target.receive()
	return a, b, errors.Join(err1, err2)
}

// Outcome is the result of a transfer whose buffers were checked.
type Outcome struct {
	outcome
	Pinned maybe.Number // VmLck + VmPin of the three processes, in bytes
	Wrong  string       // describes an error in a buffer
}

// do makes all buffers anew, makes the transfers of set at once and checks every byte. After
// an error the session cannot be used any more; the outcomes may still have the reason.
func (s *Session) do(q *Request, set []Parallel, dstOffset uint64) ([]Outcome, error) {
	out := make([]Outcome, len(set))
	s.arrived = false
	src, dst := make([]prepare, len(set)), make([]prepare, len(set))
	// each sends the order for the source and the order for the destination to the processes
	// that have these buffers, and returns the replies in the same order.
	each := func(src, dst order) (a, b reply, err error) {
		if q.Read {
			b, a, err = s.both(dst, src)
			return a, b, err
		}
		return s.both(src, dst)
	}
	w := writeOrder{Waiting: q.Waiting, Timeout: cmp.Or(q.Timeout, DefaultTimeout), Read: q.Read}
	for i, t := range set {
		s.transfers++
		src[i] = prepare{State: q.Src, Size: t.Size, Offset: q.Offset, Seed: word(s.seed, 2*s.transfers), Folios: q.Folios}
		dst[i] = prepare{State: q.Dst, Size: t.Size, Offset: dstOffset, Seed: word(s.seed, 2*s.transfers+1), Folios: q.Folios}
		a, b, err := each(order{Op: opPrepare, Buffer: i, Prepare: src[i]}, order{Op: opPrepare, Buffer: i, Prepare: dst[i]})
		if err != nil {
			return out, err
		}
		s.folio = a.Folio.and(b.Folio)
		if q.Read {
			b = a
		}
		w.Targets = append(w.Targets, target{b.Remote, t.Urgent})
	}
	if q.Warm {
		if s.warm == (rdma.Remote{}) {
			o := order{Op: opPrepare, Buffer: warmBuffer, Prepare: prepare{State: Present, Size: warmSize}}
			_, b, err := s.both(o, o)
			if err != nil {
				return out, err
			}
			s.warm = b.Remote
		}
		w.Warm = s.warm
	}
	r, err := s.initiator.call(order{Op: opWrite, Write: w})
	if err != nil {
		return out, err
	}
	pinned, err := s.pinned()
	s.arrived = true
	for i, o := range r.Outcomes[:min(len(r.Outcomes), len(out))] {
		s.arrived = s.arrived && o.Done
		out[i] = Outcome{outcome: o, Pinned: pinned}
		if o.Stuck && err == nil {
			err = fmt.Errorf("%w: %s", errProcess, o.Error)
		}
	}
	if err == nil && len(r.Outcomes) != len(set) {
		err = fmt.Errorf("%w: %d outcomes of %d transfers", errProcess, len(r.Outcomes), len(set))
	}
	if err != nil {
		return out, err
	}
	for i := range set {
		want := verify{Arrived: out[i].Done, Source: src[i].content(), SourceData: src[i].data()}
		// A buffer that cannot be written must be unchanged. In any other the blocks
		// before the failure may have been written.
		want.Partial = !out[i].Done && q.Dst != ReadOnly && q.Dst != Unmapped
		a, b, err := each(order{Op: opVerify, Buffer: i}, order{Op: opVerify, Buffer: i, Verify: want})
		switch {
		case err != nil:
			return out, err
		case !a.Verdict.ok():
			out[i].Wrong = fmt.Sprintf("source buffer: %v", a.Verdict)
		case !b.Verdict.ok():
			out[i].Wrong = fmt.Sprintf("destination buffer: %v", b.Verdict)
		}
	}
	return out, nil
}

// pinned returns the sum of VmLck and VmPin of the three processes, unknown without pfd.
func (s *Session) pinned() (maybe.Number, error) {
	sum, err := pinned(s.pids...)
	if err == nil && len(s.pids) < 3 {
		return maybe.Unknown(), nil
	}
	return maybe.Number(sum), err
}

// Close ends both processes and waits for them.
func (s *Session) Close() error { return errors.Join(s.initiator.close(), s.target.close()) }

// pinned returns the sum of VmLck (locked memory) and VmPin (pinned pages) of processes, in
// bytes, from /proc/PID/status (proc_pid_status(5)).
func pinned(pids ...int) (sum int64, err error) {
	for _, pid := range pids {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
		if errors.Is(err, os.ErrNotExist) {
			return 0, fmt.Errorf("/proc shows no process %d: it has ended, or this program is in another PID namespace than pfd: run it in the same (nsenter --pid)", pid)
		}
		var n int64
		if err == nil {
			n, err = procstatus.Bytes(text, "VmLck", "VmPin")
		}
		if errors.Is(err, procstatus.ErrNone) {
			err = errors.New("VmLck and VmPin are not shown: the process has ended")
		}
		if err != nil {
			return 0, fmt.Errorf("pinned memory of process %d: %w", pid, err)
		}
		sum += n
	}
	return sum, nil
}
