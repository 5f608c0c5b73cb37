package memport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/internal/futex"
	"github.com/exanet/pfd/internal/sockets"
	"github.com/exanet/pfd/space/proc"
	"github.com/exanet/pfd/space/uffd"
)

// Descriptors are the descriptors of a helper (attach.HelperPort and so on).
type Descriptors struct {
	Port, Socket, Wake, PIDFD, Keeper int
}

// Times and sizes of a helper. Values below are defined by this project.
const (
	// spinTime is how long it polls for requests before it sleeps: a transfer's next request
	// comes within microseconds.
	spinTime = 50 * time.Microsecond
	// threads is how many requests it serves at one time. A request that sleeps for ever occupies
	// one of them.
	threads = 16
	// openTime is how long it tries to open its process: with Yama the process must permit it
	// first.
	openTime = time.Second
	// memoryLimit bounds its garbage.
	memoryLimit = 8 << 20
)

// server is the helper's side.
type server struct {
	m       mapped
	wake    int
	process *proc.Process
	pager   *gup.Regions
}

// Serve serves the memory of the helper's process until pfd closes the socket. It takes ownership
// of the descriptors.
func Serve(d Descriptors) error {
	debug.SetMemoryLimit(memoryLimit)
	if err := closeAbove(max(d.Port, d.Socket, d.Wake, d.PIDFD, d.Keeper)); err != nil {
		return fmt.Errorf("memory helper: close the descriptors of its process: %w", err)
	}
	c, err := net.FileConn(os.NewFile(uintptr(d.Socket), "memory port"))
	if err != nil {
		return fmt.Errorf("memory helper: its socket: %w", err)
	}
	sock, ok := c.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("memory helper: descriptor %d: %w", d.Socket, ErrMemory)
	}
	s := &server{wake: d.Wake}
	if err := s.open(d); err != nil {
		_, _ = sock.Write(append([]byte{messageFailed}, err.Error()[:min(len(err.Error()), messageSize-1)]...)) // pfd may have left
		return err
	}
	defer s.pager.Close()
	for i := range threads {
		go s.serve(uint32(i + 1))
	}
	if _, err := sock.Write([]byte{messageOK}); err != nil {
		return fmt.Errorf("memory helper: %w", err)
	}
	return s.listen(sock)
}

// closeAbove closes the descriptors above last that were open when this program was executed: the
// process left them open for programs that it starts. Those that the Go runtime has opened since
// are close-on-exec.
func closeAbove(last int) error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= last {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			_ = unix.Close(fd) // the descriptor is unused
		}
	}
	return nil
}

func (s *server) open(d Descriptors) error {
	var st unix.Stat_t
	if err := unix.Fstat(d.Port, &st); err != nil || st.Size != Size {
		return fmt.Errorf("%w: %d bytes, not %d (%v)", ErrMemory, st.Size, Size, err)
	}
	b, err := unix.Mmap(d.Port, 0, Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("memory helper: %w", os.NewSyscallError("mmap", err))
	}
	s.m = newMapped(b)
	probe := device.VA(atomic.LoadUint64(s.m.w64(offProbe)))
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		// A probe is enough: this program has the rights of its process and no others.
		if s.process, err = proc.OpenProbe(d.PIDFD, d.Keeper, probe); err == nil {
			break
		}
		if !errors.Is(err, proc.ErrPermission) || time.Since(began) > openTime {
			return err
		}
	}
	s.pager = gup.NewRegions(s.process)
	return nil
}

// serve is one thread: it polls for requests for a while, then sleeps. One thread polls at a
// time, the one whose number is in offAwake. It keeps its number there while it serves a request,
// so that pfd need not wake another thread for each request. If a request waits too long, pfd
// wakes another thread, which takes over.
func (s *server) serve(me uint32) {
	awake, submitted := s.m.w32(offAwake), s.m.w32(offSubmitted)
	for {
		seen := atomic.LoadUint32(submitted)
		if i := s.claim(); i >= 0 {
			atomic.StoreUint32(awake, me)
			s.answer(i)
			continue
		}
		if atomic.CompareAndSwapUint32(awake, 0, me) || atomic.LoadUint32(awake) == me {
			if s.look(seen) {
				continue
			}
			atomic.CompareAndSwapUint32(awake, me, 0)
			if atomic.LoadUint32(submitted) != seen {
				continue
			}
		}
		_ = futex.Wait(submitted, seen, -1)
	}
}

