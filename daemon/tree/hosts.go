package tree

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
)

// A tree belongs to the pfd of its root's node, its owner. All other pfds that have threads or pages of it
// have asked the owner for it, and tell it how many threads they have. The tree ends when there is none on
// any host. The owner then says so to all that have asked, and keeps the id until each has freed its pages.
// Messages say states, not changes, so that a lost one does no harm: when a link comes up, both sides tell
// each other all that they know.
//
// The threads of a host may use the pages of its own trees, and of those whose token it has shown to their
// owner (May). A pfd that has not shown a token is told its proof only.

// Host is another host, and its nodes.
type Host struct {
	Name        string
	First, Last device.NodeID
}

// host is a host of the table.
type host struct {
	Host
	up    bool
	life  Token // zero: not known
	began bool  // a Begin has come since the link is up

	begun uint32 // number of the last Begin to it
	// numbers of the last Asked to it about other hosts, by these, that are not answered
	questions map[string]uint32

	number, count uint32 // of the last Begin from it; messages Asked since then
}

// share has the threads of another host that has asked its owner for a tree.
type share struct {
	threads uint32
	number  uint32 // of its last Asked
	stale   bool   // not told since the last Begin
}

// foreign has the state of a tree of another host that this pfd has asked for.
type foreign struct {
	owner   string
	known   bool          // uid and proof are known
	proof   Token         // of its token
	first   uint32        // number of its first Asked
	last    uint32        // and of the last one
	acked   uint32        // of the last one that the owner has answered
	changed chan struct{} // closed when something of it, or ended, has changed
}

// Effects lists trees that have ended by a message of another host, for the caller to free.
type Effects struct {
	// Ended trees have no thread: as those of End.
	Ended []atomics.Protection
	// Lost trees have threads, and their owner does not know them any more. The caller ends these.
	Lost []atomics.Protection
}

// SetHosts replaces the other hosts. One that is not among them any more has no threads, and its trees are
// lost.
func (d *Directory) SetHosts(hosts []Host) (e Effects) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, h := range d.hosts {
		if slices.Contains(hosts, h.Host) {
			continue
		}
		for _, t := range d.sorted() {
			delete(t.members, name)
			if t.foreign != nil && t.foreign.owner == name {
				d.lose(t, &e)
			} else if t.shares[name] != nil {
				d.drop(t, name, &e)
			}
		}
		delete(d.hosts, name)
	}
	for _, h := range hosts {
		if d.hosts[h.Name] == nil {
			d.hosts[h.Name] = newHost(h)
		}
	}
	return e
}

func newHost(h Host) *host { return &host{Host: h, questions: map[string]uint32{}} }

// hostOf returns the host of a node, nil if it is of this pfd, or of none.
func (d *Directory) hostOf(id device.NodeID) *host {
	for _, h := range d.hosts {
		if h.has(id) {
			return h
		}
	}
	return nil
}

func (h *Host) has(id device.NodeID) bool { return h.First <= id && id <= h.Last }

// Changed says that the link to a host came up, which may be before SetHosts names it, or went down. Both
// pfds call it.
func (d *Directory) Changed(o Host, up bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.hosts[o.Name]
	switch {
	case h == nil && !up:
		return
	case h == nil:
		h = newHost(o)
		d.hosts[o.Name] = h
	}
	h.began = false
	if h.up = up; up {
		d.tellAll(o.Name)
	}
}

// TellAgain tells a host all again, if its link is up: a message to it was not sent.
func (d *Directory) TellAgain(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if h := d.hosts[name]; h != nil && h.up {
		d.tellAll(name)
	}
}

func (d *Directory) tellAll(name string) {
	d.live()
	h, n := d.hosts[name], uint32(0)
	clear(h.questions) // they may not have been sent, or understood
	h.begun++
	d.tell(name, Message{Kind: Begin, Token: d.life, Number: h.begun})
	for _, t := range d.sorted() {
		switch {
		case t.foreign != nil && t.foreign.owner == name:
			d.ask(t, nil)
			n++
		case t.ended && t.shares[name] != nil:
			d.tell(name, Message{Kind: Gone, Tree: t.id, Token: t.token.proof(), Number: t.shares[name].number})
		}
	}
	d.tell(name, Message{Kind: All, Threads: n, Number: h.begun})
}

// sorted returns all trees in the order of their ids.
func (d *Directory) sorted() []*tree {
	return slices.SortedFunc(maps.Values(d.trees), func(a, b *tree) int { return cmp.Compare(a.id, b.id) })
}

