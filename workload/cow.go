package workload

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// child is a process that was forked off while a buffer was present and shares
// its pages. It waits, and says on request whether the buffer is, for it, what
// it was at the fork.
//
// Go cannot fork without exec, since only the calling thread lives on in the
// child. The child therefore runs one function that uses raw system calls only,
// cannot grow its stack and takes no signal.
type child struct {
	pid     int
	request *os.File // a byte asks, the end of file ends the child
	answer  *os.File // a byte answers
}

// Answers of a child.
const (
	childKept = 'k'
	childLost = 'l'
)

// childPatience is how long a child may take to look at its bytes.
const childPatience = 60 * time.Second

// fork makes a child that shares area, which holds the pattern of seed.
func fork(area []byte, seed uint64) (*child, error) {
	var req, ans [2]int // the read end, the write end
	if err := unix.Pipe2(req[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("fork: pipe: %w", err)
	}
	if err := unix.Pipe2(ans[:], unix.O_CLOEXEC); err != nil {
		return nil, errors.Join(fmt.Errorf("fork: pipe: %w", err), unix.Close(req[0]), unix.Close(req[1]))
	}
	pid, errno := rawFork(uintptr(req[0]), uintptr(ans[1]), area, seed)
	err := errors.Join(unix.Close(req[0]), unix.Close(ans[1]))
	if errno != 0 {
		return nil, errors.Join(fmt.Errorf("fork: %w", errno), err, unix.Close(req[1]), unix.Close(ans[0]))
	}
	// Not blocking, so that a read has a deadline.
	err = errors.Join(err, unix.SetNonblock(ans[0], true))
	c := &child{pid: int(pid), request: os.NewFile(uintptr(req[1]), "request"), answer: os.NewFile(uintptr(ans[0]), "answer")}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("fork: %w", err), c.close())
	}
	return c, nil
}

// rawFork forks with all signals blocked, so that none reaches the Go runtime
// in the child.
//
//go:norace
func rawFork(request, answer uintptr, area []byte, seed uint64) (uintptr, unix.Errno) {
	all, old := ^uint64(0), uint64(0)
	const sigsetSize = 8
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&old)), sigsetSize, 0, 0); errno != 0 {
		return 0, errno
	}
	pid, errno := forkChild(request, answer, area, seed)
	_, _, restored := unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&old)), 0, sigsetSize, 0, 0)
	if errno == 0 {
		errno = restored
	}
	return pid, errno
}

// forkChild returns in the parent only.
//
//go:norace
//go:nosplit
//go:noinline
//go:nocheckptr
func forkChild(request, answer uintptr, area []byte, seed uint64) (uintptr, unix.Errno) {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		return pid, errno
	}
	// The child. Of the parent's descriptors it keeps the two pipe ends only:
	// an attachment must not outlive its process.
	_, _, e1 := unix.RawSyscall(unix.SYS_DUP3, request, 0, 0)
	_, _, e2 := unix.RawSyscall(unix.SYS_DUP3, answer, 1, 0)
	_, _, e3 := unix.RawSyscall(unix.SYS_CLOSE_RANGE, 2, uintptr(^uint32(0)), 0)
	var b [1]byte
	for e1|e2|e3 == 0 {
		n, _, errno := unix.RawSyscall(unix.SYS_READ, 0, uintptr(unsafe.Pointer(&b)), 1)
		if errno != 0 || n != 1 {
			break
		}
		b[0] = childKept
		for i := 0; i+8 <= len(area); i += 8 {
			if binary.LittleEndian.Uint64(area[i:]) != word(seed, uint64(i/8)) {
				b[0] = childLost
				break
			}
		}
		if _, _, errno := unix.RawSyscall(unix.SYS_WRITE, 1, uintptr(unsafe.Pointer(&b)), 1); errno != 0 {
			break
		}
	}
	for {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
}

// check asks the child whether it still has its own bytes.
func (c *child) check() (bool, error) {
	if _, err := c.request.Write([]byte{'?'}); err != nil {
		return false, fmt.Errorf("forked child %d: %w", c.pid, err)
	}
	if err := c.answer.SetReadDeadline(time.Now().Add(childPatience)); err != nil {
		return false, fmt.Errorf("forked child %d: %w", c.pid, err)
	}
	var b [1]byte
	if _, err := c.answer.Read(b[:]); err != nil {
		return false, fmt.Errorf("forked child %d: %w", c.pid, err)
	}
	return b[0] == childKept, nil
}

// close ends the child and waits for it.
func (c *child) close() error {
	errs := []error{c.request.Close(), c.answer.Close()}
	// It may be looking at its bytes: what it finds does not matter any more.
	if err := unix.Kill(c.pid, unix.SIGKILL); err != nil {
		errs = append(errs, fmt.Errorf("forked child %d: kill: %w", c.pid, err))
	}
	for {
		_, err := unix.Wait4(c.pid, nil, 0, nil)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			errs = append(errs, fmt.Errorf("forked child %d: wait: %w", c.pid, err))
			break
		}
	}
	return errors.Join(errs...)
}
