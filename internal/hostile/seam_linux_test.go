package hostile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"structs"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The seam makes system calls of a child process fail one at a time, without the program's
// cooperation. The sweep uses it to check that pfd then keeps its promises.
//
// The kernel asks before each call that is listed in sysCalls (seccomp(2),
// SECCOMP_RET_USER_NOTIF), and the answer is to continue, or an error. So no call of the
// program is missed, whether pfd, package net or the Go runtime makes it. The list omits calls
// that cannot fail in a way that matters (close, munmap of whole mappings, queries of numbers)
// and those that the runtime makes for itself without handling errors (memory, threads,
// signals, futex, its poller).

// Structures of linux/seccomp.h.
type (
	seamData struct {
		_    structs.HostLayout
		nr   int32
		arch uint32
		ip   uint64
		args [6]uint64
	}
	seamNotif struct {
		_     structs.HostLayout
		id    uint64
		pid   uint32
		flags uint32
		data  seamData
	}
	seamAnswer struct {
		_     structs.HostLayout
		id    uint64
		val   int64
		error int32
		flags uint32
	}
)

// seamFilter returns a filter that asks about every listed call and allows the others.
func seamFilter(calls []sysCall) []unix.SockFilter {
	// Offsets in struct seccomp_data (linux/seccomp.h).
	const offNR, offArch = 0, 4
	f := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offArch},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: auditArch, Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offNR},
	}
	for _, c := range calls {
		pass := uint8(1) // jumps over the answer
		if c.mask != 0 {
			pass = 4
		}
		f = append(f, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(c.nr), Jf: pass})
		if c.mask != 0 {
			f = append(f,
				unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: uint32(16 + 8*c.arg)},
				unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: uint32(c.mask)},
				unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(c.value), Jf: 1})
		}
		f = append(f, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF})
		if c.mask != 0 {
			f = append(f, unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offNR})
		}
	}
	return append(f, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
}

// seamExec executes another program, whose listed calls wait for a seamWatcher's answer. It
// stops until seamWatch has found it, and returns only on error.
func seamExec(path string, args, env []string) error {
	runtime.LockOSThread() // the filter applies to this thread, which executes the program
	f := seamFilter(sysCalls())
	prog := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl PR_SET_NO_NEW_PRIVS", err)
	}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return fmt.Errorf("%w: %w", errNoSeam, os.NewSyscallError("seccomp", errno))
	}
	// Signal this thread: with kill another thread could take the signal, and this one would
	// execute the program before the process stops, and close the filter's descriptor.
	if err := unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGSTOP); err != nil {
		return os.NewSyscallError("tgkill", err)
	}
	return os.NewSyscallError("execve", syscall.Exec(path, args, env))
}

// errNoSeam reports that this kernel does not support answering calls.
var errNoSeam = errors.New("system calls cannot be answered for another process (seccomp user notification, Linux 5.19)")

// seamWatcher answers the calls in place of the kernel. It is safe for concurrent use.
type seamWatcher struct {
	fd    int
	pid   int
	calls []sysCall
	over  chan struct{}

	mu     sync.Mutex
	counts []int
	call   int // index of the armed call; -1: none
	nth    int
	errno  syscall.Errno
	hit    bool
}

// seamWatch finds a child that is in seamExec, resumes it, and answers its calls until it has
// ended. At first all calls continue.
func seamWatch(pid int) (*seamWatcher, error) {
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_PID, pid, &info, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		return nil, os.NewSyscallError("waitid", err)
	}
	listener, err := listenerOf(pid)
	if err != nil {
		return nil, err
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, listener, 0)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_getfd", err)
	}
	w := &seamWatcher{fd: fd, pid: pid, calls: sysCalls(), over: make(chan struct{}), call: -1}
	w.counts = make([]int, len(w.calls))
	go w.serve()
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		return nil, os.NewSyscallError("kill", err)
	}
	return w, nil
}

func listenerOf(pid int) (int, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return -1, err
	}
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && to == "anon_inode:seccomp notify" {
			return strconv.Atoi(e.Name())
		}
	}
	return -1, errNoSeam
}

// Arm makes the n-th call of a kind from now on fail once.
func (w *seamWatcher) Arm(call string, nth int, errno syscall.Errno) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.call = -1
	for i := range w.calls {
		w.counts[i] = 0
		if w.calls[i].Name == call {
			w.call = i
		}
	}
	w.nth, w.errno, w.hit = nth, errno, false
}

// ArmKill kills the program (SIGKILL) when it makes the n-th call of a kind from now on; the
// call is not made.
func (w *seamWatcher) ArmKill(call string, nth int) { w.Arm(call, nth, killInstead) }

// killInstead stands for SIGKILL in place of an error; errors are never negative. Defined by
// this project.
const killInstead = syscall.Errno(^uintptr(0))

// Hit reports whether the last armed call has failed.
func (w *seamWatcher) Hit() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hit
}

// Counts returns how often each call was made since the last Arm, by name.
func (w *seamWatcher) Counts() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := map[string]int{}
	for i, n := range w.counts {
		if n > 0 {
			m[w.calls[i].Name] = n
		}
	}
	return m
}

// Wait waits until the program has ended.
func (w *seamWatcher) Wait() { <-w.over }

func (w *seamWatcher) serve() {
	defer close(w.over)
	defer unix.Close(w.fd)
	// The notification wakes synchronously, on one processor, if the kernel can (Linux 6.6).
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(w.fd), seamSetFlags, unix.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP)
	for {
		p := []unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(p, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		if p[0].Revents&unix.POLLIN == 0 {
			if p[0].Revents != 0 {
				return // no process uses the filter any longer
			}
			continue
		}
		var n seamNotif
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(w.fd), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n)))
		if errno != 0 {
			continue // interrupted, or killed meanwhile
		}
		r := seamAnswer{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		switch e := w.decide(&n); e {
		case 0:
		case killInstead:
			_ = unix.Kill(w.pid, unix.SIGKILL) // a child that was not waited for, so the pid is valid
			continue
		default:
			r.flags, r.error = 0, -int32(e)
		}
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, uintptr(w.fd), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&r)))
		if errno != 0 && r.flags == 0 {
			w.again() // it was killed, or interrupted: the call did not fail
		}
	}
}

// seamSetFlags is SECCOMP_IOCTL_NOTIF_SET_FLAGS (linux/seccomp.h).
const seamSetFlags = unix.SECCOMP_IOCTL_NOTIF_SET_FLAGS

func (w *seamWatcher) decide(n *seamNotif) syscall.Errno {
	i := findCall(w.calls, n)
	if i < 0 {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[i]++
	if i != w.call || w.hit || w.counts[i] != w.nth {
		return 0
	}
	w.hit = true
	return w.errno
}

func (w *seamWatcher) again() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hit = false
	w.nth++
}
