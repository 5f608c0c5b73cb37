package rdma

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/exanet/pfd/device"
)

// Notification requests two completion words at the destination (001 §2.3.3.2). When every byte of
// the transfer is in the target's memory, First is written at the address and then Last 8 bytes
// after it.
type Notification struct {
	// Offset is from the start of the destination's Remote. VA, if not 0, is the address itself in
	// the target's address space. The address must be aligned to 16 bytes.
	Offset      uint64
	VA          device.VA
	First, Last uint64
}

// WriteRequest describes a write.
type WriteRequest struct {
	// Src is the source; the transfer keeps it referenced until it is final. If Src is nil, SrcVA
	// and Size name the source, memory that the caller keeps mapped.
	Src   []byte
	SrcVA device.VA
	Size  uint64 // bytes, with SrcVA; 1..2^32-1
	// Gather names several sources instead, which are contiguous at the destination. Each is a
	// transfer of the device, of 1..2^32-1 bytes.
	Gather [][]byte

	Dst    Remote
	Offset uint64 // bytes from the start of Dst
	Notify *Notification
	Urgent bool // high class: ahead of larger transfers (messages.md 1)
	// Wait waits for a free channel instead of returning ErrBusy.
	Wait bool
	// Queue, if not nil, receives the transfer when it is final.
	Queue *Queue
	ID    uint64 // for the caller: returned by Transfer.ID
}

// Transfer is the handle of a write or a read. It stays usable after the end of the transfer and
// of the endpoint.
type Transfer struct {
	ep   *Endpoint
	id   uint64
	ch   int    // -1: a read, a gathered write
	src  []byte // keeps it from the garbage collector: the device uses it
	read *readState
	many *gathered
	q    *Queue
	size uint64
	node device.NodeID
	pdid device.PDID
	dst  device.VA
	own  device.VA // in this process: a write's source, a read's destination; size bytes

	// final is settled, or settled|failed|status, once the transfer has ended; its channel may
	// carry another transfer then.
	final atomic.Uint32
	// Details of the error, written before final.
	detail, cause string
}

// Bits of Transfer.final, above the status code.
const (
	settled = 1 << 31
	failed  = 1 << 30
)

// settle sets the transfer's final state. The endpoint's lock is held.
func (t *Transfer) settle(final uint32, detail string) {
	if final == failed|uint32(device.StatusDecode) && detail == "" {
		t.cause, detail = t.ep.unsharedLocked(t)
	}
	t.detail = detail
	t.src = nil
	t.final.Store(settled | final)
	if t.q != nil {
		t.q.done = append(t.q.done, t)
	}
}

// describe checks a request and returns its handle and descriptor.
func (e *Endpoint) describe(r *WriteRequest) (*Transfer, *device.Descriptor, error) {
	src, size := r.SrcVA, r.Size
	if r.Src != nil {
		if r.SrcVA != 0 || r.Size != 0 && r.Size != uint64(len(r.Src)) {
			return nil, nil, fmt.Errorf("%w: both Src and SrcVA or Size are set: set only one", ErrRequest)
		}
		src, size = VAOf(r.Src), uint64(len(r.Src))
	}
	switch {
	case size == 0:
		return nil, nil, fmt.Errorf("%w: a write of 0 bytes: the least is 1", ErrRequest)
	case size > math.MaxUint32:
		return nil, nil, fmt.Errorf("%w: a write of %d bytes: the most is %d, split it", ErrRequest, size, uint32(math.MaxUint32))
	case r.Offset > r.Dst.Len || r.Dst.Len-r.Offset < size:
		return nil, nil, fmt.Errorf("%w: %d bytes at offset %d of %d exported bytes", ErrRequest, size, r.Offset, r.Dst.Len)
	}
	if err := r.Dst.check(); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	d := &device.Descriptor{
		Src: src, Dst: r.Dst.VA + device.VA(r.Offset), Size: uint32(size),
		DstNode: r.Dst.Node, DstPDID: r.Dst.PDID, DstGeneration: r.Dst.Generation, Urgent: r.Urgent,
	}
	if n := r.Notify; n != nil {
		d.Notify, d.First, d.Last = n.VA, n.First, n.Last
		if n.VA == 0 {
			d.Notify = r.Dst.VA + device.VA(n.Offset)
		}
		if d.Notify == 0 || d.Notify%16 != 0 {
			return nil, nil, fmt.Errorf("%w: notification address %v: it must be aligned to 16 bytes and not be 0", ErrRequest, d.Notify)
		}
	}
	return &Transfer{
		ep: e, id: r.ID, src: r.Src, q: r.Queue, size: size, node: d.DstNode, pdid: d.DstPDID, dst: d.Dst, own: src,
	}, d, nil
}

