package deploy

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
)

// TestMessages exchanges messages with the devices in another process, by queues in memory and by
// registers: each arrives once, or its refusal is told.
func TestMessages(t *testing.T) {
	for _, args := range [][]string{nil, {"--registers"}} {
		for _, to := range []device.NodeID{0, 1} {
			t.Run(fmt.Sprint(args, " to node ", to), func(t *testing.T) {
				l := newPlace(t)
				l.serve()
				d := l.daemon([]int{0, 1}, args...)
				exchange(t, d.socket, to)
			})
		}
	}
}

func exchange(t *testing.T, socket string, to device.NodeID) {
	var e [2]*rdma.Endpoint
	var r [2]rdma.Remote
	for i, node := range []device.NodeID{0, to} {
		var err error
		if e[i], err = rdma.Attach(t.Context(), rdma.Options{Socket: socket, Node: node, AcceptGroup: true}); err != nil {
			t.Fatal(err)
		}
		defer e[i].Close()
		if r[i], err = e[i].ExportVA(4096, 1); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(200) { // of 2 to 8 words, back and forth
		words := []uint64{0, i, 3, 4, 5, 6, 7, 8}[:2+i%7]
		for from := range e {
			if _, err := e[from].Send(t.Context(), r[1-from], words...); err != nil {
				t.Fatal(err)
			}
			m, err := e[1-from].Receive(t.Context())
			if err != nil || m.N != len(words) || m.Words[1] != i || m.Node != r[from].Node || m.Interface != r[from].Interface || m.PDID != r[from].PDID {
				t.Fatalf("message %d: %+v, %v", i, m, err)
			}
		}
	}
	// More than there is room for, to a receiver that starts late.
	const count = 300
	sent := map[uint32]uint64{}
	over := make(map[uint64]string)
	for i := range uint64(count) {
		number, err := e[0].Send(t.Context(), r[1], 0, i)
		switch {
		case err == nil:
			sent[number] = i
		case errors.Is(err, rdma.ErrRefused):
			over[i] = "refused"
		default:
			t.Fatal(err)
		}
	}
	type event struct {
		i   uint64
		how string
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events := make(chan event)
	tell := func(v event) {
		select {
		case events <- v:
		case <-ctx.Done():
		}
	}
	go func() {
		for ctx.Err() == nil {
			var no *rdma.RefusedError
			if _, err := e[0].Receive(ctx); errors.As(err, &no) {
				tell(event{sent[no.Number], "refused late"})
			}
		}
	}()
	go func() {
		for ctx.Err() == nil {
			if m, err := e[1].Receive(ctx); err == nil {
				tell(event{m.Words[1], "received"})
			}
		}
	}()
	for len(over) < count {
		v := <-events
		if how := over[v.i]; how != "" {
			t.Fatalf("message %d was %s and is %s", v.i, how, v.how)
		}
		over[v.i] = v.how
	}
}
