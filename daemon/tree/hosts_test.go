package tree

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
)

// cluster is some hosts with two nodes each, and links between them that lose all that is under way when
// they are cut.
type cluster struct {
	dirs  []*Directory
	lives []uint64
	up    map[[2]int]bool
	wires map[[2]int][]Message
	full  int // one of this many messages is not sent; 0: all are
	again map[[2]int]bool
	r     *rand.Rand
	fail  func(string, ...any)
	// gone has what Effects said that was not done yet, by host
	gone [][]atomics.Protection
	lost [][]atomics.Protection
}

const hostNodes = 2

func hostName(i int) string { return fmt.Sprint("host", i) }

func hostOf(i int) Host {
	return Host{hostName(i), device.NodeID(i * hostNodes), device.NodeID(i*hostNodes + hostNodes - 1)}
}

func ordered(i, j int) [2]int { return [2]int{min(i, j), max(i, j)} }

func newCluster(t *testing.T, n int, seed uint64) *cluster {
	c := &cluster{
		dirs: make([]*Directory, n), lives: make([]uint64, n), up: map[[2]int]bool{}, wires: map[[2]int][]Message{}, again: map[[2]int]bool{},
		r: rand.New(rand.NewPCG(seed, 7)), fail: func(f string, a ...any) { t.Helper(); t.Fatalf("seed %d: "+f, append([]any{seed}, a...)...) },
		gone: make([][]atomics.Protection, n), lost: make([][]atomics.Protection, n),
	}
	for i := range n {
		c.start(i)
	}
	return c
}

// start makes the pfd of a host, with no memory of an earlier one.
func (c *cluster) start(i int) {
	c.lives[i]++
	r := rand.New(rand.NewPCG(uint64(i), c.lives[i]))
	now := int64(0)
	c.gone[i], c.lost[i] = nil, nil
	c.dirs[i] = New(Config{
		Quota: DefaultQuota, Now: func() int64 { now += int64(Pause); return now },
		Random: func() (t Token) {
			for k := range t {
				t[k] = byte(r.Uint32())
			}
			return t
		},
		Tell: func(name string, m Message) bool {
			var to int
			_, _ = fmt.Sscanf(name, "host%d", &to)
			if c.full > 0 && c.r.IntN(c.full) == 0 {
				c.again[[2]int{i, to}] = true
				return false
			}
			b := m.Encode()
			m, err := Decode(b[:])
			if err != nil {
				c.fail("%v", err)
			}
			c.wires[[2]int{i, to}] = append(c.wires[[2]int{i, to}], m)
			return true
		},
	})
	c.dirs[i].SetHosts(c.others(i, -1))
}

func (c *cluster) others(i, struck int) (hosts []Host) {
	for j := range c.dirs {
		if j != i && j != struck {
			hosts = append(hosts, hostOf(j))
		}
	}
	return hosts
}

// effects remembers effects, for collect.
func (c *cluster) effects(i int, e Effects) {
	c.gone[i] = append(c.gone[i], e.Ended...)
	c.lost[i] = append(c.lost[i], e.Lost...)
}

func (c *cluster) cut(i, j int) {
	if k := ordered(i, j); c.up[k] {
		c.up[k] = false
		delete(c.wires, [2]int{i, j})
		delete(c.wires, [2]int{j, i})
		c.dirs[i].Changed(hostOf(j), false)
		c.dirs[j].Changed(hostOf(i), false)
	}
}

func (c *cluster) repair(i, j int) {
	if k := ordered(i, j); !c.up[k] {
		c.up[k] = true
		c.dirs[i].Changed(hostOf(j), true)
		c.dirs[j].Changed(hostOf(i), true)
	}
}

// deliver delivers a message of a wire, and reports whether there was one.
func (c *cluster) deliver(w [2]int) bool {
	q := c.wires[w]
	if len(q) == 0 {
		return false
	}
	c.wires[w] = q[1:]
	c.effects(w[1], c.dirs[w[1]].Told(hostName(w[0]), q[0]))
	return true
}

