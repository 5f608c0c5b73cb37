package emu_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/internal/sim"
	"github.com/exanet/pfd/internal/suite"
	"github.com/exanet/pfd/soc/record"
	"github.com/exanet/pfd/soc/wire"
	"github.com/exanet/pfd/space"
	"github.com/exanet/pfd/space/proc"
)

// cable joins two engines of one node each, with the ids 0 and 1, as links between hosts do.
type cable struct {
	ends [2]*end
	wg   sync.WaitGroup

	mu     sync.Mutex
	up     bool
	loss   float64
	most   int        // frames that wait before the cable is full
	chance *rand.Rand // of losses
	spy    func(f *wire.Frame)
}

// end is the Carrier of one engine.
type end struct {
	cable  *cable
	self   int
	engine *emu.Engine
	wake   chan struct{}

	// Guarded by cable.mu.
	waiting []*wire.Frame
	full    bool
}

func newCable() *cable {
	c := &cable{up: true, most: 1 << 20, chance: rand.New(rand.NewPCG(1, 2))}
	for i := range c.ends {
		c.ends[i] = &end{cable: c, self: i, wake: make(chan struct{}, 1)}
	}
	return c
}

func (e *end) Reaches(id device.NodeID) bool { return int(id) == 1-e.self }

func (e *end) Send(f *wire.Frame) {
	c := e.cable
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.spy != nil {
		c.spy(f)
	}
	if !c.up || c.chance.Float64() < c.loss {
		return
	}
	e.waiting = append(e.waiting, clone(f))
	if len(e.waiting) >= c.most && !e.full {
		e.full = true
		e.engine.LinkReady(f.DstNode, f.DstNode, false)
	}
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

func clone(f *wire.Frame) *wire.Frame {
	own := *f
	own.Payload, own.Shared = bytes.Clone(f.Payload), nil
	return &own
}

// carry delivers what one end has sent to the engine of the other, until ended is closed.
func (e *end) carry(ended <-chan struct{}) {
	c, other := e.cable, e.cable.ends[1-e.self]
	done := make(chan struct{}, 1)
	for {
		c.mu.Lock()
		frames := e.waiting
		e.waiting = nil
		if e.full {
			e.full = false
			if c.up {
				e.engine.LinkReady(device.NodeID(other.self), device.NodeID(other.self), true)
			}
		}
		c.mu.Unlock()
		if len(frames) > 0 {
			other.engine.Arrive(frames, func() { done <- struct{}{} })
			select {
			case <-done:
			case <-ended:
				return
			}
			for _, f := range frames { // a frame is the engine's only until then
				clear(f.Payload)
				*f = wire.Frame{}
			}
			continue
		}
		select {
		case <-e.wake:
		case <-ended:
			return
		}
	}
}

// set takes the cable up or down. Frames on a cable that goes down are lost.
func (c *cable) set(up bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.up = up
	for i, e := range c.ends {
		if !up {
			e.waiting = nil
		}
		e.engine.LinkReady(device.NodeID(1-i), device.NodeID(1-i), up)
	}
}

// hosts is a machine of two engines.
type hosts struct {
	*cable
	engines [2]*emu.Engine
	stop    [2]func()
}

func newHosts(t testing.TB, bare bool, prepare ...func(i int, e *emu.Engine)) *hosts {
	t.Helper()
	h := &hosts{cable: newCable()}
	ended := make(chan struct{})
	for i := range h.engines {
		h.boot(t, i, bare, prepare...)
	}
	for _, e := range h.ends {
		h.wg.Go(func() { e.carry(ended) })
	}
	t.Cleanup(func() {
		close(ended)
		h.wg.Wait()
		for _, stop := range h.stop {
			stop()
		}
	})
	return h
}

// boot makes and runs engine i, a new life of that host.
func (h *hosts) boot(t testing.TB, i int, bare bool, prepare ...func(i int, e *emu.Engine)) {
	t.Helper()
	e, err := emu.New(emu.Config{Nodes: 1, Base: device.NodeID(i), Carrier: h.ends[i], NoTXFIFO: bare})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range prepare {
		f(i, e)
	}
	h.engines[i], h.ends[i].engine = e, e
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = e.Run(ctx) }()
	h.stop[i] = sync.OnceFunc(func() { cancel(); <-done })
}

