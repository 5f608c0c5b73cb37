package proctest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/keeper"
)

// child is the main function of a child. It serves on another thread because the test may make
// the first one end.
func child() int {
	runtime.LockOSThread()
	leader := unix.Gettid()
	ended, leave := make(chan error), make(chan struct{})
	go func() { ended <- serve(os.Stdin, os.Stdout, leader, leave) }()
	select {
	case <-leave:
		_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0) // this thread alone
		return 1
	case err := <-ended:
		if err != nil {
			fmt.Fprintln(os.Stderr, "proctest child:", err)
			return 1
		}
		return 0
	}
}

// serve reads commands from in and answers each with one line. Closing leave ends the thread
// leader.
func serve(in io.Reader, out io.Writer, leader int, leave chan<- struct{}) error {
	runtime.LockOSThread() // forked processes die with this thread
	k, err := keeper.Start()
	if err != nil {
		return err
	}
	s := &server{out: out, keeper: k, leader: leader, leave: leave}
	r := bufio.NewScanner(in)
	fmt.Fprintln(out, "ready", k.PID())
	for r.Scan() {
		answer, err := s.do(r.Text())
		if err != nil {
			answer = "error " + err.Error()
		}
		if _, err := fmt.Fprintln(out, answer); err != nil {
			return err
		}
	}
	for _, pid := range s.forks {
		s.reap(pid)
	}
	return errors.Join(r.Err(), k.Close())
}

type region struct {
	addr uintptr
	b    []byte
}

type server struct {
	out     io.Writer
	keeper  *keeper.Keeper
	leader  int
	leave   chan<- struct{}
	regions []region
	forks   []int
}

func (s *server) do(line string) (string, error) {
	var op, kind string
	var addr, pages, arg uint64
	if n, err := fmt.Sscan(line, &op, &kind, &addr, &pages, &arg); n < 5 {
		return "", fmt.Errorf("command %q: %w", line, err)
	}
	switch op {
	case "map":
		return s.mmap(kind, uintptr(addr), pages)
	case "fork":
		pid, errno := fork(int32(arg))
		if errno != 0 {
			return "", errno
		}
		s.forks = append(s.forks, pid)
		return fmt.Sprint(pid), nil
	case "reap":
		return "0", s.reap(int(arg))
	case "endkeeper":
		return "0", s.keeper.Close()
	case "endleader":
		return s.endLeader()
	case "exec":
		return "", unix.Exec("/proc/self/exe", os.Args, os.Environ())
	}
	b, err := s.bytes(uintptr(addr), pages)
	if err != nil {
		return "", err
	}
	switch op {
	case "protect":
		err = unix.Mprotect(b, int(arg))
	case "lock":
		err = unix.Mlock(b)
	case "advise":
		err = unix.Madvise(b, int(arg))
	case "unmap":
		err = unmap(b)
	case "race":
		return s.race(kind, b, arg)
	case "fill":
		for i := range b {
			b[i] = byte(arg)
		}
	case "read":
		sum := 0
		for i := 0; i < len(b); i += device.PageSize {
			sum += int(b[i])
		}
		return fmt.Sprint(sum), nil
	case "count":
		n := 0
		for _, c := range b {
			if c == byte(arg) {
				n++
			}
		}
		return fmt.Sprint(n), nil
	default:
		err = errors.New("unknown command " + op)
	}
	return "0", err
}

func unmap(b []byte) error {
	return unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)))
}

// mapOver maps memory over b.
func mapOver(b []byte, fd, prot, flags int) error {
	_, err := unix.MmapPtr(fd, 0, unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)), prot, flags)
	return err
}

func (s *server) bytes(addr uintptr, pages uint64) ([]byte, error) {
	size := uintptr(pages) << device.PageShift
	for _, r := range s.regions {
		if r.addr <= addr && addr+size <= r.addr+uintptr(len(r.b)) {
			return r.b[addr-r.addr:][:size], nil
		}
	}
	return nil, fmt.Errorf("no region at %#x", addr)
}

func (s *server) mmap(kind string, addr uintptr, pages uint64) (string, error) {
	prot, flags, fd := unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE, -1
	switch kind {
	case Anon:
		flags |= unix.MAP_ANONYMOUS
	case ReadOnly:
		prot = unix.PROT_READ
		flags |= unix.MAP_ANONYMOUS
	case None:
		prot = unix.PROT_NONE
		flags |= unix.MAP_ANONYMOUS
	case Shared:
		flags = unix.MAP_SHARED | unix.MAP_ANONYMOUS
	case Memfd:
		flags = unix.MAP_SHARED
		var err error
		if fd, err = unix.MemfdCreate("proctest", unix.MFD_CLOEXEC); err != nil {
			return "", err
		}
		if err := unix.Ftruncate(fd, int64(pages)<<device.PageShift); err != nil {
			return "", err
		}
	default: // a file, mapped privately; Short: one page less in it than mapped
		var err error
		if fd, err = unix.Open(kind, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return "", err
		}
	}
	if addr != 0 {
		flags |= unix.MAP_FIXED_NOREPLACE
	}
	p, err := unix.MmapPtr(fd, 0, unsafe.Add(unsafe.Pointer(nil), addr), uintptr(pages)<<device.PageShift, prot, flags)
	if fd >= 0 {
		unix.Close(fd)
	}
	if err != nil {
		return "", err
	}
	s.regions = append(s.regions, region{uintptr(p), unsafe.Slice((*byte)(p), pages<<device.PageShift)})
	return fmt.Sprint(uint64(uintptr(p))), nil
}

// endLeader ends the first thread and waits until the kernel reports it.
func (s *server) endLeader() (string, error) {
	if s.leader != os.Getpid() {
		return "0", nil
	}
	close(s.leave)
	for {
		b, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/stat", s.leader))
		if err != nil {
			return "", err
		}
		if _, state, ok := strings.Cut(string(b), ") "); ok && state[0] == 'Z' {
			return "1", nil
		}
		runtime.Gosched()
	}
}

func (s *server) reap(pid int) error {
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return err
	}
	_, err := unix.Wait4(pid, nil, 0, nil)
	return err
}

// fork creates a process with a copy of this address space that only waits to be killed, with the
// number pid unless that is 0. Only raw system calls may run in it: it has one thread and no Go
// runtime.
//
//go:norace
//go:nosplit
func fork(pid int32) (int, syscall.Errno) {
	trap, a, b := uintptr(unix.SYS_CLONE), uintptr(unix.SIGCHLD), uintptr(0)
	numbers := [1]int32{pid}
	// struct clone_args of include/uapi/linux/sched.h: its exit_signal, set_tid
	// and set_tid_size.
	args := [11]uint64{4: uint64(unix.SIGCHLD), 8: uint64(uintptr(unsafe.Pointer(&numbers))), 9: 1}
	if pid != 0 {
		trap, a, b = unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args)
	}
	child, _, errno := syscall.RawSyscall6(trap, a, b, 0, 0, 0, 0)
	runtime.KeepAlive(&args)
	runtime.KeepAlive(&numbers)
	if errno != 0 || child != 0 {
		return int(child), errno
	}
	syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0, 0)
	for {
		syscall.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}
