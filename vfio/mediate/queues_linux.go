package mediate

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/queues"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/space/shadow"
	"github.com/exanet/pfd/vfio/user"
)

// ErrMemory reports that a device does not see the memory of this process.
var ErrMemory = errors.New("the device does not see the memory of this process: " +
	"a virtual machine needs memory that it shares with the device's server (QEMU: memory-backend-memfd or -file with share=on)")

const (
	// highest is the end of the DMA addresses that are used: 48 bits, which an entry of the
	// tables can hold. It is defined by this project.
	highest = 1 << 48
	// proofTime is how long the device has to answer a NOP; it is defined by this project.
	proofTime = 1500 * time.Millisecond
	// invalidateTime is how long the device has for an invalidation by the queue before the driver
	// uses the registers, for which it waits quietTime. It is defined by this project.
	invalidateTime = 100 * time.Millisecond
	// Queues that an error turned off are turned on again after renewAfter, at most renewals
	// times until the device restarts. Both are defined by this project.
	renewAfter = time.Second
	renewals   = 3
)

// rings holds a link's queues in memory and the state between them and the node.
type rings struct {
	*queues.Queues
	n     *node
	l     *link
	own   *shadow.Own
	later []func() // work that was requested before the link was the node's
	live  bool     // the link is the node's; from then on everything happens on the owner
	raise bool     // deliver is posted
	left  int      // renewals left
	// posted is the method value deliver, allocated once.
	posted func()
}

// Load and Store are queues.Memory.
func (s *scratchpad) Load(off uint32) uint64     { v, _ := s.load(off, 8); return v }
func (s *scratchpad) Store(off uint32, v uint64) { s.store64(off, v) }

