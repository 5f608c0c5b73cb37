package daemon

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/keeper"
)

// fleeting is a fake of two nodes whose devices go when the test sends to lose, answer again when
// it sends to answer, and are back when it sends to back.
type fleeting struct {
	*fake
	lose         [2]chan struct{}
	answer, back chan struct{}
	gone         [2]atomic.Bool
}

func newFleeting() *fleeting {
	return &fleeting{
		fake: newFake(2), lose: [2]chan struct{}{make(chan struct{}), make(chan struct{})},
		answer: make(chan struct{}), back: make(chan struct{}),
	}
}

func (m *fleeting) Bus(node int) device.Bus { return fleetingBus{m.nodes[node], m, node} }

func (m *fleeting) Features() session.Features {
	f := m.fake.Features()
	f.Reconnect = m.Reconnect
	return f
}

func (m *fleeting) Reconnect(ctx context.Context, node int) error {
	for _, c := range []chan struct{}{m.answer, m.back} {
		select {
		case <-c:
			m.gone[node].Store(false)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

type fleetingBus struct {
	*fakeNode
	m     *fleeting
	index int
}

func (b fleetingBus) Serve(ctx context.Context, h device.Handler) error {
	b.Post(func() { b.handler = h })
	select {
	case <-b.m.lose[b.index]:
		b.m.gone[b.index].Store(true)
		return device.ErrGone
	case <-ctx.Done():
		return nil
	}
}

func (b fleetingBus) Window(id device.WindowID) device.Window {
	if b.m.gone[b.index].Load() {
		return device.Window{Access: goneWindow{}}
	}
	return b.fakeNode.Window(id)
}

// goneWindow is a window of a device that does not answer.
type goneWindow struct{}

func (goneWindow) Load(uint32, int) (uint64, error) { return 0, device.ErrGone }
func (goneWindow) Store(uint32, int, uint64) error  { return device.ErrGone }

// The changes of a reload also apply to a device that comes back, before or after the reload.
func TestReloadHoldsForADeviceThatComesBack(t *testing.T) {
	for _, away := range []bool{false, true} {
		t.Run(fmt.Sprintf("away %v", away), func(t *testing.T) {
			m := newFleeting()
			r := startOn(t, m.fake, m)
			lose := func() {
				m.lose[1] <- struct{}{}
				r.until("the device is gone", func() bool { return r.node(1).Down() })
			}
			if away {
				lose()
			}
			next := r.cfg
			next.TimeoutUS, next.GuardUS, next.Outstanding = 1234, 56789, 2
			if _, err := r.reload(next); err != nil {
				t.Fatal(err)
			}
			if !away {
				lose()
			}
			m.answer <- struct{}{}
			m.back <- struct{}{}
			r.until("the device is there again", func() bool { return !r.node(1).Down() })
			r.fake.do(func() {
				for i, n := range r.fake.nodes {
					for reg, want := range map[uint32]uint32{device.PLTimeoutUS: 1234, device.PLGuardUS: 56789, device.PLOutstanding: 2} {
						if v := n.Get(device.PL, reg); v != want {
							t.Errorf("node %d: register pl+%#x is %d, want %d as reloaded", i, reg, v, want)
						}
					}
				}
			})
		})
	}
}

// A process whose handshake lasts while the device goes and comes back gets no domain before the
// device is initialized, since the initialization would end it silently.
func TestHandshakeWhileTheDeviceComesBack(t *testing.T) {
	m := newFleeting()
	r := startOn(t, m.fake, m)
	k, err := keeper.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	c, err := attach.Dial(r.ctx(), r.attachSocket())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	h := hello()
	va, proof := k.Proof()
	h.ProofVA, h.Proof = device.VA(va), proof
	msg, err := h.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Send(msg); err != nil {
		t.Fatal(err)
	}
	receive := func() []byte {
		t.Helper()
		buf := make([]byte, attach.MaxMessage)
		n, fds, err := c.Receive(r.ctx(), buf)
		fds.Close()
		if err != nil {
			t.Fatal(err)
		}
		return buf[:n]
	}
	mapped := receive() // a header, as its answer is
	m.lose[0] <- struct{}{}
	m.answer <- struct{}{}
	binary.LittleEndian.PutUint16(mapped, uint16(attach.TypeMapped))
	if err := c.Send(mapped, k.PIDFD()); err != nil {
		t.Fatal(err)
	}
	answer := receive()
	if refused, err := attach.DecodeRefused(answer); err != nil || refused.Code != attach.CodeBusy {
		_, welcome := attach.DecodeWelcome(answer)
		t.Errorf("not refused as busy: %v, %v; welcome: %v", refused, err, welcome == nil)
	}
	m.back <- struct{}{}
	r.until("the device is there again", func() bool { return !r.node(0).Down() })
	r.attach(hello())
	r.fake.do(func() {
		cfg := r.fake.nodes[0].Get64(device.PL, device.PLPDCfg)
		if pdid := r.node(0).Tenant(0).PDID; pdid == 0 || cfg&device.CfgEnable == 0 || device.PDID(cfg) != pdid {
			t.Errorf("slot 0: PDID %d, PD_CFG %#x", pdid, cfg)
		}
	})
}

// A transfer may finish while the device of another node is away.
func TestDrainWhileADeviceIsAway(t *testing.T) {
	m := newFleeting()
	r := startOn(t, m.fake, m, func(c *Config) { c.DrainTime = patience })
	g := r.attach(hello())
	set := func(done uint32) func() {
		return func() { m.nodes[0].setChannel(0, 0, device.Descriptor{Done: done}, device.ChannelState{}) }
	}
	r.fake.do(set(device.DoneOngoing))
	m.lose[1] <- struct{}{}
	r.until("the device is gone", func() bool { return r.node(1).Down() })
	r.cancel()
	time.Sleep(100 * time.Millisecond)
	if reason, over := g.Pages().Ended(); over {
		t.Fatalf("the attachment ended (%v) before its transfer", reason)
	}
	r.fake.do(set(device.DoneCompleted))
	if e := r.ended(g); e.Reason != attach.ReasonShutdown {
		t.Errorf("ended with %v", e.Reason)
	}
	if err := r.wait(); err != nil {
		t.Errorf("Run: %v", err)
	}
}

// While a device is away, the counters of the others and pfd's own are available.
func TestCountersWhileADeviceIsAway(t *testing.T) {
	m := newFleeting()
	r := startOn(t, m.fake, m)
	m.lose[1] <- struct{}{}
	r.until("the device is gone", func() bool { return r.node(1).Down() })
	list, err := r.client.Counters(r.ctx(), control.AllNodes)
	if err != nil {
		t.Fatal(err)
	}
	has := func(node int, name string) bool {
		return slices.ContainsFunc(list, func(c control.Counter) bool { return c.Node == node && c.Name == name })
	}
	hw := device.FIFOPush.String() + "_total"
	if !has(0, hw) || has(1, hw) || !has(1, control.CounterFaults) {
		t.Errorf("node 0's %s %v, node 1's %v (want none), node 1's %s %v", hw, has(0, hw), has(1, hw), control.CounterFaults, has(1, control.CounterFaults))
	}
	if code, text := r.get("/metrics"); code != 200 || !strings.Contains(string(text), `exanet_attachments_total{node="1"}`) {
		t.Errorf("/metrics: %d, %d bytes", code, len(text))
	}
}
