package keeper

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Keeper is a keeper of the calling process.
type Keeper struct {
	pid   int
	pidfd int
	hold  int // a file that this process has locked; the keeper ends when it is unlocked
	// memory is the page that the keeper runs on, and a second page that stays absent. A
	// process that may not call kcmp(2) proves with the second that the two tasks share an
	// address space (proc.OpenProbe, docs/attach.md 9).
	memory []byte
	page   []byte // the first page of memory

	once sync.Once
	err  error
}

// Layout of the page that the keeper runs on: the data of its first system calls, and its
// stack, which only the kernel's entry uses.
const (
	pageName   = 0    // its name, for ps(1)
	pageProg   = 16   // struct sock_fprog
	pageFilter = 64   // struct sock_filter, filterLen of them
	pageTracer = 512  // u64: for Yama: this pid and its descendants may access the keeper's memory
	pageReady  = 520  // u32: 1 once the keeper is confined
	pageLock   = 1024 // struct flock, of the whole file
	pageProof  = 2048 // the Proof, ProofSize random bytes
	filterLen  = 8
)

// ProofSize is the size of a Proof in bytes.
const ProofSize = 16

// Numbers of linux/bpf_common.h, linux/seccomp.h and linux/audit.h.
const (
	bpfLoad = 0x20 // BPF_LD | BPF_W | BPF_ABS
	bpfJump = 0x15 // BPF_JMP | BPF_JEQ | BPF_K
	bpfRet  = 0x06 // BPF_RET | BPF_K

	seccompAllow       = 0x7fff0000
	seccompKillProcess = 0x80000000
	dataNumber         = 0  // seccomp_data.nr
	dataArch           = 4  // seccomp_data.arch
	dataArg1           = 24 // seccomp_data.args[1], its lower half (little-endian)
)

// spawn creates the task. The child closes all descriptors but hold, sets its name, its
// ptracer, no_new_privs and its seccomp filter from page, and then pageReady; it then waits for
// the lock of hold. It exits with the errno of a step that fails. spawn returns only in the
// parent: the child's pid, or a negative errno.
func spawn(flags, stack uintptr, pidfd unsafe.Pointer, hold uintptr, page unsafe.Pointer) int

// Start creates a keeper of the calling process's current address space. Under Yama
// (ptrace_scope 1) this process and its descendants may access the keeper's memory.
func Start() (*Keeper, error) { return StartFor(os.Getpid()) }

// StartFor is like Start, but the process ptracer and its descendants have the access. Yama
// treats the keeper as a process of its own: PR_SET_PTRACER calls of the process itself do not
// apply to it.
//
// If another thread closes a descriptor while the keeper is created, the keeper may hold the
// last copy, and closing a socket that lingers (SO_LINGER) takes long. StartFor kills such a
// keeper, which drops the copy at once; the next one does not inherit it.
func StartFor(ptracer int) (*Keeper, error) {
	for limit := readyFirst; ; limit *= 2 {
		k, err := start(ptracer, limit)
		if !errors.Is(err, os.ErrDeadlineExceeded) || limit >= readyMost {
			return k, err
		}
	}
}

// start creates a keeper that must be ready within limit.
func start(ptracer int, limit time.Duration) (*Keeper, error) {
	k := &Keeper{pidfd: -1, hold: -1}
	err := k.lock()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("making a keeper: %w", err), k.Close())
	}
	if err := k.mmap(); err != nil {
		return nil, errors.Join(fmt.Errorf("making a keeper: %w", err), k.Close())
	}
	prepare(k.page, ptracer)
	if _, err := rand.Read(k.page[pageProof : pageProof+ProofSize]); err != nil {
		return nil, errors.Join(fmt.Errorf("making a keeper: %w", err), k.Close())
	}
	pid, err := k.spawn()
	if err != nil {
		if err = os.NewSyscallError("clone", err); errors.Is(err, unix.EAGAIN) {
			err = fmt.Errorf("%w: out of processes (ulimit -u, pids.max)", err)
		}
		return nil, errors.Join(fmt.Errorf("making a keeper: %w", err), k.Close())
	}
	k.pid = pid
	if err := k.ready(limit); err != nil {
		return nil, errors.Join(fmt.Errorf("making a keeper: closing its descriptors, or its seccomp filter: %w", err), k.Close())
	}
	return k, nil
}

// mmap maps the memory of the keeper.
func (k *Keeper) mmap() (err error) {
	size := os.Getpagesize()
	if k.memory, err = unix.Mmap(-1, 0, 2*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
		return os.NewSyscallError("mmap", err)
	}
	k.page = k.memory[:size:size]
	// A separate mapping, so that a neighbour's huge page cannot make it present.
	absent := k.memory[size:]
	if err := unix.Mprotect(absent, unix.PROT_READ); err != nil {
		return os.NewSyscallError("mprotect", err)
	}
	// mlockall(2) has made it present. A failure leaves it present, which matters only without
	// kcmp.
	_ = unix.Munlock(absent)
	_ = unix.Madvise(absent, unix.MADV_DONTNEED)
	return nil
}

// lock creates the file whose lock the keeper waits for: one end of a pipe, which needs no file
// system. A process loses its record locks (fcntl(2)) when it exits, executes another program
// or closes the file. A forked child inherits the descriptor but not the lock.
func (k *Keeper) lock() error {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return os.NewSyscallError("pipe2", err)
	}
	k.hold = p[1]
	// Close this end first: closing any descriptor of the file releases the lock.
	if err := unix.Close(p[0]); err != nil {
		return os.NewSyscallError("close", err)
	}
	return os.NewSyscallError("fcntl F_SETLK", unix.FcntlFlock(uintptr(k.hold), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}))
}

