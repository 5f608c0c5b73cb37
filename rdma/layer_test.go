package rdma_test

import (
	"context"
	"errors"
	"testing"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/rdma"
)

// A protocol of the module's own takes its kinds' messages and refusals, and no other.
func TestLayer(t *testing.T) {
	for _, to := range []device.NodeID{1, 0} {
		e, r := ends(t, 0, to)
		made := 0
		create := func() (any, error) { made++; return &made, nil }
		for range 2 {
			if l, err := e[1].Layer(create, mailbox.KindStream, mailbox.KindConnection); l != any(&made) || err != nil || made != 1 {
				t.Fatal(l, err, made)
			}
		}
		if err := e[1].Handle(mailbox.KindConnection, func(rdma.Message) {}); !errors.Is(err, rdma.ErrRequest) {
			t.Errorf("a handler beside it: %v", err)
		}
		failed := errors.New("failed")
		for range 2 {
			if _, err := e[0].Layer(func() (any, error) { return nil, failed }, mailbox.KindMemory); !errors.Is(err, failed) {
				t.Errorf("a layer that fails: %v", err)
			}
		}

		// To whichever process has the interface.
		anyone := r[1]
		anyone.Generation = 0
		post := func(k mailbox.Kind) (number uint32) {
			err := rdma.ErrBusy
			for errors.Is(err, rdma.ErrBusy) {
				number, err = e[0].Post(anyone, k.Word(), 7)
			}
			if err != nil {
				t.Fatal(err)
			}
			return number
		}
		take := func(e *rdma.Endpoint, k mailbox.Kind) (m rdma.Message) {
			err := e.Await(t.Context(), func() (ok bool) {
				m, ok = e.Take(k)
				return ok
			})
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		post(mailbox.KindStream)
		if m := take(e[1], mailbox.KindStream); m.Words[1] != 7 || m.PDID != r[0].PDID {
			t.Errorf("%+v", m)
		}
		// A receiver that takes nothing: the refusals come by number.
		const room = attach.MailSlots + 1 + device.MailboxDepth
		last := uint32(0)
		for range room + 10 {
			last = post(mailbox.KindStream)
		}
		for m := take(e[0], mailbox.KindStream); m.Refused != last; m = take(e[0], mailbox.KindStream) {
			if m.Refused == 0 || m.Refused > last {
				t.Fatalf("%+v, last is %d", m, last)
			}
		}
		self := r[0]
		self.Generation = 0
		if _, err := e[0].Post(self, mailbox.KindStream.Word()); !errors.Is(err, rdma.ErrRequest) {
			t.Errorf("to itself: %v", err)
		}
		if err := e[0].Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := e[0].Post(anyone, mailbox.KindStream.Word()); !errors.Is(err, rdma.ErrGone) && !errors.Is(err, rdma.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if err := e[0].Await(context.Background(), func() bool { return false }); !errors.Is(err, rdma.ErrGone) {
			t.Errorf("waiting after Close: %v", err)
		}
		if _, err := e[0].Layer(create, mailbox.KindMemory); err == nil {
			t.Error("a layer after Close")
		}
	}
}