// live makes the life of a directory that is new.
func (d *Directory) live() {
	for d.life == (Token{}) {
		d.life = d.cfg.Random()
		d.number = binary.LittleEndian.Uint32(d.life[4:])
	}
}

func (d *Directory) tell(name string, m Message) bool {
	h := d.hosts[name]
	return h != nil && h.up && d.cfg.Tell != nil && d.cfg.Tell(name, m)
}

// ask tells the owner of a foreign tree how many threads this pfd has, and asks it whether another host has
// shown the token, if about is not nil.
func (d *Directory) ask(t *tree, about *host) {
	d.number++
	t.foreign.last = d.number
	m := Message{Kind: Asked, Tree: t.id, Token: t.token, Threads: uint32(t.threads), Number: d.number}
	if about != nil {
		m.UID = uint32(about.First)
	}
	if d.tell(t.foreign.owner, m) && about != nil {
		d.hosts[t.foreign.owner].questions[about.Name] = m.Number
	}
}

// meet makes a tree of another host known and asks its owner, also about another host if about is not nil. It
// returns nil if no other host may have the tree.
func (d *Directory) meet(p atomics.Protection, about *host) *tree {
	root := atomics.Thread(p)
	o := d.hostOf(root.Node())
	if o == nil || root.Interface() < device.MailboxThread {
		return nil
	}
	d.live()
	t := newTree(p)
	t.foreign = &foreign{owner: o.Name, first: d.number + 1, acked: d.number, changed: make(chan struct{})}
	d.trees[p] = t
	d.ask(t, about)
	return t
}

// May reports whether the threads of another host may use the pages of a tree: the tree is that host's, or it
// has shown the token. If that is for a third host to say, it is asked, and May is true from its answer on.
func (d *Directory) May(name string, p atomics.Protection) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	h, t, root := d.hosts[name], d.trees[p], atomics.Thread(p).Node()
	switch {
	case h == nil || h.has(root):
		return h != nil
	case t != nil && (t.foreign == nil || t.ended || t.members[name]):
		return !t.ended && t.members[name]
	}
	o := d.hostOf(root)
	if o == nil {
		return false
	}
	if _, open := o.questions[name]; !open {
		if t == nil {
			d.meet(p, h)
		} else {
			d.ask(t, h)
		}
	}
	return false
}

// Find returns the user of a tree. If this pfd does not know the tree, and ask is set, it asks the owner. If
// wait is not nil, call Find again, without ask, when it is closed, or Unanswered. If there is no such tree, the error
// matches ErrTree.
func (d *Directory) Find(p atomics.Protection, ask bool) (uid uint32, wait <-chan struct{}, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.trees[p]
	if t == nil && ask {
		t = d.meet(p, nil)
	}
	switch {
	case t == nil || t.ended:
		return 0, nil, fmt.Errorf("%w: %#x", ErrTree, uint32(p))
	case t.foreign != nil && !t.foreign.known:
		return 0, t.foreign.changed, nil
	}
	return t.uid, nil, nil
}

// Unanswered forgets a tree of another host if its owner has not said yet whose it is. What Find returned for
// others is not closed then: they give up, too.
func (d *Directory) Unanswered(p atomics.Protection) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t := d.trees[p]; t != nil && t.foreign != nil && !t.foreign.known && !t.ended {
		delete(d.trees, p)
	}
}

// Confirm reports whether the owner of a thread's tree knows of the thread. If wait is not nil, call Confirm
// again when it is closed. With an error (ErrTree) the tree has ended; the caller ends the thread.
func (d *Directory) Confirm(th Thread) (wait <-chan struct{}, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.trees[th.Protection]
	switch {
	case t == nil || t.ended:
		return nil, fmt.Errorf("%w: %#x has ended", ErrTree, uint32(th.Protection))
	case th.number == 0 || int32(t.foreign.acked-th.number) >= 0:
		return nil, nil
	}
	return t.foreign.changed, nil
}

