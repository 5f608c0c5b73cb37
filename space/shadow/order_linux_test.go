package shadow

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/soc/smmu"
)

// schedule decides which actor runs: an actor in a call of the device, or between an access's
// translation and its bytes, waits until the seed picks it.
type schedule struct {
	parked chan chan struct{}
	off    chan struct{} // closed at the end: all actors run on
}

func (s *schedule) park(string) {
	turn := make(chan struct{})
	select {
	case <-s.off:
		return
	default:
	}
	s.parked <- turn
	select {
	case <-turn:
	case <-s.off: // the unmapping of dropped memory runs on
	}
}

// run picks actors until every one has ended. It detects an actor that waits for a lock which
// another holds during a call of the device.
func (s *schedule) run(t *testing.T, rng *rand.Rand, actors int, ended <-chan struct{}) {
	var waiting []chan struct{}
	for actors > 0 {
		synctest.Wait()
		for more := true; more; {
			select {
			case turn := <-s.parked:
				waiting = append(waiting, turn)
			case <-ended:
				actors--
			default:
				more = false
			}
		}
		if actors == 0 {
			break
		}
		if len(waiting) == 0 {
			t.Fatalf("%d actors wait for each other", actors)
		}
		i := rng.IntN(len(waiting))
		close(waiting[i])
		waiting[i] = waiting[len(waiting)-1]
		waiting = waiting[:len(waiting)-1]
	}
	close(s.off)
}

// TestOrder has slots page in, access, unshare and drop through a window that is too small for
// them, in seeded orders. The unit checks the order: populate, map, entry; entry cleared,
// invalidated, accesses ended, unmap. Its IOMMU must never fault.
func TestOrder(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { order(t, seed) })
		})
	}
}

func order(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 2))
	s := &schedule{parked: make(chan chan struct{}, 64), off: make(chan struct{})}
	u := newUnit(t, MinWindow, 39+rng.IntN(10))
	const slots, pages, va = 3, 40, 0x1fff0000
	if rng.IntN(2) == 0 {
		every := 3 + rng.IntN(5)
		n := 0
		u.refuse = func(uint64, uint64) error {
			if n++; n%every == 0 {
				return unix.ENOMEM
			}
			return nil
		}
	}
	var files [slots]int
	for slot := range files {
		fd, b := file(t, pages, unix.F_SEAL_SHRINK)
		files[slot] = fd
		for p := range pages {
			b[p*page] = byte(16*slot + p)
		}
		if err := u.m.Share(slot, va, pages*page, fd, 0, true); err != nil {
			t.Fatal(err)
		}
	}
	u.step = s.park
	ended := make(chan struct{}, 64)
	actors := 0
	actor := func(f func(rng *rand.Rand)) {
		actors++
		own := rand.New(rand.NewPCG(seed, uint64(10+actors)))
		go func() { f(own); ended <- struct{}{} }()
	}
	for slot := range slots {
		// Two actors page in, as the first slices and the later ones do, and access.
		for range 2 {
			actor(func(rng *rand.Rand) {
				for range 25 {
					p := rng.IntN(pages)
					at := device.VA(va + p*page)
					u.try(slot, at, true, func(b *byte) {
						if *b != byte(16*slot+p) {
							t.Errorf("page %d of slot %d has %d", p, slot, *b)
						}
					}, func(f smmu.Fault) {
						if f != smmu.Translation {
							t.Errorf("page %d of slot %d: fault %v", p, slot, f)
						}
						u.mu.Unlock()
						defer u.mu.Lock()
						r := u.m.PageIn(slot, at, 1+rng.IntN(20), true)
						if r.Err != nil && !errors.Is(r.Err, gup.ErrNotShared) && !errors.Is(r.Err, gup.ErrUnmappable) {
							t.Errorf("page %d of slot %d: %v", p, slot, r.Err)
						}
					})
					u.pause("next")
				}
			})
		}
	}
	actor(func(rng *rand.Rand) {
		for range 6 {
			slot := rng.IntN(slots)
			switch rng.IntN(4) {
			case 0:
				u.m.Idle(0)
				continue
			case 1:
				u.m.Forget(slot, va+device.VA(rng.IntN(pages))*page, uint64(1+rng.IntN(20*page)))
				continue
			case 2:
				u.m.Remap(slot, va+device.VA(rng.IntN(pages))*page, true)
				continue
			}
			if rng.IntN(2) == 0 {
				u.m.Drop(slot)
			} else if err := u.m.Unshare(slot, va, pages*page); err != nil {
				t.Error(err)
			}
			// Calls in progress continue for a while.
			for p := range pages {
				if p%8 == 0 {
					u.pause("next")
				}
				if _, f := u.access(slot, device.VA(va+p*page), true); f != smmu.Translation {
					t.Errorf("page %d of slot %d, which was unshared: fault %v", p, slot, f)
				}
			}
			if err := u.m.Share(slot, va, pages*page, files[slot], 0, true); err != nil {
				t.Error(err)
			}
		}
	})
	s.run(t, rng, actors, ended)
	u.m.sweeps.Wait()
	// The state of Memory agrees with the tables.
	u.refuse = nil
	for slot := range slots {
		for p := range pages {
			at := device.VA(va + p*page)
			if r := u.m.PageIn(slot, at, 1, true); r.Err != nil {
				t.Fatal(r.Err)
			}
			if _, f := u.access(slot, at, true); f != smmu.NoFault {
				t.Errorf("page %d of slot %d is paged in: fault %v", p, slot, f)
			}
		}
	}
	if st := u.m.Stats(); st.Mapped > st.Window || st.Moving != 0 {
		t.Errorf("%+v", st)
	}
}

