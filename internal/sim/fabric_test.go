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
	"github.com/exanet/pfd/device/queues"
)

// tally sums the events of a test's scenarios, to show that they test what they should.
type tally struct {
	mu                             sync.Mutex
	all, transfers, complete       int
	reads                          [2]int // ended reads and writes
	byStatus                       [16]int
	counts                         [device.Counters]uint64
	met                            met
	queues                         queues.Stats
	large, one, urgent, low, eight int
	worst                          float64 // longest duration relative to the bound, without a grace of 100 s
	worstSeed                      uint64
}

func (m *tally) add(f *fabric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all++
	end, grace := int64(0), false
	for _, j := range f.jobs {
		m.transfers++
		if j.read {
			m.reads[0]++
		} else {
			m.reads[1]++
		}
		if j.done == device.DoneCompleted {
			m.complete++
		} else {
			m.byStatus[j.status&15]++
		}
		switch {
		case j.size > 7<<20:
			m.large++
		case j.size > 512<<10:
			m.low++
		case j.size == 1:
			m.one++
		}
		if j.desc.Urgent {
			m.urgent++
		}
		end = max(end, j.endedAt)
		grace = grace || j.badSource && f.World.cfg.NoTXFIFO
	}
	if took := float64(end) / float64(f.Bound); took > m.worst && !grace {
		m.worst, m.worstSeed = took, f.Seed
	}
	if len(f.World.nodes) == 8 {
		m.eight++
	}
	for _, n := range f.World.nodes {
		if q, ok := n.front.(*inMemory); ok {
			s := q.Stats()
			m.queues.Events += s.Events
			m.queues.Commands += s.Commands
			m.queues.Bells += s.Bells
			m.queues.Refused += s.Refused
			m.queues.Breaks += s.Breaks
			m.queues.Bad += s.Bad
		}
		for c := range device.Counters {
			m.counts[c] += n.SOC.Count(device.Counter(c))
		}
	}
	m.met.add(&f.watch.met)
}

// rows are the events that must happen in 10,000 scenarios.
func (m *tally) rows() []row {
	w := &m.met
	rows := []row{
		{"transfers complete", m.complete}, {"reads", m.reads[0]}, {"writes", m.reads[1]},
		{"transfers of 1 byte", m.one}, {"transfers above 512 KiB", m.low}, {"transfers above 7 MiB", m.large},
		{"urgent transfers", m.urgent}, {"scenarios with 8 nodes", m.eight},
		{"transfers failed with status 1", m.byStatus[device.StatusSlaveError]},
		{"transfers failed with status 2", m.byStatus[device.StatusDecode]},
		{"transfers failed with status 5", m.byStatus[device.StatusDomain]},
		{"faults at destinations", w.nacks[device.CodeSlaveError]}, {"faults at sources", w.sourceFaults},
		{"frames torn", w.torn}, {"frames corrupted", w.corrupt}, {"frames overtaken", w.overtaken},
		{"NACK 3 for want of a context", w.contextsUsedUp},
		{"NACK 4", w.nacks[device.CodeCorrupt]}, {"NACK 5", w.nacks[device.CodeDomain]},
		{"blocks acknowledged again", w.ackedAgain}, {"completion words alone", w.wordsAlone},
		{"first blocks of misaligned destinations", w.misaligned},
		{"retransmissions after the time-out", w.timeOuts}, {"retransmissions after the guard", w.guards}, {"RAPFs obeyed", w.rapfs},
		{"reads refused at a full queue", w.readsRefused},
		{"moments with all read channels busy that are not kept", w.channelsBusy},
		{"moments with all read channels busy that are not kept in both directions", w.bothBusy},
		{"FIFO entries lost at a full FIFO", int(m.counts[device.FIFOOverflows])},
		{"entries of a fault left out as doubles", int(m.counts[device.FIFODedup])},
		{"RAPFs of former sequence numbers", int(m.counts[device.RAPFStale])},
		{"forged RAPFs refused", int(m.counts[device.RAPFDenied])},
		{"late acknowledgements ignored", int(m.counts[device.AckStale])},
		{"stale packets dropped", int(m.counts[device.PktStale])}, {"numbers of links told", w.links},
		{"blocks in several frames", w.pieces},
	}
	for c := range otherFrame {
		rows = append(rows, row{fmt.Sprintf("lost: %s", c), w.lost[c]}, row{fmt.Sprintf("doubled: %s", c), w.doubled[c]})
	}
	return rows
}

type row struct {
	what string
	n    int
}

// TestFabric runs the scenarios of many seeds. PFD_FABRIC is their number (make test: 10,000);
// PFD_SEED selects one seed.
func TestFabric(t *testing.T) {
	first, count := uint64(0), uint64(300)
	if v, err := strconv.ParseUint(os.Getenv("PFD_FABRIC"), 10, 32); err == nil {
		count = v
	}
	if v, err := strconv.ParseUint(os.Getenv("PFD_SEED"), 10, 64); err == nil {
		first, count = v, 1
	}
	bothWays(t, func(t *testing.T, queues bool) { testFabric(t, first, count, queues) })
}

// bothWays runs a test with drivers that use registers, and with queues in memory.
func bothWays(t *testing.T, test func(t *testing.T, queues bool)) {
	t.Run("registers", func(t *testing.T) { test(t, false) })
	t.Run("queues", func(t *testing.T) { test(t, true) })
}

func testFabric(t *testing.T, first, count uint64, inMemory bool) {
	var m tally
	err := runSeeds(first, count, runtime.GOMAXPROCS(0), func(seed uint64) error {
		f, err := runSeed(seed, inMemory)
		if err == nil {
			m.add(f)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d seeds, %d transfers; failed by status %v; seed %d took most of its bound: %.0f%%", m.all, m.transfers, m.byStatus, m.worstSeed, 100*m.worst)
	for _, r := range m.rows() {
		t.Logf("%8d %s", r.n, r.what)
		// A few hundred seeds do not produce all events.
		if r.n == 0 && count >= 10_000 {
			t.Errorf("no scenario had %s", r.what)
		}
	}
	if inMemory {
		q := &m.queues
		t.Logf("queues in memory: %+v", *q)
		if q.Bad > 0 || count >= 300 && (q.Events == 0 || q.Commands == 0 || q.Breaks == 0) || q.Bells > q.Commands {
			t.Error("the queues do not test what they should")
		}
	}
	if count >= 300 && (m.complete < m.transfers/2 || m.complete == m.transfers) {
		t.Error("the scenarios do not test what they should")
	}
}

// runSeeds runs count seeds from first on, on threads threads, and returns the error of the
// lowest failing seed.
func runSeeds(first, count uint64, threads int, run func(seed uint64) error) error {
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
				if err := run(first + seed); err != nil {
					mu.Lock()
					if first+seed < at {
						at, worst = first+seed, fmt.Errorf("%w\nrun it alone with PFD_SEED=%d", err, first+seed)
					}
					mu.Unlock()
					return
				}
			}
		})
	}
	wg.Wait()
	return worst
}

// runSeed runs one seed; a machine that panics fails it, too.
func runSeed(seed uint64, queues bool) (f *fabric, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("seed %d: the machine panicked: %v", seed, r)
		}
	}()
	f, err = newFabric(seed, queues)
	if err != nil {
		return f, fmt.Errorf("seed %d: %w", seed, err)
	}
	if err = f.Run(); err != nil {
		return f, fmt.Errorf("seed %d: %w", seed, err)
	}
	return f, nil
}
