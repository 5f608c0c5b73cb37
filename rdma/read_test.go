package rdma

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
)

// As with writes, the target's node selects what the fake pfd does with a read (toCopy, toHold,
// toEnd, toFail with the status in the target's PDID), or:
const (
	toNowhere = 20 // the packetizer refuses: no such node
	toRefuse  = 21 // refused twice for lack of a place, then served
	toForge   = 22 // answers of other senders first, then served
	toDouble  = 23 // served, and then reported as failed
	toCross   = 24 // a refusal that crosses a cancel; the next cancel meets a read that has ended
)

// read acts as the firmware of the target.
func (e *engine) read(c int, m *attach.Message) error {
	q, err := mailbox.DecodeReadRequest(m.Words[:m.N])
	if err != nil {
		return err
	}
	if m.Node == toNowhere {
		e.p.SetPktzStatus(c, device.PktzRefused)
		return nil
	}
	e.p.SetPktzStatus(c, device.PktzFree)
	if e.asked == nil {
		e.asked = map[uint16]int{}
	}
	e.asked[q.Tag]++
	d := device.Descriptor{Src: q.Src, Dst: q.Dst, Size: q.Size, Notify: q.Notify, First: q.First, Last: q.Last}
	fromR5 := mailbox.Source{Node: m.Node, Words: 1}
	switch {
	case q.PDID != fakePDID:
		return fmt.Errorf("a read of PDID %d", q.PDID)
	case m.Node == toCross && q.Size != 0:
		e.crossed = d
		return nil
	case m.Node == toCross && e.asked[q.Tag] == 2:
		return e.mail(fromR5, q.Tag, 0)
	case m.Node == toCross:
		if err := e.copyRead(&e.crossed); err != nil {
			return err
		}
		return e.mail(fromR5, q.Tag, device.StatusDecode)
	case q.Size == 0: // a cancel
		return e.mail(fromR5, q.Tag, device.StatusAborted)
	case m.Node == toHold:
		return nil
	case m.Node == toFail:
		return e.mail(fromR5, q.Tag, uint8(q.Target))
	case m.Node == toRefuse && e.asked[q.Tag] <= 2:
		return e.mail(fromR5, q.Tag, 0)
	case m.Node == toEnd:
		e.once.Do(func() { close(e.kicked) })
		return nil
	case m.Node == toForge:
		for _, err := range []error{
			e.mail(mailbox.Source{Node: m.Node, PDID: 9, Words: 1}, q.Tag, device.StatusDecode), // a process
			e.mail(mailbox.Source{Node: 99, Words: 1}, q.Tag, device.StatusDecode),              // another node
			e.mail(fromR5, q.Tag+MaxReads, device.StatusDecode),                                 // an earlier read of its place
			e.mail(fromR5, q.Tag+1, device.StatusDecode),                                        // a read that is not open
		} {
			if err != nil {
				return err
			}
		}
	}
	if err := e.copyRead(&d); err != nil {
		return err
	}
	if m.Node == toDouble {
		return e.mail(fromR5, q.Tag, device.StatusSlaveError)
	}
	e.p.Notify()
	return nil
}

func (e *engine) copyRead(d *device.Descriptor) error {
	b := make([]byte, d.Size)
	if _, err := e.mem.ReadAt(b, int64(d.Src)); err != nil {
		return err
	}
	if _, err := e.mem.WriteAt(b, int64(d.Dst)); err != nil {
		return err
	}
	for i, v := range []uint64{d.First, d.Last} {
		if _, err := e.mem.WriteAt([]byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24), byte(v >> 32), byte(v >> 40), byte(v >> 48), byte(v >> 56)}, int64(d.Notify)+8*int64(i)); err != nil {
			return err
		}
	}
	return nil
}

// mail answers a read: status 0 is a refusal.
func (e *engine) mail(src mailbox.Source, tag uint16, status uint8) error {
	a := mailbox.Ack{Transaction: device.TransactionID(tag), Code: device.CodeReserved, Sequence: device.Sequence(status)}
	m := attach.Mail{Source: src.Encode(), Words: [device.PktzMaxWords]uint64{a.Encode()}}
	if !e.p.PutMail(e.mails, &m) {
		return errors.New("the process's mailbox is full")
	}
	e.mails++
	e.p.Notify()
	return nil
}