// Told handles a message of another host.
func (d *Directory) Told(name string, m Message) (e Effects) {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.hosts[name]
	if h == nil || !h.began && m.Kind != Begin { // it was not sent: all is told again
		return e
	}
	t := d.trees[m.Tree]
	var own *share // of name, in a tree of this pfd
	if t != nil {
		own = t.shares[name]
	}
	foreign := t != nil && t.foreign != nil && t.foreign.owner == name
	about := ""
	if m.Kind == Known || m.Kind == Gone {
		about = h.answers(m.Number)
	}
	switch m.Kind {
	case Begin:
		clear(h.questions) // the answers may not have been sent
		anew := m.Token != h.life && h.life != Token{}
		h.life, h.began, h.number, h.count = m.Token, true, m.Number, 0
		for _, t := range d.sorted() {
			if s := t.shares[name]; s != nil {
				s.stale = true
			}
			if f := t.foreign; f == nil || f.owner != name || t.ended {
				continue
			} else if anew && f.known {
				d.lose(t, &e)
			} else if f.last != f.acked { // the answer may not have been sent
				d.ask(t, nil)
			}
		}
	case All:
		if m.Number != h.number || m.Threads != h.count {
			break // some were not sent: all is told again
		}
		for _, t := range d.sorted() {
			if s := t.shares[name]; s != nil && s.stale {
				d.drop(t, name, &e)
			}
		}
	case Asked:
		h.count++
		d.asked(name, t, m, &e)
	case Known:
		// User and token of a tree stay what they are.
		if foreign && !t.ended && t.foreign.since(m.Number) && (!t.foreign.known || m.Token == t.foreign.proof && m.UID == t.uid) {
			t.foreign.known, t.foreign.acked = true, m.Number
			t.uid, t.foreign.proof = m.UID, m.Token
			if d.hosts[about] != nil && m.Threads > 0 {
				t.members[about] = true
			}
			t.notify()
		}
	case Gone:
		switch {
		case t == nil:
			d.tell(name, Message{Kind: Freed, Tree: m.Tree, Number: m.Number})
		case foreign && t.foreign.since(m.Number) && (!t.foreign.known || m.Token == t.token || m.Token == t.foreign.proof):
			d.lose(t, &e)
		}
	case Freed:
		if own != nil && t.ended && m.Number == own.number {
			d.drop(t, name, &e)
		}
	}
	return e
}

// answers closes the question with a number, and returns the name of the host that it was about.
func (h *host) answers(number uint32) (about string) {
	for name, n := range h.questions {
		if n == number {
			about = name
		}
	}
	delete(h.questions, about)
	return about
}

// since reports whether a message with this number belongs to the tree, not to one before it with the same id.
func (f *foreign) since(number uint32) bool { return int32(number-f.first) >= 0 }

// asked answers a host that asks for a tree, or has told how many threads it has.
func (d *Directory) asked(name string, t *tree, m Message, e *Effects) {
	if t == nil || t.foreign != nil || m.Token != t.token && (m.Token != Token{} || m.Threads > 0) {
		d.tell(name, Message{Kind: Gone, Tree: m.Tree, Token: m.Token, Number: m.Number})
		return
	}
	s := t.shares[name]
	if t.ended {
		if s != nil {
			s.number, s.stale = m.Number, false
		}
		d.tell(name, Message{Kind: Gone, Tree: t.id, Token: m.Token, Number: m.Number})
		return
	}
	if s == nil {
		s = &share{}
		t.shares[name] = s
	}
	s.threads, s.number, s.stale = m.Threads, m.Number, false
	if m.Token == t.token {
		t.members[name] = true // before the answer: the host's threads use the tree from then on
	}
	answer := Message{Kind: Known, Tree: t.id, Token: t.token.proof(), UID: t.uid, Number: m.Number}
	if about := d.hostOf(device.NodeID(m.UID)); about != nil && t.members[about.Name] {
		answer.Threads = 1
	}
	d.tell(name, answer)
	if d.endIfOver(t) {
		e.Ended = append(e.Ended, t.id)
	}
}

// drop forgets that a host has asked for a tree.
func (d *Directory) drop(t *tree, name string, e *Effects) {
	delete(t.shares, name)
	delete(t.members, name)
	if t.ended {
		d.forget(t)
	} else if d.endIfOver(t) {
		e.Ended = append(e.Ended, t.id)
	}
}

// endIfOver ends a tree of this pfd if no host has a thread of it, and reports whether it has.
func (d *Directory) endIfOver(t *tree) bool {
	if t.ended || t.threads > 0 {
		return false
	}
	for _, s := range t.shares {
		if s.threads > 0 {
			return false
		}
	}
	t.ended = true
	for _, name := range slices.Sorted(maps.Keys(t.shares)) {
		d.tell(name, Message{Kind: Gone, Tree: t.id, Token: t.token.proof(), Number: t.shares[name].number})
	}
	return true
}

// lose ends a tree of another host.
func (d *Directory) lose(t *tree, e *Effects) {
	if t.ended {
		return
	}
	t.ended = true
	t.notify()
	if t.threads > 0 {
		e.Lost = append(e.Lost, t.id)
	} else {
		e.Ended = append(e.Ended, t.id)
	}
}

// notify wakes those that wait for what the owner says of a tree.
func (t *tree) notify() {
	close(t.foreign.changed)
	t.foreign.changed = make(chan struct{})
}
