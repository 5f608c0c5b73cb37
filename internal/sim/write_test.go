package sim

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/soc/link"
)

// transfer is one write of a scenario and its result.
type transfer struct {
	desc     device.Descriptor
	want     []byte // expected bytes
	doomed   bool   // a page of either end can never be paged in
	ended    bool
	done     uint32
	status   uint8
	reused   bool // the target has overwritten its buffer after completion
	own      []byte
	from, to int // range in the target's memory
	words    int // offset of the completion words; -1: none
}

// scenario is a few writes from a process on node 0 to one on node 1.
type scenario struct {
	world     *World
	src, dst  *Process
	transfers []*transfer
	guard     []byte // the target's initial memory outside all ranges
}

const (
	lastWord  = 0x1a57_0000
	firstWord = 0xf125_0000
	srcBase   = device.VA(0x5500_0000_0000)
	dstBase   = device.VA(0x7f00_0000_0000)
)

func build(seed uint64) (*scenario, error) {
	rng := rand.New(rand.NewPCG(seed, 1))
	pick := func(n int) int { return rng.IntN(n) }
	cfg := Config{
		Seed: seed, Nodes: 2, NoTXFIFO: pick(4) == 0, Memory: int64(pick(3000)), SlowMemory: pick(3) * 2000,
		TimeoutUS: uint32(500 + pick(20000)), GuardUS: uint32(2000 + pick(100000)),
		Policy: []fault.Policy{fault.PIO, fault.PI4, fault.PIA}[pick(3)],
		Injection: link.Injection{
			LoseAck: pick(3) * pick(150_000), LoseNack: pick(3) * pick(150_000), LoseRAPF: pick(3) * pick(150_000),
			LoseData: pick(2) * pick(50_000), Duplicate: pick(2) * pick(100_000), Delay: pick(2) * pick(200_000), DelayMax: int64(1 + pick(50_000_000)),
			Tear: pick(2) * pick(50_000), Corrupt: pick(2) * pick(50_000),
		},
	}
	w, err := New(cfg)
	if err != nil {
		return nil, err
	}
	s := &scenario{world: w}
	const pages = 160
	if s.src, err = w.Node(0).Attach(1000, srcBase, pages); err != nil {
		return nil, err
	}
	if s.dst, err = w.Node(1).Attach(1000, dstBase, pages); err != nil {
		return nil, err
	}
	for i := range s.src.Data {
		s.src.Data[i] = byte(rng.Uint32())
	}
	absentOf := pick(101)
	for i := range pages {
		// An absent source page holds zeros: it was never written.
		if st := present; pick(100) >= absentOf {
			s.src.Set(i, st)
		} else {
			s.src.Set(i, absent)
		}
		if pick(100) >= absentOf {
			s.dst.Set(i, present)
		}
	}
	n, at := 1+pick(4), pick(3*device.PageSize)
	for i := range n {
		size := []int{1 + pick(64), 1 + pick(3*device.PageSize), 1 + pick(device.BlockSize*2), 1 + pick(128<<10)}[pick(4)]
		words := -1
		if at+size+64 > pages*device.PageSize-64 {
			break
		}
		t := &transfer{from: at, to: at + size, words: words}
		from := pick(pages*device.PageSize - size)
		t.desc = device.Descriptor{
			Src: srcBase + device.VA(from), Dst: dstBase + device.VA(at), Size: uint32(size), DstNode: 1,
			First: firstWord + uint64(i), Last: lastWord + uint64(i),
		}
		at += size
		if pick(3) > 0 {
			t.words = (at + 31) &^ 15
			t.desc.Notify = dstBase + device.VA(t.words)
			at = t.words + 16
		}
		if pick(12) == 0 {
			page := (t.from + pick(size)) / device.PageSize
			s.dst.Set(page, []pageState{unmapped, readOnly}[pick(2)])
		}
		if pick(20) == 0 {
			s.src.Set((from+pick(size))/device.PageSize, unmapped)
		}
		t.want = bytes.Clone(s.src.Data[from : from+size])
		s.transfers = append(s.transfers, t)
		at += pick(2 * device.PageSize)
	}
	for _, t := range s.transfers {
		t.desc.DstGeneration = s.dst.Domain.Generation
		t.doomed = s.impossible(t)
	}
	s.guard = s.outside()
	s.src.OnDone = func(ch int, done uint32, status uint8) {
		t := s.transfers[ch]
		if t.ended {
			t.status, t.done = 0xff, 0xff // ended twice
			return
		}
		t.ended, t.done, t.status = true, done, status
		if done == device.DoneCompleted {
			s.reuse(t)
		}
	}
	s.dst.OnWords = func() {
		for _, t := range s.transfers {
			if t.words >= 0 && word(s.dst.Data[t.words+8:]) == t.desc.Last {
				s.reuse(t)
			}
		}
	}
	return s, nil
}

// impossible reports whether a transfer needs a page that cannot be paged in.
func (s *scenario) impossible(t *transfer) bool {
	dead := func(p *Process, va device.VA, n int, write bool) bool {
		for v := va.Page(); v < va+device.VA(n); v += device.PageSize {
			if st := p.state(v); st == unmapped || st == readOnly && write {
				return true
			}
		}
		return false
	}
	return dead(s.src, t.desc.Src, int(t.desc.Size), false) || dead(s.dst, t.desc.Dst, int(t.desc.Size), true) ||
		t.words >= 0 && dead(s.dst, t.desc.Notify, 16, true)
}

