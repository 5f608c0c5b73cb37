package mediate

import (
	"context"
	"fmt"
	"sync"

	"github.com/exanet/pfd/device"
)

// Window implements device.Bus.
func (n *node) Window(id device.WindowID) device.Window { return n.windows[id] }

// Post implements device.Bus.
func (n *node) Post(f func()) { n.m.loop.Post(f) }

// Serve implements device.Bus.
func (n *node) Serve(ctx context.Context, h device.Handler) error {
	l := n.link.Load()
	if l == nil {
		return fmt.Errorf("node %d: %w", n.index, device.ErrGone)
	}
	n.m.loop.Post(func() { n.handler = h; n.deliver() })
	var err error
	select {
	case <-ctx.Done():
	case <-l.gone:
		err = fmt.Errorf("node %d: %w: %w", n.index, device.ErrGone, l.why)
	case <-n.m.loop.Done():
		return fmt.Errorf("node %d: the machine has ended: %w", n.index, device.ErrGone)
	}
	n.m.loop.Do(func() { n.handler = nil })
	return err
}

// work may sleep: Run is called on any goroutine, and then Done on the owner.
type work interface {
	Run()
	Done()
}

// prompt reports whether a short page-in at va of a slot may run on the owner: the machine has no
// swap, pfd has mapped the share, and nothing must be evicted first. Shared memory is always a file
// in memory, so that such a page-in cannot wait for a device, and a switch to another goroutine and
// back would cost more than the work.
func (n *node) prompt(slot int, va device.VA, pages int) bool {
	l := n.link.Load()
	return n.m.inline && (l == nil || l.shadow.Prompt(slot, va, pages))
}

// do does work of a slot: inline at the end of the owner's pass, else on the slot's worker, which
// does one piece of work after the other. Both may run at the same time.
func (n *node) do(slot int, w work, inline bool) {
	if inline {
		n.m.calls = append(n.m.calls, w)
		return
	}
	if slot < 0 || slot >= device.Slots {
		slot = device.Slots
	}
	n.workers[slot].submit(n.m, w)
}

// worker runs the calls of one slot on a goroutine that exists while there are any.
type worker struct {
	mu      sync.Mutex
	queue   []work
	running bool
}

func (w *worker) submit(m *Machine, c work) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = append(w.queue, c)
	if !w.running {
		w.running = true
		go w.serve(m)
	}
}

func (w *worker) serve(m *Machine) {
	for {
		w.mu.Lock()
		if len(w.queue) == 0 {
			w.running = false
			w.mu.Unlock()
			return
		}
		c := w.queue[0]
		w.queue = w.queue[:copy(w.queue, w.queue[1:])]
		w.mu.Unlock()
		c.Run()
		m.loop.Send(c)
	}
}

// window is device.Access of a node, whatever its link is at the moment.
type window struct {
	n  *node
	id device.WindowID
}

// current returns the link's window, behind the queues in memory if the link has them.
func (w *window) current() (device.Window, error) {
	if l := w.n.link.Load(); l != nil {
		return l.windows[w.id], nil
	}
	return device.Window{}, w.gone(device.ErrGone)
}

func (w *window) gone(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("node %d: %w", w.n.index, err)
}

// Load implements device.Access.
func (w *window) Load(off uint32, width int) (uint64, error) {
	to, err := w.current()
	if err != nil {
		return 0, err
	}
	v, err := to.Load(off, width)
	return v, w.gone(err)
}

// Store implements device.Access.
func (w *window) Store(off uint32, width int, v uint64) error {
	to, err := w.current()
	if err != nil {
		return err
	}
	if l := w.n.link.Load(); w.id == device.PL && l != nil && l.pages != nil {
		v = l.pages.store(off, width, v)
	}
	return w.gone(to.Store(off, width, v))
}