// settle repairs all, and delivers and frees until nothing happens.
func (c *cluster) settle() {
	c.full = 0
	for i := range c.dirs {
		for j := range i {
			c.repair(i, j)
		}
	}
	for more := true; more; {
		more = false
		for w := range c.again {
			delete(c.again, w)
			c.dirs[w[0]].TellAgain(hostName(w[1]))
		}
		for i := range c.dirs {
			for j := range c.dirs {
				for c.deliver([2]int{i, j}) {
					more = true
				}
			}
			for len(c.gone[i])+len(c.lost[i]) > 0 {
				c.collect(i)
				more = true
			}
		}
	}
}

// collect does what effects said: it ends threads of lost trees, and frees one that has ended.
func (c *cluster) collect(i int) {
	d := c.dirs[i]
	for _, p := range c.lost[i] {
		for _, info := range d.Trees() {
			if info.Protection != p {
				continue
			}
			for _, th := range info.Threads {
				if _, last, err := d.End(th); err != nil {
					c.fail("%v", err)
				} else if last {
					c.gone[i] = append(c.gone[i], p)
				}
			}
		}
	}
	c.lost[i] = nil
	if len(c.gone[i]) > 0 {
		p := c.gone[i][0]
		c.gone[i] = c.gone[i][1:]
		d.Ended(p)
		d.Remove(p)
	}
}

// find asks until the answer is there; links of the two hosts must be up.
func (c *cluster) find(i int, p atomics.Protection) (uint32, error) {
	for ask := true; ; ask = false {
		uid, wait, err := c.dirs[i].Find(p, ask)
		if wait == nil {
			return uid, err
		}
		c.settle()
		select {
		case <-wait:
		default:
			c.fail("no answer about %#x", p)
		}
	}
}

func (c *cluster) join(i int, uid uint32, token Token) (Thread, error) {
	if _, err := c.find(i, token.Tree()); err != nil {
		return Thread{}, err
	}
	th, err := c.dirs[i].Join(device.NodeID(i*hostNodes), uid, token)
	if err != nil {
		return th, err
	}
	for {
		wait, err := c.dirs[i].Confirm(th)
		if wait == nil {
			return th, err
		}
		c.settle()
		select {
		case <-wait:
		default:
			c.fail("thread %#x is not confirmed", uint32(th.ID))
		}
	}
}

// left fails the test if a tree is left on a host.
func (c *cluster) left(hosts ...int) {
	for _, i := range hosts {
		d := c.dirs[i]
		if len(d.trees)+len(d.used) > 0 {
			c.fail("host %d has %d trees, %v", i, len(d.trees), d.used)
		}
	}
}

func TestHosts(t *testing.T) {
	c := newCluster(t, 3, 1)
	c.settle()
	a := c.dirs[0]
	root := begin(t, a, 1, 1000)
	if root.Token.Tree() != root.Protection {
		t.Errorf("token %x of %#x", root.Token, uint32(root.Protection))
	}
	member, err := c.join(1, 1000, root.Token)
	if err != nil {
		t.Fatal(err)
	}
	other := root.Token
	other[15]++
	for _, w := range []struct {
		uid   uint32
		token Token
	}{{1001, root.Token}, {1000, other}, {1000, Token{0, 0, 0x80}.named(0x880001)}, {1000, Token{}.named(0x800077)}, {1000, Token{}.named(1)}} {
		if _, err := c.join(1, w.uid, w.token); !errors.Is(err, ErrTree) {
			t.Errorf("join %+v: %v", w, err)
		}
	}
	// Host 2 has pages only.
	if uid, err := c.find(2, root.Protection); uid != 1000 || err != nil {
		t.Fatal(uid, err)
	}
	if alloc(t, c.dirs[2], root.Protection, 4, 3, 0).Pages != 3 {
		t.Error("pages")
	}
	if _, last, _ := a.End(root.ID); last {
		t.Error("a tree with a thread on another host has ended")
	}
	c.settle()
	if _, last, _ := c.dirs[1].End(member.ID); last {
		t.Error("a pfd that is not the owner ends a tree")
	}
	if b := begin(t, a, 1, 1); b.Protection == root.Protection {
		t.Error("the id is used again")
	} else if _, last, _ := a.End(b.ID); last {
		a.Remove(b.Protection)
	}
	c.settle()
	c.left(0, 1, 2)
}

