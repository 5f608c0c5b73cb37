package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/sim/topology"
	"github.com/exanet/pfd/soc/link"
)

// far is a scenario of two hosts with a slow link: a write loses its blocks, and many writes fill the link's
// queue.
type far struct {
	*World
	Sent float64 // by the many writes: times their bytes
}

var errFar = errors.New("time-outs are wrong")

// runFar runs the scenario of a seed: writes writes of size bytes at the same time.
func runFar(seed uint64, writes, size int) (f far, err error) {
	rng := rand.New(rand.NewPCG(seed, 6))
	pick := func(n int64) int64 { return rng.Int64N(n) }
	rate := []int64{50e6, 100e6, topology.Gbit}[pick(3)]
	hop := 5_000 + pick(2)*pick(1_000_000)
	costs := Board()
	const base, timeout = device.VA(0x7f00_0000_0000), 20e6
	f.World, err = New(Config{
		Seed: seed, Nodes: 2, Hosts: true, Topology: topology.QFDB(topology.Options{QFDBRate: rate, Hop: hop}), Costs: &costs, Outstanding: 16, TimeoutUS: timeout / 1000, GuardUS: 1e6,
	})
	if err != nil {
		return f, fmt.Errorf("seed %d: %w", seed, err)
	}
	f.net.depth = 64 // 1 MiB, as a link's queue
	pages := 2 * writes * size / device.PageSize
	var p [2]*Process
	for i := range p {
		if p[i], err = f.Node(i).AttachEmpty(1000, base, pages); err != nil {
			return f, fmt.Errorf("seed %d: %w", seed, err)
		}
		p[i].Touch(0, pages*device.PageSize)
	}
	left := 0
	p[0].OnDone = func(_ int, done uint32, status uint8) {
		if left--; done != device.DoneCompleted {
			err = fmt.Errorf("%w: seed %d: a write ended with status %d", errFar, seed, status)
		}
	}
	write := func(ch, size int) {
		left++
		p[0].Write(ch, device.Descriptor{
			Src: base + device.VA(ch*size), Dst: base + device.VA((writes+ch)*size), Size: uint32(size), DstNode: 1, DstGeneration: p[1].Domain.Generation,
		})
	}
	// run returns the time until all writes have ended.
	run := func() int64 {
		at := f.now
		if wrong := f.Run(f.now+1000e9, func() bool { return left == 0 || err != nil }); err == nil {
			err = wrong
		}
		return f.now - at
	}
	const small = 2 * device.BlockSize
	trip := int64(0) // of a small write, when many were measured
	warm := func() {
		for range 50 {
			write(0, small)
			trip = run()
		}
	}
	lose := func() {
		warm()
		f.Node(0).Disturb(link.Injection{LoseData: 1e6})
		write(0, small)
		f.After(trip, func() { f.Node(0).Disturb(link.Injection{}) })
		// The second block waits for twice the time-out after its own, and periods are rounded up.
		if took, most := run(), 3*max(timeout, 2*(4*trip+1e6))+2*trip; err == nil && (took < timeout || took > most) {
			err = fmt.Errorf("%w: seed %d: a write that takes %d ns took %d when its blocks were lost, want %d to %d", errFar, seed, trip, took, int64(timeout), most)
		}
	}
	fill := func() {
		warm()
		before := f.Links()[0].Bytes
		for ch := range writes {
			write(ch, size)
		}
		took := run()
		f.Sent = float64(f.Links()[0].Bytes-before) / float64(writes*size)
		if ideal := int64(float64(writes*size) * 8e9 / float64(rate)); err == nil && (f.Sent > 1.2 || took > ideal*5/4+20*trip) {
			err = fmt.Errorf("%w: seed %d: %d writes of %d bytes at %d bits a second took %d ns, %.2f times the least, and sent %.2f times their bytes",
				errFar, seed, writes, size, rate, took, float64(took)/float64(ideal), f.Sent)
		}
	}
	if seed%2 == 0 {
		lose()
	}
	fill()
	if seed%2 == 1 {
		lose()
	}
	return f, err
}

// A block that is lost on a fast link between hosts is sent again soon, and a link whose queue fills, until
// blocks take longer than the time-out, sends few of them twice.
func TestFar(t *testing.T) {
	for seed := range uint64(8) {
		f, err := runFar(seed, 32, 4<<20)
		if err != nil {
			t.Error(err)
		}
		t.Logf("seed %d: %.3f times the bytes, %d time-outs", seed, f.Sent, f.Node(0).SOC.Count(device.Timeouts))
	}
}
