package emu

import (
	"math/rand/v2"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/internal/owner"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/gsas"
	"github.com/exanet/pfd/soc/link"
	"github.com/exanet/pfd/soc/queue"
	"github.com/exanet/pfd/soc/wire"
	"github.com/exanet/pfd/space"
)

// flight is a node's link to the others and the frames on it, in the order of their arrival. It
// stays empty if no link is configured.
type flight struct {
	link   *link.Link
	frames []link.Delivery
}

func newFlight(o *link.Options, node int, pool *wire.Pool) flight {
	if !o.Some() {
		return flight{}
	}
	seed := o.Seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	return flight{link: link.New(o.Injection(), rand.New(rand.NewPCG(seed, uint64(node))), pool)}
}

type node struct {
	index        int
	soc          *soc.Node
	windows      [device.Windows]device.Window
	bus          device.Bus
	handler      device.Handler
	due          int64  // when it needs a step (deadline)
	flight       flight // frames that it has sent
	pending      uint32 // vectors to be delivered
	slots        [device.Slots]*slot
	threads      [device.Interfaces]thread    // by interface, 32..63
	trees        map[atomics.Protection]*tree // with Outside.Words made by the first operation
	held         held
	accesses     Accesses
	outside      Outside
	sleepers     [device.Slots]sleeper // of the memory that the driver's tables name
	outsideBusy  bool                  // a call that asks the driver is in progress
	outsideCalls []*call               // calls that wait for it
}

// thread is a thread of an attached process.
type thread struct {
	slot  *slot
	index int
}

// sleeper accounts for calls that sleep.
type sleeper struct {
	slowUntil int64 // in the time of Now: calls are made apart
	sleep     int64 // in which calls were found, less the decay, in ns
	sleptAt   int64 // when one was last found asleep
}

// slot is an attached domain slot.
type slot struct {
	process owner.Process[*slot]
	node    *node
	index   int
	att     *Attachment
	gone    bool
	apart   int                      // calls that are made apart
	late    int                      // calls that have lost their lease
	held    []*call                  // calls that wait for a thread
	starved bool                     // a page-in has waited for a thread in vain, and none has got one since
	wasLate bool                     // when it was attached, others of its user had calls that had lost their lease
	waits   int                      // calls that wait for an answer
	threads [attach.MaxThreads]uint8 // their interfaces, 0: there is none

	sleeper
	unseenUntil int64 // in the time of Now: memory that its process shares is not touched
}

// Tree is the memory of a tree of threads on one node (docs/spec/gsas.md 4).
type Tree struct {
	Memory Words
	FD     int // its file, for machines that need that instead of Memory
	// UID is the user of the tree's threads, to whom page-ins are charged.
	UID uint32
}

// tree is a Tree of a node.
type tree struct {
	Tree
	protection atomics.Protection
	present    map[uint64]*pageSet // by the number of its first page
	owner      *treeOwner
}

// treeOwner accounts for the operations on the memory of all trees of a user, on all nodes.
type treeOwner struct {
	trees   int     // and nodes that have memory of them
	apart   int     // calls that are made apart
	waiting []*call // page-ins that wait for one of these

	sleeper
	unseenUntil int64 // in the time of Now: the memory is not touched
}

// holder is the user for whom an operation counts, a tree that has no memory on the node yet, or all other hosts.
type holder struct {
	uid  uint32
	tree atomics.Protection
}

// held counts operations of a node that do not end at once: those of the driver, and those whose page is
// brought in apart.
type held struct {
	by    map[holder]int
	all   int
	calls map[uint32]holder // of the driver, by their ID
}

// take reports whether one more of a holder may be held: it may have half of what others leave.
func (l *held) take(h holder) bool {
	if l.by[h] >= gsas.InFlight-l.all {
		return false
	}
	if l.by == nil {
		l.by, l.calls = map[holder]int{}, map[uint32]holder{}
	}
	l.by[h]++
	l.all++
	return true
}

func (l *held) give(h holder) {
	l.all--
	if l.by[h]--; l.by[h] == 0 {
		delete(l.by, h)
	}
}

// pageSet has a bit for each of setPages pages that have been brought in. One that has been punched
// out since is found absent by its touch, which takes longer.
type pageSet [setPages / 64]uint64

const setPages = 512 // 2 MiB (defined by this project)

// operation is one operation of a GSAS unit on the memory of a tree.
type operation struct {
	access *gsas.Access
	tree   *tree
	values [atomics.MaxValues]uint64
	hit    bool
	held   bool // it counts in the node's held
	tries  int  // page-ins
}

// Accesses counts how a node reached processes' memory.
type Accesses struct {
	LeasesLost   uint64 // calls that outlasted their lease
	Muted        uint64 // times that a slot's kicks were ignored for a while
	Refused      uint64 // calls for which no thread was left
	Shared       uint64 // walks and moves that were done in the view of shared memory
	SharedMissed uint64 // walks of shared memory of which a page was not entered in the view
}

// maxJoin is the most pages that one walk or move covers: 256 KiB. Defined by this project.
const maxJoin = 64

// call is one piece of work that may sleep in the kernel: an operation on memory (a walk or a move
// of neighbouring accesses, or a page-in for the driver), or an access to queues in memory. While it
// runs it touches only its own state. Its result is taken on the engine goroutine.
type call struct {
	op      *space.Op // own, or the driver's page-in; nil: of queues, of a bell or of a tree
	own     space.Op
	space   space.Space // of op
	step    space.Step  // the current one
	begun   bool        // there is a current step
	queue   *queue.Access
	bell    *attach.Bell // to be struck
	atomic  *operation   // on the memory of a tree: ownOp
	ownOp   operation
	struck  bool  // it was armed
	err     error // of queue
	long    bool  // a page-in of many pages
	charged bool  // it counts in the engine's budget of threads
	late    bool  // it has lost its lease
	asleep  bool  // it was found asleep, when it lost its lease or before
	refused bool  // nothing of it is tried
	waited  bool  // another process has been asked for it
	outside bool  // it asks the driver of the node (askOutside)
	node    *node
	slot    *slot
	index   int   // of the slot
	since   int64 // when it began to wait for a thread

	count int // accesses joined
	from  int // the access that op begins with
	ids   [maxJoin]uint32
	vas   [maxJoin]device.VA
	lens  [maxJoin]int
	bufs  [maxJoin][]byte
	whole [maxJoin][]byte // bufs, with those that are contiguous joined
	moved [maxJoin]int    // bytes of each access
}

// deadline returns when a node needs a step: the deadline of its machines, or the arrival of its
// first frame.
func (n *node) deadline() int64 {
	due := n.soc.Deadline()
	if len(n.flight.frames) > 0 {
		due = min(due, n.flight.frames[0].At)
	}
	return due
}

// remote reports whether the node's memory is reached by asking its driver, or was a moment ago:
// accesses keep their order.
func (n *node) remote() bool {
	return n.outside.Remote != nil && (n.outside.Remote() || n.outsideBusy)
}

// declines reports whether a message is a RAPF with the fail bit that must not be sent.
func (s *slot) declines(m *attach.Message) bool {
	if s.att.Declined == nil || m.N != 1 || m.Mailbox != device.MailboxRequest {
		return false
	}
	r, err := mailbox.DecodeRAPF(m.Words[0])
	return err == nil && r.Fail && s.att.Declined(m.Node, r)
}
