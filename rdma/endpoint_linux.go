package rdma

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/internal/sockets"
	"github.com/exanet/pfd/internal/yield"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/netlink"
)

// Times. Values below are defined by this project.
const (
	// SpinTime is how long Wait and WaitNotification spin before they sleep.
	SpinTime = 20 * time.Microsecond
	// sleepCap bounds one sleep of Wait. It is the cost of a wake-up lost to attach.MaxWake or to
	// a pfd that died.
	sleepCap = 100 * time.Millisecond
	// closeTimeout is how long Close waits for aborted transfers, and then for pfd's confirmation
	// that no access is in flight.
	closeTimeout = 2 * time.Second
)

// faultSend is the packetizer channel of the page-fault goroutine; doorbells use the channels
// before it. Defined by this project.
const faultSend = device.PktzChannels - 1

// Method and Policy select how absent pages of this process are paged in.
type (
	Method = pagein.Method
	Policy = pagein.Policy
)

// The page-in methods and policies (faultpath.md).
const (
	MethodDefault  = pagein.MethodDefault
	MethodGUP      = pagein.GUP
	MethodTouch    = pagein.Touch
	MethodUFFD     = pagein.UFFD
	MethodPopulate = pagein.Populate
	PolicyDefault  = pagein.PolicyDefault
	PolicyPIO      = pagein.PIO
	PolicyPI4      = pagein.PI4
	PolicyPIA      = pagein.PIA
	PolicyAdaptive = pagein.Adaptive
)

// Options are the parameters of Attach. The zero value attaches to node 0 of the default pfd in
// the default group.
type Options struct {
	// Socket is pfd's control socket, as in its --socket; the attachment socket is in the same
	// directory. Empty: the default one (spec/api.md, Daemon).
	Socket string
	Node   device.NodeID
	// Group is a name that processes of one user share on all nodes; they may access each other.
	// Empty: "default".
	Group string
	// GroupKey, if not zero, is a secret that the processes of the group share. Without it each of
	// them needs the right to access the others' memory, as in ptrace(2): processes of one user
	// usually have it.
	GroupKey [GroupKeySize]byte
	Method   Method
	Policy   Policy
	// Accept are PDIDs of other domains that may write to this process.
	Accept []device.PDID
	// AcceptGroup lets every member of the group write to this process, not only the one that
	// shares its PDID.
	AcceptGroup bool
	// CountInvalidations makes the kernel report to pfd when pages of registered memory (method
	// uffd) are discarded. The discarding call blocks until pfd has read the report.
	CountInvalidations bool
	// Dump includes memory of Alloc, and shared memory, in core dumps, which page all of it in.
	// Without it a program can include parts by MADV_DODUMP.
	Dump bool
	// Threads asks for threads of the global shared address space (package gsas).
	Threads bool
	// NoUserfaultfd keeps the library from registering shared memory with a userfaultfd, for a
	// program that registers its own. Its missing pages are then paged in like other memory, and
	// after an munmap without Unshare transfers silently access the memory that was shared.
	NoUserfaultfd bool
	// Trust are users, besides root and the process's own, whose pfd may access the process's
	// memory. The machine's own pfd need not be named. 65534 names every user that the user
	// namespace does not map, such as that of the machine's pfd in a rootless container.
	Trust []uint32
}

// GroupKeySize is the size of Options.GroupKey, bytes.
const GroupKeySize = attach.KeySize

// Info describes an endpoint, as pfd configured it.
type Info struct {
	Node       device.NodeID
	PDID       device.PDID
	Generation device.Generation // of the domain; an earlier domain with this PDID had another
	Slot       int
	Interface  int // mailbox and packetizer
	Member     int // index in the group on this node
	VABits     int // width of the addresses that the node accepts
	Caps       uint64
	// Page is the size of the pages in which memory must be shared, bytes: 2 MiB (hugetlb) if the
	// device uses physical addresses. 0: no memory need be shared (SVA).
	Page   uint64
	Method Method
	Policy Policy
	Daemon string // pfd's product and version
}

