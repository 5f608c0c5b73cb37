package session

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/daemon/tree"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/internal/discard"
	"github.com/exanet/pfd/internal/limits"
	"github.com/exanet/pfd/internal/memfd"
	"github.com/exanet/pfd/internal/quota"
	"github.com/exanet/pfd/space/view"
)

// Values below are defined by this project.
const (
	// stepPages is how many pages one function of the owning goroutine makes a tree's, or nobody's: some
	// 100 us.
	stepPages = 1 << 14
	// Each tree has a memory on each node that it uses, which costs pfd two descriptors and 32 GiB of
	// its address space.
	memoriesPerUID = 256
	allMemories    = 1024
	// drainPause is the interval at which pages are looked at whose operations are still under way.
	drainPause = time.Millisecond
)

// newTrees returns nil if the machine has no GSAS.
func newTrees(d *Host, m GSAS) *trees {
	if m == nil {
		return nil
	}
	t := &trees{
		d: d, m: m, discard: d.cfg.Discard, live: map[atomics.Protection]*liveTree{}, again: map[string]bool{},
		memories: quota.New(limits.Descriptors(memoriesPerUID, 2*userPart), limits.Descriptors(allMemories, 2*allPart), quota.Privileged),
	}
	c := tree.Config{
		Quota: d.cfg.Settings().GSASQuota, Now: d.cfg.Now, KeepLast: func(uid uint32) bool { return !quota.Privileged(uid) },
		Random: func() (token tree.Token) {
			_, _ = crand.Read(token[:]) // never fails
			return token
		},
	}
	if d.features.Tell != nil {
		c.Tell = t.tell
	}
	t.dir = tree.New(c)
	if t.discard == nil {
		t.discard = discard.Punch
	}
	m.OnCall(t.call)
	return t
}

// enter returns the tree of a thread that the directory has made.
func (t *trees) enter(th tree.Thread, uid uint32) *liveTree {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.live[th.Protection]
	if l == nil {
		l = &liveTree{id: th.Protection, uid: uid, memories: map[int]*memory{}}
		t.live[l.id] = l
	}
	return l
}

// end ends a thread of a session, whose interface is off. The tree's last one ends the tree, for which
// Host.Wait waits.
func (t *trees) end(id atomics.Thread) {
	p, last, err := t.dir.End(id)
	if err != nil {
		t.d.log.Error("end of a thread", "thread", fmt.Sprintf("%#x", uint32(id)), "err", err)
		return
	}
	if last {
		t.over(p)
	}
}

// over frees what a tree has whose last thread has ended.
func (t *trees) over(p atomics.Protection) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.live[p]
	if l == nil { // another host's, which nobody has used here
		t.dir.Remove(p)
		return
	}
	t.d.sessions.Add(1)
	l.ended = true
	t.buryLocked(l)
}

// called ends a call.
func (t *trees) called(l *liveTree) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l.calls--
	t.buryLocked(l)
}

// buryLocked begins to free what a tree has if nothing uses it any more.
func (t *trees) buryLocked(l *liveTree) {
	if l.ended && l.calls == 0 {
		go func() {
			defer t.d.sessions.Done()
			t.bury(l)
		}()
	}
}

// memoryOf returns the memory of a tree on a node, which is made if there is none. Not on the owning
// goroutine.
func (t *trees) memoryOf(l *liveTree, n *Node) (*memory, error) {
	if m := t.there(l, n); m != nil {
		return m, nil
	}
	if !t.memories.Take(l.uid) {
		return nil, fmt.Errorf("%w: uid %d has memory of %d trees and nodes, its maximum, or all users together have as many as pfd has descriptors for: end some threads",
			tree.ErrRoom, l.uid, t.memories.Per())
	}
	var m *memory
	var err error
	t.d.turns.Do(l.uid, func() { m, err = t.makeMemory() })
	if err != nil {
		t.memories.Give(l.uid)
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), ownerTime)
	defer cancel()
	used := m
	err = t.d.Own(ctx, n, func() error {
		t.mu.Lock()
		defer t.mu.Unlock()
		if other := l.memories[n.index]; other != nil {
			used = other
			return nil
		}
		l.memories[n.index] = m
		t.m.SetTree(n.index, l.id, m.lend(l.uid))
		return nil
	})
	if err != nil || used != m {
		t.d.turns.Do(l.uid, func() { err = errors.Join(err, m.close()) })
		t.memories.Give(l.uid)
	}
	return used, err
}

