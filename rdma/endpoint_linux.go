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
	"github.com/exanet/pfd/internal/yield"
	"github.com/exanet/pfd/netlink"
	"github.com/exanet/pfd/pagein"
)

// Times (ours).
const (
	// SpinTime is how long Wait and WaitNotification spin before they sleep (ours).
	SpinTime = 20 * time.Microsecond
	// sleepCap bounds one sleep of Wait; a wake-up lost to attach.MaxWake or to
	// a pfd that died costs this much at most.
	sleepCap = 100 * time.Millisecond
	// closeTimeout is how long Close waits for aborted transfers, and then for
	// pfd's word that the domain is quiet.
	closeTimeout = 2 * time.Second
)

// faultSend is the packetizer channel of the page-fault goroutine; doorbells
// use those before it (ours).
const faultSend = device.PktzChannels - 1

// Method and Policy say how absent pages of this process are brought in.
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

// Options say where and how to attach. The zero value attaches to node 0 of the
// default pfd in the default group.
type Options struct {
	// Socket is pfd's control socket, as its --socket; the attachment socket
	// lies beside it. Empty: the default one (spec/api.md, Daemon).
	Socket string
	Node   device.NodeID
	// Group is a name that processes of one user share on all nodes; they may
	// reach each other. Empty: "default".
	Group string
	// GroupKey, where it is not zero, is a secret that the processes of the group
	// share. Without one, each of them must have the right to reach the others'
	// memory, as ptrace(2) has it: processes of one user usually do.
	GroupKey [GroupKeySize]byte
	Method   Method
	Policy   Policy
	// Accept are PDIDs of other domains that may write to this process.
	Accept []device.PDID
	// AcceptGroup lets every member of the group write to this process, not
	// only the one that shares its PDID.
	AcceptGroup bool
	// CountInvalidations has the kernel tell pfd when pages of registered memory
	// (method uffd) go. The call that has them go waits until pfd has read that.
	CountInvalidations bool
	// Dump leaves memory of Alloc, and what is shared, in core dumps, which bring all of it
	// in. Without it a program has parts dumped by MADV_DODUMP.
	Dump bool
	// NoUserfaultfd leaves shared memory without the library's userfaultfd, for a program that
	// has one of its own there: its missing pages come in as others do, and after an munmap
	// without Unshare transfers reach the memory that was shared, silently.
	NoUserfaultfd bool
	// Trust are users, besides root and the process's own, whose pfd may reach the
	// process's memory. The machine's own pfd need not be named. 65534 names every user
	// that the user namespace does not map: the machine's pfd, for one, in a rootless container.
	Trust []uint32
}

// GroupKeySize is the size of Options.GroupKey, bytes.
const GroupKeySize = attach.KeySize

// Info is what pfd gave to an endpoint.
type Info struct {
	Node       device.NodeID
	PDID       device.PDID
	Generation device.Generation // of the domain: never that of an earlier one of its PDID
	Slot       int
	Interface  int // mailbox and packetizer
	Member     int // index in the group on this node
	VABits     int // width of the addresses that the node takes
	Caps       uint64
	// Page is the size of the pages in which memory is shared, bytes: 2 MiB (hugetlb)
	// where the device has physical addresses. 0: none need be (SVA).
	Page   uint64
	Method Method
	Policy Policy
	Daemon string // pfd's product and version
}

// Stats counts the endpoint's page faults, with ODP's names (spec/api.md). Under
// method touch the process serves them, and the first three count what its
// page-fault goroutine did; under the others they are what pfd tells, after each fault.
// Nobody in user space is told when the kernel takes a page: what is seen of that
// depends on the device and the method (docs/service.md).
type Stats struct {
	NumPageFaults        uint64 // pages that accesses faulted on; touch: fault messages served
	NumPageFaultPages    uint64 // pages brought in for them: absent before, or to be copied
	NumFailedResolutions uint64 // faults that cannot be resolved; touch: messages answered with the fail bit
	// NumInvalidations counts the calls that took memory from the device: evictions,
	// Unshare and Free where it is shared, and with Options.CountInvalidations those
	// of madvise, munmap and truncation on what is registered.
	NumInvalidations uint64
	// NumInvalidationPages counts pages that shared memory had in the device's tables
	// and that were taken away; where the device walks the process's own tables those
	// that an access found gone since an earlier one, a lower bound.
	NumInvalidationPages uint64
	// InvalidationsFaultsContentions counts page-ins that met pages which were just
	// going, with Options.CountInvalidations.
	InvalidationsFaultsContentions uint64
	// NumPrefetchesHandled counts the calls of Prefetch that brought all pages in.
	NumPrefetchesHandled uint64
	RAPFRefused          uint64 // requests for retransmission that the packetizer refused
	FaultsForged         uint64 // messages from somebody else: dropped
	FaultsMalformed      uint64 // dropped
}

