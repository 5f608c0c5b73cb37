package emu_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/queues"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/fault/faulttest"
	"github.com/exanet/pfd/internal/sim"
	"github.com/exanet/pfd/soc/record"
)

// A recording of a live engine can be replayed.
func TestRecordingIsReplayed(t *testing.T) {
	var file bytes.Buffer
	var w *record.Writer
	r := newRig(t, fault.PI4, func(e *emu.Engine) {
		w = record.NewWriter(&file, e.RecordHeader(), func(err error) { t.Error(err) })
		e.Record(w)
	})
	src, dst := absent(t, 1<<20), absent(t, 1<<20)
	for i := range src[:1<<19] {
		src[i] = byte(i)
	}
	for i, size := range []uint32{1, 4096, 16385, 1 << 20} {
		if done := r.write(i, device.Descriptor{Src: va(src), Dst: va(dst), Size: size, DstNode: 1}); done != device.DoneCompleted {
			t.Fatalf("%d bytes: done %d", size, done)
		}
	}
	// A transfer that fails, and a channel that does not exist.
	if done := r.write(5, device.Descriptor{Src: va(src), Dst: 0x1000, Size: 4096, DstNode: 1}); done != device.DoneFailed {
		t.Fatalf("into nothing: done %d", done)
	}
	var recorded []byte
	var digest record.Digest
	var count uint64
	var counters [2][device.Counters]uint64
	r.on(0, func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		recorded = bytes.Clone(file.Bytes())
		digest, count = w.Digest()
		for i := range counters {
			for c := range counters[i] {
				counters[i][c] = r.engine.Node(i).Count(device.Counter(c))
			}
		}
	})
	got, err := sim.Replay(bytes.NewReader(recorded))
	if err != nil {
		t.Fatalf("%v; %+v", err, got)
	}
	if got.Digest != digest || got.Records != count || got.Checked != count || got.Header.Nodes != 2 || !got.Header.SVA {
		t.Errorf("replayed %+v, want digest %#x of %d records", got, digest, count)
	}
	for i := range counters {
		if got.Counters[i] != counters[i] {
			t.Errorf("counters of node %d\n got %v\nwant %v", i, got.Counters[i], counters[i])
		}
	}
	if got.Kinds[record.DoorbellRung] == 0 || got.Kinds[record.Store] == 0 || got.Kinds[record.Load] == 0 || got.Kinds[record.Moved] == 0 || got.Frames == 0 {
		t.Errorf("kinds %v", got.Kinds)
	}
	t.Logf("%d records, %d bytes, %.1f a record", count, len(recorded), float64(len(recorded))/float64(count))

	rung, _, err := sim.Transfers(bytes.NewReader(recorded))
	var sizes []uint32
	for _, x := range rung {
		if x.From != 0 || x.To != 1 || x.Read {
			t.Errorf("%+v", x)
		}
		sizes = append(sizes, x.Size)
	}
	if err != nil || !slices.Equal(sizes, []uint32{1, 4096, 16385, 1 << 20, 4096}) {
		t.Errorf("transfers of %v bytes, %v", sizes, err)
	}

	// A truncated recording is replayed up to its end.
	if cut, err := sim.Replay(bytes.NewReader(recorded[:len(recorded)-20])); !errors.Is(err, record.ErrTruncated) || cut.Records == 0 {
		t.Errorf("a cut recording: %d records, %v", cut.Records, err)
	}
	// A time beyond what the machines' clocks can reach is invalid: time-outs are added to it.
	end := 1 + len(binary.AppendUvarint(nil, count)) + 8
	late := append(bytes.Clone(recorded[:len(recorded)-end]), byte(record.Tick), 1)
	late = binary.AppendVarint(late, math.MaxInt64-got.Until)
	if _, err := sim.Replay(bytes.NewReader(late)); !errors.Is(err, record.ErrFormat) {
		t.Errorf("a time of %d ns: %v", int64(math.MaxInt64), err)
	}
	// A different initial state of the machines is detected.
	other := bytes.Clone(recorded)
	other[16]++ // the epoch
	if _, err := sim.Replay(bytes.NewReader(other)); !errors.Is(err, sim.ErrDiverged) {
		t.Errorf("another epoch: %v", err)
	}
}