// A tree whose owner does not answer is forgotten when those that wait give up, and asked for again later; a late answer
// does no harm. An owner cannot change whose a tree is, or claim another's token.
func TestHostsUnanswered(t *testing.T) {
	c := newCluster(t, 3, 1)
	c.settle()
	root := begin(t, c.dirs[0], 1, 1000)
	c.cut(0, 1)
	b := c.dirs[1]
	for range 3 {
		if _, wait, err := b.Find(root.Protection, true); wait == nil || err != nil {
			t.Fatalf("%v, %v: is there an answer?", wait, err)
		}
		b.Unanswered(root.Protection)
		if len(b.trees) != 0 {
			t.Fatalf("%d trees are kept", len(b.trees))
		}
	}
	c.repair(0, 1)
	if _, _, err := b.Find(root.Protection, true); err != nil {
		t.Fatal(err)
	}
	b.Unanswered(root.Protection)
	c.settle()
	if len(b.trees) != 0 {
		t.Errorf("a late answer makes %d trees", len(b.trees))
	}
	member, err := c.join(1, 1000, root.Token)
	if err != nil {
		t.Fatal(err)
	}
	b.Unanswered(root.Protection) // it is known
	number := b.trees[root.Protection].foreign.last
	for _, m := range []Message{
		{UID: 1000, Token: Token{15: 1}},
		{UID: 1001, Token: root.Token.proof()},
		{UID: 1000, Token: root.Token},
	} {
		m.Kind, m.Tree, m.Number = Known, root.Protection, number
		b.Told(hostName(0), m)
		if tr := b.trees[root.Protection]; tr.uid != 1000 || !tr.has(root.Token) {
			t.Errorf("after %+v: user %d, token %x", m, tr.uid, tr.foreign.proof)
		}
	}
	_, _, _ = c.dirs[0].End(root.ID)
	_, _, _ = b.End(member.ID)
	c.settle()
	c.left(0, 1)
}

// A pfd whose threads or links end in the midst of it leaves nothing.
func TestHostsLost(t *testing.T) {
	for name, f := range map[string]func(c *cluster, root, member Thread){
		"the guest starts anew": func(c *cluster, root, _ Thread) {
			c.cut(0, 1)
			c.start(1)
			c.settle()
			_, last, _ := c.dirs[0].End(root.ID)
			if !last {
				c.fail("threads of a pfd that has gone count")
			}
			c.dirs[0].Remove(root.Protection)
		},
		"the guest is struck": func(c *cluster, root, _ Thread) {
			c.cut(0, 1)
			_, _, _ = c.dirs[0].End(root.ID)
			c.effects(0, c.dirs[0].SetHosts(c.others(0, 1)))
			c.start(1)
		},
		"the owner starts anew": func(c *cluster, root, member Thread) {
			c.cut(0, 1)
			c.start(0)
			again, err := c.dirs[0].Begin(0, 5)
			if err != nil || again.Protection != root.Protection {
				c.fail("%+v, %v", again, err)
			}
			c.settle() // which ends the member
			if _, _, err := c.dirs[1].End(member.ID); !errors.Is(err, ErrThread) {
				c.fail("%v", err)
			}
			th, err := c.join(1, 5, again.Token)
			if err != nil {
				c.fail("%v", err)
			}
			_, _, _ = c.dirs[0].End(again.ID)
			_, _, _ = c.dirs[1].End(th.ID)
		},
		"the owner is struck": func(c *cluster, _, _ Thread) {
			c.cut(0, 1)
			c.effects(1, c.dirs[1].SetHosts(c.others(1, 0)))
			c.start(0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 2, 1)
			c.settle()
			root := must(t, func() (Thread, error) { return c.dirs[0].Begin(0, 1000) })
			member, err := c.join(1, 1000, root.Token)
			if err != nil {
				t.Fatal(err)
			}
			alloc(t, c.dirs[1], root.Protection, 2, 1, 0)
			f(c, root, member)
			c.settle()
			c.left(0, 1)
		})
	}
}