// Timing of the wait for a keeper. Values below are defined by this project.
const (
	readyPause = 20 * time.Microsecond  // between two checks
	readyFirst = 100 * time.Millisecond // limit for the first keeper; doubled for each further one
	readyMost  = 1600 * time.Millisecond
)

// ready waits until the keeper is confined. Until then the keeper has the process's
// descriptors, and under Yama its memory is not accessible. After limit the error is
// os.ErrDeadlineExceeded.
func (k *Keeper) ready(limit time.Duration) error {
	deadline := time.Now().Add(limit)
	word := (*uint32)(unsafe.Pointer(&k.page[pageReady]))
	for atomic.LoadUint32(word) == 0 {
		var st unix.WaitStatus
		pid, err := unix.Wait4(k.pid, &st, unix.WCLONE|unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return os.NewSyscallError("wait4", err)
		case pid == 0 && time.Now().After(deadline):
			return fmt.Errorf("not ready after %v: %w", limit, os.ErrDeadlineExceeded)
		case pid == 0:
			time.Sleep(readyPause)
		case st.Exited():
			return unix.Errno(st.ExitStatus())
		default:
			return unix.ESRCH // killed
		}
	}
	return nil
}

func prepare(page []byte, ptracer int) {
	copy(page[pageName:], "exanet-keeper")
	insn := [filterLen]struct {
		code   uint16
		jt, jf uint8
		k      uint32
	}{
		{bpfLoad, 0, 0, dataArch},
		{bpfJump, 0, 5, auditArch},
		{bpfLoad, 0, 0, dataNumber},
		{bpfJump, 4, 0, unix.SYS_EXIT},
		{bpfJump, 0, 2, unix.SYS_FCNTL},
		{bpfLoad, 0, 0, dataArg1},
		{bpfJump, 1, 0, unix.F_SETLKW},
		{bpfRet, 0, 0, seccompKillProcess},
	}
	// There is one return more than in the table: the last jumps go to kill and allow.
	at := page[pageFilter:]
	for _, i := range insn {
		binary.NativeEndian.PutUint16(at, i.code)
		at[2], at[3] = i.jt, i.jf
		binary.NativeEndian.PutUint32(at[4:], i.k)
		at = at[8:]
	}
	binary.NativeEndian.PutUint16(at, bpfRet)
	binary.NativeEndian.PutUint32(at[4:], seccompAllow)
	binary.NativeEndian.PutUint64(page[pageTracer:], uint64(ptracer))
	binary.NativeEndian.PutUint16(page[pageLock:], unix.F_WRLCK) // the whole file
	prog := page[pageProg:]
	binary.NativeEndian.PutUint16(prog, filterLen+1)
	binary.NativeEndian.PutUint64(prog[8:], uint64(uintptr(unsafe.Pointer(&page[pageFilter]))))
}

// spawn calls the assembly with all signals blocked. The keeper inherits the mask, so that no
// signal handler of the process runs in it.
func (k *Keeper) spawn() (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	all, old := ^uint64(0), uint64(0)
	const size = unsafe.Sizeof(all) // of the kernel's sigset_t
	if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK,
		uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&old)), size, 0, 0); errno != 0 {
		return 0, errno
	}
	pidfd := int32(-1)
	// Without an exit signal, a wait for any child does not return the keeper.
	const flags = unix.CLONE_VM | unix.CLONE_PIDFD
	stack := uintptr(unsafe.Pointer(&k.page[0])) + uintptr(len(k.page))
	pid := spawn(flags, stack, unsafe.Pointer(&pidfd), uintptr(k.hold), unsafe.Pointer(&k.page[0]))
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK,
		uintptr(unsafe.Pointer(&old)), 0, size, 0, 0) // restoring the old mask cannot fail
	if pid < 0 {
		return 0, unix.Errno(-pid)
	}
	k.pidfd = int(pidfd)
	return pid, nil
}

// PID returns the keeper's pid in the process's own pid namespace.
func (k *Keeper) PID() int { return k.pid }

// PIDFD returns a pidfd of the keeper, which the keeper owns.
func (k *Keeper) PIDFD() int { return k.pidfd }

// Proof returns random bytes and their address in the process's memory, where they stay until
// Close. Knowing them proves the right to read that memory.
func (k *Keeper) Proof() (va uint64, b [ProofSize]byte) {
	return uint64(uintptr(unsafe.Pointer(&k.page[pageProof]))), [ProofSize]byte(k.page[pageProof:])
}

// Close ends the keeper and waits until it has ended. A process that still uses the keeper's
// pidfd finds no process. Further calls do nothing.
func (k *Keeper) Close() error {
	k.once.Do(func() {
		var errs []error
		if k.hold >= 0 {
			errs = append(errs, os.NewSyscallError("close", unix.Close(k.hold)))
		}
		if k.pid > 0 {
			if err := unix.PidfdSendSignal(k.pidfd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, os.NewSyscallError("pidfd_send_signal", err))
			}
			for {
				_, err := unix.Wait4(k.pid, nil, unix.WCLONE, nil)
				if !errors.Is(err, unix.EINTR) {
					break // ECHILD: another wait of the process, with __WALL, has reaped it
				}
			}
			errs = append(errs, os.NewSyscallError("close", unix.Close(k.pidfd)))
		}
		if k.memory != nil {
			errs = append(errs, os.NewSyscallError("munmap", unix.Munmap(k.memory)))
		}
		k.err = errors.Join(errs...)
	})
	return k.err
}
