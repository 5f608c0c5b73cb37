package deploy

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
)

// TestRings lets two endpoints that sleep on rings answer each other, with the devices in another
// process, by queues in memory and by registers: a wake-up that is lost hangs.
func TestRings(t *testing.T) {
	for _, args := range [][]string{nil, {"--registers"}} {
		for _, to := range []device.NodeID{0, 1} {
			t.Run(fmt.Sprint(args, " to node ", to), func(t *testing.T) {
				l := newPlace(t)
				l.serve()
				d := l.daemon([]int{0, 1}, args...)
				answer(t, d.socket, to)
			})
		}
	}
}

// ended returns a context that has ended: a call that waits returns at once.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func answer(t *testing.T, socket string, to device.NodeID) {
	const rounds = 100
	type end struct {
		*rdma.Endpoint
		b            *rdma.Buffer
		word         *uint64
		to           rdma.Remote
		ring, events *rdma.Ring
	}
	var ends [2]*end
	for i, node := range []device.NodeID{0, to} {
		e, err := rdma.Attach(t.Context(), rdma.Options{Socket: socket, Node: node, AcceptGroup: true})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		n := &end{Endpoint: e}
		ends[i] = n
		if n.b, err = e.Alloc(4096); err != nil {
			t.Fatal(err)
		}
		if n.word, err = rdma.Word(n.b.Bytes(), 24); err != nil {
			t.Fatal(err)
		}
		if n.to, err = e.Export(n.b.Bytes()); err != nil {
			t.Fatal(err)
		}
		words, err := rdma.Word(n.b.Bytes(), 16)
		if err != nil {
			t.Fatal(err)
		}
		var errs [2]error
		n.ring, errs[0] = e.Ring(unsafe.Slice(words, 2))
		n.events, errs[1] = e.Ring(nil)
		if err := errors.Join(errs[:]...); err != nil {
			t.Fatal(err)
		}
	}
	until := func(r *rdma.Ring, check func() bool) error {
		for !check() {
			if err := r.Wait(t.Context()); err != nil {
				return err
			}
		}
		return nil
	}
	send := func(e, peer *end, n uint64) error {
		tr, err := e.Write(t.Context(), rdma.WriteRequest{
			Src: e.b.Bytes()[128:192], Dst: peer.to, Offset: 64, Notify: &rdma.Notification{Offset: 16, First: n, Last: n},
		})
		if err != nil {
			return err
		}
		return until(e.events, func() bool { return tr.Poll().Final() })
	}
	play := func(e, peer *end, first bool) error {
		for n := uint64(1); n <= rounds; n++ {
			if first {
				if err := send(e, peer, n); err != nil {
					return err
				}
			}
			if err := until(e.ring, func() bool { return atomic.LoadUint64(e.word) == n }); err != nil {
				return err
			}
			if !first {
				if err := send(e, peer, n); err != nil {
					return err
				}
			}
		}
		return nil
	}
	done := make(chan error)
	go func() { done <- play(ends[1], ends[0], false) }()
	if err := errors.Join(play(ends[0], ends[1], true), <-done); err != nil {
		t.Fatal(err)
	}
	// A message wakes the ring of the mailbox, too.
	if _, err := ends[0].Send(t.Context(), ends[1].to, 7<<32); err != nil {
		t.Fatal(err)
	}
	err := until(ends[1].events, func() bool {
		m, err := ends[1].Receive(ended())
		return err == nil && m.Words[0]>>32 == 7
	})
	if err != nil {
		t.Error(err)
	}
	if err := errors.Join(ends[0].ring.Close(), ends[0].events.Close(), ends[0].events.Close()); err != nil {
		t.Error(err)
	}
}
