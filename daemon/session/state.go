package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/domain"
	"github.com/exanet/pfd/daemon/tree"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/internal/quota"
	"github.com/exanet/pfd/internal/tally"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/netlink"
	"github.com/exanet/pfd/space"
	"github.com/exanet/pfd/space/memport"
	"github.com/exanet/pfd/space/proc"
	"github.com/exanet/pfd/space/uffd"
	"github.com/exanet/pfd/space/view"
)

// Config configures a Host.
type Config struct {
	Machine  Machine
	Log      *slog.Logger
	Groups   *domain.Directory
	Now      func() int64    // a monotonic clock, nanoseconds
	Settings func() Settings // as they are now
	// Bus, where it is not nil, wraps a node's bus.
	Bus func(b device.Bus, node int) device.Bus
	// Observe is called on the owning goroutine with each fault whose outcome is final. It
	// does not block.
	Observe func(*Node, *fault.Record)
	// FromPeer is called on the owning goroutine with each message of another pfd.
	FromPeer func(*Node, mailbox.Source, []uint64)
	// Discard discards pages of memory that processes share; nil: in this process (package discard).
	Discard func(fd int, offset, size int64) error
}

// Settings are the parts of pfd's configuration that nodes and attachments read.
type Settings struct {
	TimeoutUS, GuardUS, Outstanding uint32
	SourceTimeout                   bool // the time-out of a source fault's block retransmits it
	Stall                           bool // an access that faults waits in the SMMU
	HandshakeTime                   time.Duration
	HandshakesPerUID                int
	GSASQuota                       uint64 // bytes of each user
}

// Host holds the state that the attachments of one pfd share.
type Host struct {
	cfg      Config
	log      *slog.Logger
	machine  Machine
	features Features // the machine's
	nodes    []*Node

	exe        *os.File                 // pfd's executable
	program    func() (*os.File, error) // of the memory helpers; made when the first is needed
	handshakes *quota.Quota
	regions    *quota.Quota // userfaultfds that are served
	shares     *quota.Quota // ranges that are shared
	watches    *quota.Quota // userfaultfds of them
	tables     *quota.Quota // page tables of shared memory
	rings      *quota.Quota // descriptors that processes wait on
	turns      quota.Turns  // of calls that map and unmap it
	trees      *trees       // of GSAS threads; nil: the machine has none
	refused    atomic.Uint64
	dropped    atomic.Uint64 // connections

	// stopped is closed when the owning goroutine has ended.
	stopped chan struct{}

	mu       sync.Mutex
	live     map[*session]struct{}
	draining bool
	leaving  chan struct{} // closed when draining becomes true
	sessions sync.WaitGroup
}

// Node is one node's driver: its domain manager, its fault driver and its interrupt
// handler. All of it belongs to the owning goroutine, except what is set once before the
// node is in use (d, index, bus, log, sender), and the atomic values.
type Node struct {
	d       *Host
	index   int
	bus     device.Bus
	pageIns space.Machine // for the fault driver
	known   atomic.Uint32 // its device's id, see ID
	caps    atomic.Uint64
	log     *slog.Logger

	domains  *domain.Manager
	faults   *fault.Driver
	sessions [device.Slots]*session
	former   [device.Slots][]Tenancy // attachments that have ended, the oldest first

	asking sync.Mutex      // guards sender, except its counters
	sender *netlink.Sender // of fault messages to delegates
	strays uint64          // messages of others to its socket

	invalidated tally.Invalidated // of sessions that have ended, by their regions
	mailbox     uint64            // messages drained from mailboxes 3..15
	broken      error             // first error of a register access in an interrupt

	attached, ended uint64

	started atomic.Bool // it has been initialized once
	down    atomic.Bool // its device is gone, and pfd waits for it

	records *records // of the faults, shown to tracers
}

