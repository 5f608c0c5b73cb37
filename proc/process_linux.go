package proc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// closedBit in Process.users says that Close was called; the bits below count
// the calls under way.
const closedBit = 1 << 62

// openAttempts is how often Open tries again when the process executes another
// program under its hands.
const openAttempts = 3

// Process is a process held by descriptors. All methods may be called at the
// same time from several goroutines; none waits for another. Close may be
// called at any time: the descriptors are closed when the last call that is
// under way has returned, so that no call ever meets a descriptor number that
// has become another file.
type Process struct {
	pid   int
	users atomic.Int64

	pidfd   int // the process
	dir     int // /proc/PID, of the process
	mem     int // of the address space, as are the next two
	pagemap int
	maps    int

	query bool // PROCMAP_QUERY is there
	memo  memo

	text mapsText // for kernels without PROCMAP_QUERY
}

// OpenPID opens the process pid. Prefer Open where a pidfd is at hand
// (SO_PEERPIDFD): a number may have become another process's.
func OpenPID(pid int) (*Process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		if errors.Is(err, unix.ESRCH) {
			err = ErrGone
		}
		return nil, &Error{"open", pid, 0, err}
	}
	defer unix.Close(fd)
	return Open(fd)
}

// Open opens the process behind pidfd, of which it makes a duplicate, and the
// address space that it has now. It returns ErrGone for a process that has
// ended, ErrPermission where pfd may not, ErrChanged where the process executes
// other programs all the time.
func Open(pidfd int) (*Process, error) {
	pid, err := pidOf(pidfd)
	if err != nil {
		return nil, &Error{"open", pid, 0, err}
	}
	for range openAttempts {
		var p *Process
		if p, err = open(pidfd, pid); err == nil {
			return p, nil
		}
		if !errors.Is(err, ErrChanged) {
			break
		}
	}
	return nil, &Error{"open", pid, 0, err}
}

// pidOf reads the pid behind a pidfd from /proc/self/fdinfo, which every kernel
// with pidfds has.
func pidOf(pidfd int) (int, error) {
	b, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(pidfd))
	if err != nil {
		return 0, fmt.Errorf("read the pid of descriptor %d: %w", pidfd, err)
	}
	v, ok := statusField(b, "Pid:")
	if !ok {
		return 0, fmt.Errorf("descriptor %d is no pidfd: %w", pidfd, unix.EBADF)
	}
	pid, err := strconv.Atoi(string(v))
	if err != nil || pid <= 0 {
		return 0, ErrGone // -1 once it is reaped, 0 in another pid namespace
	}
	return pid, nil
}

// open makes one attempt. Only the kernel's fork and exec give a process an
// address space, and it never gets an old one back; so if the mem descriptors
// that are opened first and last belong to one address space, then so do those
// opened between them.
func open(pidfd, pid int) (_ *Process, err error) {
	p := &Process{pid: pid, pidfd: -1, dir: -1, mem: -1, pagemap: -1, maps: -1}
	p.memo.idle.Store(true)
	defer func() {
		if err != nil {
			p.closeDescriptors()
		}
	}()
	if p.pidfd, err = unix.FcntlInt(uintptr(pidfd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("duplicate the pidfd: %w", err)
	}
	if p.dir, err = unix.Open("/proc/"+strconv.Itoa(pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return nil, p.openError("", err)
	}
	// The directory belongs to whatever process has the number now; if ours is
	// still there, it had the number all the time.
	if err = unix.PidfdSendSignal(p.pidfd, 0, nil, 0); err != nil && !errors.Is(err, unix.EPERM) {
		return nil, ErrGone
	}
	before, err := p.identity()
	if err != nil {
		return nil, err
	}
	if p.mem, err = p.openat("mem", unix.O_RDWR); err != nil {
		return nil, err
	}
	if p.pagemap, err = p.openat("pagemap", unix.O_RDONLY); err != nil {
		return nil, err
	}
	if p.maps, err = p.openat("maps", unix.O_RDONLY); err != nil {
		return nil, err
	}
	if err = p.same(before); err != nil {
		return nil, err
	}
	var m Mapping
	switch errno := procmap(p.maps, 0, &m); errno {
	case 0, unix.ENOENT:
		p.query = true
	case unix.ESRCH:
		return nil, ErrGone
	}
	return p, nil
}

func (p *Process) openat(name string, flags int) (int, error) {
	fd, err := unix.Openat(p.dir, name, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, p.openError(name, err)
	}
	return fd, nil
}

func (p *Process) openError(name string, err error) error {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESRCH):
		return ErrGone
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		// The dead have no address space, and are refused to all but root.
		dead := []unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}
		if n, _ := unix.Poll(dead, 0); n > 0 {
			return ErrGone
		}
		return fmt.Errorf("open /proc/PID/%s: %w (%w)", name, ErrPermission, err)
	}
	return fmt.Errorf("open /proc/PID/%s: %w", name, err)
}