// Stats counts the endpoint's page faults, with ODP's names (spec/api.md). Under method touch the
// process serves the faults and the first three count the work of its page-fault goroutine; under
// the others pfd reports them after each fault. The kernel does not report to user space when it
// takes a page: how much of that is counted depends on the device and the method
// (docs/service.md).
type Stats struct {
	NumPageFaults        uint64 // pages that accesses faulted on; touch: fault messages served
	NumPageFaultPages    uint64 // pages paged in for them, with those of whole folios: absent before, or to be copied
	NumFailedResolutions uint64 // faults that cannot be resolved; touch: messages answered with the fail bit
	// NumInvalidations counts the operations that took memory from the device: evictions, Unshare
	// and Free of shared memory, and with Options.CountInvalidations madvise, munmap and
	// truncation of registered memory.
	NumInvalidations uint64
	// NumInvalidationPages counts pages of shared memory that were removed from the device's
	// tables. If the device walks the process's own tables, it counts the pages that an access
	// found absent after an earlier one, a lower bound.
	NumInvalidationPages uint64
	// InvalidationsFaultsContentions counts page-ins of pages that were being discarded, with
	// Options.CountInvalidations.
	InvalidationsFaultsContentions uint64
	// NumPrefetchesHandled counts the calls of Prefetch that paged in all pages.
	NumPrefetchesHandled uint64
	RAPFRefused          uint64 // requests for retransmission that the packetizer refused
	FaultsForged         uint64 // messages from another sender: dropped
	FaultsMalformed      uint64 // dropped
	// MessagesDropped counts messages and refusals for which the endpoint had no room, and
	// messages of reserved kinds.
	MessagesDropped uint64
}

// Endpoint is a process's attachment to one node (alloc_comm_chan and
// enable_pgfault_mechanism, spec/api.md).
type Endpoint struct {
	conn    *attach.Conn
	pages   *attach.Pages
	welcome attach.Welcome
	faults  *netlink.Receiver

	invalidations, dump, noUserfaultfd bool // of Options

	mu        sync.Mutex
	wake      int // eventfd, -1 once closed: written under mu only
	free      uint32
	transfers [device.WriteChannels]*Transfer
	closing   bool
	ended     *ending
	exports   map[Remote][]byte
	shares    map[device.VA]uint64 // memory shared with a node without SVA: sizes by address
	reads     reads
	messages  messages
	gathers   map[*Transfer]struct{} // not final
	rings     rings
	clock     stampClock
	waits     waits

	asking   sync.Mutex  // one memory request at a time
	answers  chan answer // to it
	patience time.Duration
	owed     int // answers to come that are dropped; under mu

	numbers map[uint8]*threadNumbers // by interface: those of its thread's messages; under mu

	layering sync.Mutex // guards layers
	layers   map[mailbox.Kind]any

	over     chan struct{} // closed when the attachment has ended
	workers  sync.WaitGroup
	sleeping sleepers   // page-fault goroutines
	sending  sync.Mutex // guards their packetizer channel
	closer   sync.Once
	closeErr error

	faultsServed, faultPages, faultsFailed, rapfRefused, prefetches atomic.Uint64
}

// ending is why an attachment ended.
type ending struct {
	reason attach.Reason
	text   string
}

func (e *ending) String() string {
	reason := e.reason.String()
	switch {
	case e.text == "":
		return reason
	case strings.HasPrefix(e.text, reason): // as pfd's text does
		return e.text
	}
	return reason + ": " + e.text
}