// session is one attachment from its hello to its end. Its fields are set before it joins its
// node and do not change after, except where a comment names their owner.
type session struct {
	d      *Host
	n      *Node
	conn   *attach.Conn
	log    *slog.Logger
	uid    uint32
	method pagein.Method
	policy pagein.Policy

	group       member         // of its group; set before the session is listed
	lateProofs  atomic.Int32   // reads of its proof that outlasted proofTime
	process     *proc.Process  // accesses the process's memory; with a memport pfd does not use it for that
	memport     *memport.Port  // accesses that memory by the process's helper; nil: pfd does it itself
	view        *view.View     // the part that it shares; nil: the machine has tables of it, or the kernel supports no view
	readOnly    view.ReadOnly  // the part that it shares read-only, if the machine sees its page tables
	pages       *attach.Memory // the pages of the attachment, shared with the process
	netlink     *os.File       // the process's netlink socket, until the process has it
	netlinkPort uint32         // the id of its port
	exit        *os.File       // duplicate of the pidfd: readable when the process is dead
	keeper      *os.File       // the same for its keeper: readable when nothing names its memory any more

	regions *gup.Regions  // of method uffd, set by makeSpace
	served  *attach.Pages // of method populate: a second mapping, which may outlive the session's own

	shares  int // ranges it shares; the connection's reader owns it, and at the end the node's owner
	watched int // of its view, those that have a userfaultfd; owned as shares is
	watches watches
	bells   attach.Bells // its rings; the node's owner owns them

	joined joined // set by join, on the owning goroutine

	threads [attach.MaxThreads]atomics.Thread // 0: none; the node's owner owns them, as the next
	lost    [attach.MaxThreads]bool           // threads that pfd has ended, and the process has not

	once    sync.Once
	ended   chan attach.Reason
	why     string        // details of the reason, or ""; set before ended
	leaving chan struct{} // closed when the domain starts no more accesses
	left    chan struct{} // closed when the domain is gone
}

// member is the part of a process that the others of its group see.
type member struct {
	name    string
	key     [attach.KeySize]byte
	proof   [attach.ProofSize]byte // stands at proofVA in its memory
	proofVA device.VA
}

// watches are the userfaultfds by which a session learns that its process has unmapped memory
// that it shares with a device that has tables of it.
type watches struct {
	mu    sync.Mutex
	holes map[device.VA]*uffd.Holes // by where the range begins
	gone  map[device.VA]uint64      // sizes of ranges unmapped and not unshared since, at most shadow.MaxShares
	ended int                       // shares that ended so, and that session.shares still counts
}

// trees are the trees of GSAS threads of a Host: their memory, and the operations of the nodes' units
// that are the driver's.
type trees struct {
	d   *Host
	m   GSAS
	dir *tree.Directory

	memories *quota.Quota
	punches  quota.Turns // of calls of discard
	discard  func(fd int, offset, size int64) error

	againMu sync.Mutex
	again   map[string]bool // hosts that are to be told all again

	mu   sync.Mutex
	live map[atomics.Protection]*liveTree
}

// liveTree is a tree that has threads, or memory. trees.mu guards all but its id and user.
type liveTree struct {
	id       atomics.Protection
	uid      uint32
	calls    int             // of units, in progress
	ended    bool            // its last thread has ended
	memories map[int]*memory // by the index of the node
}

// memory is the memory of a tree on one node. A page of it is absent until it is used.
type memory struct {
	fd   int
	view *view.Atomic // nil: the machine has the file lent
	lent int          // for the machine, until it has it; -1: none
}

// joined is a session's state on its node.
type joined struct {
	domain            domain.Domain
	since             int64 // Config.Now
	base              fault.Counts
	transfersBefore   tally.Sum         // of the slot, by the attachments before
	invalidatedBefore tally.Invalidated // the same
}

// Tenancy is an attachment and its time by Config.Now. PDID 0: none.
type Tenancy struct {
	UID          uint32
	PID          int
	PDID         device.PDID
	Generation   device.Generation
	Since, Until int64
}

// errStopped says that the owning goroutine has ended.
var errStopped = errors.New("pfd is stopping")

// ownerTime bounds one wait for the goroutine that owns the windows.
const ownerTime = 5 * time.Second

// Own runs f on the goroutine that owns the node's windows and returns its error.
// If ctx or the Host ends before f has begun, Own returns that error and f never runs, so f
// may write to variables of its caller.
func (d *Host) Own(ctx context.Context, n *Node, f func() error) error {
	const queued, taken, givenUp = 0, 1, 2
	var state atomic.Int32
	done := make(chan error, 1)
	n.bus.Post(func() {
		if state.CompareAndSwap(queued, taken) {
			done <- f()
		}
	})
	var err error
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		err = ctx.Err()
	case <-d.stopped:
		err = errStopped
	}
	if state.CompareAndSwap(queued, givenUp) {
		return err
	}
	// f runs now, and nothing that the owner runs blocks.
	return <-done
}

