package memport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/futex"
	"github.com/exanet/pfd/internal/memfd"
	"github.com/exanet/pfd/internal/sockets"
	"github.com/exanet/pfd/space/proc"
)

// Port is pfd's side. Submit and Poll belong to one goroutine, the engine's; the other methods
// are safe for concurrent use.
type Port struct {
	m    mapped
	fd   int
	sock *net.UnixConn

	seen     uint32 // of offCompleted; the engine's
	awaited  int    // the engine's requests in flight
	nudge    int64  // when to wake the helper again if a request still waits
	pause    int64  // between two such wake-ups
	mu       sync.Mutex
	free     uint32
	requests [Slots]*Request // the engine's, in flight
	gone     atomic.Bool

	users   sync.RWMutex // read-locked by callers that wait for an answer themselves
	asking  sync.Mutex   // one message on the socket at a time
	expects atomic.Bool  // an answer to it
	answers chan reply
	ended   chan struct{} // closed when the helper has ended
	closed  chan struct{} // closed when the port is
	once    sync.Once
	err     error
}

// lastSeals seals the memory once both sides have mapped it: nobody can remove pages from it, so
// a load never waits.
const lastSeals = unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL

// New returns a port and the helper's end of its socket, which the caller closes after sending
// it.
func New() (_ *Port, socket *os.File, err error) {
	p := &Port{fd: -1, free: 1<<Slots - 1, answers: make(chan reply, 1), ended: make(chan struct{}), closed: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("create a memory port: %w", err), p.Close())
		}
	}()
	if p.fd, err = memfd.New("pfd-port", Size, 0, 0); err != nil {
		return nil, nil, err
	}
	b, err := unix.Mmap(p.fd, 0, Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, os.NewSyscallError("mmap", err)
	}
	_ = unix.Madvise(b, unix.MADV_DONTDUMP) // it holds bytes of processes; the call cannot fail
	p.m = newMapped(b)
	two, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	own := os.NewFile(uintptr(two[0]), "memory port")
	defer own.Close()
	socket = os.NewFile(uintptr(two[1]), "memory port of a helper")
	// A descriptor from the helper may take long to close, even if nobody receives it.
	err = sockets.PassRights(two[0], false)
	var c net.Conn
	if err == nil {
		c, err = net.FileConn(own)
	}
	if err != nil {
		return nil, nil, errors.Join(err, socket.Close())
	}
	p.sock, _ = c.(*net.UnixConn)
	return p, socket, nil
}

// SetProbe stores for the helper, before it is started, the address of an absent page of the
// process that nothing touches (proc.OpenProbe).
func (p *Port) SetProbe(va device.VA) { atomic.StoreUint64(p.m.w64(offProbe), uint64(va)) }

// FD returns the memory's descriptor, which the port owns.
func (p *Port) FD() int { return p.fd }

// Ready waits until the helper has mapped the memory and opened the process, and then seals the
// memory. If the helper ends later, the port calls wake on any goroutine. An error with the
// helper's own reason matches ErrHelper.
func (p *Port) Ready(deadline time.Time, wake func()) error {
	if err := p.sock.SetReadDeadline(deadline); err != nil {
		return fmt.Errorf("wait for a memory helper: %w", err)
	}
	if _, err := p.read(); errors.Is(err, errEnded) {
		return fmt.Errorf("wait for a memory helper: %w: the limits of the process, which are its own, may be too low (ulimit -v, -d, -u; pids.max)", err)
	} else if err != nil {
		return fmt.Errorf("wait for a memory helper: %w", err)
	}
	if err := p.sock.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("wait for a memory helper: %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(p.fd), unix.F_ADD_SEALS, lastSeals); err != nil {
		return fmt.Errorf("wait for a memory helper: %w", os.NewSyscallError("fcntl F_ADD_SEALS", err))
	}
	go p.listen(wake)
	return nil
}

