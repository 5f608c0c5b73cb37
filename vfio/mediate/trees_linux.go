package mediate

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/internal/owner"
	"github.com/exanet/pfd/vfio/user"
)

// Threads of the global shared address space on nodes elsewhere (docs/spec/gsas.md 4): their messages, and
// the operations that the units leave to the driver. pages_linux.go has the memory of their trees.

// tree is the memory of a tree of threads on one node: a file of atomics.RegionSize bytes. All calls that may sleep are made by its worker, one after the other.
type tree struct {
	fd     int
	b      []byte // the worker's
	place  int    // of the DMA addresses
	worker worker
	over   bool
}

// treesAt is the DMA address of the first tree's memory: the shares' addresses, which grow from the lowest
// on, do not reach it. Defined by this project.
const treesAt = 1 << 46

func (t *tree) address(offset uint64) uint64 {
	return treesAt + uint64(t.place)*atomics.RegionSize + offset
}

// answer is that of an operation that the unit has left to the driver.
type answer struct {
	id     uint32
	status atomics.Status
	value  uint64
}

// answerPause is the interval at which answers without room in the command queue are tried again
// (defined by this project).
const answerPause = time.Millisecond

// HasThreads reports whether threads can use all nodes: the devices have units, and queues in memory, and
// access the files of the trees without pinning them. Any goroutine may call it before Run.
func (m *Machine) HasThreads() bool {
	return !slices.ContainsFunc(m.nodes, func(n *node) bool {
		l := n.link.Load()
		return l == nil || l.pages == nil
	})
}

// AttachThread connects interface iface, 32..63, of a node to thread index of the process in a slot, whose
// Port was reset. It must be called on the owner, as the other methods about threads and trees.
func (m *Machine) AttachThread(node, slot, index, iface int) error {
	n := m.nodes[node]
	s, l := n.slots[slot], n.link.Load()
	switch {
	case l == nil || l.pages == nil:
		return fmt.Errorf("node %d: %w", node, device.ErrGone)
	case s == nil || !s.att.Pages.HasThreads():
		return fmt.Errorf("%w: slot %d of node %d has no threads", ErrConfig, slot, node)
	case iface < device.MailboxThread || iface >= device.Interfaces || n.threads[iface] != nil:
		return fmt.Errorf("%w: interface %d of node %d is taken or no thread's", ErrConfig, iface, node)
	case s.threads != nil && s.threads[index] != nil:
		return fmt.Errorf("%w: slot %d of node %d has thread %d already", ErrConfig, slot, node, index)
	}
	if s.threads == nil {
		s.threads = new([attach.MaxThreads]*mail)
	}
	s.threads[index] = &mail{slot: s, thread: index, box: iface}
	n.threads[iface] = s.threads[index]
	s.process.AddThread(index)
	return nil
}

// DetachThread undoes AttachThread. Nothing is written to the thread's Port afterwards.
func (m *Machine) DetachThread(node, slot, index int) {
	n := m.nodes[node]
	s := n.slots[slot]
	if s == nil || s.threads == nil || s.threads[index] == nil {
		return
	}
	s.process.RemoveThread(index)
	n.threads[s.threads[index].box] = nil
	s.threads[index] = nil
}

// refused tells a thread that its last message was refused; a process is told by a message.
func (n *node) refused(iface, channel int) {
	m := n.threads[iface%device.Interfaces]
	if m == nil || m.thread == owner.Own {
		return
	}
	port := m.slot.att.Pages.Thread(m.thread)
	port.SetPktzStatus(channel, device.PktzRefused)
	port.Notify()
}

// OnCall makes the machine call f on the owner with each operation of a thread that is for the driver.
// AnswerCall answers it.
func (m *Machine) OnCall(f func(node int, c atomics.Call)) { m.onCall = f }

// called passes on an operation that a unit has left to the driver. A device that has more of them than a
// unit can have does not keep to the protocol, and gets no answer.
func (n *node) called(id uint32, words *[device.EntryWords]uint64) {
	if n.calls == atomics.InFlight {
		return
	}
	n.calls++
	size := min(atomics.Op(words[0]>>56).Args()+2, len(words))
	r, err := atomics.DecodeRequest(words[:size])
	if err != nil || r.Op.Memory() || n.m.onCall == nil {
		n.m.AnswerCall(n.index, id, atomics.BadRequest)
		return
	}
	n.m.onCall(n.index, atomics.Call{ID: id, Request: r})
}