// Write starts a write and returns its handle (insert_descriptor_with_completion and
// trigger_dma_transfer, spec/api.md). It does not wait for pfd; with r.Wait it waits for a free
// channel until ctx ends. Errors match ErrRequest, ErrBusy (all 32 channels in flight), ErrClosed,
// ErrGone or ctx's. Later errors are the handle's.
//
// With r.Gather the handle stands for all the transfers: it is final when all of them are, and has
// the first error. The completion words arrive after every byte of every source. Several sources
// wait for channels in the background, regardless of r.Wait, and after a failure no more are
// started.
func (e *Endpoint) Write(ctx context.Context, r WriteRequest) (*Transfer, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := r.Queue.check(e); err != nil {
		return nil, err
	}
	if r.Gather != nil {
		return e.gather(&r)
	}
	t, d, err := e.describe(&r)
	if err != nil {
		return nil, err
	}
	for {
		started, err := e.start(t, d)
		if started || err != nil {
			if err != nil {
				return nil, fmt.Errorf("writing: %w", err)
			}
			return t, nil
		}
		if !r.Wait {
			return nil, fmt.Errorf("%w: %d transfers are in flight: wait for one, or set WriteRequest.Wait", ErrBusy, device.WriteChannels)
		}
		if err := e.waitUntil(ctx, sleepCap, sleepCap, e.hasFree); err != nil {
			return nil, fmt.Errorf("write: wait for a free channel: %w", err)
		}
	}
}

// start claims a channel for t, publishes d and announces it; false: all are busy.
func (e *Endpoint) start(t *Transfer, d *device.Descriptor) (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.goneLocked(); err != nil {
		return false, err
	}
	if e.free == 0 {
		if e.harvestLocked(); e.free == 0 {
			return false, nil
		}
	}
	t.ch = bits.TrailingZeros32(e.free)
	t.q.start()
	e.free &^= 1 << t.ch
	e.transfers[t.ch] = t
	e.stampLocked(t.ch, e.pages.SetRung)
	e.pages.Publish(t.ch, d)
	e.announceLocked(t.ch)
	return true, nil
}

func (e *Endpoint) hasFree() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.harvestLocked()
	return e.free != 0
}

// Poll returns the transfer's state (poll_dma_transfer, spec/api.md). It allocates nothing. It
// makes no system call, unless an announcement of this endpoint is pending and pfd has fallen
// asleep since. A caller that polls for more than some microseconds must sleep between two calls,
// or use Wait: pfd may need its processor to page in, and sched_yield(2) does not release it if
// the caller is a real-time thread or in another session (sched_autogroup).
func (t *Transfer) Poll() Status {
	if f := t.final.Load(); f != 0 {
		return statusOf(f)
	}
	switch {
	case t.read != nil:
		return t.pollRead()
	case t.many != nil:
		if t.PausedBlocks() > 0 {
			return Paused
		}
		return Ongoing
	}
	switch t.ep.pages.Done(t.ch) {
	case device.DoneCompleted, device.DoneFailed:
		return t.finish()
	case device.DoneInitialized:
		if e := t.ep; e.rings.some.Load() && e.mu.TryLock() {
			e.ringLocked()
			e.mu.Unlock()
		}
	case device.DoneOngoing:
		if _, paused := t.ep.pages.Status(t.ch); paused != 0 {
			return Paused
		}
	}
	return Ongoing
}

func statusOf(final uint32) Status {
	if final&failed == 0 {
		return Finished
	}
	return Failed
}

// finish takes the final state from the channel, unless the channel already carries another
// transfer.
func (t *Transfer) finish() Status {
	t.ep.mu.Lock()
	defer t.ep.mu.Unlock()
	if t.ep.transfers[t.ch] == t {
		t.ep.settleLocked(t.ch)
	}
	if f := t.final.Load(); f != 0 {
		return statusOf(f)
	}
	return Ongoing
}