// TestNobodyWaits blocks the unmap, the invalidation and the map of one slot, each in turn, while
// another slot pages in, shares and unshares.
func TestNobodyWaits(t *testing.T) {
	for _, hangs := range []string{"unmap", "invalidate", "map"} {
		t.Run(hangs, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := newUnit(t, 16*MinWindow, 48)
				const va = 0x10000000
				const pages = 32 * MinWindow / page
				shareMemory(t, u, 0, va, pages, true)
				for p := 0; p < pages; p += 16 { // the window is full
					u.m.PageIn(0, device.VA(va+p*page), 16, true)
				}
				fd, _ := file(t, 64, unix.F_SEAL_SHRINK)
				if err := u.m.Share(1, va, 64*page, fd, 0, true); err != nil {
					t.Fatal(err)
				}
				// The slot that has most leaves room for the others.
				u.m.PageIn(0, va, 16, true)
				let := make(chan struct{})
				hung := 0
				u.step = func(what string) {
					if what == hangs && hung == 0 {
						hung++
						<-let
					}
				}
				over := make(chan struct{})
				go func() { u.m.PageIn(0, va+2*16*page, 16, true); close(over) }()
				synctest.Wait()
				if hung != 1 {
					t.Fatalf("no %s hangs", hangs)
				}
				if !u.m.Prompt(1, 0, 16) {
					t.Error("a page-in of the other slot would wait")
				}
				done := make(chan struct{})
				go func() {
					defer close(done)
					for p := range 4 {
						if r := u.m.PageIn(1, device.VA(va+p*page), 1, true); r.Err != nil {
							t.Error(r.Err)
						}
					}
					u.m.Used(1, va, page)
					if err := u.m.Unshare(1, va, 64*page); err != nil {
						t.Error(err)
					}
				}()
				// The test's clock advances when all goroutines wait, except the blocked one.
				select {
				case <-done:
				case <-time.After(time.Hour):
					t.Errorf("slot 1 waits for the %s of slot 0", hangs)
				}
				close(let)
				<-over
				<-done
			})
		})
	}
}

// TestDropThenShare: memory that a process left behind is unmapped while the next process of its
// slot has memory at the same addresses, and loses none of its entries.
func TestDropThenShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUnit(t, 0, 48)
		const va, pages = 0x10000000, 64
		shareMemory(t, u, 0, va, pages, true)
		u.m.PageIn(0, va, pages, true)
		let := make(chan struct{})
		hung := false
		u.step = func(what string) {
			if what == "unmap" && !hung {
				hung = true
				<-let
			}
		}
		u.m.Drop(0)
		synctest.Wait()
		if !hung {
			t.Fatal("nothing is unmapped")
		}
		shareMemory(t, u, 0, va, pages, true)
		u.m.PageIn(0, va, pages, true)
		close(let)
		u.m.sweeps.Wait()
		for p := range pages {
			if _, f := u.access(0, device.VA(va+p*page), true); f != smmu.NoFault {
				t.Errorf("page %d: fault %v", p, f)
			}
		}
	})
}