// listen receives the helper's messages until its end.
func (p *Port) listen(wake func()) {
	for {
		text, err := p.read()
		if err != nil && !errors.Is(err, errRefused) {
			break
		}
		if !p.expects.Swap(false) {
			// An unasked message. The pause bounds how fast they are read, and delays the
			// helper's next answer.
			select {
			case <-time.After(unaskedPause):
			case <-p.closed:
			}
			continue
		}
		select {
		case p.answers <- reply{text, err}:
		default: // the one before answered a message that timed out
		}
	}
	p.gone.Store(true)
	close(p.ended)
	wake()
}

// unaskedPause is how long a helper's socket is not read after an unasked message. Defined by
// this project.
const unaskedPause = 10 * time.Millisecond

// reply is the helper's answer to a message.
type reply struct {
	text []byte
	err  error
}

// errRefused says that the helper refused a message.
var errRefused = fmt.Errorf("%w: it refused", ErrHelper)

// errEnded says that the helper has ended.
var errEnded = fmt.Errorf("%w: it ended", ErrHelper)

// read reads one message of the helper and returns its text, or the error that it reports.
func (p *Port) read() ([]byte, error) {
	var b [messageSize]byte
	n, err := p.sock.Read(b[:])
	switch {
	case errors.Is(err, io.EOF), err == nil && n == 0:
		return nil, errEnded
	case err != nil:
		return nil, err
	case b[0] != messageOK:
		return nil, fmt.Errorf("%w: %s", errRefused, printable(b[1:n]))
	}
	return b[1:n], nil
}

// SetAsleep tells the helper whether pfd sleeps, so that it must write the eventfd. After
// SetAsleep(true) the caller must check Pending again.
func (p *Port) SetAsleep(asleep bool) {
	v := uint32(0)
	if asleep {
		v = 1
	}
	atomic.SwapUint32(p.m.w32(offAsleep), v) // before Pending loads
}

// Pending reports whether Poll would find an answer.
func (p *Port) Pending() bool {
	return p.awaited > 0 && (atomic.LoadUint32(p.m.w32(offCompleted)) != p.seen || p.gone.Load())
}

// Submit submits a request to the helper. ok is false if no slot is free. If the helper has
// ended, or there are too many bytes, the request is done at once and Done is not called: ended
// is true.
func (p *Port) Submit(r *Request, now int64) (ok, ended bool) {
	switch {
	case p.gone.Load():
		r.fail(proc.ErrGone)
		return true, true
	case r.bytes > dataStride:
		r.fail(proc.ErrRange)
		return true, true
	}
	i, ok := p.publish(r)
	if !ok {
		return false, false
	}
	p.requests[i] = r
	if p.awaited++; p.awaited == 1 {
		p.pause, p.nudge = int64(nudgeAfter), now+int64(nudgeAfter)
	}
	return true, false
}

// publish puts a request into a free slot and wakes the helper if it sleeps.
func (p *Port) publish(r *Request) (int, bool) {
	p.mu.Lock()
	if p.free == 0 {
		p.mu.Unlock()
		return 0, false
	}
	i := bits.TrailingZeros32(p.free)
	p.free &^= 1 << i
	p.mu.Unlock()
	if r.bufs != nil && r.write {
		at := p.m.data(i, r.bytes)
		for _, b := range r.bufs {
			at = at[copy(at, b):]
		}
	}
	write := uint64(0)
	if r.write {
		write = 1
	}
	p.m.store(i, slotVA, uint64(r.va))
	p.m.store(i, slotPages, uint64(r.pages))
	p.m.store(i, slotBytes, uint64(r.bytes))
	p.m.store(i, slotWrite, write)
	p.m.store(i, slotTouch, r.touch)
	atomic.StoreUint32(p.m.w32(slotAt(i)+slotOp), uint32(r.op))
	atomic.StoreUint32(p.m.state(i), stateSubmitted)
	atomic.AddUint32(p.m.w32(offSubmitted), 1)
	if atomic.LoadUint32(p.m.w32(offAwake)) == 0 {
		p.wakeHelper()
	}
	return i, true
}

