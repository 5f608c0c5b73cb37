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

// closedBit in Process.users says that Close was called; the bits below it count the calls in
// progress.
const closedBit = 1 << 62

// Process is the memory of a process. It is held by descriptors and by the pid of its keeper
// (package keeper), which names one address space for as long as the keeper lives. All methods,
// Close too, are safe for concurrent use, and none waits for another. After Close the last call
// in progress closes the descriptors, so no call can use a descriptor number that has been
// reused.
type Process struct {
	pid    int // of the process, for messages
	keeper int
	users  atomic.Int64

	pidfd    int // the process
	keeperFD int // pidfd of the keeper
	end      int // epoll of keeperFD: half the cost of a poll for each move
	dir      int // /proc/KEEPER
	pagemap  int // of the address space, as is the next
	maps     int

	query bool // the kernel has PROCMAP_QUERY
	memo  memo

	text mapsText // for kernels without PROCMAP_QUERY

	counted atomic.Int64 // when FreshCounts has last done its work, in ns since 1970
}

// OpenPID opens the memory of the process pid by the process's own pid, without a keeper. It is
// for tools and for processes that do not execute other programs: after an exec a move reaches
// the new image.
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

// Open opens the address space that the process behind pidfd has now and that the task behind
// keeperfd shares. It duplicates both descriptors. The kernel checks here, and at every later
// call, that the caller may access both (ptrace(2), "Ptrace access mode checking"). Open returns
// ErrGone if the process has ended, ErrPermission if the kernel refuses, ErrFiltered if the
// caller may not move memory at all, ErrKeeper if the two do not share an address space, and
// ErrUnproven if kcmp(2), which checks that, cannot be used.
func Open(pidfd, keeperfd int) (*Process, error) { return OpenProbe(pidfd, keeperfd, 0) }

// OpenProbe is like Open, but does not need kcmp(2), which a seccomp filter may refuse or the
// kernel may lack. probe is the address of an absent page of the process that nothing touches
// (package keeper). OpenProbe reads it by the keeper's pid, which pages it in, and looks for it
// in the process's page table. That distinguishes the process's keeper from a task of another
// address space, a forked child included. A process that names another's task on purpose can
// forge this, so the caller must have no right that the process lacks.
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

// PIDOf returns the pid behind a pidfd. It reads /proc/self/fdinfo, which every kernel with
// pidfds has.
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

// Look opens a process only for PID and Locked; every other method fails. It needs no right over
// the process.
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

// LookSelf is like Look, for the calling process.
func LookSelf() (*Process, error) {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return nil, &Error{"open", os.Getpid(), 0, err}
	}
	defer unix.Close(fd)
	return Look(fd)
}

// Alive reports whether the process behind a pidfd has not ended.
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
	// If neither task has ended by now, neither pid was reused. A process that has ended has no
	// memory, so its comparison failed.
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

// dead reports whether the process behind a pidfd has ended.
func dead(pidfd int) bool {
	f := unix.PollFd{Fd: int32(pidfd), Events: unix.POLLIN}
	return poll(&f) && f.Revents != 0
}

// watch returns an epoll descriptor for ended, which becomes ready when the process behind pidfd
// ends.
func watch(pidfd int) (int, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return -1, os.NewSyscallError("epoll_create1", err)
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(pidfd)}
	if err := unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, pidfd, &ev); err != nil {
		_ = unix.Close(fd) // the descriptor is unused
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
		// A process that has ended has no address space, and the kernel refuses it to all but
		// root.
		if dead(p.keeperFD) {
			return ErrGone
		}
		return fmt.Errorf("open /proc/PID/%s: %w (%w)", name, ErrPermission, err)
	}
	return fmt.Errorf("open /proc/PID/%s: %w", name, err)
}

// PID returns the process's pid at Open, for messages.
func (p *Process) PID() int { return p.pid }

// Keeper returns the pid that names the memory in system calls, or ErrGone if the address space
// is gone.
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

// PIDFD returns the process's pidfd. It belongs to p and is valid until Close.
func (p *Process) PIDFD() int { return p.pidfd }

// Locked returns how many bytes of the process's memory cannot be paged out, because they are
// locked (VmLck) or pinned (VmPin in /proc/PID/status).
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

// enter begins a call; it returns false if p is closed.
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

// leave ends a call; the last one after Close closes the descriptors.
func (p *Process) leave() {
	if p.users.Add(-1) == closedBit {
		p.closeDescriptors()
	}
}

// Close closes p. Calls in progress finish normally; later ones return ErrClosed. A second Close
// does nothing.
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
			_ = unix.Close(fd) // these files buffer nothing: no error matters
		}
	}
}