func mustRead(t *testing.T, e *Endpoint, r ReadRequest) *Transfer {
	t.Helper()
	tr, err := e.Read(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// A read succeeds although it was refused at first, although others report that it failed, and
// although its target reports a failure after all bytes have arrived.
func TestRead(t *testing.T) {
	e := attachTo(t, startFake(t, nil))
	src := pattern(5000)
	for _, node := range []device.NodeID{toCopy, toRefuse, toForge, toDouble, toCopy} {
		dst := make([]byte, 4000)
		tr := mustRead(t, e, ReadRequest{Dst: dst, Src: remote(e, t, src, node), Offset: 1000})
		if err := tr.Wait(t.Context()); err != nil {
			t.Errorf("node %d: %v", node, err)
		}
		if !bytes.Equal(dst, src[1000:]) || tr.Poll() != Finished {
			t.Errorf("node %d: %v, or other bytes than the target's", node, tr.Poll())
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.reads.strange < 3 || e.messages.dropped < 1 { // the process's one is a message of a reserved kind
		t.Errorf("%d messages counted that answer nothing, and %d dropped; want the four forged ones", e.reads.strange, e.messages.dropped)
	}
}

// Each status of an answer becomes the error of its cause, which names the read.
func TestReadErrors(t *testing.T) {
	e := attachTo(t, startFake(t, nil))
	for status, want := range map[device.PDID]error{
		1: ErrSlaveError, 2: ErrAddress, 3: ErrNoContext, 4: ErrCorrupt, 5: ErrDomain, 6: ErrReserved,
		7: ErrBufferFull, 8: ErrRetransmissions, 9: ErrAborted, 10: ErrGone, 11: ErrMemory, 12: errUnknown, 255: errUnknown,
	} {
		src := remote(e, t, pattern(64), toFail)
		src.PDID = status
		tr := mustRead(t, e, ReadRequest{Dst: make([]byte, 60), Src: src, Offset: 4})
		err := tr.Wait(t.Context())
		var te *TransferError
		if !errors.As(err, &te) || !errors.Is(err, want) {
			t.Errorf("status %d: %v, want %v", status, err, want)
			continue
		}
		if te.Code != uint8(status) || !te.Read || te.Size != 60 || te.Dst != src.VA+4 || te.Node != toFail || te.PDID != status {
			t.Errorf("status %d: %+v", status, te)
		}
		if !strings.HasPrefix(err.Error(), fmt.Sprintf("read of 60 bytes from node %d, PDID %d, address %v failed", toFail, status, src.VA+4)) {
			t.Errorf("status %d: %v", status, err)
		}
		if tr.Poll() != Failed {
			t.Errorf("status %d: %v", status, tr.Poll())
		}
	}
	// Refused by this node's packetizer.
	tr := mustRead(t, e, ReadRequest{Dst: make([]byte, 60), Src: remote(e, t, pattern(64), toNowhere)})
	if err := tr.Wait(t.Context()); !errors.Is(err, ErrAddress) || !strings.Contains(err.Error(), "no such node") {
		t.Errorf("no such node: %v", err)
	}
	// Aborted, twice; then a read that has ended.
	tr = mustRead(t, e, ReadRequest{Dst: make([]byte, 60), Src: remote(e, t, pattern(64), toHold)})
	if err := errors.Join(tr.Abort(), tr.Abort()); err != nil {
		t.Error(err)
	}
	if err := tr.Wait(t.Context()); !errors.Is(err, ErrAborted) {
		t.Errorf("aborted: %v", err)
	}
	if err := tr.Abort(); err != nil {
		t.Errorf("aborting what is over: %v", err)
	}
	// The attachment ends.
	late := remote(e, t, pattern(64), toCopy)
	tr = mustRead(t, e, ReadRequest{Dst: make([]byte, 60), Src: remote(e, t, pattern(64), toHold)})
	other := mustRead(t, e, ReadRequest{Dst: make([]byte, 60), Src: remote(e, t, pattern(64), toEnd)})
	for _, tr := range []*Transfer{tr, other} {
		if err := tr.Wait(t.Context()); !errors.Is(err, ErrGone) {
			t.Errorf("after the end: %v", err)
		}
	}
	if _, err := e.Read(t.Context(), ReadRequest{Dst: make([]byte, 60), Src: late}); !errors.Is(err, ErrGone) {
		t.Errorf("a read after the end: %v", err)
	}
}

// 32 reads may be open; one more waits or is refused. A wait ends with its context.
func TestReadPlaces(t *testing.T) {
	e := attachTo(t, startFake(t, nil))
	src := pattern(64)
	var held []*Transfer
	for range MaxReads {
		held = append(held, mustRead(t, e, ReadRequest{Dst: make([]byte, 60), Src: remote(e, t, src, toHold)}))
	}
	more := ReadRequest{Dst: make([]byte, 64), Src: remote(e, t, src, toCopy)}
	if tr, err := e.Read(t.Context(), more); !errors.Is(err, ErrBusy) || tr != nil {
		t.Errorf("one too many: %v", err)
	}
	more.Wait = true
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.Read(ctx, more); !errors.Is(err, context.Canceled) {
		t.Errorf("a wait that was cancelled: %v", err)
	}
	if err := held[7].Abort(); err != nil {
		t.Fatal(err)
	}
	tr := mustRead(t, e, more)
	if err := tr.Wait(t.Context()); err != nil || !bytes.Equal(more.Dst, src) {
		t.Errorf("the one that waited: %v", err)
	}
	for _, h := range slices.Delete(held, 7, 8) {
		if h.Poll() != Ongoing {
			t.Errorf("another one is %v", h.Poll())
		}
	}
}

// An invalid request fails at once and takes no place.
func TestBadReads(t *testing.T) {
	e := attachTo(t, startFake(t, nil))
	b := make([]byte, 64)
	r := remote(e, t, b, toCopy)
	for _, tt := range []struct {
		name string
		req  ReadRequest
	}{
		{"empty", ReadRequest{Src: r}},
		{"no byte", ReadRequest{Dst: []byte{}, Src: r}},
		{"two destinations", ReadRequest{Dst: b, DstVA: 4096, Src: r}},
		{"two sizes", ReadRequest{Dst: b, Size: 63, Src: r}},
		{"4 GiB", ReadRequest{DstVA: 4096, Size: math.MaxUint32 + 1, Src: Remote{VA: 4096, Len: 1 << 40}}},
		{"past the end", ReadRequest{Dst: b, Src: r, Offset: 1}},
		{"offset past the end", ReadRequest{Dst: b[:1], Src: r, Offset: 65}},
		{"offset that wraps", ReadRequest{Dst: b, Src: r, Offset: math.MaxUint64}},
		{"no source", ReadRequest{Dst: b}},
		{"source that wraps", ReadRequest{Dst: b, Src: Remote{VA: math.MaxUint64 - 8, Len: 64}}},
		{"node", ReadRequest{Dst: b, Src: Remote{Node: 1 << 22, VA: 4096, Len: 64}}},
		{"past the node's width", ReadRequest{DstVA: 1<<48 - 8, Size: 64, Src: r}},
	} {
		if tr, err := e.Read(t.Context(), tt.req); !errors.Is(err, ErrRequest) || tr != nil {
			t.Errorf("%s: %v, want ErrRequest", tt.name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.Read(ctx, ReadRequest{Dst: b, Src: r}); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that is over: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Read(t.Context(), ReadRequest{Dst: b, Src: r}); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestWordsLeaveNothing: where memory must be shared, the completion words are freed with the
// endpoint and its handles.
func TestWordsLeaveNothing(t *testing.T) {
	socket := startFake(t, nil)
	round := func() {
		e, err := Attach(t.Context(), Options{Socket: socket, Node: homeNode})
		if err != nil {
			t.Fatal(err)
		}
		if err := mustRead(t, e, ReadRequest{Dst: make([]byte, 8), Src: remote(e, t, pattern(8), toCopy)}).Wait(t.Context()); err != nil {
			t.Error(err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
	mapped := func() int {
		runtime.GC()
		maps, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Count(maps, []byte("exanet-buffer"))
	}
	before := mapped() // other tests' endpoints
	for range 5 {
		round()
	}
	for began := time.Now(); mapped() > before; time.Sleep(time.Millisecond) {
		if time.Since(began) > 2*time.Minute {
			t.Fatalf("%d buffers are mapped after endpoints were closed, %d before", mapped(), before)
		}
	}
}

// TestFailedReadKeepsItsMemory: blocks of a failed read may still arrive. Its destination is not
// reused before the endpoint is closed.
func TestFailedReadKeepsItsMemory(t *testing.T) {
	e := attachTo(t, startFake(t, nil))
	src := remote(e, t, pattern(8), toFail)
	src.PDID = device.StatusLimit
	var gone atomic.Bool
	dst := make([]byte, 1<<16)
	runtime.AddCleanup(&dst[0], func(*atomic.Bool) { gone.Store(true) }, &gone)
	if err := mustRead(t, e, ReadRequest{Dst: dst[:8], Src: src}).Wait(t.Context()); !errors.Is(err, ErrRetransmissions) {
		t.Fatal(err)
	}
	dst = nil
	for range 5 {
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
	}
	if gone.Load() {
		t.Error("the collector has taken the destination of a read that failed")
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); !gone.Load(); runtime.GC() {
		if time.Since(began) > 2*time.Minute {
			t.Fatal("the destination stays when the endpoint is closed")
		}
	}
}

// TestCancelCrosses: a refusal of an earlier request does not settle the cancel that crossed it,
// and no cancel overtakes its request.
func TestCancelCrosses(t *testing.T) {
	f, err := newFake()
	if err != nil {
		t.Fatal(err)
	}
	e := attachTo(t, startFake(t, f))
	tr := mustRead(t, e, ReadRequest{Dst: make([]byte, 8), Src: remote(e, t, pattern(8), toCross)})
	for e.pages.SendStatus(0) == device.PktzBusy {
		time.Sleep(time.Millisecond)
	}
	if err := tr.Abort(); err != nil {
		t.Fatal(err)
	}
	if err := tr.Wait(t.Context()); err != nil {
		t.Errorf("%v, want a read that was over before its cancel", err)
	}

	f.deaf.Store(true)
	if !e.pages.Send(0, homeNode, device.MailboxRead, 0) {
		t.Fatal("the packetizer is busy")
	}
	tr = mustRead(t, e, ReadRequest{Dst: make([]byte, 8), Src: remote(e, t, pattern(8), toHold)})
	e.pages.SetPktzStatus(0, device.PktzFree)
	if err := tr.Abort(); err != nil {
		t.Fatal(err)
	}
	if e.pages.SendStatus(0) == device.PktzBusy {
		t.Error("the cancel stands before its request")
	}
	f.deaf.Store(false)
	e.kick()
	if err := tr.Wait(t.Context()); !errors.Is(err, ErrAborted) {
		t.Error(err)
	}
}