// Endpoint is a process's attachment to one node (alloc_comm_chan and
// enable_pgfault_mechanism, spec/api.md).
type Endpoint struct {
	conn    *attach.Conn
	pages   *attach.Pages
	welcome attach.Welcome
	faults  *netlink.Receiver

	invalidations, dump, noUserfaultfd bool // of Options

	mu      sync.Mutex
	wake    int // eventfd, -1 once closed: written under mu only
	free    uint32
	owner   [device.WriteChannels]*Transfer
	closing bool
	ended   *ending
	exports map[Remote][]byte
	shares  map[device.VA]uint64 // what is shared with a node without SVA, sizes by where it begins
	reads   reads
	gathers map[*Transfer]struct{} // not final
	rings   rings
	clock   stampClock

	asking  sync.Mutex  // one request about memory at a time
	answers chan answer // to it

	over     chan struct{} // closed when the attachment has ended
	workers  sync.WaitGroup
	sleeping sleepers   // page-fault goroutines
	sending  sync.Mutex // of their packetizer channel
	closer   sync.Once
	closeErr error

	faultsServed, faultPages, faultsFailed, rapfRefused, prefetches atomic.Uint64
}

// ending says why an attachment is over.
type ending struct {
	reason attach.Reason
	text   string
}

func (e *ending) String() string {
	reason := e.reason.String()
	switch {
	case e.text == "":
		return reason
	case strings.HasPrefix(e.text, reason): // as pfd's does
		return e.text
	}
	return reason + ": " + e.text
}

// Attach gives the calling process a protection domain on a node. Without a
// daemon the error matches ErrNoDaemon and says how to start one; a daemon of
// another version matches ErrVersion, and both versions are named; a refusal is
// an *attach.RefusedError whose text names the remedy.
//
// The process's memory is reached by pfd itself where pfd has the rights of its
// user and no others, else by a memory helper that Attach starts: a process of the
// same rights, which ends with the endpoint (docs/attach.md). It is a child of the process:
// who waits for children of any number meets it.
func Attach(ctx context.Context, o Options) (*Endpoint, error) {
	socket := o.Socket
	if socket == "" {
		var err error
		if socket, err = attach.DefaultSocket(); err != nil {
			return nil, fmt.Errorf("attaching: %w", err)
		}
	}
	if o.Group == "" {
		o.Group = attach.DefaultGroup
	}
	if o.Method == MethodTouch || o.Method == MethodPopulate {
		if err := populateWorks(); err != nil {
			return nil, fmt.Errorf("attaching with method %v: %w", o.Method, err)
		}
	}
	conn, err := attach.Dial(ctx, socket+attach.SocketSuffix, o.Trust...)
	if err != nil {
		return nil, err
	}
	w, fds, err := conn.Handshake(ctx, attach.Hello{
		Node: o.Node, Group: o.Group, Method: o.Method, Policy: o.Policy,
		Accept: o.Accept, AcceptGroup: o.AcceptGroup, Key: o.GroupKey,
	})
	if err != nil {
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
	memfd := attach.Descriptors{fds.Take(0)}
	memfd.Close() // the mapping keeps the memory
	// pfd's number as pfd has it: in another PID namespace SO_PEERCRED gives another.
	faults, err := netlink.FromFD(fds.Take(2), netlink.Credentials{Port: w.PFDPort, PID: int32(w.PFDPID), UID: conn.Peer().UID})
	if err != nil {
		return nil, fmt.Errorf("attaching: %w", err)
	}
	e := &Endpoint{
		conn: conn, pages: conn.Pages(), welcome: w, faults: faults,
		wake: fds.Take(1), free: ^uint32(0), invalidations: o.CountInvalidations, dump: o.Dump, noUserfaultfd: o.NoUserfaultfd,
		exports: map[Remote][]byte{}, gathers: map[*Transfer]struct{}{}, answers: make(chan answer, 4),
		over: make(chan struct{}),
	}
	e.workers.Go(e.listen)
	e.workers.Go(e.serveFaults)
	return e, nil
}

// Info gives what pfd gave to the endpoint.
func (e *Endpoint) Info() Info {
	w := &e.welcome
	return Info{
		Node: w.Node, PDID: w.PDID, Generation: w.Generation, Slot: int(w.Slot), Interface: int(w.Interface), Member: int(w.Member),
		VABits: int(w.VABits), Caps: w.Caps, Page: uint64(w.Page), Method: w.Method, Policy: w.Policy, Daemon: w.Product,
	}
}

// Stats gives the counters. It may be called when the attachment has ended.
func (e *Endpoint) Stats() Stats {
	c, told := e.faults.Counters(), e.pages.FaultCounts()
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
	}
}

// Export names b for peers. The endpoint keeps b referenced until Unexport or
// Close, so that the garbage collector does not give its memory to others.
// Errors match ErrRequest.
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

// ExportVA names length bytes at va for peers; nothing is kept referenced. The
// memory need not be mapped yet. Errors match ErrRequest.
func (e *Endpoint) ExportVA(va device.VA, length uint64) (Remote, error) {
	r := Remote{Node: e.welcome.Node, PDID: e.welcome.PDID, Generation: e.welcome.Generation, VA: va, Len: length}
	if err := r.check(); err != nil {
		return Remote{}, fmt.Errorf("exporting: %w: %w", ErrRequest, err)
	}
	return r, nil
}

