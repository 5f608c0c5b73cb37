package hostile

import (
	"sync"
	"testing"
	"time"
)

// Parameters of the measurement of the attack with holes. Values below are defined by this
// project.
const (
	holesTime   = 5 * time.Second
	holesRounds = 3 // one must pass: the first touch that sleeps may coincide with a garbage collection (docs/security.md)
)

// A process punches holes into memory that it shares, or shares and unshares it, while the file
// is mapped a million times. This delays others no more than the same work on a file that pfd
// does not have: they complete at least half of the transfers, and wait at most 100 ms, or as
// long as beside that work.
func TestHolesInSharedMemory(t *testing.T) { everywhere(t, holesInSharedMemory) }

func holesInSharedMemory(t *testing.T, on place) {
	if !soaking() {
		t.Skip("runs only with PFD_SOAK=1 (make soak): it compares times and takes a minute")
	}
	needRoot(t, "attackers of several users need their processes")
	kinds := []string{"holes", "shares"}
	if on.Shared {
		kinds = kinds[:1] // pfd and the device map shared memory, and wait with their address spaces locked (docs/security.md)
	}
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			w := on.start(t)
			var reap sync.WaitGroup
			t.Cleanup(reap.Wait)
			v := w.victim(victimUID)
			if v == nil {
				return
			}
			beside := func(kind string) reply {
				end := w.assault(&reap, []aggressor{{kind, 1}})
				v.must(order{Op: "account"})
				time.Sleep(holesTime)
				r := v.must(order{Op: "account"})
				t.Logf("%-16s %6d transfers, p99 %v, worst %v; done %s", kind, r.Count, time.Duration(r.P99), time.Duration(r.Worst), end())
				reap.Wait()
				return r
			}
			for range holesRounds {
				same, attack := beside(kind+" elsewhere"), beside(kind)
				if attack.Count >= same.Count/2 && attack.Worst < max(same.Worst, int64(attackWorst)) {
					v.fine()
					return
				}
			}
			t.Errorf("in no round of %d: half of the transfers, and none over %v", holesRounds, attackWorst)
		})
	}
}
