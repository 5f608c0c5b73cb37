package topology

import (
	"fmt"
	"testing"
)

// Every frame reaches its node over links that exist, in no more hops than the network's diameter.
func TestRoutes(t *testing.T) {
	torus := func(x, y, z int) *Network {
		n, err := Torus(x, y, z, Options{})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, c := range []struct {
		n     *Network
		links int
		most  int // hops
	}{
		{QFDB(Options{}), 12, 1},
		{Blade(Options{}), 4*12 + 12, 3},
		{torus(1, 1, 1), 12, 1},
		{torus(2, 1, 1), 2*12 + 2, 3},
		{torus(3, 1, 1), 3*12 + 6, 3},
		{torus(4, 2, 2), 16*12 + 16*4, 2 + 2 + 1 + 1},
		{torus(5, 4, 3), 60*12 + 60*6, 2 + 2 + 2 + 1},
	} {
		if len(c.n.Links) != c.links {
			t.Errorf("%s has %d links, want %d", c.n.Name, len(c.n.Links), c.links)
		}
		worst := 0
		for a := range c.n.Nodes {
			for b := range c.n.Nodes {
				if a == b {
					continue
				}
				hops := 0
				for at := a; at != b; hops++ {
					l, vc := c.n.Next(at, b)
					if l < 0 || c.n.Links[l].From != at || vc < 0 || vc >= VCs || hops > c.most {
						t.Fatalf("%s: from %d to %d: at %d after %d hops: link %d", c.n.Name, a, b, at, hops, l)
					}
					at = c.n.Links[l].To
				}
				worst = max(worst, hops)
			}
		}
		if worst != c.most {
			t.Errorf("%s: the longest way has %d hops, want %d", c.n.Name, worst, c.most)
		}
	}
}

// No circle of queues waits for itself: each queue waits only for later ones in one order.
func TestNoCircle(t *testing.T) {
	for _, size := range [][3]int{{2, 1, 1}, {3, 1, 1}, {4, 4, 1}, {5, 3, 2}, {4, 4, 4}} {
		n, err := Torus(size[0], size[1], size[2], Options{})
		if err != nil {
			t.Fatal(err)
		}
		waits := map[[2]int]map[[2]int]bool{} // queues, by link and virtual channel
		for a := range n.Nodes {
			for b := range n.Nodes {
				last := [2]int{-1}
				for at := a; at != b; {
					l, vc := n.Next(at, b)
					q := [2]int{l, vc}
					if last[0] >= 0 {
						if waits[last] == nil {
							waits[last] = map[[2]int]bool{}
						}
						waits[last][q] = true
					}
					last, at = q, n.Links[l].To
				}
			}
		}
		state := map[[2]int]int{}
		var visit func(q [2]int) bool
		visit = func(q [2]int) bool {
			switch state[q] {
			case 1:
				return false
			case 2:
				return true
			}
			state[q] = 1
			for next := range waits[q] {
				if !visit(next) {
					return false
				}
			}
			state[q] = 2
			return true
		}
		for q := range waits {
			if !visit(q) {
				t.Fatalf("%s: a circle of queues at link %v", n.Name, n.Links[q[0]])
			}
		}
	}
}

func TestTooLarge(t *testing.T) {
	for _, size := range [][3]int{{0, 1, 1}, {-1, 1, 1}, {1025, 1, 1}, {1 << 30, 1 << 30, 1 << 30}, {16, 16, 8}} {
		if n, err := Torus(size[0], size[1], size[2], Options{}); err == nil {
			t.Errorf("%v: %d nodes", size, n.Nodes)
		}
	}
	if _, err := Torus(16, 8, 8, Options{}); err != nil {
		t.Error(err)
	}
}

func Example() {
	n, _ := Torus(4, 4, 4, Options{})
	fmt.Println(n.Name, n.Nodes, "nodes,", n.Hops(0, n.Nodes-1), "hops")
	// Output: torus 4x4x4 256 nodes, 4 hops
}
