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

// child is a process that was forked while a buffer was present and shares
// its pages. It waits for requests and answers whether its copy of the buffer is still
// what it was at the fork.
//
// Go cannot fork without exec, because only the calling thread continues in the
// child. The child therefore runs one function that uses only raw system calls,
// cannot grow its stack and receives no signal.
type child struct {
	process *os.Process
	request *os.File // each byte is a request; end of file ends the child
	answer  *os.File // each byte is an answer
}

// Answers of a child. Values are defined by this project.
const (
	childKept = 'k'
	childLost = 'l'
)

// childPatience bounds the time in which a child checks its bytes.
const childPatience = 60 * time.Second

// fork makes a child that shares area, which must contain the pattern of seed.
func fork(area []byte, seed uint64) (*child, error) {
	request, ask, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("fork: %w", err)
	}
	defer request.Close() // the child has its own
	answer, say, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("fork: %w", err), ask.Close())
	}
	defer say.Close()
	pid, errno := rawFork(request.Fd(), say.Fd(), area, seed)
	if errno != 0 {
		return nil, errors.Join(fmt.Errorf("fork: %w", errno), ask.Close(), answer.Close())
	}
	c := &child{request: ask, answer: answer}
	if c.process, err = os.FindProcess(int(pid)); err != nil {
		return nil, errors.Join(fmt.Errorf("fork: %w", err), ask.Close(), answer.Close()) // closing ask ends the child
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

// forkChild forks and runs the child. It returns in the parent only.
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
	// This is the child. It closes all descriptors of the parent but the two pipe ends:
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

// check reports whether the child still has its own bytes.
func (c *child) check() (bool, error) {
	if _, err := c.request.Write([]byte{'?'}); err != nil {
		return false, fmt.Errorf("forked child %d: %w", c.process.Pid, err)
	}
	if err := c.answer.SetReadDeadline(time.Now().Add(childPatience)); err != nil {
		return false, fmt.Errorf("forked child %d: %w", c.process.Pid, err)
	}
	var b [1]byte
	if _, err := c.answer.Read(b[:]); err != nil {
		return false, fmt.Errorf("forked child %d: %w", c.process.Pid, err)
	}
	return b[0] == childKept, nil
}

// close ends the child and waits for it.
func (c *child) close() error {
	err := errors.Join(c.request.Close(), c.answer.Close())
	e := c.process.Kill() // it may be in the middle of a check
	if e == nil {
		_, e = c.process.Wait()
	}
	if e != nil {
		err = errors.Join(err, fmt.Errorf("forked child %d: %w", c.process.Pid, e))
	}
	return err
}