func (h *hosts) Bus(n int) device.Bus      { return h.engines[n].Bus(0) }
func (h *hosts) Space(n int) space.Machine { return h.engines[n].Space(0) }
func (h *hosts) Now() int64                { return h.engines[0].Now() }

func (h *hosts) on(n int, f func()) bool {
	done, e := make(chan struct{}), h.engines[n]
	e.Bus(0).Post(func() { defer close(done); f() })
	<-done
	return true
}

func (h *hosts) Attach(n, slot int, pages *attach.Pages, wake int, p *proc.Process) (err error) {
	h.on(n, func() {
		err = h.engines[n].Attach(0, slot, &emu.Attachment{Pages: pages, Wake: wake, Space: space.NewDirect(p, gup.New(p))})
	})
	return err
}

func (h *hosts) Detach(n, slot int) { h.on(n, func() { h.engines[n].Detach(0, slot) }) }

// The fault suite passes between two hosts.
func TestSuiteBetweenHosts(t *testing.T) {
	suite.Run(t, func(t *testing.T, bare bool) suite.Machine { return newHosts(t, bare) })
}

// Whatever a link between hosts loses, however often it is full and goes down and up, every byte of every
// write arrives, and nothing else is written. Recordings of both hosts replay exactly.
func TestCable(t *testing.T) {
	var files [2]bytes.Buffer
	var writers [2]*record.Writer
	h := newHosts(t, false, func(i int, e *emu.Engine) {
		writers[i] = record.NewWriter(&files[i], e.RecordHeader(), func(err error) { t.Error(err) })
		e.Record(writers[i])
	})
	r := suite.NewRig(t, h, fault.PIA, false)
	h.mu.Lock()
	h.loss, h.most = 0.05, 4
	h.mu.Unlock()
	for n := range 2 {
		h.on(n, func() {
			for _, reg := range []uint32{device.PLTimeoutUS, device.PLGuardUS} {
				if err := h.Bus(n).Window(device.PL).Write32(reg, 2000); err != nil {
					t.Error(err)
				}
			}
		})
	}
	const room = 256 << 10
	chance := rand.New(rand.NewPCG(3, 4))
	for round := range 40 {
		size, from, to := 1+chance.IntN(room-64), chance.IntN(64), chance.IntN(64)
		src, dst := r.Map(t, room), r.Map(t, room)
		for i := range src {
			src[i] = byte(chance.Uint32())
		}
		r.Start(round%8, device.Descriptor{Src: suite.VA(src) + device.VA(from), Dst: suite.VA(dst) + device.VA(to), Size: uint32(size), DstNode: 1})
		if round%2 == 0 {
			h.set(false)
			h.set(true)
		}
		done, status := r.Wait(round % 8)
		if done != device.DoneCompleted {
			t.Fatalf("write %d of %d bytes: done %d, status %d", round, size, done, status)
		}
		if want := slices.Concat(make([]byte, to), src[from:from+size], make([]byte, room-to-size)); !bytes.Equal(dst, want) {
			t.Fatalf("write %d of %d bytes: other bytes", round, size)
		}
	}
	for n := range 2 {
		h.on(n, func() {
			if err := writers[n].Close(); err != nil {
				t.Error(err)
			}
			got, err := sim.Replay(bytes.NewReader(files[n].Bytes()))
			if digest, count := writers[n].Digest(); err != nil || got.Digest != digest || got.Checked != count || got.Kinds[record.Admit] == 0 || got.Kinds[record.LinkReady] == 0 {
				t.Errorf("host %d: replayed %+v, want digest %#x of %d records: %v", n, got, digest, count, err)
			}
		})
	}
}
