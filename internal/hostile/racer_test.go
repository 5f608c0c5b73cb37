package hostile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
)

// The ways in which a racer repeatedly removes the transfers' right to write its memory.
const (
	raceProtect = "protect" // mprotect, PROT_READ
	raceNone    = "none"    // mprotect, PROT_NONE
	raceRemap   = "remap"   // munmap, then map other private memory there, read-only
	raceFile    = "file"    // map another file there, private and read-only
	raceShared  = "shared"  // map other shared memory there, read-only
	raceFork    = "fork"    // a child gets a copy; the memory itself stays writable
	raceExec    = "exec"    // execute another image with its own memory there
)

// Address and size of the memory, and how long at most it is writable (a random part of that)
// and not writable.
const (
	raceAt        = 0x7100_0000_0000 // far from what the kernel chooses
	racePages     = 16
	raceSize      = racePages * device.PageSize
	raceWritable  = 100 * time.Microsecond
	raceForbidden = 100 * time.Microsecond
	raceAbsent    = 3 // in one of so many rounds the pages start absent
	raceByte      = 0xf1
)

// A score is the result of a race.
type score struct {
	Rounds  int
	Changed int // rounds in which a forbidden byte arrived
	Landed  int // rounds before which permitted bytes arrived
}

func (s *score) add(o score) {
	s.Rounds += o.Rounds
	s.Changed += o.Changed
	s.Landed += o.Landed
}

// racer is the contested memory.
type racer struct {
	how        string
	b, was     []byte
	fd         int // of the memory's file; -1: none
	flags      int // of its mapping
	other      *os.File
	register   func([]byte) error // registers with a userfaultfd; nil: does not
	unregister func([]byte) error
	random     *rand.Rand
	spins      int
}

// race executes an order: o.Kind is the operation on memory of kind o.ID, which is mapped at
// raceAt, and o.Size the duration in ns.
func (a *obedient) race(o order) (r reply, err error) {
	s, err := a.newRacer(o)
	if err != nil {
		return r, err
	}
	defer s.close()
	for end := time.Now().Add(time.Duration(o.Size)); time.Now().Before(end); {
		if err := s.round(&r.Score); err != nil {
			return r, fmt.Errorf("round %d: %w", r.Score.Rounds, err)
		}
	}
	return r, nil
}

func (a *obedient) newRacer(o order) (s *racer, err error) {
	s = &racer{how: o.Kind, fd: -1, was: make([]byte, raceSize), random: rand.New(rand.NewPCG(1, 2))}
	s.b = unsafe.Slice((*byte)(unsafe.Add(nil, raceAt)), raceSize)
	s.flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	content := bytes.Repeat([]byte{raceByte}, raceSize)
	switch o.ID {
	case "anonymous":
	case "shared", "private file":
		if s.fd, err = unix.MemfdCreate("racer", unix.MFD_CLOEXEC); err != nil {
			return nil, err
		}
		s.flags = unix.MAP_SHARED
		if o.ID == "private file" {
			_ = unix.Close(s.fd)
			var f *os.File
			if f, err = os.CreateTemp(o.Path, "racer"); err != nil {
				return nil, err
			}
			_ = os.Remove(f.Name())
			s.fd, err = unix.Dup(int(f.Fd()))
			_ = f.Close()
			s.flags = unix.MAP_PRIVATE
		}
		if _, werr := unix.Pwrite(s.fd, content, 0); err != nil || werr != nil {
			return nil, errors.Join(err, werr)
		}
	default:
		return nil, fmt.Errorf("unknown kind of memory %q", o.ID)
	}
	if s.other, err = os.CreateTemp(o.Path, "other"); err != nil {
		return nil, err
	}
	_ = os.Remove(s.other.Name())
	if _, err := s.other.Write(content); err != nil {
		return nil, err
	}
	if a.ep.Info().Method == rdma.MethodUFFD && o.ID != "private file" {
		s.register, s.unregister = a.ep.Register, a.ep.Unregister
	}
	return s, s.permit(true)
}

func (s *racer) close() {
	if s.unregister != nil {
		_ = s.unregister(s.b) // memory that was mapped over is no longer registered
	}
	_ = s.other.Close()
	if s.fd >= 0 {
		_ = unix.Close(s.fd)
	}
}

// round makes the memory writable for a while, then removes the right, and counts whether a
// byte changes afterwards.
func (s *racer) round(c *score) error {
	before := bytes.Clone(s.b)
	s.spin(time.Duration(s.random.Int64N(int64(raceWritable))))
	if !bytes.Equal(before, s.b) {
		c.Landed++
	}
	changed, err := s.forbidden()
	if err != nil {
		return err
	}
	c.Rounds++
	if changed {
		c.Changed++
	}
	return s.permit(false)
}

// forbidden removes the right and reports whether a byte changed afterwards.
func (s *racer) forbidden() (bool, error) {
	over := func(fd, flags int, content byte) (bool, error) {
		if err := mapAt(s.b, fd, unix.PROT_READ, flags); err != nil {
			return false, err
		}
		for i := range s.was {
			s.was[i] = content
		}
		s.spin(raceForbidden)
		return !bytes.Equal(s.b, s.was), nil
	}
	switch s.how {
	case raceProtect, raceNone:
		if err := unix.Mprotect(s.b, unix.PROT_READ); err != nil {
			return false, err
		}
		copy(s.was, s.b)
		if s.how == raceNone {
			if err := unix.Mprotect(s.b, unix.PROT_NONE); err != nil {
				return false, err
			}
		}
		s.spin(raceForbidden)
		if err := unix.Mprotect(s.b, unix.PROT_READ); err != nil {
			return false, err
		}
		return !bytes.Equal(s.b, s.was), nil
	case raceRemap:
		if err := unix.MunmapPtr(unsafe.Pointer(&s.b[0]), raceSize); err != nil {
			return false, err
		}
		return over(-1, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE, 0)
	case raceFile:
		return over(int(s.other.Fd()), unix.MAP_PRIVATE|unix.MAP_FIXED, raceByte)
	case raceShared:
		return over(int(s.other.Fd()), unix.MAP_SHARED|unix.MAP_FIXED, raceByte)
	case raceFork:
		return s.forked()
	}
	return false, fmt.Errorf("unknown race %q", s.how)
}