// Attach attaches the calling process to a protection domain on a node. Without a daemon the error
// matches ErrNoDaemon and says how to start one. If the daemon has another version, it matches
// ErrVersion and names both. A refusal is an *attach.RefusedError whose text says what to do.
//
// pfd accesses the process's memory itself if it has exactly the rights of the process's user.
// Otherwise Attach starts a memory helper: a process with the same rights, which ends with the
// endpoint (docs/attach.md). It is a child of the process, so a wait for any child may return it.
func Attach(ctx context.Context, o Options) (*Endpoint, error) {
	socket := o.Socket
	if socket == "" {
		var err error
		if socket, err = attach.DefaultSocket(); err != nil {
			return nil, fmt.Errorf("attach: %w", err)
		}
	}
	if o.Group == "" {
		o.Group = attach.DefaultGroup
	}
	if o.Method == MethodTouch || o.Method == MethodPopulate {
		if err := populateWorks(); err != nil {
			return nil, fmt.Errorf("attach with method %v: %w", o.Method, err)
		}
	}
	conn, err := attach.Dial(ctx, socket+attach.SocketSuffix, o.Trust...)
	if err != nil {
		return nil, err
	}
	w, fds, err := conn.Handshake(ctx, attach.Hello{
		Node: o.Node, Group: o.Group, Method: o.Method, Policy: o.Policy,
		Accept: o.Accept, AcceptGroup: o.AcceptGroup, Key: o.GroupKey, Threads: o.Threads,
	})
	if err != nil {
		var r *attach.RefusedError
		if o.Threads && errors.As(err, &r) && r.Code == attach.CodeProtocol && r.Refused == attach.TypeHello {
			err = fmt.Errorf("attach with threads: this pfd has none (%s): use one of this release, or attach without: %w", r.Product, err)
		}
		return nil, errors.Join(err, conn.Close())
	}
	e, err := newEndpoint(conn, w, fds, &o)
	if err != nil {
		fds.Close()
		return nil, errors.Join(err, conn.Close())
	}
	return e, nil
}

func newEndpoint(conn *attach.Conn, w attach.Welcome, fds attach.Descriptors, o *Options) (*Endpoint, error) {
	memfd := attach.Descriptors{fds.Take(attach.MemoryPagesFD)}
	memfd.Close() // the mapping keeps the memory
	// pfd's pid in pfd's own namespace: SO_PEERCRED returns another in another PID namespace.
	faults, err := netlink.FromFD(fds.Take(attach.MemoryNetlinkFD), netlink.Credentials{Port: w.PFDPort, PID: int32(w.PFDPID), UID: conn.Peer().UID})
	if err != nil {
		return nil, fmt.Errorf("attach: %w", err)
	}
	e := &Endpoint{
		conn: conn, pages: conn.Pages(), welcome: w, faults: faults,
		wake: fds.Take(attach.MemoryWakeFD), free: ^uint32(0), invalidations: o.CountInvalidations, dump: o.Dump, noUserfaultfd: o.NoUserfaultfd,
		exports: map[Remote][]byte{}, gathers: map[*Transfer]struct{}{}, answers: make(chan answer, 4), patience: shareTimeout,
		over: make(chan struct{}),
	}
	e.workers.Go(e.listen)
	e.workers.Go(e.serveFaults)
	return e, nil
}

// Info returns the endpoint's description.
func (e *Endpoint) Info() Info {
	w := &e.welcome
	return Info{
		Node: w.Node, PDID: w.PDID, Generation: w.Generation, Slot: int(w.Slot), Interface: int(w.Interface), Member: int(w.Member),
		VABits: int(w.VABits), Caps: w.Caps, Page: uint64(w.Page), Method: w.Method, Policy: w.Policy, Daemon: w.Product,
	}
}

// Stats returns the counters. It may be called after the attachment has ended.
func (e *Endpoint) Stats() Stats {
	c, told := e.faults.Counters(), e.pages.FaultCounts()
	e.mu.Lock()
	dropped := e.messages.dropped
	e.mu.Unlock()
	if e.welcome.Method == MethodTouch {
		told.Faults, told.Pages, told.Failed = e.faultsServed.Load(), e.faultPages.Load(), e.faultsFailed.Load()
	}
	return Stats{
		NumPageFaults:        told.Faults,
		NumPageFaultPages:    told.Pages,
		NumFailedResolutions: told.Failed,
		NumInvalidations:     told.Invalidations,
		NumInvalidationPages: told.Invalidated,

		InvalidationsFaultsContentions: told.Conflicts,
		NumPrefetchesHandled:           e.prefetches.Load(),
		RAPFRefused:                    e.rapfRefused.Load(),
		FaultsForged:                   c.Forged,
		FaultsMalformed:                c.Malformed,
		MessagesDropped:                dropped,
	}
}

