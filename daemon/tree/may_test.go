package tree

import (
	"fmt"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
)

// A host that lies about the token of its tree gets no thread that joins another one.
func TestHostsForgedToken(t *testing.T) {
	c := newCluster(t, 2, 1)
	c.settle()
	d := c.dirs[1]
	victim := must(t, func() (Thread, error) { return d.Begin(hostNodes, 1000) })
	own := must(t, func() (Thread, error) { return c.dirs[0].Begin(0, 1000) })
	if _, wait, err := d.Find(own.Protection, true); err != nil || wait == nil {
		t.Fatal(err)
	}
	forged := Message{Kind: Known, Tree: own.Protection, Token: victim.Token.proof(), UID: 1000, Number: d.number}
	d.Told(hostName(0), forged) // before the true answer
	c.settle()
	d.Told(hostName(0), forged)
	if th, err := d.Join(hostNodes, 1000, victim.Token); err != nil || th.Protection != victim.Protection {
		t.Errorf("a thread joins %#x with the token of %#x: %v", uint32(th.Protection), uint32(victim.Protection), err)
	}
}

// The threads of a host use the trees of its own, and those whose token it has shown to their owner. It is told
// the token of no other.
func TestMay(t *testing.T) {
	c := newCluster(t, 4, 1)
	c.settle()
	a, b, guest, evil := c.dirs[0], c.dirs[1], hostName(2), hostName(3)
	root := begin(t, a, 0, 1000)
	p := root.Protection
	may := func(want string) {
		t.Helper()
		c.settle()
		got := ""
		for i, d := range c.dirs[:2] {
			for _, name := range []string{hostName(1 - i), guest, evil} {
				if d.May(name, p) {
					got += fmt.Sprint(i, name[4:], " ")
				}
			}
		}
		if got != want {
			t.Errorf("may: %s, want %s", got, want)
		}
	}
	may("10 ")
	may("10 ") // b has asked a about the others
	for _, m := range []Message{
		{Kind: Asked, Tree: p, Number: 5},
		{Kind: Asked, Tree: p, Number: 6, Threads: 1},
		{Kind: Asked, Tree: p, Number: 7, Token: Token{15: 1}.named(p), Threads: 1},
		{Kind: Known, Tree: p, Number: b.number, Threads: 1, UID: 1000, Token: root.Token.proof()}, // it is not a's answer
	} {
		c.wires[[2]int{0, 3}] = nil
		a.Told(evil, m)
		b.Told(evil, m)
		for _, m := range c.wires[[2]int{0, 3}] {
			if m.Token == root.Token {
				t.Errorf("the token is told: %+v", m)
			}
		}
	}
	may("10 ")
	member, err := c.join(2, 1000, root.Token)
	if err != nil {
		t.Fatal(err)
	}
	if !a.May(guest, p) {
		t.Error("the owner has answered, and refuses the thread")
	}
	may("02 10 ")
	may("02 10 12 ")
	for i, w := range [][2]int{{1, 0}, {0, 1}} { // the question or its answer is not sent, and all is told again
		delete(b.trees[p].members, guest)
		b.May(guest, p)
		for range i {
			c.deliver([2]int{1, 0})
		}
		c.wires[w] = nil
		c.dirs[w[0]].TellAgain(hostName(w[1]))
		may("02 10 ")
		may("02 10 12 ")
	}
	c.cut(0, 1)
	c.cut(0, 2)
	may("02 10 12 ")
	c.start(1) // which knows nothing any more, and asks while the link to the owner is down
	b = c.dirs[1]
	c.up[[2]int{0, 1}], c.up[[2]int{1, 2}] = false, false
	if b.May(guest, p) {
		t.Error("a tree that is not known")
	}
	may("02 10 ")
	may("02 10 12 ")
	again := must(t, func() (Thread, error) { return c.join(1, 1000, root.Token) })
	may("01 02 10 12 ")
	c.effects(1, b.SetHosts(c.others(1, 2)))
	may("01 02 10 ")
	for _, th := range []Thread{root, member, again} {
		_, _, _ = c.dirs[int(th.ID.Node())/hostNodes].End(th.ID)
	}
	c.settle()
	if a.May(guest, p) || b.May(guest, p) {
		t.Error("the tree has ended")
	}
	c.settle()
	c.left(0, 1, 2, 3)
}

// A host's messages in the name of trees that it may not use leave nothing here, whether the link to the owner is down,
// the owner does not answer, or it says no. The end of a tree is confirmed to the owner after any number of questions.
func TestMayLeavesNothing(t *testing.T) {
	c := newCluster(t, 4, 1)
	d, guest, evil := c.dirs[1], hostName(2), hostName(3)
	all := func() {
		for id := device.NodeID(0); id < hostNodes; id++ {
			for i := range device.Interfaces {
				if p := atomics.Protection(atomics.ThreadOf(id, i)); d.May(evil, p) {
					t.Errorf("%s may use %#x", evil, uint32(p))
				}
			}
		}
	}
	all()
	c.settle()
	root := begin(t, c.dirs[0], 0, 1000)
	p := root.Protection
	all()
	if len(d.trees) > 0 || len(c.wires[[2]int{1, 0}]) != 1 {
		t.Errorf("%d trees, %d messages, want 1", len(d.trees), len(c.wires[[2]int{1, 0}]))
	}
	c.settle()
	for range 3 {
		d.May(evil, p)
		c.settle()
	}
	if len(d.trees) > 0 || len(d.hosts[hostName(0)].questions) > 0 {
		t.Errorf("%d trees and %d questions after the answer no", len(d.trees), len(d.hosts[hostName(0)].questions))
	}
	d.May(evil, p)
	other := atomics.Protection(atomics.ThreadOf(3*hostNodes, device.MailboxThread)) // not the owner's
	d.Told(hostName(0), Message{Kind: Known, Tree: other, Threads: 1, UID: 1000, Number: d.number})
	if len(d.trees) > 0 {
		t.Error("a host answers for a tree of another one")
	}
	member, err := c.join(2, 1000, root.Token)
	if err != nil {
		t.Fatal(err)
	}
	d.May(guest, p) // yes
	d.May(evil, p)  // no, on the way when the tree becomes known
	c.settle()
	if len(d.trees) != 1 || !d.May(guest, p) || d.trees[p].members[evil] {
		t.Errorf("%d trees", len(d.trees))
	}
	_, _, _ = c.dirs[2].End(member.ID)
	_, _, _ = c.dirs[0].End(root.ID)
	c.settle()
	c.left(0, 1, 2, 3)
}