// identity is what tells an address space from the one after an exec.
type identity struct {
	uids [4]uint32 // real, effective, saved, file system
	auxv [1024]byte
}

// identity reads user ids and auxiliary vector, as they are now.
func (p *Process) identity() (id identity, err error) {
	if id.uids, err = p.uids(); err != nil {
		return id, err
	}
	fd, err := p.openat("auxv", unix.O_RDONLY)
	if err != nil {
		return id, err
	}
	defer unix.Close(fd)
	n, err := unix.Pread(fd, id.auxv[:], 0)
	if err != nil {
		return id, fmt.Errorf("read /proc/PID/auxv: %w", err)
	}
	if n == 0 {
		return id, ErrGone // a zombie, or a kernel thread
	}
	return id, nil
}

// same checks that the process still has the address space on which p's
// descriptors were opened. The auxiliary vector is equal, the sixteen random
// bytes that the kernel lays on the stack at every exec are equal seen through
// p's mem descriptor and through a new one, and so is the pagemap entry of
// their page, which for a privileged pfd carries the number of the physical
// page. A process that runs a set-uid program between two opens can foresee
// none of these; that its users are still the same is checked too, since the
// kernel let pfd in by them.
func (p *Process) same(before identity) error {
	mem, err := p.openat("mem", unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer unix.Close(mem)
	pagemap, err := p.openat("pagemap", unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer unix.Close(pagemap)
	after, err := p.identity()
	if err != nil {
		return err
	}
	if after != before {
		return ErrChanged
	}
	va := atRandom(&after.auxv)
	if va == 0 {
		return ErrChanged // every exec makes one: torn, or forged
	}
	var a, b [16]byte
	if n, err := unix.Pread(p.mem, a[:], int64(va)); n != len(a) {
		return fmt.Errorf("%w (%w)", ErrChanged, orGone(err))
	}
	if n, err := unix.Pread(mem, b[:], int64(va)); n != len(b) {
		return fmt.Errorf("%w (%w)", ErrChanged, orGone(err))
	}
	if a != b {
		return ErrChanged
	}
	var x, y [1]Entry
	page := uint64(va) >> device.PageShift
	if n, errno := preadEntries(p.pagemap, x[:], page); n != 1 {
		return fmt.Errorf("%w (%w)", ErrChanged, orGone(errno))
	}
	if n, errno := preadEntries(pagemap, y[:], page); n != 1 {
		return fmt.Errorf("%w (%w)", ErrChanged, orGone(errno))
	}
	if x != y {
		return ErrChanged
	}
	return nil
}

// orGone gives the error of a call that transferred too little, ErrGone where
// it had none: the kernel transfers nothing once an address space is gone.
func orGone(err error) error {
	if err == nil || errors.Is(err, unix.Errno(0)) {
		return ErrGone
	}
	return err
}

// atRandom finds AT_RANDOM (25, include/uapi/linux/auxvec.h) in an auxiliary
// vector of this machine's word size, which holds pairs of words.
func atRandom(auxv *[1024]byte) device.VA {
	const atNull, atRandom = 0, 25
	for i := 0; i+16 <= len(auxv); i += 16 {
		switch binary.NativeEndian.Uint64(auxv[i:]) {
		case atRandom:
			return device.VA(binary.NativeEndian.Uint64(auxv[i+8:]))
		case atNull:
			return 0
		}
	}
	return 0
}

// Current tells whether the process still runs in the address space that p
// holds: nil, ErrGone, or why that could not be told. It takes tens of
// microseconds: it is for the path of a failure.
func (p *Process) Current() error {
	if !p.enter() {
		return &Error{"check", p.pid, 0, ErrClosed}
	}
	defer p.leave()
	id, err := p.identity()
	if err == nil {
		err = p.same(id)
	}
	if errors.Is(err, ErrChanged) {
		err = ErrGone
	}
	if err != nil {
		return &Error{"check", p.pid, 0, err}
	}
	return nil
}

// PID gives the process's number, as it was at Open. It is for messages, and
// for calls that change nothing.
func (p *Process) PID() int { return p.pid }

// PIDFD gives the process's pidfd, which belongs to p and is good until Close.
func (p *Process) PIDFD() int { return p.pidfd }

// UID gives the process's real user id, as it is now.
func (p *Process) UID() (uint32, error) {
	if !p.enter() {
		return 0, &Error{"status", p.pid, 0, ErrClosed}
	}
	defer p.leave()
	u, err := p.uids()
	if err != nil {
		return 0, &Error{"status", p.pid, 0, err}
	}
	return u[0], nil
}

func (p *Process) uids() (u [4]uint32, err error) {
	var buf [4096]byte
	b, err := p.status(&buf)
	if err != nil {
		return u, err
	}
	v, ok := statusField(b, "Uid:")
	if !ok {
		return u, fmt.Errorf("no Uid in /proc/PID/status: %w", unix.EPROTO)
	}
	f := bytes.Fields(v)
	if len(f) != len(u) {
		return u, fmt.Errorf("field Uid %q of /proc/PID/status: %w", v, unix.EPROTO)
	}
	for i := range u {
		n, err := strconv.ParseUint(string(f[i]), 10, 32)
		if err != nil {
			return u, fmt.Errorf("field Uid of /proc/PID/status: %w", err)
		}
		u[i] = uint32(n)
	}
	return u, nil
}

// Locked gives how many bytes of the process's memory cannot be paged out,
// because it is locked (VmLck) or pinned (VmPin), as /proc/PID/status says.
func (p *Process) Locked() (int64, error) {
	if !p.enter() {
		return 0, &Error{"status", p.pid, 0, ErrClosed}
	}
	defer p.leave()
	var buf [4096]byte
	b, err := p.status(&buf)
	if err != nil {
		return 0, &Error{"status", p.pid, 0, err}
	}
	var sum int64
	for _, name := range [...]string{"VmLck:", "VmPin:"} {
		v, ok := statusField(b, name)
		if !ok {
			return 0, &Error{"status", p.pid, 0, ErrGone} // a zombie has no memory
		}
		n, err := strconv.ParseInt(string(bytes.TrimSuffix(v, []byte(" kB"))), 10, 64)
		if err != nil {
			return 0, &Error{"status", p.pid, 0, fmt.Errorf("%s %q: %w", name, v, err)}
		}
		sum += n << 10
	}
	return sum, nil
}

func (p *Process) status(buf *[4096]byte) ([]byte, error) {
	fd, err := p.openat("status", unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	n, err := unix.Pread(fd, buf[:], 0)
	if err != nil {
		if errors.Is(err, unix.ESRCH) {
			err = ErrGone
		}
		return nil, err
	}
	return buf[:n], nil
}

// statusField finds the value of a line "name:\tvalue".
func statusField(b []byte, name string) ([]byte, bool) {
	for len(b) > 0 {
		line, rest, _ := bytes.Cut(b, []byte("\n"))
		if v, ok := bytes.CutPrefix(line, []byte(name)); ok {
			return bytes.TrimSpace(v), true
		}
		b = rest
	}
	return nil, false
}

// enter counts a call in; false once p is closed.
func (p *Process) enter() bool {
	for {
		n := p.users.Load()
		if n&closedBit != 0 {
			return false
		}
		if p.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// leave counts a call out; the last one after Close closes the descriptors.
func (p *Process) leave() {
	if p.users.Add(-1) == closedBit {
		p.closeDescriptors()
	}
}

// Close ends the use of p. Calls under way end as they would have; later ones
// return ErrClosed. A second Close does nothing.
func (p *Process) Close() error {
	for {
		n := p.users.Load()
		if n&closedBit != 0 {
			return nil
		}
		if p.users.CompareAndSwap(n, n|closedBit) {
			if n == 0 {
				p.closeDescriptors()
			}
			return nil
		}
	}
}

func (p *Process) closeDescriptors() {
	for _, fd := range [...]int{p.pidfd, p.dir, p.mem, p.pagemap, p.maps} {
		if fd >= 0 {
			// Nothing is buffered behind these files: closing cannot fail
			// in a way that matters.
			_ = unix.Close(fd)
		}
	}
}