// Export returns a Remote that names b for peers. The endpoint keeps b referenced until Unexport
// or Close, so that the garbage collector does not reuse its memory. Errors match ErrRequest.
func (e *Endpoint) Export(b []byte) (Remote, error) {
	r, err := e.ExportVA(VAOf(b), uint64(len(b)))
	if err != nil {
		return Remote{}, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing || e.ended != nil {
		return Remote{}, fmt.Errorf("exporting: %w", e.goneLocked())
	}
	e.exports[r] = b
	return r, nil
}

// ExportVA returns a Remote that names length bytes at va for peers. It keeps nothing referenced,
// and the memory need not be mapped yet. Errors match ErrRequest.
func (e *Endpoint) ExportVA(va device.VA, length uint64) (Remote, error) {
	r := Remote{Node: e.welcome.Node, PDID: e.welcome.PDID, Generation: e.welcome.Generation, VA: va, Len: length, Interface: e.welcome.Interface}
	if err := r.check(); err != nil {
		return Remote{}, fmt.Errorf("exporting: %w: %w", ErrRequest, err)
	}
	return r, nil
}

// Unexport releases exported memory. Peers do not learn of it: their writes still arrive while
// memory is mapped there.
func (e *Endpoint) Unexport(r Remote) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.exports, r)
}

// goneLocked returns the error of a call on an endpoint that is closed or has ended, else nil.
func (e *Endpoint) goneLocked() error {
	switch {
	case e.closing:
		return ErrClosed
	case e.ended != nil:
		return fmt.Errorf("%w: %v: attach again", ErrGone, e.ended)
	}
	return nil
}

// harvestLocked frees every channel whose transfer is final.
func (e *Endpoint) harvestLocked() {
	for busy := ^e.free; busy != 0; busy &= busy - 1 {
		e.settleLocked(bits.TrailingZeros32(busy))
	}
}

// settleLocked settles a channel's transfer if pfd has ended it, and then frees the channel. It
// reports whether the channel is free.
func (e *Endpoint) settleLocked(ch int) bool {
	t := e.transfers[ch]
	if t == nil {
		return true
	}
	switch e.pages.Done(ch) {
	case device.DoneCompleted:
		t.settle(0, "")
	case device.DoneFailed:
		status, _ := e.pages.Status(ch)
		t.settle(failed|uint32(status), "")
	default:
		return false
	}
	e.stampLocked(ch, e.pages.SetSeen)
	e.transfers[ch] = nil
	e.free |= 1 << ch
	return true
}

// kickLocked announces that something was published, and wakes pfd if it sleeps.
func (e *Endpoint) kickLocked() {
	if e.pages.Kick() && e.wake >= 0 {
		var one [8]byte
		binary.NativeEndian.PutUint64(one[:], 1)
		// EAGAIN means that the counter is at its maximum, so pfd is awake.
		_, _ = unix.Write(e.wake, one[:])
	}
}

// waitUntil sleeps until check returns true, ctx ends or the attachment ends. pause bounds the
// first sleep; each may be longer than the one before, up to limit. It notices a change that wakes
// nobody late, by at most a 32nd of the time that it has waited.
func (e *Endpoint) waitUntil(ctx context.Context, pause, limit time.Duration, check func() bool) error {
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, e.pages.WakeSelf)()
	}
	e.pages.AddWaiters(1)
	defer e.pages.AddWaiters(-1)
	var y yield.Yield
	for looked := time.Now(); ; {
		old := e.pages.Event() // load it before check: a later event changes it
		if check() {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if r, over := e.pages.Ended(); over {
			e.end(r, "")
		}
		if err := e.gone(); err != nil {
			if check() { // the end of the attachment may have made it true
				return nil
			}
			return err
		}
		y.Sleep()
		if err := e.pages.WaitEvent(old, pause); err != nil {
			return err
		}
		pause = min(pause+pause/32, limit)
		if time.Since(looked) >= sleepCap {
			if looked = time.Now(); e.conn.PeerKilled() {
				e.end(attach.ReasonLost, "pfd was killed, and a thread of it still sleeps in the kernel")
			}
		}
	}
}

