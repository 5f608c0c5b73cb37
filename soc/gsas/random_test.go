package gsas

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
)

// audit returns the first invariant of the unit's state that does not hold.
func (u *Unit) audit() error {
	flying := 0
	for key, r := range u.records {
		if r.flying < 0 {
			continue
		}
		flying++
		if u.used>>r.flying&1 == 0 || u.ops[r.flying].record != r {
			return fmt.Errorf("record %x is of operation %d, which is not in flight or of another record", key, r.flying)
		}
	}
	if n := bits.OnesCount64(u.used); n != flying {
		return fmt.Errorf("%d operations in flight, %d records of them", n, flying)
	}
	var waited []uint64
	for i := range u.flying() {
		o := &u.ops[i]
		if !o.waits {
			continue
		}
		page := o.access.Address.Page()
		waited = append(waited, page)
		if e := u.pages.get(page); e.bits&device.CfgEnable == 0 || e.bits&device.GSASPresent != 0 {
			return fmt.Errorf("operation %d waits for page %d, whose entry is %x", i, page, e.bits)
		}
	}
	for i, page := range u.wants {
		if !slices.Contains(waited, page) || slices.Contains(u.wants[:i], page) {
			return fmt.Errorf("pages %d are wanted, operations wait for %d", u.wants, waited)
		}
	}
	entries := 0
	for _, c := range u.pages.chunks {
		n := 0
		for _, e := range c.entries {
			if e.bits != 0 {
				n++
			}
		}
		if n != c.count || n == 0 {
			return fmt.Errorf("a chunk with %d entries counts %d", n, c.count)
		}
		entries += n
	}
	if entries != u.pages.count {
		return fmt.Errorf("%d entries, counted %d", entries, u.pages.count)
	}
	return nil
}

// Random requests of a few threads, with entries, grants, results, resets and time in any order: the
// invariants hold after each step, each request is performed at most once, and each answer is of a
// request and always the same if it is final.
func TestRandom(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 7))
		r := newRig(t)
		type id struct {
			from    Source
			channel int
		}
		final := map[id]atomics.Answer{}
		begun := map[id]bool{}
		next := map[id]uint16{} // by thread and channel
		pages := []uint64{0, 1, 511, 512, atomics.Pages - 1}
		trees := []atomics.Protection{own, other}
		var flying []*Access
		for step := range 2000 {
			switch rng.IntN(12) {
			case 0:
				r.enter(pages[rng.IntN(len(pages))], 1+rng.IntN(3), rng.Uint64()&^4095, device.GSASEntry{
					Protection: uint32(trees[rng.IntN(2)]), Grant: uint8(rng.IntN(3)), Present: rng.IntN(3) > 0, Valid: rng.IntN(4) > 0,
				})
			case 1:
				r.u.Store(r.now, device.PLGSASGrant, rng.Uint64())
			case 2:
				r.u.Load(device.PLGSASWant)
			case 3, 4, 5:
				if len(flying) > 0 {
					i := rng.IntN(len(flying))
					values := []uint64{rng.Uint64(), 2, 3, 4, 5}
					r.u.Done(r.now, flying[i].ID, atomics.Status(rng.IntN(2)), values[:rng.IntN(6)])
					flying = slices.Delete(flying, i, i+1)
				}
				r.u.Done(r.now, rng.Uint32(), atomics.OK, nil) // of nothing
			case 6:
				r.now += rng.Int64N(int64(time.Second) / 20) // requests are repeated within a second
			default:
				from := thread(32+rng.IntN(3), 0)
				k := id{from, rng.IntN(device.PktzChannels)}
				if rng.IntN(3) > 0 {
					next[k]++
				}
				from.Number = next[k] - uint16(rng.IntN(2)*rng.IntN(3))
				words := make([]uint64, rng.IntN(9))
				for i := range words {
					words[i] = rng.Uint64()
				}
				if rng.IntN(5) > 0 {
					// The same number has the same request.
					fixed := rand.New(rand.NewPCG(uint64(from.Number), uint64(from.Interface)<<8|uint64(k.channel)))
					ops := []atomics.Op{atomics.Read64, atomics.FetchAdd, atomics.CWrite256, atomics.Alloc}
					r.ask(from, k.channel, trees[fixed.IntN(2)], ops[fixed.IntN(4)], atomics.At(node, pages[fixed.IntN(len(pages))]<<12|uint64(fixed.IntN(2)*fixed.IntN(64))), 1, 2, 3)
				} else {
					from.Interface = 60 // whatever it says, it is its own
					r.u.Request(r.now, &from, words)
				}
			}
			for _, a := range r.performs {
				flying = append(flying, a)
				k := id{thread(a.Thread.Interface(), 0), a.Tag.Channel()}
				if a.Thread.Interface() == 60 {
					continue
				}
				// The number is known by its low six bits: the channel's newest that fits.
				k.from.Number = next[id{k.from, k.channel}]
				for atomics.TagOf(k.channel, k.from.Number) != a.Tag {
					k.from.Number--
				}
				if begun[k] {
					t.Fatalf("seed %d, step %d: number %d of channel %d of thread %x begins twice", seed, step, k.from.Number, k.channel, a.Thread)
				}
				begun[k] = true
			}
			r.performs = nil
			for _, a := range r.answers {
				k := id{a.to, a.Tag.Channel()}
				old, had := final[k]
				switch {
				case a.Number != a.to.Number || a.Status != atomics.OK && a.N != 0:
					t.Fatalf("seed %d, step %d: answer %+v", seed, step, a)
				case a.Status == atomics.Waiting && had, a.Status != atomics.Waiting && had && old != a.Answer:
					t.Fatalf("seed %d, step %d: answer %+v after %+v", seed, step, a, old)
				case a.Status != atomics.Waiting && a.to.Interface != 60:
					final[k] = a.Answer
				}
			}
			r.answers = nil
			if err := r.u.audit(); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
		}
		if s := r.u.Stats(); s.Repeated == 0 || s.Stale == 0 || s.Forged == 0 || s.Refused == 0 || s.Begun == 0 {
			t.Errorf("seed %d: %+v", seed, s)
		}
	}
}

// FuzzUnit: no message hurts the unit.
func FuzzUnit(f *testing.F) {
	f.Add([]byte{0x80, 0, 0, 1, 0, 0, 0, 1}, uint64(1)<<56, uint64(1)<<48, uint8(2))
	f.Add([]byte{}, ^uint64(0), ^uint64(0), uint8(8))
	f.Fuzz(func(t *testing.T, sources []byte, first, address uint64, n uint8) {
		r := newRig(t)
		r.page(0, 2, 0, own)
		r.enter(2, 1, 0, device.GSASEntry{Protection: uint32(own), Valid: true})
		for i, b := range sources {
			from := Source{Node: 7, Interface: b, Generation: device.Generation(i), Number: uint16(b) << 8}
			words := [device.PktzMaxWords]uint64{first&^0xffffffffffff | atomics.Wired(atomics.ThreadOf(7, int(b)), own, atomics.Tag(i)), address + uint64(i)}
			r.u.Request(r.now, &from, words[:n%9])
			if err := r.u.audit(); err != nil {
				t.Fatal(err)
			}
		}
		for _, a := range r.performs {
			r.u.Done(r.now, a.ID, atomics.OK, nil)
		}
		if err := r.u.audit(); err != nil {
			t.Fatal(err)
		}
	})
}
