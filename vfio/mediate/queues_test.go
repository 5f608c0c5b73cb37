package mediate_test

import (
	"bytes"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/internal/suite"
	"github.com/exanet/pfd/vfio/mediate"
)

// requests returns how many requests a node's client has sent, and how many it awaited.
func (m *machine) requests(node int) (sent, awaited uint64) {
	return m.functions[node].(interface{ Requests() (sent, awaited uint64) }).Requests()
}

// cost is the number of messages for each transfer.
type cost struct {
	sent, awaited [2]float64 // by node
}

// write makes n transfers of 4 KiB into as many pages and returns their cost.
func write(t testing.TB, m *machine, r *suite.Rig, n int, absent bool) (c cost) {
	t.Helper()
	src, dst := r.Map(t, device.PageSize), r.Map(t, n*device.PageSize)
	for i := range src {
		src[i] = byte(i * 7)
	}
	r.Present(t, src)
	if !absent {
		r.Present(t, dst)
	}
	// The source is already mapped for the device, and except for faults the destination.
	one := func(page int) {
		d := device.Descriptor{Src: suite.VA(src), Dst: suite.VA(dst[page*device.PageSize:]), Size: device.PageSize, DstNode: 1}
		if done, status := r.Write(0, d); done != device.DoneCompleted {
			t.Fatalf("page %d: done %d, status %d", page, done, status)
		}
	}
	one(0)
	if !absent {
		for i := 1; i < n; i++ {
			one(i)
		}
	}
	var before, awaitedBefore [2]uint64
	for node := range 2 {
		before[node], awaitedBefore[node] = m.requests(node)
	}
	for i := 1; i < n; i++ {
		one(i)
	}
	for node := range 2 {
		sent, awaited := m.requests(node)
		c.sent[node], c.awaited[node] = float64(sent-before[node])/float64(n-1), float64(awaited-awaitedBefore[node])/float64(n-1)
	}
	for i := range n {
		if !bytes.Equal(dst[i*device.PageSize:][:device.PageSize], src) {
			t.Fatalf("page %d: other bytes than the source's", i)
		}
	}
	return c
}

// TestFaultMessages: a fault with queues in memory reads no register and awaits no message. It
// sends at most a DMA_MAP and a doorbell.
func TestFaultMessages(t *testing.T) {
	const faults = 64
	m := newMachineOf(t, false, mediate.Config{})
	r := suite.NewRig(t, m, pagein.PIO, false)
	present := write(t, m, r, faults, false)
	count := r.Count(1, device.FIFOPush)
	absent := write(t, m, r, faults, true)
	if n := r.Count(1, device.FIFOPush) - count; n < faults {
		t.Errorf("%d faults, want %d at least", n, faults)
	}
	t.Logf("present: sent %.2f, awaited %.2f; absent: sent %.2f, awaited %.2f (node 0, 1)", present.sent, present.awaited, absent.sent, absent.awaited)
	if absent.awaited != [2]float64{} {
		t.Errorf("a fault awaits %v messages", absent.awaited)
	}
	if fault := absent.sent[0] + absent.sent[1] - present.sent[0] - present.sent[1]; fault > 3 {
		t.Errorf("a fault sends %.2f messages, want 3 at most", fault)
	}
}
