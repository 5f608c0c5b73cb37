package hostile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/rdma"
)

// attacker attacks the pfd at o.Attach.Socket until ctx ends, and calls did for each completed
// action. It uses at most o.Size slots of each node. A refusal by pfd is no error: the attacker
// tries again. An error means that the attack could not start.
type attacker func(ctx context.Context, o order, did func()) error

// attackers are all attackers by name; each kind has its own file.
var attackers = map[string]attacker{
	"burn":        burn,
	"http":        floodHTTP,
	"connections": floodConnections,
	"punch":       punchPages,
	"fuse":        hangInFUSE,
	"uffd":        sleepInUserfaultfd,
	"ids":         takeIDs,
	"contexts":    takeContexts,
	"linger":      sendLingering,
	"cycles":      attachAndLeave,
	"rings":       attackByRings,

	"holes":            makeHoles(false, false),
	"holes elsewhere":  makeHoles(false, true),
	"shares":           makeHoles(true, false),
	"shares elsewhere": makeHoles(true, true),
}

// attackPause is how long an attacker waits after a refusal: it should take pfd's time, not the
// processor's.
const attackPause = time.Millisecond

// burn only uses processor time: the attacks are compared with it.
func burn(ctx context.Context, _ order, did func()) error {
	for ctx.Err() == nil {
		for i := range uint64(1 << 20) {
			_ = word(i, i)
		}
		did()
	}
	return nil
}

// attack is a running attack of a process.
type attack struct {
	n    atomic.Int64
	mu   sync.Mutex
	text string
}

// startAttack makes this process attack until it is killed.
func startAttack(o order) (*attack, error) {
	f := attackers[o.Kind]
	if f == nil {
		return nil, fmt.Errorf("unknown attacker %q", o.Kind)
	}
	a := &attack{}
	go func() {
		if err := f(context.Background(), o, func() { a.n.Add(1) }); err != nil {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.text = err.Error()
		}
	}()
	return a, nil
}

func (a *attack) reply() reply {
	a.mu.Lock()
	defer a.mu.Unlock()
	return reply{Count: int(a.n.Load()), Text: a.text}
}

// rawAttach is an attachment made without the library in an attacker's process.
type rawAttach struct {
	*attach.Conn
	*attach.Pages
	fds attach.Descriptors
}

func attachRaw(ctx context.Context, socket string, h attach.Hello) (*rawAttach, error) {
	c, err := attach.Dial(ctx, control.AttachSocket(socket))
	if err != nil {
		return nil, err
	}
	r := &rawAttach{Conn: c}
	if _, r.fds, err = c.Handshake(ctx, h); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	r.Pages = c.Pages() // sealed: no process can map it writable again
	return r, nil
}

// ends is a process attached to both nodes, for one cycle of an attack.
type ends struct{ from, to *rdma.Endpoint }

// attachBoth attaches to both nodes, in a group of its own.
func attachBoth(ctx context.Context, socket, group string) (e ends, err error) {
	for i, ep := range []**rdma.Endpoint{&e.from, &e.to} {
		if *ep, err = rdma.Attach(ctx, rdma.Options{Socket: socket, Node: device.NodeID(i), Group: group, Method: pagein.GUP}); err != nil {
			return e, errors.Join(err, e.Close())
		}
	}
	return e, nil
}

func (e ends) Close() (err error) {
	for _, ep := range []*rdma.Endpoint{e.from, e.to} {
		if ep != nil {
			err = errors.Join(err, ep.Close())
		}
	}
	return err
}

// cycles runs n loops of f until ctx ends, each round with a unique number. A loop pauses after
// an error.
func cycles(ctx context.Context, n int, did func(), f func(round int64) error) {
	var all sync.WaitGroup
	var round atomic.Int64
	for range n {
		all.Go(func() {
			for ctx.Err() == nil {
				if f(round.Add(1)) != nil {
					time.Sleep(attackPause)
					continue
				}
				did()
			}
		})
	}
	all.Wait()
}

// persist repeats f until it succeeds or ctx ends: an attacker that is refused, or blocked by
// another one, tries again.
func persist[T any](ctx context.Context, f func() (T, error)) (T, error) {
	v, err := f()
	for err != nil && ctx.Err() == nil {
		time.Sleep(10 * attackPause)
		v, err = f()
	}
	return v, err
}

// silentTarget starts a process that attaches to node 1 with method touch, has an absent
// buffer, and is stopped: it is asked to page in and never does. It ends with this process.
func silentTarget(socket, group string, size uint64) (_ rdma.Remote, err error) {
	cmd := exec.Command("/proc/self/exe")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return rdma.Remote{}, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return rdma.Remote{}, err
	}
	// The starting thread lives as long as this process.
	started := make(chan error)
	go startForGood(cmd, started)
	if err := <-started; err != nil {
		return rdma.Remote{}, err
	}
	defer func() {
		if err != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}()
	enc, dec := json.NewEncoder(in), json.NewDecoder(io.LimitReader(out, 1<<20))
	var r reply
	for _, o := range []order{
		{Op: "attach", Attach: attachOrder{Socket: socket, Node: 1, Group: group, All: true, Method: "touch"}},
		{Op: "buffer", ID: "b", Size: size},
	} {
		r = reply{}
		if err := errors.Join(enc.Encode(o), dec.Decode(&r)); err != nil {
			return rdma.Remote{}, err
		}
		if r.Err != "" {
			return rdma.Remote{}, errors.New(r.Err)
		}
	}
	remote, err := rdma.ParseRemote(r.Remote)
	return remote, errors.Join(err, cmd.Process.Signal(syscall.SIGSTOP))
}