// makeMemory makes the memory of a tree on a node. Its seals stay as they are, so that a process that maps it
// cannot keep pfd from discarding pages.
func (t *trees) makeMemory() (*memory, error) {
	fd, err := memfd.New("pfd-gsas", atomics.RegionSize, 0, unix.F_SEAL_SEAL)
	if err != nil {
		return nil, fmt.Errorf("create the memory of a tree: %w", err)
	}
	m := &memory{fd: fd, lent: -1}
	if t.d.features.Sharing != nil { // the device maps it
		m.lent, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		err = os.NewSyscallError("fcntl", err)
	} else {
		m.view, err = view.NewAtomic(fd, atomics.RegionSize)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map the memory of a tree: %w", err), unix.Close(fd))
	}
	return m, nil
}

// lend returns the memory for the machine, whose lent then is.
func (m *memory) lend(uid uint32) *emu.Tree {
	t := &emu.Tree{FD: m.lent, UID: uid}
	if m.lent = -1; m.view != nil {
		t.Memory = m.view
	}
	return t
}

// there returns the memory of a tree on a node, nil if there is none yet.
func (t *trees) there(l *liveTree, n *Node) *memory {
	t.mu.Lock()
	defer t.mu.Unlock()
	return l.memories[n.index]
}

func (m *memory) close() error {
	var err error
	if m.view != nil {
		err = m.view.Close()
	}
	if m.lent >= 0 {
		err = errors.Join(err, os.NewSyscallError("close", unix.Close(m.lent)))
	}
	return errors.Join(err, os.NewSyscallError("close", unix.Close(m.fd)))
}

// call performs an operation for the unit of a node. On the owning goroutine.
func (t *trees) call(node int, c atomics.Call) {
	n := t.d.nodes[node]
	t.mu.Lock()
	l := t.live[c.Protection]
	gone := l == nil || l.ended
	if !gone {
		l.calls++
	}
	t.mu.Unlock()
	switch {
	case gone && c.Op == atomics.Alive: // the tree has no thread here
		t.m.AnswerCall(node, c.ID, atomics.OK, 0)
		return
	case l == nil:
		t.callAbroad(n, c)
		return
	case gone:
		t.m.AnswerCall(node, c.ID, atomics.Gone)
		return
	}
	answer := func(s atomics.Status, values ...uint64) {
		t.m.AnswerCall(node, c.ID, s, values...)
		t.called(l)
	}
	at, ok := c.Address.Node()
	switch here := ok && at == n.ID(); {
	case c.Op == atomics.Alive:
		alive := uint64(0)
		if c.Args[0] <= atomics.IDMask && t.dir.Alive(atomics.Thread(c.Args[0]), c.Protection) {
			alive = 1
		}
		answer(atomics.OK, alive)
	case c.Op == atomics.Alloc && here && t.there(l, n) != nil:
		t.allocate(l, n, &c, answer)
	case c.Op == atomics.Alloc && here:
		go func() {
			_, err := t.memoryOf(l, n)
			t.post(l, n, func() {
				switch {
				case errors.Is(err, tree.ErrRoom):
					answer(atomics.NoRoom)
					return
				case err != nil:
					n.log.Warn("no memory for a tree of GSAS threads", "uid", l.uid, "err", err)
					answer(atomics.NoMemory)
					return
				}
				t.allocate(l, n, &c, answer)
			})
		}()
	case c.Op == atomics.Free && here:
		t.free(l, n, &c, answer)
	case c.Op == atomics.Alloc || c.Op == atomics.Free:
		answer(atomics.BadAddress)
	default:
		answer(atomics.BadRequest)
	}
}

// callAbroad performs an operation for a tree that is not known here: another host's, if it is one. On the
// owning goroutine.
func (t *trees) callAbroad(n *Node, c atomics.Call) {
	if _, wait, err := t.dir.Find(c.Protection, true); wait == nil && err != nil {
		t.m.AnswerCall(n.index, c.ID, atomics.Gone)
		return
	}
	go func() {
		err := t.find(context.Background(), c.Protection, ownerAnswers)
		if err == nil {
			err = t.enterAbroad(c.Protection)
		}
		// If the machine has stopped, nobody waits for the answer.
		_ = t.d.Own(context.Background(), n, func() error {
			if err != nil {
				n.log.Debug("an operation of a tree of another host", "err", err)
				t.m.AnswerCall(n.index, c.ID, atomics.Gone)
			} else {
				t.call(n.index, c)
			}
			return nil
		})
	}()
}

// post runs f on the owning goroutine of a node, for a call that f ends. If the machine has stopped, the
// call ends without it.
func (t *trees) post(l *liveTree, n *Node, f func()) {
	if t.d.Own(context.Background(), n, func() error { f(); return nil }) != nil {
		t.called(l)
	}
}

// statusOf returns the status for an error of the directory.
func statusOf(err error) atomics.Status {
	switch {
	case err == nil:
		return atomics.OK
	case errors.Is(err, tree.ErrRoom):
		return atomics.NoRoom
	case errors.Is(err, tree.ErrAddress):
		return atomics.BadAddress
	case errors.Is(err, tree.ErrProtection):
		return atomics.Denied
	}
	return atomics.Gone
}

