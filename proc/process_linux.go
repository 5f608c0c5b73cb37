package proc

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/procstatus"
)

// closedBit in Process.users says that Close was called; the bits below count
// the calls under way.
const closedBit = 1 << 62

// Process is the memory of a process, held by descriptors and by the pid of its
// keeper (package keeper), which names one address space for as long as it
// lives. All methods may be called at the same time from several goroutines;
// none waits for another. Close may be called at any time: the descriptors are
// closed when the last call that is under way has returned, so that no call ever
// meets a descriptor number that has become another file.
type Process struct {
	pid    int // of the process, for messages
	keeper int
	users  atomic.Int64

	pidfd    int // the process
	keeperFD int // pidfd of the keeper
	end      int // epoll of keeperFD: half the price of a poll for each move
	dir      int // /proc/KEEPER
	pagemap  int // of the address space, as is the next
	maps     int

	query bool // PROCMAP_QUERY is there
	memo  memo

	text mapsText // for kernels without PROCMAP_QUERY
}

// OpenPID opens the memory of the process pid without a keeper: it is named by
// the process's own pid. For tools, and for processes that do not execute other
// programs: what is moved after an exec reaches the new image.
func OpenPID(pid int) (*Process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		if errors.Is(err, unix.ESRCH) {
			err = ErrGone
		}
		return nil, &Error{"open", pid, 0, err}
	}
	defer unix.Close(fd)
	return Open(fd, fd)
}

// Open opens the address space that the process behind pidfd has now, and that
// the task behind keeperfd shares. It makes duplicates of both. The kernel is
// asked whether the caller may reach both (ptrace(2), "Ptrace access mode
// checking"), here and at every later call. It returns ErrGone for a process
// that has ended, ErrPermission where the kernel refuses, ErrFiltered where the caller
// may move no memory at all, ErrKeeper where the two do not share an address space, and
// ErrUnproven where kcmp(2), which shows that they do, is not to be had.
func Open(pidfd, keeperfd int) (*Process, error) { return OpenProbe(pidfd, keeperfd, 0) }

// OpenProbe is like Open, but does without kcmp(2) where a seccomp filter refuses
// it or the kernel lacks it. probe is then the address of an absent page of the
// process that nothing touches (package keeper): a read by the keeper's pid brings
// it in, and the process's page table shows it. That tells the process's keeper
// from a task of another address space, a forked child included. A process that
// names a foreign task on purpose can have it look the same, so the caller must
// have no right that the process lacks.
func OpenProbe(pidfd, keeperfd int, probe device.VA) (*Process, error) {
	pid, err := PIDOf(pidfd)
	if err != nil {
		return nil, &Error{"open", pid, 0, err}
	}
	p, err := open(pidfd, keeperfd, pid, probe)
	if err != nil {
		return nil, &Error{"open", pid, 0, err}
	}
	return p, nil
}

// PIDOf reads the pid behind a pidfd from /proc/self/fdinfo, which every kernel
// with pidfds has.
func PIDOf(pidfd int) (int, error) {
	b, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(pidfd))
	if err != nil {
		return 0, fmt.Errorf("read the pid of descriptor %d: %w", pidfd, err)
	}
	v, ok := procstatus.Field(b, "Pid")
	if !ok {
		return 0, fmt.Errorf("descriptor %d is no pidfd: %w", pidfd, unix.EBADF)
	}
	pid, err := strconv.Atoi(v)
	if err != nil || pid <= 0 {
		return 0, ErrGone // -1 once it is reaped, 0 in another pid namespace
	}
	return pid, nil
}

// Look opens a process to be looked at: its number and what of its memory is
// locked. It needs no right over it; all else fails.
func Look(pidfd int) (*Process, error) {
	p := &Process{pidfd: -1, keeperFD: -1, end: -1, dir: -1, pagemap: -1, maps: -1}
	var err error
	if p.pid, err = PIDOf(pidfd); err != nil {
		return nil, &Error{"open", 0, 0, err}
	}
	p.keeper = p.pid
	p.dir, err = unix.Open("/proc/"+strconv.Itoa(p.pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		p.pidfd, err = unix.FcntlInt(uintptr(pidfd), unix.F_DUPFD_CLOEXEC, 0)
	}
	if err == nil {
		p.keeperFD, err = unix.FcntlInt(uintptr(pidfd), unix.F_DUPFD_CLOEXEC, 0)
	}
	if err == nil && dead(p.pidfd) {
		err = ErrGone
	}
	if err != nil {
		p.closeDescriptors()
		return nil, &Error{"open", p.pid, 0, err}
	}
	return p, nil
}

// LookSelf is Look for the caller.
func LookSelf() (*Process, error) {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return nil, &Error{"open", os.Getpid(), 0, err}
	}
	defer unix.Close(fd)
	return Look(fd)
}

