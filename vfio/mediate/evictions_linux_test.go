package mediate_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/internal/suite"
	"github.com/exanet/pfd/space"
	"github.com/exanet/pfd/vfio/mediate"
)

// BenchmarkOthersEvictions times a write of 4 KiB to absent memory while another domain evicts on
// the same node all the time, beside the same without it, in one run. It reports p50 and p99 of
// each in ns, and the ratio of the p99s.
func BenchmarkOthersEvictions(b *testing.B) {
	m := newConnected(b, mediate.Config{Window: 4 << 20}, func(_ int, f mediate.Function) mediate.Function { return f })
	r := suite.NewRig(b, m, pagein.PIO, false)
	const other, va = 7, 0x10000000
	size := 16 << 20
	shareApart(b, m, other, va, uint64(size))
	mem, err := m.Memory(1)
	if err != nil {
		b.Fatal(err)
	}
	src := r.Map(b, device.PageSize)
	src[0] = 1
	r.Present(b, src)
	run := func(n int) (p50, p99 float64) {
		const piece = 64
		var times []time.Duration
		var dst []byte
		for i := range n {
			if i%piece == 0 {
				dst = r.Map(b, piece*device.PageSize)
			}
			d := device.Descriptor{Src: suite.VA(src), Dst: suite.VA(dst[i%piece*device.PageSize:]), Size: device.PageSize, DstNode: 1}
			began := time.Now()
			done, status := r.Write(i%device.WriteChannels, d)
			times = append(times, time.Since(began))
			if done != device.DoneCompleted {
				b.Fatalf("done %d, status %d", done, status)
			}
		}
		slices.Sort(times)
		return float64(times[n/2]), float64(times[n*99/100])
	}
	b.ResetTimer()
	n := max(b.N, 200)
	alone50, alone99 := run(n)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for at := 0; ; at = (at + 16*device.PageSize) % size {
			select {
			case <-stop:
				return
			default:
				mem.PageIn(other, device.VA(va+at), 16, true)
			}
		}
	})
	with50, with99 := run(n)
	close(stop)
	wg.Wait()
	if mem.Stats().Evictions == 0 && n > 200 {
		b.Error("nothing was evicted")
	}
	b.ReportMetric(alone50, "alone-p50-ns")
	b.ReportMetric(alone99, "alone-p99-ns")
	b.ReportMetric(with50, "beside-p50-ns")
	b.ReportMetric(with99, "beside-p99-ns")
	b.ReportMetric(with99/alone99, "p99-ratio")
}

// TestMappedAgainIsAwaited: a page to which the device was refused access is mapped again by a
// message that is awaited, so that a doorbell cannot overtake the mapping again and again.
func TestMappedAgainIsAwaited(t *testing.T) {
	m := newMachineOf(t, false, mediate.Config{})
	suite.NewRig(t, m, pagein.PIO, false)
	const slot, va, size = 7, 0x10000000, 1 << 20
	shareApart(t, m, slot, va, size)
	mem, err := m.Memory(1)
	if err != nil {
		t.Fatal(err)
	}
	awaited := func(do func() gup.Result) uint64 {
		_, before := m.requests(1)
		if r := do(); r.Err != nil || r.Resident != 1 {
			t.Fatalf("%+v", r)
		}
		_, after := m.requests(1)
		return after - before
	}
	if n := awaited(func() gup.Result { return mem.PageIn(slot, va, 1, true) }); n != 0 {
		t.Errorf("a page-in awaits %d messages", n)
	}
	// The unmapping, too.
	again := func() gup.Result {
		done := make(chan struct{})
		op := &space.Op{Kind: space.Remap, VA: va, Pages: 1, Write: true, Done: func() { close(done) }}
		m.On(1, func() { m.Space(1).PageIn(slot, op, false) })
		<-done
		return op.Paged
	}
	if n := awaited(again); n < 2 {
		t.Errorf("a page is mapped once more by %d awaited messages, want 2", n)
	}
	if n := awaited(func() gup.Result { return mem.PageIn(slot, va+64*device.PageSize, 1, true) }); n != 0 {
		t.Errorf("a page-in afterwards awaits %d messages", n)
	}
}

// An eviction awaits one message, the unmapping, and no register.
func TestEvictionMessages(t *testing.T) {
	m := newMachineOf(t, false, mediate.Config{Window: 1 << 20})
	suite.NewRig(t, m, pagein.PIO, false)
	const slot, va, size = 7, 0x10000000, 16 << 20
	shareApart(t, m, slot, va, size)
	mem, err := m.Memory(1)
	if err != nil {
		t.Fatal(err)
	}
	round := func() {
		for at := 0; at < size; at += 16 * device.PageSize {
			if r := mem.PageIn(slot, device.VA(va+at), 16, true); r.Err != nil {
				t.Fatal(r.Err)
			}
		}
	}
	round()
	evictions := mem.Stats().Evictions
	_, awaited := m.requests(1)
	round()
	_, after := m.requests(1)
	n := mem.Stats().Evictions - evictions
	t.Logf("%d evictions, %d messages awaited", n, after-awaited)
	// The registers of a slow device are read, too.
	if n == 0 || after-awaited > n+n/4 {
		t.Errorf("%d evictions await %d messages", n, after-awaited)
	}
}

// shareApart shares memory of a separate process with node 1.
func shareApart(t testing.TB, m *machine, slot int, va device.VA, size uint64) {
	t.Helper()
	fd, err := unix.MemfdCreate("other", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err == nil {
		err = unix.Ftruncate(fd, int64(size))
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
	}
	mem, e := m.Memory(1)
	if err = errors.Join(err, e); err == nil {
		err = mem.Share(slot, va, size, fd, 0, true)
	}
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		t.Fatal(err)
	}
}