// look polls for a request for a bounded time.
func (s *server) look(seen uint32) bool {
	for began := time.Now(); time.Since(began) < spinTime; {
		for range 64 {
			if atomic.LoadUint32(s.m.w32(offSubmitted)) != seen {
				return true
			}
		}
		// pfd may need this processor.
		_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
	return false
}

// claim claims a waiting request; -1 if there is none.
func (s *server) claim() int {
	for i := range Slots {
		if w := s.m.state(i); atomic.LoadUint32(w) == stateSubmitted && atomic.CompareAndSwapUint32(w, stateSubmitted, stateClaimed) {
			return i
		}
	}
	return -1
}

// answer serves the request of a slot. It does not trust pfd: it refuses a request that does not
// fit a slot.
func (s *server) answer(i int) {
	va := device.VA(s.m.load(i, slotVA))
	pages, size := int(s.m.load(i, slotPages)), int(s.m.load(i, slotBytes))
	write := s.m.load(i, slotWrite) != 0
	var count, first, second uint64
	var err error
	data := []byte(nil)
	if size < 0 || size > dataStride {
		err = proc.ErrRange
	} else {
		data = s.m.data(i, size)
	}
	if err == nil {
		switch op(atomic.LoadUint32(s.m.w32(slotAt(i) + slotOp))) {
		case opWalk:
			var w proc.Walk
			w, err = s.process.Walk(va, pages, write)
			first, second = w.Absent, w.Denied
		case opMove:
			var n int
			n, err = s.move(data, va, write)
			count = uint64(n)
		case opOrdered:
			if len(data) != 16 || !write {
				err = proc.ErrRange
				break
			}
			var n, m int
			if n, err = s.move(data[:8], va, true); err == nil {
				m, err = s.move(data[8:], va+8, true)
			}
			count = uint64(n + m)
		case opPageIn:
			r := s.pager.PageIn(va, pages, write)
			count, first, second, err = uint64(r.Kind), r.Resident, r.New, r.Err
			if r.There {
				count |= countThere
			}
		case opTouch:
			if touch := s.m.load(i, slotTouch); touch != 0 {
				count = uint64(s.pager.Touch(va, touch, write).Kind)
			}
		case opMapping:
			var m proc.Mapping
			if m, err = s.process.Mapping(va); err == nil && len(data) == mappingSize {
				putMapping(data, &m)
				count = mappingSize
			}
		case opPagemap:
			var e [proc.MaxPages]proc.Entry
			n := 0
			if pages < 1 || pages > len(e) || len(data) != 8*pages {
				err = proc.ErrRange
			} else if n, err = s.process.Pagemap(va, e[:pages]); err == nil {
				for j := range n {
					binary.LittleEndian.PutUint64(data[8*j:], uint64(e[j]))
				}
			}
			count = uint64(8 * n)
		case opInFile:
			err = s.process.InFile(va)
		default:
			err = proc.ErrRange
		}
	}
	s.m.store(i, slotCount, count)
	s.m.store(i, slotFirst, first)
	s.m.store(i, slotSecond, second)
	s.m.store(i, slotCode, encodeError(err))
	atomic.StoreUint32(s.m.state(i), stateDone)
	atomic.AddUint32(s.m.w32(offCompleted), 1)
	if atomic.LoadUint32(s.m.w32(offAsleep)) != 0 {
		one := [8]byte{1}
		_, _ = unix.Write(s.wake, one[:]) // a full eventfd wakes, too
	}
}

func (s *server) move(data []byte, va device.VA, write bool) (int, error) {
	bufs := [1][]byte{data}
	if write {
		return s.process.WriteV(bufs[:], va)
	}
	return s.process.ReadV(bufs[:], va)
}

// listen answers pfd's messages until pfd closes the socket.
func (s *server) listen(sock *net.UnixConn) error {
	var b [messageSize]byte
	var oob [64]byte
	for {
		n, oobn, flags, _, err := sock.ReadMsgUnix(b[:], oob[:])
		if err != nil || n == 0 {
			return nil // pfd has closed it or has ended
		}
		fd := descriptor(oob[:oobn])
		var reply []byte
		if flags&unix.MSG_CTRUNC != 0 && fd < 0 {
			err = fmt.Errorf("the memory helper: %w", sockets.ErrDescriptors)
		} else {
			reply, err = s.told(b[:n], &fd)
		}
		if fd >= 0 {
			_ = unix.Close(fd) // the descriptor is unused
		}
		out := append([]byte{messageOK}, reply...)
		if err != nil {
			out = append([]byte{messageFailed}, err.Error()[:min(len(err.Error()), messageSize-1)]...)
		}
		if _, err := sock.Write(out); err != nil {
			return nil // pfd has closed it or has ended
		}
	}
}

// told executes one message. It sets *fd to -1 if it keeps the descriptor.
func (s *server) told(b []byte, fd *int) ([]byte, error) {
	m, err := decodeMessage(b)
	if err != nil {
		return nil, err
	}
	switch m.kind {
	case messageRegister:
		if err := s.pager.Fits(m.va, m.va+device.VA(m.size)); err != nil {
			return nil, err
		}
		r, err := uffd.Serve(*fd, m.va, m.size, nil)
		if err != nil {
			return nil, err
		}
		*fd = -1
		return nil, s.pager.Add(r)
	case messageUnregister:
		return nil, s.pager.Remove(m.va, m.va+device.VA(m.size))
	}
	p, err := proc.Open(*fd, *fd)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	buf := make([]byte, m.size)
	_, err = p.ReadV([][]byte{buf}, m.va)
	return buf, err
}

// descriptor returns the descriptor in control data, -1 if there is none.
func descriptor(oob []byte) int {
	fds, _ := sockets.Rights(oob)
	fd := -1
	for _, f := range fds {
		if fd >= 0 {
			_ = unix.Close(fd) // pfd sends one at most
		}
		fd = f
	}
	return fd
}
