package mediate

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/queues"
	"github.com/exanet/pfd/shadow"
	"github.com/exanet/pfd/vfio/user"
)

// ErrMemory says that a device does not see the memory of this process.
var ErrMemory = errors.New("the device does not see the memory of this process: " +
	"a virtual machine needs memory that it shares with the device's server (QEMU: memory-backend-memfd or -file with share=on)")

const (
	// highest is the end of the DMA addresses that are used (ours; 48 bits, what an
	// entry of the tables holds).
	highest = 1 << 48
	// proofTime is how long the device has to answer a NOP (ours).
	proofTime = 1500 * time.Millisecond
)

// rings are a link's queues in memory and what lies between them and the node.
type rings struct {
	*queues.Queues
	n     *node
	l     *link
	own   *shadow.Own
	later []func() // asked for before the link was the node's
	live  bool     // it is; everything happens on the owner from then on
	raise bool     // deliver is posted
	// posted is deliver, bound once.
	posted func()
}

// Load and Store are queues.Memory.
func (s *scratchpad) Load(off uint32) uint64     { return s.load(off, 8) }
func (s *scratchpad) Store(off uint32, v uint64) { s.store64(off, v) }

// newRings turns the queues of a device that has them on, and proves that it sees
// the memory of this process. It may be called anywhere; the link is not in use yet.
func newRings(n *node, l *link, log *slog.Logger) (_ *rings, err error) {
	r := &rings{n: n, l: l}
	if r.own, err = shadow.NewOwn(l.fn, "exanet-queues", queues.MemorySize); err != nil {
		return nil, fmt.Errorf("queues in memory: %w", err)
	}
	defer func() {
		if err != nil {
			l.quiet(log)
			r.unmap()
		}
	}()
	at := r.own.Addr
	if l.fn.Kind() != shadow.Physical {
		if at, err = queuesAt(l.fn); err != nil {
			return nil, err
		}
	}
	if err := l.fn.MapDMA(at, queues.MemorySize, r.own.FD, 0, user.DMARead|user.DMAWrite); err != nil {
		return nil, fmt.Errorf("queues in memory: %w", err)
	}
	r.posted = func() { r.raise = false; r.deliver() }
	cfg := queues.Config{
		Window: func(id device.WindowID) device.Window { return &raw{l, id} },
		Memory: wordsOf(r.own.B), Addr: at,
		Raise: r.wake, Later: r.do,
		Written: n.wordsWritten, Mail: n.mailCame, Log: log,
	}
	if b, ok := l.fn.(doorbell); ok {
		cfg.Bell = func() error {
			return b.Ring(int(device.PL), device.PLCommandQueue+device.QueueDoorbell)
		}
	}
	r.Queues = queues.New(cfg)
	if err := r.Start(); err != nil {
		return nil, err
	}
	return r, r.prove()
}

// queuesAt gives where the queues lie for the device: at the upper end of what may be
// used, where tables and window do not come.
func queuesAt(fn Function) (uint64, error) {
	usable, err := fn.Ranges()
	if err != nil {
		return 0, err
	}
	for _, r := range slices.Backward(usable) {
		end := (min(r.Last, highest-1) + 1) &^ (device.PageSize - 1)
		if r.First < end && end-r.First >= queues.MemorySize {
			return end - queues.MemorySize, nil
		}
	}
	return 0, fmt.Errorf("%w: no DMA addresses for the queues in memory", ErrConfig)
}

// doorbell is a Function that knows a shorter way for a write of 1, of 4 bytes: an
// eventfd that the device gave.
type doorbell interface {
	Ring(region int, offset uint64) error
}

// mapPoster is a Function that can do without the answers to its MapDMA, once
// nothing but faults asks for it.
type mapPoster interface {
	PostMaps()
}

// prove has the device answer a command in memory. What it cannot read it does not
// answer, and what it cannot write does not come.
func (r *rings) prove() error {
	r.Nop()
	end, look := time.NewTimer(proofTime), time.NewTicker(200*time.Microsecond)
	defer end.Stop()
	defer look.Stop()
	for !r.Answered() {
		select {
		case <-look.C:
		case <-r.l.fn.Done():
			return fmt.Errorf("%w: %w", device.ErrGone, r.l.fn.Err())
		case <-end.C:
			return fmt.Errorf("%w: a command in it is not answered after %v", ErrMemory, proofTime)
		}
	}
	return nil
}

// begin hands the queues to the owner, with what has come meanwhile.
func (r *rings) begin() {
	r.live = true
	for _, f := range r.later {
		r.n.m.post(f)
	}
	r.later = nil
	r.wake()
}

func (r *rings) do(f func()) {
	if !r.live {
		r.later = append(r.later, f)
		return
	}
	r.n.m.post(f)
}

// wake has the driver be given its vectors soon.
func (r *rings) wake() {
	if r.live && !r.raise {
		r.raise = true
		r.n.m.post(r.posted)
	}
}

func (r *rings) deliver() {
	if r.n.handler != nil && r.n.link.Load() == r.l {
		r.Deliver(r.n.handler)
	}
}

// unmap lets the memory go; nothing uses it any more.
func (r *rings) unmap() {
	_ = r.own.Close() // nothing of ours is in it
}

// wordsWritten wakes who waits for completion words: the process of a slot, or all.
func (n *node) wordsWritten(slot int) {
	for i, s := range n.slots {
		if s != nil && (slot < 0 || i == slot) {
			if slot >= 0 {
				s.words++ // as WORDS has it, for who looks at that
			}
			s.att.Pages.Notify()
		}
	}
}

// mailCame has the mailbox of a process looked at, or all.
func (n *node) mailCame(mailbox int) {
	for i, s := range n.slots {
		if s != nil && (mailbox < 0 || mailbox == device.MailboxProcess+i) {
			s.mail.asked = true
		}
	}
}

// raw is device.Window over a region of the function. Writes are posted, as on a PCI
// bus: a later access of any kind finds them done.
type raw struct {
	l  *link
	id device.WindowID
}

// gone makes an error of the function one of the window's contract.
func gone(err error) error {
	if err == nil || errors.Is(err, device.ErrGone) {
		return err
	}
	return fmt.Errorf("%w: %w", device.ErrGone, err)
}

func (w *raw) read(off uint32, size int) (uint64, error) {
	if w.id == device.BTCM && w.l.btcm.holds(off, size) {
		return w.l.btcm.load(off, size), nil
	}
	v, err := w.l.fn.Read(int(w.id), uint64(off), size)
	return v, gone(err)
}

func (w *raw) write(off uint32, size int, v uint64) error {
	return gone(w.l.fn.Post(int(w.id), uint64(off), size, v))
}

// Read32 implements device.Window.
func (w *raw) Read32(off uint32) (uint32, error) {
	v, err := w.read(off, 4)
	return uint32(v), err
}

// Read64 implements device.Window.
func (w *raw) Read64(off uint32) (uint64, error) { return w.read(off, 8) }

// Write32 implements device.Window.
func (w *raw) Write32(off, v uint32) error { return w.write(off, 4, uint64(v)) }

// Write64 implements device.Window.
func (w *raw) Write64(off uint32, v uint64) error { return w.write(off, 8, v) }