// forked creates a child and reports whether its copy changes.
func (s *racer) forked() (changed bool, err error) {
	pid, errno := fork(unix.SIGKILL)
	if errno != 0 {
		return false, errno
	}
	defer func() {
		_ = unix.Kill(pid, unix.SIGKILL)
		_, werr := unix.Wait4(pid, nil, 0, nil)
		err = errors.Join(err, werr)
	}()
	read := func(b []byte) error {
		local := [1]unix.Iovec{{Base: &b[0], Len: raceSize}}
		remote := [1]unix.RemoteIovec{{Base: raceAt, Len: raceSize}}
		n, err := unix.ProcessVMReadv(pid, local[:], remote[:], 0)
		if err == nil && n != raceSize {
			err = fmt.Errorf("%d bytes read", n)
		}
		return err
	}
	now := make([]byte, raceSize)
	if err := read(s.was); err != nil {
		return false, err
	}
	s.spin(raceForbidden)
	if err := read(now); err != nil {
		return false, err
	}
	return !bytes.Equal(now, s.was), nil
}

// permit makes the memory writable again, present or absent.
func (s *racer) permit(first bool) error {
	const rw = unix.PROT_READ | unix.PROT_WRITE
	mapped := first
	switch s.how {
	case raceRemap, raceFile, raceShared:
		mapped = true
	case raceProtect, raceNone:
		if !first {
			if err := unix.Mprotect(s.b, rw); err != nil {
				return err
			}
		}
	}
	if mapped {
		if s.unregister != nil && !first {
			if err := s.unregister(s.b); err != nil {
				return err
			}
		}
		if err := mapAt(s.b, s.fd, rw, s.flags|unix.MAP_FIXED); err != nil {
			return err
		}
		_ = unix.Madvise(s.b, unix.MADV_NOHUGEPAGE)
		if s.register != nil {
			if err := s.register(s.b); err != nil {
				return err
			}
		}
	}
	if s.random.IntN(raceAbsent) == 0 {
		return unix.Madvise(s.b, unix.MADV_DONTNEED)
	}
	for i := 0; mapped && i < len(s.b); i += device.PageSize {
		s.b[i] = 1
	}
	return nil
}

// spin keeps the processor because the race lasts microseconds. It yields now and then, so that
// two processors are enough.
func (s *racer) spin(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		if s.spins++; s.spins%64 == 0 {
			_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		}
	}
}

func mapAt(b []byte, fd, prot, flags int) error {
	_, err := unix.MmapPtr(fd, 0, unsafe.Pointer(&b[0]), uintptr(len(b)), prot, flags)
	return err
}

// watch counts the bytes of a buffer that are not zero after o.Size ns.
func (b *area) watch(o order) (n int) {
	for end := time.Now().Add(time.Duration(o.Size)); time.Now().Before(end); {
		_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
	n, _ = wrong(b.b, 0, 0)
	return n
}

// storm writes to random places of remote memory, with several transfers in flight, until it is
// stopped.
type storm struct {
	quit chan struct{}
	over sync.WaitGroup

	mu    sync.Mutex
	ended [256]int // by code
	err   error
}

// stormers is the number of transfers in flight.
const stormers = 3

func (a *obedient) startStorm(o order) (*storm, error) {
	src, err := a.buffer(o.ID)
	if err != nil {
		return nil, err
	}
	dst, err := rdma.ParseRemote(o.Remote)
	if err != nil {
		return nil, err
	}
	s := &storm{quit: make(chan struct{})}
	for i := range stormers {
		random := rand.New(rand.NewPCG(uint64(i), 3))
		s.over.Go(func() {
			for s.once(a.ep, src, dst, random) {
			}
		})
	}
	return s, nil
}

// once makes one transfer. It returns false if no further one should follow.
func (s *storm) once(ep *rdma.Endpoint, src *area, dst rdma.Remote, random *rand.Rand) bool {
	select {
	case <-s.quit:
		return false
	default:
	}
	size := []uint64{64, 4096, 16384, dst.Len}[random.IntN(4)]
	at := random.Uint64N(dst.Len-size+1) &^ 63
	from := random.Uint64N(uint64(len(src.b))-size+1) &^ 63
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	t, err := ep.Write(ctx, rdma.WriteRequest{SrcVA: src.va + device.VA(from), Size: size, Dst: dst, Offset: at})
	if err == nil {
		err = t.Wait(ctx)
	}
	var failed *rdma.TransferError
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.ended[0]++
	case errors.As(err, &failed):
		s.ended[failed.Code]++
	default:
		s.err = err
		return false
	}
	return true
}

// stop ends the storm and returns how its transfers ended.
func (s *storm) stop() (reply, error) {
	close(s.quit)
	s.over.Wait()
	var list []string
	for code, n := range s.ended {
		if n > 0 {
			list = append(list, fmt.Sprintf("%d with %d", n, code))
		}
	}
	return reply{Text: strings.Join(slices.Clip(list), ", "), Count: s.ended[0]}, s.err
}