func (p *Port) wakeHelper() { futex.Wake(p.m.w32(offSubmitted), 1) }

// Poll calls Done of the requests that the helper has answered, and reports whether there were
// any.
func (p *Port) Poll() (any bool) {
	gone := p.gone.Load() // load it before the answers: an answer from before the end counts
	p.seen = atomic.LoadUint32(p.m.w32(offCompleted))
	for i, r := range p.requests {
		if r == nil {
			continue
		}
		if !p.take(i, r) {
			if !gone {
				continue
			}
			// The ended helper keeps the slot.
			r.fail(proc.ErrGone)
		}
		p.requests[i] = nil
		p.awaited--
		p.pause = int64(nudgeAfter) // the helper runs
		any = true
		r.Done()
	}
	return any
}

// take takes the answer of slot i if it has arrived, and frees the slot.
func (p *Port) take(i int, r *Request) bool {
	if atomic.LoadUint32(p.m.state(i)) != stateDone {
		return false
	}
	r.take(p.m.load(i, slotCode), p.m.load(i, slotCount), p.m.load(i, slotFirst), p.m.load(i, slotSecond))
	if !r.write && r.bytes > 0 {
		from := p.m.data(i, r.Moved)
		for _, b := range r.bufs {
			from = from[copy(b, from):]
		}
		if r.bufs == nil {
			copy(r.answer[:], from)
		}
	}
	atomic.StoreUint32(p.m.state(i), stateFree)
	p.mu.Lock()
	p.free |= 1 << i
	p.mu.Unlock()
	return true
}

// nudgeAfter is how long a request may wait while a thread of the helper is said to poll for
// requests: that thread may be stuck in another request. The wait doubles each time, up to
// nudgeMost, so that threads that only wait for a processor are not multiplied. Values below are
// defined by this project.
const (
	nudgeAfter = 200 * time.Microsecond
	nudgeMost  = 50 * time.Millisecond
)

// Nudge wakes another thread of the helper if requests wait too long. It returns when to call it
// again, 0: never.
func (p *Port) Nudge(now int64) (next int64) {
	for i, r := range p.requests {
		if r == nil || atomic.LoadUint32(p.m.state(i)) != stateSubmitted {
			continue
		}
		if now >= p.nudge {
			p.pause = min(2*p.pause, int64(nudgeMost))
			p.nudge = now + p.pause
			p.wakeHelper()
		}
		return p.nudge
	}
	return 0
}

// do submits a request and waits for it on the calling goroutine. It is for rare requests.
func (p *Port) do(r *Request) error {
	p.users.RLock()
	defer p.users.RUnlock()
	if p.gone.Load() {
		return &Error{Err: proc.ErrGone}
	}
	i, ok := p.publish(r)
	for pause := 10 * time.Microsecond; !ok; pause = min(2*pause, time.Millisecond) {
		if p.gone.Load() {
			return &Error{Err: proc.ErrGone}
		}
		time.Sleep(pause)
		i, ok = p.publish(r)
	}
	began := time.Now()
	for pause := 10 * time.Microsecond; !p.take(i, r); {
		if p.gone.Load() {
			return &Error{Err: proc.ErrGone}
		}
		if time.Since(began) < spinTime {
			continue
		}
		p.wakeHelper()
		time.Sleep(pause)
		pause = min(2*pause, time.Millisecond)
	}
	return r.Err
}

// Mapping is like proc.Process.Mapping.
func (p *Port) Mapping(va device.VA) (proc.Mapping, error) {
	var r Request
	r.ask(opMapping, va, 1, mappingSize)
	if err := p.do(&r); err != nil {
		return proc.Mapping{}, err
	}
	m := getMapping(r.answer[:])
	if r.Moved < mappingSize || !m.Contains(va) {
		return proc.Mapping{}, &Error{Err: ErrHelper}
	}
	return m, nil
}

