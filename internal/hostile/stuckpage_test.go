package hostile

import (
	"fmt"
	"testing"
)

// A page whose page-in hangs stalls only its own block: other absent pages are still paged in,
// for the same process and for others.
func TestStuckPageCostsItsBlockOnly(t *testing.T) {
	for _, policy := range []string{"p1", "pa"} {
		t.Run(policy, func(t *testing.T) {
			w := start(t)
			target := w.attach("target", attachOrder{Node: 1, Group: "stuck", Policy: policy, All: true})
			one := w.attach("one", attachOrder{Group: "stuck"})
			two := w.attach("two", attachOrder{Group: "stuck"})
			const size = 256 << 10
			never := target.buffer("never", "own userfaultfd", size, 0)
			for _, p := range []*proxy{one, two} {
				p.buffer("b", "anonymous", size, 5)
			}
			one.write("stuck", "b", never.Remote, size)
			for i := range 8 {
				id := fmt.Sprint("m", i)
				m := target.buffer(id, "anonymous", size, 0)
				from := []*proxy{one, two}[i%2]
				from.write(id, "b", m.Remote, size)
				from.arrives(id)
				target.holds(id, 5, 0, size)
			}
		})
	}
}