// AnswerCall answers an operation that is for the driver.
func (m *Machine) AnswerCall(node int, id uint32, s atomics.Status, values ...uint64) {
	a := answer{id: id, status: s}
	if len(values) > 0 {
		a.value = values[0]
	}
	n := m.nodes[node]
	n.answers = append(n.answers, a)
	if len(n.answers) == 1 {
		n.answer()
	}
}

// answer writes answers into the command queue while there is room. A device that has been reset or is
// gone drops them.
func (n *node) answer() {
	l := n.link.Load()
	for l != nil && l.rings != nil && len(n.answers) > 0 && l.rings.Answer(n.answers[0].id, uint8(n.answers[0].status), n.answers[0].value) {
		n.answers = n.answers[1:]
		n.calls--
	}
	switch {
	case l == nil || l.rings == nil || len(n.answers) == 0 || !l.rings.On() && l.rings.left == 0:
		n.calls -= len(n.answers)
		n.answers = nil
	default:
		time.AfterFunc(answerPause, func() { n.m.loop.Post(n.answer) })
	}
}

// AddTree makes known what memory a tree has on a node. The machine closes fd.
func (m *Machine) AddTree(node int, p atomics.Protection, fd int) {
	n := m.nodes[node]
	place := slices.Index(n.places, false)
	if place < 0 {
		place = len(n.places)
		n.places = append(n.places, false)
	}
	n.places[place] = true
	if n.trees == nil {
		n.trees = map[atomics.Protection]*tree{}
	}
	n.trees[p] = &tree{fd: fd, place: place}
}

// RemoveTree undoes AddTree. None of the tree's pages is valid, or busy.
func (m *Machine) RemoveTree(node int, p atomics.Protection) {
	n := m.nodes[node]
	t := n.trees[p]
	if t == nil {
		return
	}
	delete(n.trees, p)
	t.over = true
	l := n.link.Load()
	if l != nil && l.pages != nil {
		l.pages.forget(t)
	}
	// After the page-ins and evictions of the tree.
	t.worker.submit(n.m, &treeWork{
		run: func() error {
			err := os.NewSyscallError("close", unix.Close(t.fd))
			if t.b != nil {
				err = errors.Join(err, os.NewSyscallError("munmap", unix.Munmap(t.b)))
			}
			if l != nil && l.pages != nil {
				err = errors.Join(err, l.fn.UnmapDMA(t.address(0), atomics.RegionSize))
			}
			return err
		},
		done: func(err error) {
			if err != nil && n.link.Load() == l && l != nil {
				n.m.log.Warn("memory of a tree stays mapped until the device restarts", "node", n.index, "err", err)
				return
			}
			n.places[t.place] = false
		},
	})
}

// treeWork is work of a tree.
type treeWork struct {
	run  func() error
	done func(err error)
	err  error
}

func (w *treeWork) Run()  { w.err = w.run() }
func (w *treeWork) Done() { w.done(w.err) }

// bringIn makes a page of a tree's file present, by a mapping: unlike fallocate, that does not wait for a
// process that keeps a write(2) to the file from ending. It may sleep.
func (t *tree) bringIn(offset uint64) (err error) {
	if t.b == nil {
		if t.b, err = unix.Mmap(t.fd, 0, atomics.RegionSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE); err != nil {
			return os.NewSyscallError("mmap", err)
		}
		_ = unix.Madvise(t.b, unix.MADV_DONTDUMP)
	}
	return os.NewSyscallError("madvise", unix.Madvise(t.b[offset:][:device.PageSize], unix.MADV_POPULATE_WRITE))
}

// mapNow maps a page of a tree for a device.
func (t *tree) mapNow(l *link, offset uint64) error {
	m := l.fn.MapDMA
	if f, ok := l.fn.(interface {
		MapNow(addr, size uint64, fd int, offset uint64, rights uint32) error
	}); ok {
		m = f.MapNow
	}
	return m(t.address(offset), device.PageSize, t.fd, offset, user.DMARead|user.DMAWrite)
}