// rings is the memory of a node's queues, as seen by both sides.
type rings struct {
	mu sync.Mutex
	b  faulttest.Bytes
}

const ringsAt = 1 << 32

func (m *rings) Load(off uint32) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.b.Load(off)
}

func (m *rings) Store(off uint32, v uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.b.Store(off, v)
}

func (m *rings) Read(addr uint64, p []byte) error  { return m.move(addr, p, false) }
func (m *rings) Write(addr uint64, p []byte) error { return m.move(addr, p, true) }

func (m *rings) move(addr uint64, p []byte, write bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if addr < ringsAt || addr-ringsAt+uint64(len(p)) > uint64(len(m.b)) {
		return unix.EFAULT
	}
	if write {
		copy(m.b[addr-ringsAt:], p)
	} else {
		copy(p, m.b[addr-ringsAt:])
	}
	return nil
}

// vectorsOf counts the vectors of a driver.
type vectorsOf struct{ n int }

func (v *vectorsOf) Interrupt(int) { v.n++ }

// A recording of a node that is driven by queues in memory contains the commands that the node read
// there, and replaying uses them.
func TestRecordingOfQueues(t *testing.T) {
	memory := &rings{b: make(faulttest.Bytes, queues.MemorySize)}
	e, err := emu.New(emu.Config{Nodes: 1, Outside: func(int) emu.Outside { return emu.Outside{DMA: memory} }})
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	w := record.NewWriter(&file, e.RecordHeader(), func(err error) { t.Error(err) })
	e.Record(w)
	bus := faulttest.NewQueueBus(e.Bus(0), queues.Config{Memory: memory, Addr: ringsAt})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	var seen vectorsOf
	go func() { done <- e.Run(ctx) }()
	go func() { done <- bus.Serve(ctx, &seen) }()
	on := func(f func()) {
		c := make(chan struct{})
		bus.Post(func() { defer close(c); f() })
		<-c
	}
	until := func(what string, f func() bool) {
		t.Helper()
		for end, ok := time.Now().Add(time.Minute), false; !ok; time.Sleep(time.Millisecond) {
			if on(func() { ok = f() }); !ok && time.Now().After(end) {
				t.Fatalf("it does not come to that: %s", what)
			}
		}
	}
	on(func() {
		if err := bus.Start(); err != nil {
			t.Error(err)
		}
	})
	for range 40 { // the command queue wraps more than once
		on(bus.Nop)
		until("the NOP is answered", bus.Answered)
	}
	// A fault, reported by an event.
	on(func() {
		smmu := e.Bus(0).Window(device.SMMU)
		if err := errors.Join(smmu.Write32(device.Bank(2, device.SCTLR), device.SCTLRDriver),
			smmu.Write64(device.Bank(2, device.FAR), 0x1000), smmu.Write32(device.Bank(2, device.FSRRESTORE), device.FSRTF)); err != nil {
			t.Error(err)
		}
	})
	until("the fault is told", func() bool { return bus.Stats().Events > 40 && seen.n > 0 })
	if s := bus.Stats(); s.Errors != 0 || s.Breaks != 0 {
		t.Errorf("%+v", s)
	}
	var digest record.Digest
	var count uint64
	on(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		digest, count = w.Digest()
	})
	cancel()
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	got, err := sim.Replay(bytes.NewReader(file.Bytes()))
	if err != nil || got.Digest != digest || got.Records != count || got.Checked != count || !got.Header.Queues || got.Kinds[record.QueueAccessed] < 80 {
		t.Errorf("replayed %+v, %v, want digest %#x of %d records", got, err, digest, count)
	}
	// Another command makes another run.
	c := device.Command{Kind: device.CommandNop, Value: 3}
	nop := c.Encode()
	b := bytes.Clone(file.Bytes())
	var entry [device.QueueEntrySize]byte
	nop[0] |= device.QueuePhase
	nop.Put(entry[:])
	i := bytes.LastIndex(b, entry[:16])
	if i < 0 {
		t.Fatal("the recording has no NOP of cookie 3")
	}
	b[i+8]++
	if _, err := sim.Replay(bytes.NewReader(b)); !errors.Is(err, sim.ErrDiverged) {
		t.Errorf("another cookie: %v", err)
	}
}