// Alive tells whether the process behind a pidfd has not ended.
func Alive(pidfd int) bool { return !dead(pidfd) }

func open(pidfd, keeperfd, pid int, probe device.VA) (_ *Process, err error) {
	p := &Process{pid: pid, pidfd: -1, keeperFD: -1, end: -1, dir: -1, pagemap: -1, maps: -1}
	p.memo.idle.Store(true)
	defer func() {
		if err != nil {
			p.closeDescriptors()
		}
	}()
	if p.keeper, err = PIDOf(keeperfd); err != nil {
		return nil, err
	}
	if p.pidfd, err = unix.FcntlInt(uintptr(pidfd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("duplicate the pidfd: %w", err)
	}
	if p.keeperFD, err = unix.FcntlInt(uintptr(keeperfd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("duplicate the keeper's pidfd: %w", err)
	}
	if p.end, err = watch(p.keeperFD); err != nil {
		return nil, fmt.Errorf("watch the keeper's pidfd: %w", err)
	}
	if p.dir, err = unix.Open("/proc/"+strconv.Itoa(p.keeper), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return nil, p.openError("", err)
	}
	if p.pagemap, err = p.openat("pagemap", unix.O_RDONLY); err != nil {
		return nil, err
	}
	if p.maps, err = p.openat("maps", unix.O_RDONLY); err != nil {
		return nil, err
	}
	if err = mayMove(p.keeper); err == nil {
		err = p.shares(probe)
	}
	// Both numbers were the two tasks' all the time if both are there still. The
	// dead have no memory, which is another than anybody's.
	if dead(p.pidfd) || dead(p.keeperFD) {
		return nil, ErrGone
	}
	if err != nil {
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

// dead tells whether the process behind a pidfd has ended.
func dead(pidfd int) bool {
	f := unix.PollFd{Fd: int32(pidfd), Events: unix.POLLIN}
	return poll(&f) && f.Revents != 0
}

// watch returns an epoll descriptor that tells whether the process behind a pidfd
// has ended (ended).
func watch(pidfd int) (int, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return -1, os.NewSyscallError("epoll_create1", err)
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(pidfd)}
	if err := unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, pidfd, &ev); err != nil {
		_ = unix.Close(fd) // nothing of ours is in it
		return -1, os.NewSyscallError("epoll_ctl", err)
	}
	return fd, nil
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
		if dead(p.keeperFD) {
			return ErrGone
		}
		return fmt.Errorf("open /proc/PID/%s: %w (%w)", name, ErrPermission, err)
	}
	return fmt.Errorf("open /proc/PID/%s: %w", name, err)
}

// PID returns the process's number, as it was at Open. It is for messages.
func (p *Process) PID() int { return p.pid }

// Keeper returns the number by which the memory is named in calls that take a
// pid; ErrGone once nothing has it any more.
func (p *Process) Keeper() (int, error) {
	if !p.enter() {
		return 0, &Error{"name", p.pid, 0, ErrClosed}
	}
	defer p.leave()
	if ended(p.end) {
		return 0, &Error{"name", p.pid, 0, ErrGone}
	}
	return p.keeper, nil
}

// PIDFD gives the process's pidfd, which belongs to p and is good until Close.
func (p *Process) PIDFD() int { return p.pidfd }

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
	sum, err := procstatus.Bytes(b, "VmLck", "VmPin")
	if errors.Is(err, procstatus.ErrNone) {
		err = ErrGone // a zombie has no memory
	}
	if err != nil {
		return 0, &Error{"status", p.pid, 0, err}
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
	for _, fd := range [...]int{p.pidfd, p.keeperFD, p.end, p.dir, p.pagemap, p.maps} {
		if fd >= 0 {
			// Nothing is buffered behind these files: closing cannot fail
			// in a way that matters.
			_ = unix.Close(fd)
		}
	}
}