// Pagemap is like proc.Process.Pagemap, for 64 pages at most.
func (p *Port) Pagemap(va device.VA, dst []proc.Entry) (int, error) {
	if len(dst) < 1 || len(dst) > proc.MaxPages {
		return 0, &Error{Err: proc.ErrRange}
	}
	var r Request
	r.ask(opPagemap, va, len(dst), 8*len(dst))
	if err := p.do(&r); err != nil {
		return 0, err
	}
	n := r.Moved / 8
	if n == 0 {
		return 0, &Error{Err: ErrHelper}
	}
	for i := range n {
		dst[i] = proc.Entry(binary.LittleEndian.Uint64(r.answer[8*i:]))
	}
	return n, nil
}

// InFile is like proc.Process.InFile.
func (p *Port) InFile(va device.VA) error {
	var r Request
	r.ask(opInFile, va, 1, 0)
	return p.do(&r)
}

// PagedIn does nothing: the helper's own walks do not need it.
func (p *Port) PagedIn(device.VA, proc.Entry) {}

// Register sends a userfaultfd to the helper, which serves it. The caller still closes the
// descriptor.
func (p *Port) Register(va device.VA, size uint64, fd int) error {
	_, err := p.tell(messageRegister, va, size, fd)
	return err
}

// Unregister makes the helper stop serving a registered range.
func (p *Port) Unregister(va device.VA, size uint64) error {
	_, err := p.tell(messageUnregister, va, size)
	return err
}

// Read reads n bytes, at most 64, at va of another process through a pidfd of its keeper, with
// the rights of this port's process.
func (p *Port) Read(keeper int, va device.VA, n int) ([]byte, error) {
	b, err := p.tell(messageRead, va, uint64(n), keeper)
	if err == nil && len(b) != n {
		err = fmt.Errorf("%w: it read %d of %d bytes", ErrHelper, len(b), n)
	}
	return b, err
}

// tellTime is how long a helper may take to answer a message. Defined by this project.
const tellTime = 2 * time.Second

// tell sends the helper a message with descriptors and waits for the answer.
func (p *Port) tell(kind byte, va device.VA, size uint64, fds ...int) ([]byte, error) {
	p.asking.Lock()
	defer p.asking.Unlock()
	var b [messageSize]byte
	m := message{kind, va, size}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	select {
	case <-p.answers: // to a message that timed out
	default:
	}
	p.expects.Store(true)
	if err := p.sock.SetWriteDeadline(time.Now().Add(tellTime)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHelper, err)
	}
	if _, _, err := p.sock.WriteMsgUnix(m.encode(b[:0]), oob, nil); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHelper, err)
	}
	timeout := time.NewTimer(tellTime)
	defer timeout.Stop()
	select {
	case a := <-p.answers:
		return a.text, a.err
	case <-p.ended:
		return nil, errEnded
	case <-timeout.C:
		// Later answers cannot be matched to messages either.
		p.gone.Store(true)
		return nil, fmt.Errorf("%w: no answer within %v", ErrHelper, tellTime)
	}
}

// Abandon stops the use of the helper: requests in flight fail with proc.ErrGone at the next
// Poll, and the helper ends when it finds its socket closed.
func (p *Port) Abandon() { p.gone.Store(true) }

// Close closes the port. No method may be called afterwards.
func (p *Port) Close() error {
	p.once.Do(func() {
		p.gone.Store(true)
		close(p.closed)
		p.users.Lock()
		defer p.users.Unlock()
		var errs []error
		if p.sock != nil {
			errs = append(errs, p.sock.Close())
		}
		if p.m.b != nil {
			errs = append(errs, os.NewSyscallError("munmap", unix.Munmap(p.m.b)))
		}
		if p.fd >= 0 {
			errs = append(errs, os.NewSyscallError("close", unix.Close(p.fd)))
		}
		p.err = errors.Join(errs...)
	})
	return p.err
}
