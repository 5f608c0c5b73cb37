package proctest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// serve is the child's side: commands in, one line of answer each.
func serve(in io.Reader, out io.Writer) error {
	runtime.LockOSThread() // forked processes die with this thread
	s := &server{out: out}
	r := bufio.NewScanner(in)
	fmt.Fprintln(out, "ready")
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
	return r.Err()
}

type region struct {
	addr uintptr
	b    []byte
}

type server struct {
	out     io.Writer
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
		pid, errno := fork()
		if errno != 0 {
			return "", errno
		}
		s.forks = append(s.forks, pid)
		return fmt.Sprint(pid), nil
	case "reap":
		return "0", s.reap(int(arg))
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
		err = unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)))
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

func (s *server) reap(pid int) error {
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return err
	}
	_, err := unix.Wait4(pid, nil, 0, nil)
	return err
}

// fork makes a process with a copy of this address space, which does nothing
// but wait for its end. Only raw system calls may run in it: it has one thread
// and no Go runtime.
//
//go:norace
//go:nosplit
func fork() (int, syscall.Errno) {
	pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		return int(pid), errno
	}
	syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0, 0)
	for {
		syscall.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}
