package fault_test

import (
	"flag"
	"os"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/queues"
	"github.com/exanet/pfd/fault/faulttest"
	"github.com/exanet/pfd/soc/queue"
)

// byQueues makes every rig's driver use queues in memory. TestMain runs all tests, except
// benchmarks and fuzz targets, both ways.
var byQueues bool

func TestMain(m *testing.M) {
	code := m.Run()
	if bench := flag.Lookup("test.bench").Value.String(); code == 0 && bench == "" && flag.Lookup("test.fuzz").Value.String() == "" {
		byQueues = true
		code = m.Run()
	}
	os.Exit(code)
}

// registersOnly skips a test about register accesses, or about a faulty register that a driver
// with queues does not access.
func registersOnly(t *testing.T) {
	t.Helper()
	if byQueues {
		t.Skip("tests register accesses, which a driver with queues does not make")
	}
}

const queuesAt = 1 << 32

// queueNode is the device's side of a node's queues.
type queueNode struct {
	n   *faulttest.Node
	m   queue.Machine
	mem []byte
}

// useQueues adds queues to the rig's node and returns the bus of a driver that uses them.
func (r *rig) useQueues() *faulttest.QueueBus {
	h := &queueNode{n: r.n, mem: make([]byte, queues.MemorySize)}
	h.m = queue.New(h)
	bus := faulttest.NewQueueBus(r.n, queues.Config{Memory: faulttest.Bytes(h.mem), Addr: queuesAt})
	r.n.Queues = h
	if r.n.Err != nil {
		return bus
	}
	record := r.n.Record
	r.n.Record = false
	if err := bus.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.n.Record = record
	r.n.Handler = bus
	return bus
}

func (h *queueNode) Load(off uint32) uint64 { return h.m.Load(off) }

func (h *queueNode) Store(off uint32, v uint64) {
	reg, _, _ := device.Lookup(device.PL, off)
	value := h.m.Load(off)
	value = value&^reg.Write&^(v&reg.W1C) | v&reg.Write
	h.m.Store(off, value, v&reg.Act)
}

// Changed posts accesses as functions, so that anything may happen in between.
func (h *queueNode) Changed() bool {
	if h.m.Run(func(a *queue.Access) { h.n.Post(func() { h.access(a) }) }) {
		h.n.Vector(device.VectorFIFO)
	}
	return h.m.Events()
}

func (h *queueNode) access(a *queue.Access) {
	b := h.mem[a.Addr-queuesAt:][:len(a.Data)]
	if a.Write {
		copy(b, a.Data)
	} else {
		copy(a.Data, b)
	}
	h.m.Answered(a.ID, true)
	h.Changed()
}

func (h *queueNode) Waiting(out []device.Event) []device.Event {
	for b := 0; b < device.Slots && len(out) < cap(out); b++ {
		if fsr := h.n.Get(device.SMMU, device.Bank(b, device.FSR)); fsr != 0 {
			out = append(out, device.Event{
				Kind: device.EventBank, Index: uint8(b), Status: fsr,
				Syndrome: h.n.Get(device.SMMU, device.Bank(b, device.FSYNR0)), Address: h.n.Get64(device.SMMU, device.Bank(b, device.FAR)),
			})
		}
	}
	if gfsr := h.n.Get(device.SMMU, device.GFSR); gfsr != 0 && len(out) < cap(out) {
		out = append(out, device.Event{Kind: device.EventGlobal, Status: gfsr})
	}
	for i, before := 0, -1; before != len(out); i++ {
		before = len(out)
		for _, tx := range []bool{false, true} {
			if words, ext, ok := h.n.Peek(tx, i); ok && len(out) < cap(out) {
				lost := i == 0 && h.n.Overflow(tx, false)
				out = append(out, device.Event{Kind: device.EventFault, TX: tx, Lost: lost, Words: words, Ext: ext})
			}
		}
	}
	return out
}

func (h *queueNode) Taken(e *device.Event) {
	clear := func(off uint32) { h.n.Set(device.SMMU, off, h.n.Get(device.SMMU, off)&^e.Status) }
	switch e.Kind {
	case device.EventFault:
		h.n.Overflow(e.TX, e.Lost)
		h.n.Pop(e.TX)
	case device.EventBank:
		clear(device.Bank(int(e.Index), device.FSR))
	case device.EventGlobal:
		clear(device.GFSR)
	}
}

func (h *queueNode) Command(c *device.Command) (device.Event, bool) {
	w, base := h.n.Window(device.PKTZ), uint32(c.Index)*device.PageSize+uint32(c.Channel)*device.PktzChannelStride
	_ = w.Write64(base+device.PktzDestination, c.Destination)
	for i, v := range c.Words[:c.Count] {
		_ = w.Write64(base+device.PktzPayload+8*uint32(i), v)
	}
	_ = w.Write64(base+device.PktzSend, uint64(c.Count))
	return device.Event{}, false
}

func (h *queueNode) Busy(int) bool { return false }
