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
	// what it was asked about other hosts, by these, and has not answered
	questions map[string]question

	number, count uint32 // of the last Begin from it; messages Asked since then
}

// question is an Asked whether another host has shown the token of a tree.
type question struct {
	tree   atomics.Protection
	number uint32
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
		for _, t := range d.trees {
			delete(t.members, name)
		}
		for _, o := range d.hosts {
			delete(o.questions, name)
		}
		for _, t := range d.of(name) {
			if t.foreign != nil {
				d.lose(t, &e)
			} else {
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

func newHost(h Host) *host { return &host{Host: h, questions: map[string]question{}} }

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
	for _, t := range d.of(name) {
		switch {
		case t.foreign != nil:
			d.ask(name, t.id, t, nil)
			n++
		case t.ended:
			d.tell(name, Message{Kind: Gone, Tree: t.id, Token: t.token.proof(), Number: t.shares[name].number})
		}
	}
	d.tell(name, Message{Kind: All, Threads: n, Number: h.begun})
}

// of returns the trees of which a host is the owner, or has a share, in the order of their ids.
func (d *Directory) of(name string) (all []*tree) {
	for _, t := range d.trees {
		if t.shares[name] != nil || t.foreign != nil && t.foreign.owner == name {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b *tree) int { return cmp.Compare(a.id, b.id) })
	return all
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

// ask tells the owner of a tree how many threads this pfd has, none if t is nil, and asks whether another
// host has shown the token, if about is not nil.
func (d *Directory) ask(owner string, p atomics.Protection, t *tree, about *host) {
	d.live()
	d.number++
	m := Message{Kind: Asked, Tree: p, Number: d.number}
	if t != nil {
		t.foreign.last = d.number
		m.Token, m.Threads = t.token, uint32(t.threads)
	}
	if about != nil {
		m.UID = uint32(about.First)
	}
	if d.tell(owner, m) && about != nil {
		d.hosts[owner].questions[about.Name] = question{p, d.number}
	}
}

// meet makes a tree of another host known to this pfd, from the Asked with a number on.
func (d *Directory) meet(p atomics.Protection, owner string, number uint32) *tree {
	t := newTree(p)
	t.foreign = &foreign{owner: owner, first: number, last: number, acked: number - 1, changed: make(chan struct{})}
	d.trees[p] = t
	return t
}

// ownerOf returns the host that a tree is of, nil if it is this one or none.
func (d *Directory) ownerOf(p atomics.Protection) *host {
	if atomics.Thread(p).Interface() < device.MailboxThread {
		return nil
	}
	return d.hostOf(atomics.Thread(p).Node())
}

// May reports whether the threads of another host may use the pages of a tree: the tree is that host's, or it
// has shown the token. If that is for a third host to say, it is asked, and May is true from its answer on. A
// question that is not answered, or with no, leaves nothing here: a host may ask for any tree.
func (d *Directory) May(name string, p atomics.Protection) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	h, t := d.hosts[name], d.trees[p]
	switch {
	case h == nil || h.has(atomics.Thread(p).Node()):
		return h != nil
	case t != nil && (t.foreign == nil || t.ended || t.members[name]):
		return !t.ended && t.members[name]
	}
	if o := d.ownerOf(p); o != nil {
		if _, open := o.questions[name]; !open {
			d.ask(o.Name, p, t, h)
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
		if o := d.ownerOf(p); o != nil {
			d.live()
			t = d.meet(p, o.Name, d.number+1)
			d.ask(o.Name, p, t, nil)
		}
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
	about := ""
	if m.Kind == Known || m.Kind == Gone {
		about = h.answers(m)
	}
	if m.Kind == Known && t == nil && d.hosts[about] != nil && m.Threads > 0 {
		t = d.meet(m.Tree, name, m.Number)
		for _, q := range h.questions { // later ones about the same tree
			if q.tree == m.Tree && int32(q.number-t.foreign.last) > 0 {
				t.foreign.last = q.number
			}
		}
	}
	foreign := t != nil && t.foreign != nil && t.foreign.owner == name
	switch m.Kind {
	case Begin:
		clear(h.questions) // the answers may not have been sent
		anew := m.Token != h.life && h.life != Token{}
		h.life, h.began, h.number, h.count = m.Token, true, m.Number, 0
		for _, t := range d.of(name) {
			switch f := t.foreign; {
			case f == nil:
				t.shares[name].stale = true
			case t.ended:
			case anew && f.known:
				d.lose(t, &e)
			case f.last != f.acked: // the answer may not have been sent
				d.ask(name, t.id, t, nil)
			}
		}
	case All:
		if m.Number != h.number || m.Threads != h.count {
			break // some were not sent: all is told again
		}
		for _, t := range d.of(name) {
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

// answers closes the question that a message answers, and returns the name of the host that it was about.
func (h *host) answers(m Message) (about string) {
	for name, q := range h.questions {
		if q == (question{m.Tree, m.Number}) {
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