// Each calls f on the owning goroutine for the node with a node id, or for each node if the
// id is negative.
func (d *Host) Each(ctx context.Context, id int, f func(n *Node) error) error {
	for _, n := range d.nodes {
		if id >= 0 && id != n.Number() {
			continue
		}
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, ownerTime)
			defer cancel()
			return d.Own(ctx, n, func() error { return f(n) })
		}()
		if err != nil {
			return err
		}
	}
	return nil
}

// Stop makes Own fail from now on. The caller has ended the owning goroutine.
func (d *Host) Stop() { close(d.stopped) }

// Nodes returns the nodes by index.
func (d *Host) Nodes() []*Node { return d.nodes }

// Features returns the features of the machine.
func (d *Host) Features() *Features { return &d.features }

// Handshakes bounds the unfinished handshakes of each uid, and counts them.
func (d *Host) Handshakes() *quota.Quota { return d.handshakes }

// SetGSASQuota changes how much memory of the global shared address space each user may have, in bytes.
func (d *Host) SetGSASQuota(bytes uint64) {
	if d.trees != nil {
		d.trees.dir.SetQuota(bytes)
	}
}

// Trees returns the trees of GSAS threads.
func (d *Host) Trees() []tree.Info {
	if d.trees == nil {
		return nil
	}
	return d.trees.dir.Trees()
}

// GSASUsed returns how much of it each user has.
func (d *Host) GSASUsed() map[uint32]uint64 {
	if d.trees == nil {
		return nil
	}
	return d.trees.dir.Used()
}

// Rings returns how many descriptors processes wait on.
func (d *Host) Rings() int { return d.rings.Total() }

// Refused returns how many connections got no attachment, and how many more were closed at
// once because their user had too many.
func (d *Host) Refused() (refused, dropped uint64) { return d.refused.Load(), d.dropped.Load() }

// NodeByID returns the node with a node id, nil if there is none.
func (d *Host) NodeByID(id device.NodeID) *Node {
	for _, n := range d.nodes {
		if n.ID() == id {
			return n
		}
	}
	return nil
}

// Index returns the node's place in Nodes.
func (n *Node) Index() int { return n.index }

// Number returns its node id as the control interface, metrics and logs have it.
func (n *Node) Number() int { return int(n.known.Load()) }

// ID returns the node id of its device, or of its last device if that is gone.
func (n *Node) ID() device.NodeID { return device.NodeID(n.known.Load()) }

// Caps returns its device's CAPS register.
func (n *Node) Caps() uint64 { return n.caps.Load() }

// Down reports whether its device is gone and pfd waits for it.
func (n *Node) Down() bool { return n.down.Load() }

// Bus returns the bus to its registers.
func (n *Node) Bus() device.Bus { return n.bus }

// Manager returns its domain manager, for use on the owning goroutine.
func (n *Node) Manager() *domain.Manager { return n.domains }

// Stats returns the counters of its fault driver. On the owning goroutine.
func (n *Node) Stats() fault.Stats { return n.faults.Stats() }

// admit lists a session. It returns false once pfd drains.
func (d *Host) admit(s *session) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.draining {
		return false
	}
	d.live[s] = struct{}{}
	d.sessions.Add(1)
	return true
}

// remove removes a session from the list.
func (d *Host) remove(s *session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.live[s]; ok {
		delete(d.live, s)
		d.sessions.Done()
	}
}

// Attached reports whether a uid has an attachment.
func (d *Host) Attached(uid uint32) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for s := range d.live {
		if s.uid == uid {
			return true
		}
	}
	return false
}

// Drain refuses new sessions from now on.
func (d *Host) Drain() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.draining {
		d.draining = true
		close(d.leaving)
	}
}

// Draining returns a channel that Drain closes.
func (d *Host) Draining() <-chan struct{} { return d.leaving }

// End ends all sessions. It does not wait for them.
func (d *Host) End(r attach.Reason) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for s := range d.live {
		s.end(r)
	}
}

// Wait waits until no session is listed.
func (d *Host) Wait() { d.sessions.Wait() }

// end ends the session without waiting for it. The first reason stays. Any goroutine may call
// it.
func (s *session) end(r attach.Reason) { s.endWith(r, "") }

// endWith is end with a text for people.
func (s *session) endWith(r attach.Reason, why string) {
	s.once.Do(func() {
		s.why = why
		s.ended <- r
	})
}

func refusal(code attach.Code, format string, args ...any) error {
	return &attach.RefusedError{Code: code, Text: fmt.Sprintf(format, args...)}
}