// Err returns the error of a failed transfer, a *TransferError, else nil.
func (t *Transfer) Err() error {
	if t.Poll() != Failed {
		return nil
	}
	if t.many != nil && t.many.failed != nil {
		return t.many.failed.Err()
	}
	return &TransferError{
		Code: uint8(t.final.Load()), Size: t.size, Dst: t.dst, Node: t.node, PDID: t.pdid,
		Channel: t.ch, Detail: t.detail, Cause: t.cause, Read: t.read != nil,
	}
}

// ID returns the ID of the request.
func (t *Transfer) ID() uint64 { return t.id }

// Channel returns the channel of the process's page that carries or carried the transfer. It is -1
// for a read, whose channel is the target's, and for a gathered write, which has several.
func (t *Transfer) Channel() int { return t.ch }

// PausedBlocks returns the number of blocks that wait for a page now.
func (t *Transfer) PausedBlocks() int {
	if t.many != nil {
		return t.many.paused()
	}
	if t.Poll() != Paused {
		return 0
	}
	_, paused := t.ep.pages.Status(t.ch)
	return int(paused)
}

// Wait waits for the end of the transfer: it spins for SpinTime, then sleeps in the kernel. It
// returns nil if the transfer has finished, its *TransferError if it has failed, and ctx's error
// if ctx ends first; the transfer then goes on.
func (t *Transfer) Wait(ctx context.Context) error {
	if spin(t.isFinal) {
		return t.Err()
	}
	// The end of the attachment makes every transfer final.
	if err := t.ep.waitUntil(ctx, sleepCap, sleepCap, t.isFinal); err != nil {
		return fmt.Errorf("wait for a transfer: %w", err)
	}
	return t.Err()
}

func (t *Transfer) isFinal() bool { return t.Poll().Final() }

// spin calls check for SpinTime at most.
func spin(check func() bool) bool {
	for start := time.Now(); ; {
		if check() {
			return true
		}
		if time.Since(start) >= SpinTime {
			return false
		}
	}
}

// Abort requests the end of the transfer and returns at once. The source may be reused only when
// the transfer is final: with ErrAborted, or complete if the abort came too late. For the
// destination see "What completion promises". Aborting a final transfer does nothing. Errors match
// ErrGone.
func (t *Transfer) Abort() error {
	if t.Poll().Final() {
		return nil
	}
	if t.many != nil {
		return t.many.abort(t.ep)
	}
	e := t.ep
	e.mu.Lock()
	defer e.mu.Unlock()
	if t.read != nil {
		if e.reads.open[t.read.place] == t.read {
			e.abortReadLocked(t.read)
		}
		return nil
	}
	if e.transfers[t.ch] != t { // final meanwhile
		return nil
	}
	e.pages.AskAbort(t.ch)
	e.announceLocked(t.ch)
	return nil
}

// Limits of one sleep in WaitNotification. If initiator and target are on nodes of the same pfd,
// the target is woken; otherwise the words arrive without a wake-up. Values below are defined by
// this project.
const (
	notifyFirstPause = 50 * time.Microsecond
	notifyLastPause  = 8 * time.Millisecond
)

// WaitNotification waits until *addr is last: the second completion word of a write into this
// process. All bytes of the write are then visible. Set the word to another value before the
// initiator learns of the memory. Only the value last is meaningful: while the word is being
// written a reader may see a mixture of old and new bytes.
//
// It spins for SpinTime, then sleeps until pfd reports a write to this process. It also checks the
// word by itself, after a 32nd of the time that it has waited, and every 8 ms at least. Errors are
// ctx's, or ErrGone if the attachment has ended before the word arrived.
func (e *Endpoint) WaitNotification(ctx context.Context, addr *uint64, last uint64) error {
	if addr == nil {
		return fmt.Errorf("%w: addr is nil", ErrRequest)
	}
	check := func() bool { return atomic.LoadUint64(addr) == last }
	if spin(check) {
		return nil
	}
	err := e.waitUntil(ctx, notifyFirstPause, notifyLastPause, check)
	runtime.KeepAlive(addr)
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("wait for a notification: %w", err)
	}
	return err
}