// allocate assigns pages of a node to a tree that has memory there. On the owning goroutine.
func (t *trees) allocate(l *liveTree, n *Node, c *atomics.Call, answer func(atomics.Status, ...uint64)) {
	run, err := t.dir.Alloc(l.id, n.ID(), c.Args[0], atomics.Address(c.Args[1]))
	if err != nil {
		n.log.Debug("pages not allocated", "uid", l.uid, "err", err)
		answer(statusOf(err))
		return
	}
	set := func(first, pages uint64) error {
		return n.domains.SetPages(l.id, first, pages, run.Offset()+(first-run.Page)*device.PageSize)
	}
	n.inSteps(run, set, func(err error) {
		if err != nil {
			n.fail(err)
			answer(atomics.Gone)
			return
		}
		answer(atomics.OK, uint64(run.Address()))
	})
}

// inSteps calls f with all pages of a run, a part at a time, and then done. On the owning goroutine,
// which does other work between two parts.
func (n *Node) inSteps(run tree.Run, f func(first, pages uint64) error, done func(error)) {
	part := min(run.Pages, stepPages)
	err := f(run.Page, part)
	if run.Page, run.Pages = run.Page+part, run.Pages-part; err != nil || run.Pages == 0 {
		done(err)
		return
	}
	n.bus.Post(func() { n.inSteps(run, f, done) })
}

// drainPages makes pages nobody's, waits until no operation on them is under way, and calls done. On the
// owning goroutine.
func (n *Node) drainPages(run tree.Run, done func(error)) {
	n.inSteps(run, n.domains.ClearPages, func(err error) {
		if err != nil {
			done(err)
			return
		}
		n.awaitIdle(run, done)
	})
}

func (n *Node) awaitIdle(run tree.Run, done func(error)) {
	busy, err := n.domains.PagesBusy(run.Page, run.Pages)
	if busy && err == nil {
		time.AfterFunc(drainPause, func() { n.bus.Post(func() { n.awaitIdle(run, done) }) })
		return
	}
	done(err)
}

// free takes pages from a tree and makes them zero. On the owning goroutine.
func (t *trees) free(l *liveTree, n *Node, c *atomics.Call, answer func(atomics.Status, ...uint64)) {
	run, err := t.dir.Free(l.id, c.Address)
	if err != nil {
		answer(statusOf(err))
		return
	}
	m := t.there(l, n)
	n.drainPages(run, func(err error) {
		if err != nil {
			n.fail(err)
			answer(atomics.Gone)
			return
		}
		go func() { // it may be long: a process that maps the memory can keep it from ending
			err := t.punch(l, m, run.Offset(), run.Pages)
			if err == nil {
				t.dir.Freed(l.id, run)
			}
			t.post(l, n, func() {
				if err != nil {
					n.log.Warn("pages are lost until their tree ends", "uid", l.uid, "pages", run.Pages, "err", err)
					answer(atomics.NoMemory)
					return
				}
				answer(atomics.OK)
			})
		}()
	})
}

// punch makes pages of a tree's memory zero and absent. A process that has the file can keep it from ending
// (package discard); no other user waits for that.
func (t *trees) punch(l *liveTree, m *memory, offset, pages uint64) (err error) {
	t.punches.Do(l.uid, func() { err = t.discard(m.fd, int64(offset), int64(pages)*device.PageSize) })
	return err
}

// bury frees what a tree has whose last thread has ended.
func (t *trees) bury(l *liveTree) {
	for _, run := range t.dir.Ended(l.id) {
		n := t.d.NodeByID(run.Node)
		idle := make(chan error, 1)
		n.bus.Post(func() { n.drainPages(run, func(err error) { idle <- err }) })
		select {
		case err := <-idle:
			if err != nil {
				n.log.Warn("the pages of a tree that has ended: the device does not answer", "err", err)
			}
		case <-t.d.stopped:
			return // the memory stays until pfd exits
		}
	}
	t.mu.Lock()
	memories := l.memories
	delete(t.live, l.id)
	t.mu.Unlock()
	lost := false
	for node, m := range memories {
		err := t.d.Own(context.Background(), t.d.nodes[node], func() error {
			t.m.SetTree(node, l.id, nil)
			return nil
		})
		if err != nil {
			return
		}
		err = t.punch(l, m, 0, atomics.RegionSize/device.PageSize) // a process may keep the file: its pages are not to be
		lost = lost || err != nil
		t.d.turns.Do(l.uid, func() { err = errors.Join(err, m.close()) })
		if err != nil {
			t.d.log.Warn("closing the memory of a tree", "uid", l.uid, "err", err)
		}
		t.memories.Give(l.uid)
	}
	if !lost { // else its pages may still be there, and count for its user
		t.dir.Remove(l.id)
	}
}
