package rdma

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/exanet/pfd/device"
)

// A queue returns each transfer once, with its ID and its error, and ends when none is in flight.
func TestQueue(t *testing.T) {
	e := attachTo(t, startFake(t, nil))
	q := e.NewQueue()
	if tr := q.Poll(); tr != nil {
		t.Fatalf("an empty queue gives %v", tr)
	}
	for range q.Finished(t.Context()) {
		t.Fatal("an empty queue gives something")
	}
	src := pattern(64)
	bad := remote(e, t, make([]byte, 64), toFail)
	bad.PDID = device.PDID(device.StatusDomain)
	good := remote(e, t, make([]byte, 64), toCopy)
	const all = 200 // more than there are channels
	next := uint64(0)
	write := func() {
		r := WriteRequest{Src: src, Dst: good, Queue: q, ID: next}
		if next%5 == 0 {
			r.Dst = bad
		}
		next++
		mustWrite(t, e, r)
	}
	for range device.WriteChannels {
		write()
	}
	seen := map[uint64]bool{}
	for tr, err := range q.Finished(t.Context()) {
		if seen[tr.ID()] || !tr.Poll().Final() {
			t.Errorf("transfer %d comes again, or too early", tr.ID())
		}
		seen[tr.ID()] = true
		if want := tr.ID()%5 == 0; errors.Is(err, ErrDomain) != want || !want && err != nil {
			t.Errorf("transfer %d: %v", tr.ID(), err)
		}
		if next < all {
			write()
		}
	}
	if len(seen) != all {
		t.Errorf("%d transfers of %d", len(seen), all)
	}
	mustWrite(t, e, WriteRequest{Src: src, Dst: good, Queue: q, ID: 7})
	var tr *Transfer
	for tr == nil {
		tr = q.Poll()
	}
	if tr.ID() != 7 || q.Poll() != nil {
		t.Errorf("transfer %d, want 7 once", tr.ID())
	}
}

// One queue returns reads and writes, and the ends caused by its context and its endpoint.
func TestQueueEnds(t *testing.T) {
	e := attachTo(t, startFake(t, nil))
	q := e.NewQueue()
	src, dst := pattern(64), make([]byte, 64)
	if _, err := e.Read(t.Context(), ReadRequest{Dst: dst, Src: remote(e, t, src, toCopy), Queue: q, ID: 1}); err != nil {
		t.Fatal(err)
	}
	for tr, err := range q.Finished(t.Context()) {
		if tr.ID() != 1 || err != nil || !bytes.Equal(src, dst) {
			t.Errorf("read %d: %v", tr.ID(), err)
		}
	}
	held := mustWrite(t, e, WriteRequest{Src: src, Dst: remote(e, t, dst, toHold), Queue: q})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for tr, err := range q.Finished(ctx) {
		if tr != nil || !errors.Is(err, context.Canceled) {
			t.Errorf("%v, %v", tr, err)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	for tr, err := range q.Finished(t.Context()) {
		if tr != held || !errors.Is(err, ErrAborted) {
			t.Errorf("%v, %v", tr, err)
		}
	}
	other := attachTo(t, startFake(t, nil))
	if _, err := other.Write(t.Context(), WriteRequest{Src: src, Dst: remote(other, t, dst, toCopy), Queue: q}); !errors.Is(err, ErrRequest) {
		t.Errorf("another endpoint's queue: %v", err)
	}
}

// The sources of a gather list are contiguous at the destination, and the completion words arrive
// last. There are more sources than channels.
func TestGather(t *testing.T) {
	e := attachTo(t, startFake(t, nil))
	q := e.NewQueue()
	for _, sizes := range [][]int{{64}, {1, 4096, 3, 100}, make([]int, 3*device.WriteChannels)} {
		var list [][]byte
		var want []byte
		for i, size := range sizes {
			b := bytes.Repeat([]byte{byte(i + 1)}, max(size, 1))
			list, want = append(list, b), append(want, b...)
		}
		dst := make([]byte, len(want)+16)
		words, err := e.Alloc(4096)
		if err != nil {
			t.Fatal(err)
		}
		last, err := Word(words.Bytes(), 8)
		if err != nil {
			t.Fatal(err)
		}
		tr := mustWrite(t, e, WriteRequest{
			Gather: list, Dst: remote(e, t, dst, toCopy), Offset: 16, Queue: q,
			Notify: &Notification{VA: words.VA(), First: 1, Last: 2},
		})
		if err := e.WaitNotification(t.Context(), last, 2); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(dst[16:], want) {
			t.Errorf("%d sources: not what was written when the words came", len(list))
		}
		if err := tr.Wait(t.Context()); err != nil || tr.Poll() != Finished || tr.Channel() != -1 {
			t.Errorf("%v, %v, channel %d", err, tr.Poll(), tr.Channel())
		}
		if got := q.Poll(); got != tr || q.Poll() != nil {
			t.Errorf("the queue gives %v, want the handle once", got)
		}
		if err := words.Free(); err != nil {
			t.Error(err)
		}
	}
}

func TestGatherFails(t *testing.T) {
	e := attachTo(t, startFake(t, nil))
	list := [][]byte{pattern(64), pattern(64), pattern(64)}
	dst := make([]byte, 192)
	bad := remote(e, t, dst, toFail)
	bad.PDID = device.PDID(device.StatusDecode)
	tr := mustWrite(t, e, WriteRequest{Gather: list, Dst: bad, Notify: &Notification{VA: 0x10000}})
	var te *TransferError
	if err := tr.Wait(t.Context()); !errors.As(err, &te) || te.Code != device.StatusDecode || te.Size != 64 {
		t.Errorf("%v, want status 2 of one source", err)
	}

	// Aborted with transfers in flight, and while others hold all channels.
	paused := mustWrite(t, e, WriteRequest{Gather: list, Dst: remote(e, t, dst, toPause)})
	for paused.PausedBlocks() != 9 {
	}
	if paused.Poll() != Paused {
		t.Errorf("%v, want paused", paused.Poll())
	}
	var held []*Transfer
	for range device.WriteChannels - len(list) {
		held = append(held, mustWrite(t, e, WriteRequest{Src: list[0], Dst: remote(e, t, dst, toHold)}))
	}
	waits := mustWrite(t, e, WriteRequest{Gather: list, Dst: remote(e, t, dst, toCopy)})
	for _, tr := range []*Transfer{waits, paused} {
		if err := tr.Abort(); err != nil {
			t.Error(err)
		}
		if err := tr.Wait(t.Context()); !errors.Is(err, ErrAborted) {
			t.Errorf("%v, want aborted", err)
		}
	}

	// The endpoint ends with transfers in flight and others not started.
	gone := mustWrite(t, e, WriteRequest{Gather: append(list, list...), Dst: remote(e, t, make([]byte, 384), toHold)})
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	for _, tr := range append(held, gone) {
		if err := tr.Err(); !errors.Is(err, ErrAborted) && !errors.Is(err, ErrGone) {
			t.Errorf("closed: %v, %v", tr.Poll(), err)
		}
	}
	if _, err := e.Write(t.Context(), WriteRequest{Gather: list, Dst: bad}); !errors.Is(err, ErrClosed) {
		t.Errorf("after close: %v", err)
	}
}
