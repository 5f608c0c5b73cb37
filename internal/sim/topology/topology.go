// Package topology describes networks: their nodes, their links, and which link a frame takes next.
//
// The networks are those of the papers (001 §2.2.1): QFDBs of four nodes, blades of four QFDBs, and tori
// of QFDBs. A node of each QFDB, its network node, has the links to other QFDBs.
//
// docs/papers.md lists the papers that comments cite by number.
package topology

import "fmt"

// Rates and times of the papers' links (002 §V: a blade's links run at 10 Gb/s, those within a QFDB at
// 17, and a hop takes 150 ns).
const (
	Gbit       = int64(1e9) // bits a second
	BladeRate  = 10 * Gbit
	QFDBRate   = 17 * Gbit
	HopLatency = 150 // ns
)

// MaxNodes is the largest number of nodes (defined by this project).
const MaxNodes = 4096

// VCs is the number of virtual channels of a link. Frames that still have to pass a ring's wrap-around
// link use channel 0, all others channel 1, so that no circle of full queues arises.
const VCs = 2

// Link is one direction of a link between two nodes.
type Link struct {
	From, To int
	Rate     int64 // bits a second
	Hop      int64 // ns
}

// Network is a network of nodes 0 to Nodes-1.
type Network struct {
	Name  string // as "torus 4x4x4"
	Nodes int
	Links []Link
	// at[n] has the links from n, as places in Links.
	at   [][]int
	size [3]int // of a torus, in QFDBs
	kind kind
}

type kind uint8

const (
	star  kind = iota // within one QFDB
	blade             // QFDBs linked with each other
	torus
)

const perQFDB = 4

// Options change the speed of links; zeros are the papers' values.
type Options struct {
	Rate, QFDBRate int64 // bits a second: between QFDBs, and within them
	Hop            int64 // ns
}

// QFDB returns the network of one QFDB: four nodes, each linked with each.
func QFDB(o Options) *Network {
	n := build(star, 1, o)
	n.Name = "qfdb"
	return n
}

// Blade returns the network of a blade: four QFDBs, each linked with each.
func Blade(o Options) *Network {
	n := build(blade, 4, o)
	n.Name = "blade"
	for a := range 4 {
		for b := range 4 {
			if a != b {
				n.link(a*perQFDB, b*perQFDB, o.Rate, BladeRate, o.Hop)
			}
		}
	}
	return n
}

// Torus returns a torus of x times y times z QFDBs. A dimension of 1 has no links.
func Torus(x, y, z int, o Options) (*Network, error) {
	for _, d := range []int{x, y, z} {
		if d < 1 || d > MaxNodes {
			return nil, fmt.Errorf("a torus of %d x %d x %d QFDBs: each number is 1 or more", x, y, z)
		}
	}
	if x*y > MaxNodes || x*y*z*perQFDB > MaxNodes {
		return nil, fmt.Errorf("a torus of %d x %d x %d QFDBs has more than %d nodes", x, y, z, MaxNodes)
	}
	n := build(torus, x*y*z, o)
	n.Name, n.size = fmt.Sprintf("torus %dx%dx%d", x, y, z), [3]int{x, y, z}
	for q := range x * y * z {
		c := n.place(q)
		for d, size := range n.size {
			for _, step := range []int{1, size - 1} {
				if size < 2 || size == 2 && step != 1 {
					continue
				}
				to := c
				to[d] = (to[d] + step) % size
				n.link(q*perQFDB, n.number(to)*perQFDB, o.Rate, BladeRate, o.Hop)
				if size == 2 {
					break // both directions lead to the same QFDB
				}
			}
		}
	}
	return n, nil
}

// build makes QFDBs whose nodes are linked with each other.
func build(k kind, qfdbs int, o Options) *Network {
	n := &Network{Nodes: qfdbs * perQFDB, kind: k, at: make([][]int, qfdbs*perQFDB)}
	for q := range qfdbs {
		for a := range perQFDB {
			for b := range perQFDB {
				if a != b {
					n.link(q*perQFDB+a, q*perQFDB+b, o.QFDBRate, QFDBRate, o.Hop)
				}
			}
		}
	}
	return n
}

func (n *Network) link(from, to int, rate, usual, hop int64) {
	if rate == 0 {
		rate = usual
	}
	if hop == 0 {
		hop = HopLatency
	}
	n.at[from] = append(n.at[from], len(n.Links))
	n.Links = append(n.Links, Link{from, to, rate, hop})
}

// place returns the coordinates of a QFDB of a torus, number the QFDB at coordinates.
func (n *Network) place(q int) [3]int {
	return [3]int{q % n.size[0], q / n.size[0] % n.size[1], q / n.size[0] / n.size[1]}
}

func (n *Network) number(c [3]int) int { return c[0] + n.size[0]*(c[1]+n.size[1]*c[2]) }

// Next returns the link that a frame at node at takes towards node to, which is another one, and the
// virtual channel of its queue there. Frames of a torus go by x first, then y, then z, each the shorter
// way around.
func (n *Network) Next(at, to int) (link, vc int) {
	a, b := at/perQFDB, to/perQFDB
	if a == b {
		return n.to(at, to), 1
	}
	if at%perQFDB != 0 {
		return n.to(at, a*perQFDB), 0
	}
	if n.kind != torus {
		return n.to(at, b*perQFDB), 0
	}
	from, dest := n.place(a), n.place(b)
	next := from
	for d, size := range n.size {
		if from[d] == dest[d] {
			continue
		}
		ahead := (dest[d] - from[d] + size) % size
		wraps := false
		if ahead <= size-ahead {
			next[d], wraps = (from[d]+1)%size, dest[d] < from[d]
		} else {
			next[d], wraps = (from[d]+size-1)%size, dest[d] > from[d]
		}
		if !wraps {
			vc = 1
		}
		break
	}
	return n.to(at, n.number(next)*perQFDB), vc
}

// to returns the link between neighbours.
func (n *Network) to(from, to int) int {
	for _, l := range n.at[from] {
		if n.Links[l].To == to {
			return l
		}
	}
	return -1 // not reached: Next names neighbours only
}

// Hops returns the number of links between two nodes.
func (n *Network) Hops(from, to int) (hops int) {
	for ; from != to; hops++ {
		l, _ := n.Next(from, to)
		from = n.Links[l].To
	}
	return hops
}
