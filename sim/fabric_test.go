package sim

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/exanet/pfd/device"
)

// met counts what the scenarios of a test met, so that they do what they are for.
type meets struct {
	mu                                 sync.Mutex
	transfers, reads, complete, failed int
	byStatus                           [16]int
	counts                             [device.Counters]uint64
	large, all                         int
}

func (m *meets) add(f *Fabric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all++
	for _, j := range f.jobs {
		m.transfers++
		if j.read {
			m.reads++
		}
		if j.done == device.DoneCompleted {
			m.complete++
		} else {
			m.failed++
			m.byStatus[j.status&15]++
		}
		if j.size > 1<<20 {
			m.large++
		}
	}
	for _, n := range f.World.nodes {
		for c := range device.Counters {
			m.counts[c] += n.SOC.Count(device.Counter(c))
		}
	}
}

// TestFabric runs the scenarios of many seeds. PFD_FABRIC is how many, make test
// runs 10,000; PFD_SEED is one alone.
func TestFabric(t *testing.T) {
	first, count := uint64(0), uint64(300)
	if v, err := strconv.ParseUint(os.Getenv("PFD_FABRIC"), 10, 32); err == nil {
		count = v
	}
	if v, err := strconv.ParseUint(os.Getenv("PFD_SEED"), 10, 64); err == nil {
		first, count = v, 1
	}
	var m meets
	if err := runSeeds(first, count, runtime.GOMAXPROCS(0), m.add); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d seeds: %d transfers, %d of them reads, %d above 1 MiB; %d complete, %d failed, by status %v", m.all, m.transfers, m.reads, m.large, m.complete, m.failed, m.byStatus)
	for c, n := range m.counts {
		t.Logf("%s %d", device.Counter(c), n)
	}
	if count < 300 {
		return
	}
	for _, c := range []device.Counter{
		device.Timeouts, device.Retransmits, device.RAPFRx, device.RAPFStale, device.FIFOPush, device.FIFOOverflows,
		device.AckStale, device.PktStale, device.CRCPayload,
		device.Nacks0 + 1, device.Nacks0 + 3, device.Nacks0 + 4, device.Nacks0 + 5,
	} {
		if m.counts[c] == 0 {
			t.Errorf("no scenario met %s", c)
		}
	}
	if m.reads < m.transfers/4 || m.complete < m.transfers/2 || m.failed == 0 {
		t.Error("the scenarios do not do what they are for")
	}
}

// runSeeds runs count seeds from first on, on so many threads, and gives the
// error of the lowest seed that failed.
func runSeeds(first, count uint64, threads int, done func(*Fabric)) error {
	var next atomic.Uint64
	var mu sync.Mutex
	var worst error
	at := ^uint64(0)
	var wg sync.WaitGroup
	for range threads {
		wg.Go(func() {
			for {
				seed := next.Add(1) - 1
				mu.Lock()
				over := seed >= count || first+seed > at
				mu.Unlock()
				if over {
					return
				}
				f, err := runSeed(first + seed)
				if err != nil {
					mu.Lock()
					if first+seed < at {
						at, worst = first+seed, fmt.Errorf("%w\nrun it alone with PFD_SEED=%d", err, first+seed)
					}
					mu.Unlock()
					return
				}
				if done != nil {
					done(f)
				}
			}
		})
	}
	wg.Wait()
	return worst
}

// runSeed plays one seed; a machine that breaks down fails it too.
func runSeed(seed uint64) (f *Fabric, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("seed %d: the machine broke down: %v", seed, r)
		}
	}()
	f, err = NewFabric(seed)
	if err != nil {
		return f, fmt.Errorf("seed %d: %w", seed, err)
	}
	if err = f.Run(); err != nil {
		return f, fmt.Errorf("seed %d: %w", seed, err)
	}
	return f, nil
}