// TestHostsLateBegin restarts a pfd and delays its Begin: trees of its new life must not be taken for trees of its
// former one.
func TestHostsLateBegin(t *testing.T) {
	c := newCluster(t, 2, 1)
	c.settle()
	c.cut(0, 1)
	c.start(0)
	root := begin(t, c.dirs[0], 0, 1000)
	c.repair(0, 1)
	c.wires[[2]int{0, 1}] = nil // as if the link had no room
	wait := func(ask bool) <-chan struct{} {
		_, wait, err := c.dirs[1].Find(root.Protection, ask)
		if err != nil {
			t.Fatal(err)
		}
		for c.deliver([2]int{1, 0}) || c.deliver([2]int{0, 1}) {
		}
		return wait
	}
	if wait(true); wait(false) == nil {
		t.Error("the tree is known")
	}
	c.dirs[0].TellAgain(hostName(1))
	wait(false)
	member, err := c.join(1, 1000, root.Token)
	if err != nil {
		t.Fatal(err)
	}
	c.settle()
	if !c.dirs[1].Alive(member.ID, root.Protection) || !c.dirs[0].May(hostName(1), root.Protection) {
		t.Error("the thread is lost")
	}
}

// TestHostsRandom runs random operations on three hosts while links are cut, messages are lost and pfds
// restart. It checks that the tree of a thread lives as long as the tree's owner, and that no tree or
// page is left at the end.
func TestHostsRandom(t *testing.T) {
	for seed := range uint64(300) {
		c := newCluster(t, 3, seed)
		c.full = []int{0, 20, 4}[seed%3]
		type thread struct {
			Thread
			host, owner int
			life        uint64 // of the owner
			confirmed   bool
		}
		var threads []*thread
		var tokens []Token
		born := map[Token]uint64{} // life of the owner
		shown := map[[2]any]bool{} // proof of a token, host
		drop := func(f func(*thread) bool) { threads = slices.DeleteFunc(threads, f) }
		for range 400 {
			i, j := c.r.IntN(3), c.r.IntN(3)
			d := c.dirs[i]
			switch k := c.r.IntN(100); {
			case k < 8:
				if th, err := d.Begin(device.NodeID(i*hostNodes), 1); err == nil {
					threads = append(threads, &thread{th, i, i, c.lives[i], true})
					tokens = append(tokens, th.Token)
					born[th.Token] = c.lives[i]
				}
			case k < 25 && len(tokens) > 0:
				token := tokens[max(0, len(tokens)-1-c.r.IntN(6))]
				_, wait, err := d.Find(token.Tree(), true)
				if err != nil || wait != nil {
					break
				}
				if th, err := d.Join(device.NodeID(i*hostNodes+1), 1, token); err == nil {
					shown[[2]any{token.proof(), i}] = true
					owner := int(atomics.Thread(th.Protection).Node()) / hostNodes
					threads = append(threads, &thread{th, i, owner, c.lives[owner], i == owner})
				}
			case k < 33 && len(threads) > 0:
				th := threads[c.r.IntN(len(threads))]
				_, last, err := c.dirs[th.host].End(th.ID)
				if err != nil {
					c.fail("%v", err)
				}
				if last {
					c.gone[th.host] = append(c.gone[th.host], th.Protection)
				}
				drop(func(o *thread) bool { return o == th })
			case k < 36 && i != j:
				c.cut(i, j)
			case k < 45 && i != j:
				c.repair(i, j)
			case k == 45:
				for j := range c.dirs {
					if j != i {
						c.cut(i, j)
					}
				}
				c.start(i)
				drop(func(o *thread) bool { return o.host == i })
			case k < 55:
				for _, p := range c.lost[i] {
					drop(func(o *thread) bool { return o.host == i && o.Protection == p })
				}
				c.collect(i)
			case k < 65 && len(tokens) > 0 && i != j:
				p := tokens[max(0, len(tokens)-1-c.r.IntN(6))].Tree()
				if owner := int(atomics.Thread(p).Node()) / hostNodes; owner != j && d.May(hostName(j), p) {
					proof := d.trees[p].token.proof()
					if owner != i {
						proof = d.trees[p].foreign.proof
					}
					if !shown[[2]any{proof, j}] {
						c.fail("host %d uses the tree %#x on host %d", j, uint32(p), i)
					}
				}
			case k < 70:
				for w := range maps.Keys(c.again) {
					delete(c.again, w)
					c.dirs[w[0]].TellAgain(hostName(w[1]))
					break
				}
			default:
				c.deliver([2]int{i, j})
			}
			for i, d := range c.dirs {
				for p, o := range d.trees {
					owner := int(atomics.Thread(p).Node()) / hostNodes
					if own := c.dirs[owner].trees[p]; o.token != (Token{}) && born[o.token] == c.lives[owner] && (own == nil || own.token != o.token) {
						c.fail("host %d has the tree %#x, whose id is free", i, uint32(p))
					}
				}
			}
			for _, th := range threads {
				switch wait, err := c.dirs[th.host].Confirm(th.Thread); {
				case err == nil && wait == nil:
					th.confirmed = true
				case err != nil && th.confirmed && c.lives[th.owner] == th.life:
					c.fail("a confirmed thread %#x of host %d: %v", uint32(th.ID), th.host, err)
				}
				if o := c.dirs[th.owner].trees[th.Protection]; th.confirmed && c.lives[th.owner] == th.life && (o == nil || o.ended) {
					c.fail("the tree of thread %#x of host %d has ended", uint32(th.ID), th.host)
				}
				if th.confirmed && c.lives[th.owner] == th.life && th.host != th.owner && !c.dirs[th.owner].May(hostName(th.host), th.Protection) {
					c.fail("the owner refuses thread %#x of host %d", uint32(th.ID), th.host)
				}
			}
		}
		c.settle() // which ends threads of lost trees
		drop(func(th *thread) bool { return !c.dirs[th.host].Alive(th.ID, th.Protection) })
		for _, th := range threads {
			for j, d := range c.dirs {
				if j == th.host || d.May(hostName(th.host), th.Protection) {
					continue
				}
				if c.settle(); j == th.owner || !d.May(hostName(th.host), th.Protection) {
					c.fail("host %d refuses thread %#x of host %d", j, uint32(th.ID), th.host)
				}
			}
		}
		for _, th := range threads {
			if _, last, err := c.dirs[th.host].End(th.ID); err != nil {
				c.fail("%v", err)
			} else if last {
				c.gone[th.host] = append(c.gone[th.host], th.Protection)
			}
		}
		c.settle()
		c.left(0, 1, 2)
	}
}

