package sim

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
)

// runTrees runs one seed; a machine that panics fails it, too.
func runTrees(seed uint64) (s *trees, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("seed %d: the machine panicked: %v", seed, r)
		}
	}()
	if s, err = newTrees(seed); err != nil {
		return nil, fmt.Errorf("seed %d: %w", seed, err)
	}
	return s, s.Run()
}

// TestTrees runs the scenarios of many seeds. PFD_TREES is their number; PFD_SEED selects one seed.
func TestTrees(t *testing.T) {
	first, count := uint64(0), uint64(200)
	if v, err := strconv.ParseUint(os.Getenv("PFD_TREES"), 10, 32); err == nil {
		count = v
	}
	if v, err := strconv.ParseUint(os.Getenv("PFD_SEED"), 10, 64); err == nil {
		first, count = v, 1
	}
	var mu sync.Mutex
	var sum [8]row
	err := runSeeds(first, count, runtime.GOMAXPROCS(0), func(seed uint64) error {
		s, err := runTrees(seed)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for i, r := range s.met.rows() {
			sum[i].what, sum[i].n = r.what, sum[i].n+r.n
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

func (m *treesMet) rows() [8]row {
	return [...]row{
		{"operations done", m.Done}, {"operations refused", m.Refused}, {"requests repeated", m.Repeated}, {"old requests", m.Stale},
		{"pages taken away", m.Moved}, {"absent pages", m.Wanted}, {"threads ended", m.Ended},
		{"operations that waited", m.Waits},
	}
}