// newRings turns on the queues of a device that has them, and proves that the device sees the
// memory of this process. The link is not in use yet, so any goroutine may call it.
func newRings(n *node, l *link, log *slog.Logger) (_ *rings, err error) {
	r := &rings{n: n, l: l, left: renewals}
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
		Window: func(id device.WindowID) device.Window { return device.Window{Access: &raw{l, id}} },
		Memory: wordsOf(r.own.B), Addr: at,
		Raise: r.wake, Later: r.do,
		// Done is not needed: the owner looks for the end of transfers whenever it wakes.
		Written: n.wordsWritten, Mail: n.mailCame, Message: n.messageCame, Off: r.off, Log: log,
		Refused: n.refused, Wanted: n.wanted, Called: n.called,
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

// queuesAt returns the DMA address of the queues: at the upper end of the usable addresses, which
// tables and window do not reach.
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

// doorbell is a Function with a faster way for a write of 1, of 4 bytes: an eventfd of the
// device.
type doorbell interface {
	Ring(region int, offset uint64) error
}

// mapPoster is a Function that need not await the answers to its MapDMA, once only faults use it.
// So a page-in does not wait for the server, and the owner of all nodes does it itself (node.do).
// With answers, each page-in would need its slot's worker, or one stopped server would stop all
// nodes: absent 4 KiB then take 1.30x as long [1.26, 1.39] (docs/benchmarks.md).
type mapPoster interface {
	PostMaps()
}

// prove makes the device answer a command in memory. It gets no answer if the device cannot read
// the memory or cannot write it.
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

// begin hands the queues, and the work that is pending, to the owner.
func (r *rings) begin() {
	r.live = true
	for _, f := range r.later {
		r.n.m.loop.Post(f)
	}
	r.later = nil
	r.wake()
}

func (r *rings) do(f func()) {
	if !r.live {
		r.later = append(r.later, f)
		return
	}
	r.n.m.loop.Post(f)
}

// wake makes deliver run soon.
func (r *rings) wake() {
	if r.live && !r.raise {
		r.raise = true
		r.n.m.loop.Post(r.posted)
	}
}

func (r *rings) deliver() {
	if r.n.handler != nil && r.n.link.Load() == r.l {
		r.Deliver(r.n.handler)
	}
}

// off turns queues that an error or a reset turned off on again, after a delay.
func (r *rings) off() {
	if r.left == 0 {
		r.n.m.log.Warn("the device's queues in memory stay off until pfd or the device restarts", "node", r.n.index)
		return
	}
	r.left--
	r.renewLater()
}

func (r *rings) renewLater() {
	time.AfterFunc(renewAfter, func() { r.n.m.loop.Post(r.renew) })
}

func (r *rings) renew() {
	if r.n.link.Load() != r.l || r.On() {
		return
	}
	switch ok, err := r.Renew(); {
	case err != nil: // a device that is gone is posted
		r.n.m.log.Warn("the device's queues in memory cannot be turned on again", "node", r.n.index, "err", err)
		r.off()
	case !ok: // the answers are not processed yet
		r.renewLater()
	default:
		r.n.m.log.Info("the device's queues in memory are on again", "node", r.n.index, "left", r.left)
		r.Nop() // shows at once whether the device can read one queue and write the other
	}
}

// invalidate invalidates pages of a slot by the command queue, and waits until no access of its bank
// is in flight. It reports whether both succeeded. It is safe for concurrent use.
func (r *rings) invalidate(slot int, va device.VA, pages int) bool {
	if pages > device.Slots { // more than a place has: invalidate all
		pages = 0
	}
	v, ok := r.Invalidate(slot, uint64(va)>>device.PageShift, uint64(pages))
	if !ok {
		return false
	}
	defer r.Release(v)
	pause := 10 * time.Microsecond
	for end := time.Now().Add(invalidateTime); ; pause = min(2*pause, time.Millisecond) {
		if over, ok := r.Invalidated(v); over || !ok || time.Now().After(end) {
			return over
		}
		time.Sleep(pause)
	}
}

// unmap releases the memory, which is no longer used.
func (r *rings) unmap() {
	_ = r.own.Close() // nothing was written through it
}

// wordsWritten wakes processes that wait for completion words: the process of a slot, by the rings
// that watch va, or all processes by all rings.
func (n *node) wordsWritten(slot int, va device.VA) {
	for i, s := range n.slots {
		if s != nil && (slot < 0 || i == slot) {
			if slot >= 0 {
				s.words++ // counts as WORDS does, for wakeTargets
				attach.WakeAll(s.att.Bells.Words(va))
			} else {
				s.att.Bells.WakeAll()
			}
			s.att.Pages.Notify()
		}
	}
}

// mailCame looks into the mailbox of a process, or of all, or starts polling it.
func (n *node) mailCame(box int) {
	for _, s := range n.slots {
		if s == nil {
			continue
		}
		for m := range s.mails {
			switch {
			case box >= 0 && box != m.box:
			case s.events() != nil:
				m.long = true
				m.take()
			default:
				m.due = true
				n.m.loop.Heat(&s.process, n.m.Now())
			}
		}
	}
}

// messageCame passes on a message to a process.
func (n *node) messageCame(box int, source uint64, words *[device.EntryWords]uint64) {
	m := n.threads[box]
	if i := box - device.MailboxProcess; i < len(n.slots) && n.slots[i] != nil {
		m = &n.slots[i].mail
	}
	src := mailbox.DecodeSource(source)
	if m == nil || src.Words < 1 || src.Words > device.EntryWords || len(m.came) >= mostCame {
		return // it has ended, or the device does not keep to the protocol
	}
	came := attach.Mail{Source: src.Encode()}
	copy(came.Words[:], words[:])
	m.came = append(m.came, came)
	m.take()
	if r := m.slot.events(); r != nil && len(m.came) > device.MailboxDepth && !m.held {
		m.held = true
		r.Hold(box, true)
	}
}

// raw is device.Access to a region of the function. Writes are posted, as on a PCI bus: a later
// access of any kind is ordered after them.
type raw struct {
	l  *link
	id device.WindowID
}

// gone converts an error of the function into one of the window's contract.
func gone(err error) error {
	if err == nil || errors.Is(err, device.ErrGone) {
		return err
	}
	return fmt.Errorf("%w: %w", device.ErrGone, err)
}

// Load implements device.Access.
func (w *raw) Load(off uint32, size int) (uint64, error) {
	if w.id == device.BTCM && w.l.btcm.holds(off, size) {
		v, ok := w.l.btcm.load(off, size)
		if !ok {
			return 0, gone(errLost)
		}
		return v, nil
	}
	v, err := w.l.fn.Read(int(w.id), uint64(off), size)
	return v, gone(err)
}

// Store implements device.Access.
func (w *raw) Store(off uint32, size int, v uint64) error {
	return gone(w.l.fn.Post(int(w.id), uint64(off), size, v))
}
