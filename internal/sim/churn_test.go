package sim

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
)

// runChurn runs one seed; a machine that panics fails it, too.
func runChurn(seed uint64, queues bool) (c *churn, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("seed %d: the machine panicked: %v", seed, r)
		}
	}()
	if c, err = newChurn(seed, queues); err != nil {
		return nil, fmt.Errorf("seed %d: %w", seed, err)
	}
	return c, c.Run()
}

// met returns the names and counts of the events of a scenario.
func (c *churn) met() [11]row {
	return [...]row{
		{"links down for a while", c.Parts}, {"processes ended", c.Kills}, {"nodes lost power", c.Powers}, {"nodes reset", c.Resets}, {"transfers aborted", c.Aborts},
		{"rights changed", c.Withdrawn}, {"frames came again", c.Replayed}, {"accesses landed", c.Writes}, {"transfers complete", c.Complete},
		{"windows opened", c.Opened}, {"accesses by a window alone", c.Guests},
	}
}

// TestChurn runs the scenarios of many seeds. PFD_CHURN is their number; PFD_SEED selects one
// seed.
func TestChurn(t *testing.T) {
	first, count := uint64(0), uint64(200)
	if v, err := strconv.ParseUint(os.Getenv("PFD_CHURN"), 10, 32); err == nil {
		count = v
	}
	if v, err := strconv.ParseUint(os.Getenv("PFD_SEED"), 10, 64); err == nil {
		first, count = v, 1
	}
	bothWays(t, func(t *testing.T, queues bool) { testChurn(t, first, count, queues) })
}

func testChurn(t *testing.T, first, count uint64, queues bool) {
	var mu sync.Mutex
	var sum [11]row
	err := runSeeds(first, count, runtime.GOMAXPROCS(0), func(seed uint64) error {
		c, err := runChurn(seed, queues)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for i, n := range c.met() {
			sum[i].n += n.n
			sum[i].what = n.what
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range sum {
		t.Logf("%8d %s", r.n, r.what)
		if r.n == 0 && count >= 100 {
			t.Errorf("no scenario had %s", r.what)
		}
	}
}

// TestChurnFound runs the seeds that once revealed a bug.
func TestChurnFound(t *testing.T) {
	for name, seed := range map[string]uint64{
		"a write lands again whose right ended under its words": 23948,
		"an acknowledgement of a former life of its node":       40770,
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := runChurn(seed, false); err != nil {
				t.Error(err)
			}
		})
	}
}