// gone returns the error of an attachment that has ended, else nil.
func (e *Endpoint) gone() error {
	select {
	case <-e.over:
	default:
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return fmt.Errorf("%w: %v: attach again", ErrGone, e.ended)
}

// end fails every transfer in flight and wakes every waiter. Only the first call counts.
func (e *Endpoint) end(r attach.Reason, text string) {
	e.mu.Lock()
	if e.ended != nil {
		e.mu.Unlock()
		return
	}
	e.ended = &ending{reason: r, text: text}
	e.harvestLocked()
	for ch, t := range e.transfers {
		if t != nil {
			t.settle(failed|device.StatusGone, e.ended.String())
			e.transfers[ch] = nil // never free again: the pages have no engine
		}
	}
	e.endReadsLocked(e.ended.String())
	for t := range e.gathers {
		e.settleGatherLocked(t, failed|device.StatusGone, e.ended.String())
	}
	close(e.over)
	e.waits.wake()
	e.mu.Unlock()
	e.pages.WakeSelf()
}

// listen delivers pfd's answers to requests, and ends the endpoint by pfd's last message.
func (e *Endpoint) listen() {
	var buf [attach.MaxMessage]byte
	for {
		n, fds, err := e.conn.Receive(context.Background(), buf[:])
		if err != nil && !errors.Is(err, sockets.ErrDescriptors) { // else the message has come, without its descriptor
			fds.Close()
			text := ""
			if !errors.Is(err, io.EOF) {
				text = err.Error()
			}
			e.end(attach.ReasonLost, text)
			return
		}
		if m, err := attach.DecodeEnded(buf[:n]); err == nil {
			fds.Close()
			e.end(m.Reason, m.Text)
			return
		}
		e.answered(buf[:n], fds)
	}
}

// Close ends the attachment. It aborts the transfers in flight, and their waiters receive the
// result. It returns when pfd has confirmed that no access to the process's memory is in flight.
// If pfd does not confirm in time, or this process's memory helper sleeps in a page that never
// arrives, the error matches ErrUnconfirmed. Handles of transfers stay usable. A later call
// returns the same result. With methods touch and populate a goroutine that sleeps in a page
// outlives the endpoint until the page arrives.
func (e *Endpoint) Close() error {
	e.closer.Do(func() { e.closeErr = e.shutdown() })
	return e.closeErr
}

func (e *Endpoint) shutdown() error {
	e.mu.Lock()
	e.closing = true
	e.harvestLocked()
	for ch, t := range e.transfers {
		if t != nil {
			e.pages.AskAbort(ch)
			e.announceLocked(ch)
		}
	}
	for _, s := range e.reads.open {
		if s != nil {
			e.abortReadLocked(s)
		}
	}
	e.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	// An error means that the attachment has ended, or that pfd does not answer, which the wait
	// below detects.
	_ = e.waitUntil(ctx, sleepCap, sleepCap, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.harvestLocked()
		e.takeMailLocked()
		return e.free == ^uint32(0) && e.reads.open == [MaxReads]*readState{}
	})

	var err error
	_ = e.conn.CloseWrite() // fails if pfd has closed already
	timer := time.NewTimer(closeTimeout)
	defer timer.Stop()
	select {
	case <-e.over:
	case <-timer.C:
		err = fmt.Errorf("close the endpoint: %w within %v: do not reuse exported memory before pfd has ended", ErrUnconfirmed, closeTimeout)
	}
	e.end(attach.ReasonClosed, "")
	closed := e.conn.Close()
	if errors.Is(closed, attach.ErrHelper) {
		closed = fmt.Errorf("close the endpoint: %w: %w", ErrUnconfirmed, closed)
	}
	err = errors.Join(err, closed, e.faults.Close())
	stopped := make(chan struct{})
	go func() {
		e.workers.Wait()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-time.After(closeTimeout): // the page-fault goroutine sleeps in a page and writes nothing
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.wake >= 0 {
		err = errors.Join(err, os.NewSyscallError("close", unix.Close(e.wake)))
		e.wake = -1
	}
	clear(e.exports)
	e.waits.close()
	e.reads.late = nil
	return err
}
