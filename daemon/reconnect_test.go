package daemon

import (
	"context"
	"testing"

	"github.com/exanet/pfd/device"
)

// fleeting is a fake whose devices go when the test sends lose, and come back when it
// has taken connecting and sends back.
type fleeting struct {
	*fake
	lose, connecting, back chan struct{}
}

func newFleeting(nodes int) *fleeting {
	return &fleeting{newFake(nodes), make(chan struct{}), make(chan struct{}), make(chan struct{})}
}

func (m *fleeting) Bus(node int) device.Bus { return fleetingBus{m.nodes[node], m} }

func (m *fleeting) Reconnect(ctx context.Context, _ int) error {
	for _, c := range []chan struct{}{m.connecting, m.back} {
		select {
		case <-c:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

type fleetingBus struct {
	*fakeNode
	m *fleeting
}

func (b fleetingBus) Serve(ctx context.Context, h device.Handler) error {
	b.Post(func() { b.handler = h })
	select {
	case <-b.m.lose:
		return device.ErrGone
	case <-ctx.Done():
		return nil
	}
}

// What a reload has changed holds for a device that comes back, too.
func TestReloadHoldsForADeviceThatComesBack(t *testing.T) {
	m := newFleeting(1)
	r := startOn(t, m.fake, m)
	next := r.cfg
	next.TimeoutUS, next.GuardUS, next.Outstanding = 1234, 56789, 2
	if _, err := r.reload(next); err != nil {
		t.Fatal(err)
	}
	m.lose <- struct{}{}
	m.connecting <- struct{}{}
	m.back <- struct{}{}
	r.until("the device is there again", func() bool { return !r.nodes[0].down.Load() })
	r.fake.do(func() {
		for reg, want := range map[uint32]uint32{device.PLTimeoutUS: 1234, device.PLGuardUS: 56789, device.PLOutstanding: 2} {
			if v := r.fake.nodes[0].Get(device.PL, reg); v != want {
				t.Errorf("register pl+%#x is %d, want %d as reloaded", reg, v, want)
			}
		}
	})
}