// Another host says itself whose its trees are: all its trees together have no more than hostShare quotas.
func TestShareOfAHost(t *testing.T) {
	const quota = 10
	var told Message
	d := New(Config{
		Quota: quota * device.PageSize, Now: func() int64 { return 0 }, Random: func() Token { return Token{15: 1} },
		Tell: func(_ string, m Message) bool { told = m; return true },
	})
	for i, name := range []string{"evil", "other"} {
		h := Host{Name: name, First: device.NodeID(8 + 8*i), Last: device.NodeID(15 + 8*i)}
		d.SetHosts(append(d.hostsOf(), h))
		d.Changed(h, true)
		d.Told(name, Message{Kind: Begin, Token: Token{15: 1}})
	}
	claim := func(name string, node, i int) atomics.Protection {
		p := atomics.Protection(atomics.ThreadOf(device.NodeID(node), device.MailboxThread+i))
		if _, _, err := d.Find(p, true); err != nil {
			t.Fatal(err)
		}
		d.Told(name, Message{Kind: Known, Tree: p, Token: Token{15: byte(i)}.named(p), UID: uint32(50000 + i), Number: told.Number})
		return p
	}
	var first Run
	for i := range hostShare {
		r := alloc(t, d, claim("evil", 8, i), 0, quota, 0)
		if i == 0 {
			first = r
		}
	}
	p := claim("evil", 9, hostShare)
	if _, err := d.Alloc(p, 0, 1, 0); !errors.Is(err, ErrRoom) || !strings.Contains(err.Error(), "evil") {
		t.Errorf("one page more: %v", err)
	}
	alloc(t, d, claim("other", 16, 9), 0, quota, 0)
	own, err := d.Begin(0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	alloc(t, d, own.Protection, 0, quota, 0)
	owner := atomics.Protection(atomics.ThreadOf(8, device.MailboxThread))
	if r, err := d.Free(owner, first.Address()); err != nil {
		t.Fatal(err)
	} else {
		d.Freed(owner, r)
	}
	alloc(t, d, p, 0, quota, 0)
	d.SetHosts(nil)
	for p := range d.trees {
		d.Remove(p)
	}
	if len(d.abroad) != 0 {
		t.Errorf("pages of hosts that are gone: %v", d.abroad)
	}
}

func (d *Directory) hostsOf() (all []Host) {
	for _, h := range d.hosts {
		all = append(all, h.Host)
	}
	return all
}