// reuse does what an application does at once on completion: it checks the bytes and overwrites
// them. The new bytes must be intact at the end.
func (s *scenario) reuse(t *transfer) {
	if t.reused {
		return
	}
	t.reused = true
	buf := s.dst.Data[t.from:t.to]
	if !bytes.Equal(buf, t.want) {
		t.own = []byte("other bytes than the source's at completion")
		return
	}
	s.dst.Touch(t.from, t.to)
	for i := range buf {
		buf[i] ^= 0x5a
	}
	t.own = bytes.Clone(buf)
}

// outside returns the target's memory with all ranges that transfers may write blanked.
func (s *scenario) outside() []byte {
	b := bytes.Clone(s.dst.Data)
	for _, t := range s.transfers {
		clear(b[t.from:t.to])
		if t.words >= 0 {
			clear(b[t.words : t.words+16])
		}
	}
	return b
}

func (s *scenario) run() error {
	for i, t := range s.transfers {
		d := t.desc
		s.world.after(s.world.rng.Int64N(20000), func() { s.src.Write(i, d) })
	}
	if err := s.world.Run(400e9, func() bool {
		for _, t := range s.transfers {
			if !t.ended {
				return false
			}
		}
		return true
	}); err != nil {
		return err
	}
	// Frames still in flight must not change anything.
	if err := s.world.Settle(10e9); err != nil {
		return err
	}
	for i, t := range s.transfers {
		if err := s.check(t); err != nil {
			return fmt.Errorf("transfer %d of %d bytes: %w", i, t.desc.Size, err)
		}
	}
	if !bytes.Equal(s.outside(), s.guard) {
		return errors.New("memory outside the destination ranges has changed")
	}
	for i := range 2 {
		if err := s.world.Node(i).SOC.Audit(); err != nil {
			return err
		}
	}
	return nil
}

func (s *scenario) check(t *transfer) error {
	switch {
	case t.done == device.DoneCompleted && t.doomed:
		return errors.New("complete, although a page of it cannot be brought in")
	case t.done == device.DoneCompleted && !t.reused:
		return errors.New("complete, but the target saw nothing")
	case t.done == device.DoneFailed && t.status == 0:
		return errors.New("failed without a reason")
	case t.done == device.DoneFailed && !t.doomed:
		return fmt.Errorf("failed with status %d without a cause", t.status)
	case t.done == device.DoneFailed && t.status != device.StatusDecode && (t.status != device.StatusSlaveError || !s.world.cfg.NoTXFIFO):
		return fmt.Errorf("failed with status %d, which does not match its cause", t.status)
	case t.done != device.DoneCompleted && t.done != device.DoneFailed:
		return fmt.Errorf("done is %d", t.done)
	}
	if t.reused && !bytes.Equal(s.dst.Data[t.from:t.to], t.own) {
		return errors.New("the target's own bytes were overwritten after completion")
	}
	return nil
}

// TestSeeds runs many seeds: each transfer ends with exact bytes or a clean error, even if
// NACKs, ACKs, RAPFs and data are lost, duplicated, torn, corrupted or late. PFD_SEEDS is the
// number of seeds; PFD_SEED selects one.
func TestSeeds(t *testing.T) {
	first, count := uint64(0), uint64(2000)
	if v, err := strconv.ParseUint(os.Getenv("PFD_SEEDS"), 10, 32); err == nil {
		count = v
	}
	if v, err := strconv.ParseUint(os.Getenv("PFD_SEED"), 10, 64); err == nil {
		first, count = v, 1
	}
	var complete, failed, lost, reused atomic.Uint64
	const parts = 4
	t.Run("all", func(t *testing.T) {
		for part := range uint64(parts) {
			t.Run(strconv.Itoa(int(part)), func(t *testing.T) {
				t.Parallel()
				for seed := first + part; seed < first+count; seed += parts {
					s, err := build(seed)
					if err != nil {
						t.Fatalf("seed %d: %v", seed, err)
					}
					if err := s.run(); err != nil {
						t.Fatalf("seed %d: %v\nrun it alone with PFD_SEED=%d", seed, err, seed)
					}
					for _, x := range s.transfers {
						if x.done == device.DoneCompleted {
							complete.Add(1)
						} else {
							failed.Add(1)
						}
						if x.reused {
							reused.Add(1)
						}
					}
					for i := range 2 {
						for _, n := range s.world.Node(i).link.Lost {
							lost.Add(n)
						}
					}
				}
			})
		}
	})
	t.Logf("%d seeds: %d transfers complete, %d failed cleanly, %d buffers reused, %d frames lost",
		count, complete.Load(), failed.Load(), reused.Load(), lost.Load())
	if count == 2000 && (complete.Load() < 1000 || failed.Load() < 50 || lost.Load() < 1000) {
		t.Error("the scenarios do not test what they should")
	}
}

// TestSameSeedSameRun shows that all randomness comes from the seed.
func TestSameSeedSameRun(t *testing.T) {
	for seed := range uint64(20) {
		var digests [2]uint64
		for i := range digests {
			s, err := build(seed)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.run(); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			digests[i] = s.world.Digest()
		}
		if digests[0] != digests[1] {
			t.Errorf("seed %d: two runs differ", seed)
		}
	}
}
