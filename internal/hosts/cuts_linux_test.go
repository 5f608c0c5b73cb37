package hosts

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/exanet/pfd/rdma"
)

// Cuts of a cable for up to a second under load, each followed by transfers in both directions: no
// transfer fails and no byte is wrong. The times in which transfers complete again are reported.
func TestShortCuts(t *testing.T) {
	long(t)
	const meshes, cuts = 4, 250
	for i := range meshes {
		t.Run(fmt.Sprint("mesh ", i), func(t *testing.T) {
			t.Parallel()
			shortCuts(t, cuts)
		})
	}
}

func shortCuts(t *testing.T, cuts int) {
	c := start(t, 2, 1)
	flows := c.flows(100 << 10)
	a, b := c.hosts[0], c.hosts[1]
	probes := []*flow{
		newFlow(t, "probe a to b", a.attach(0, rdma.Options{}), b.attach(0, rdma.Options{}), 4096, 100),
		newFlow(t, "probe b to a", b.attach(0, rdma.Options{}), a.attach(0, rdma.Options{}), 4096, 101),
	}
	flows = append(flows, probes...)
	stop := load(t, flows...)
	defer stop()
	var times []time.Duration
	for i := range cuts {
		progress(t, 1, probes...)
		if err := c.mesh.Cut(0, 1); err != nil {
			t.Fatal(err)
		}
		length := time.Second
		if i%4 == 3 {
			length = time.Duration(rand.N(int64(time.Second)))
		}
		time.Sleep(length)
		if err := c.mesh.Repair(0, 1); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		progress(t, 1, probes...)
		times = append(times, time.Since(began))
		if len(times)%50 == 0 {
			t.Logf("%d cuts", len(times))
		}
		if t.Failed() {
			break
		}
	}
	stop()
	slices.Sort(times)
	at := func(p int) time.Duration { return times[(len(times)-1)*p/100].Round(time.Millisecond) }
	done := uint64(0)
	for _, f := range flows {
		done += f.done.Load()
	}
	t.Logf("%d cuts, %d connections, %d transfers; transfers complete again after %v (median), %v (90 %%), %v (99 %%), %v (most)",
		len(times), a.link("b").Connects, done, at(50), at(90), at(99), at(100))
	for _, h := range c.hosts {
		h.unpinned()
	}
}