// Unexport lets go of memory that was exported. Peers are not told: what they
// still write arrives, as long as something is mapped there.
func (e *Endpoint) Unexport(r Remote) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.exports, r)
}

// goneLocked gives the error of a call that came too late, or nil.
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

// settleLocked gives a channel's transfer its final state if pfd has ended it,
// and frees the channel; it tells whether the channel is free.
func (e *Endpoint) settleLocked(ch int) bool {
	t := e.owner[ch]
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
	e.owner[ch] = nil
	e.free |= 1 << ch
	return true
}

// kickLocked tells pfd that something was published, and wakes it if it sleeps.
func (e *Endpoint) kickLocked() {
	if e.pages.Kicked() && e.wake >= 0 {
		var one [8]byte
		binary.NativeEndian.PutUint64(one[:], 1)
		// EAGAIN says that the counter is at its end, and pfd awake.
		_, _ = unix.Write(e.wake, one[:])
	}
}

// waitUntil sleeps until check, ctx or the attachment is over. pause bounds the
// first sleep; each may be longer than the one before, up to limit: it finds out late
// what wakes nobody, by a 32nd of the time that it has waited at most.
func (e *Endpoint) waitUntil(ctx context.Context, pause, limit time.Duration, check func() bool) error {
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, e.pages.WakeSelf)()
	}
	e.pages.AddWaiters(1)
	defer e.pages.AddWaiters(-1)
	var y yield.Yield
	for looked := time.Now(); ; {
		old := e.pages.Event() // before the look: what comes after changes it
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
			if check() { // the end may have made it so
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

// gone gives the error of an attachment that is over, or nil.
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

// end fails every transfer in flight and wakes every waiter. The first call
// counts.
func (e *Endpoint) end(r attach.Reason, text string) {
	e.mu.Lock()
	if e.ended != nil {
		e.mu.Unlock()
		return
	}
	e.ended = &ending{reason: r, text: text}
	e.harvestLocked()
	for ch, t := range e.owner {
		if t != nil {
			t.settle(failed|device.StatusGone, e.ended.String())
			e.owner[ch] = nil // never free again: the pages are dead
		}
	}
	e.endReadsLocked(e.ended.String())
	for t := range e.gathers {
		e.settleGatherLocked(t, failed|device.StatusGone, e.ended.String())
	}
	close(e.over)
	e.mu.Unlock()
	e.pages.WakeSelf()
}

// listen waits for pfd's last word.
func (e *Endpoint) listen() {
	var buf [attach.MaxMessage]byte
	for {
		n, fds, err := e.conn.Receive(context.Background(), buf[:])
		fds.Close()
		if err != nil {
			text := ""
			if !errors.Is(err, io.EOF) {
				text = err.Error()
			}
			e.end(attach.ReasonLost, text)
			return
		}
		if m, err := attach.DecodeEnded(buf[:n]); err == nil {
			e.end(m.Reason, m.Text)
			return
		}
		e.answered(buf[:n])
	}
}

// Close ends the attachment: transfers in flight are aborted, and waiters get
// the outcome. It returns when pfd has said that no access to the process's
// memory is in flight any more; if pfd does not say so in time, or the memory
// helper of this process cannot end for a page that does not come, the error
// matches ErrUnconfirmed. Handles of transfers stay usable. It may be called
// again and gives the same answer. With methods touch and populate a goroutine that
// sleeps in a page that does not come outlives it until the page comes.
func (e *Endpoint) Close() error {
	e.closer.Do(func() { e.closeErr = e.shutdown() })
	return e.closeErr
}

func (e *Endpoint) shutdown() error {
	e.mu.Lock()
	e.closing = true
	e.harvestLocked()
	for ch, t := range e.owner {
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
	// An error here is the end, or a pfd that does not answer, which the wait
	// below finds out.
	_ = e.waitUntil(ctx, sleepCap, sleepCap, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.harvestLocked()
		e.takeMailLocked()
		return e.free == ^uint32(0) && e.reads.open == [MaxReads]*readState{}
	})

	var err error
	_ = e.conn.CloseWrite() // fails where pfd has closed already
	timer := time.NewTimer(closeTimeout)
	defer timer.Stop()
	select {
	case <-e.over:
	case <-timer.C:
		err = fmt.Errorf("closing the endpoint: %w within %v: do not reuse exported memory before pfd has ended", ErrUnconfirmed, closeTimeout)
	}
	e.end(attach.ReasonClosed, "")
	closed := e.conn.Close()
	if errors.Is(closed, attach.ErrHelper) {
		closed = fmt.Errorf("closing the endpoint: %w: %w", ErrUnconfirmed, closed)
	}
	err = errors.Join(err, closed, e.faults.Close())
	stopped := make(chan struct{})
	go func() {
		e.workers.Wait()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-time.After(closeTimeout): // the page-fault goroutine sleeps in a page that does not come, and writes nothing
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.wake >= 0 {
		err = errors.Join(err, os.NewSyscallError("close", unix.Close(e.wake)))
		e.wake = -1
	}
	clear(e.exports)
	e.reads.late = nil
	return err
}
