package user

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// toucher copies between p and a peer's memory: into the memory if write is set.
type toucher func(a *area, off uint64, p []byte, write bool) error

// touch is a toucher by plain loads and stores. A missing page becomes an error instead of
// killing the process.
func touch(a *area, off uint64, p []byte, write bool) (err error) {
	b, err := a.at(off, len(p))
	if err != nil {
		return err
	}
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrLost, r)
		}
	}()
	if write {
		copy(b, p)
	} else {
		copy(p, b)
	}
	return nil
}

// do serves DMA.Do.
func (s *space) do(addr uint64, size int, allowed func() error, f func(b []byte)) error {
	by := func(a *area, off uint64, p []byte, _ bool) (err error) {
		b, err := a.at(off, len(p))
		if err != nil {
			return err
		} else if len(p) < size {
			return ErrUnmapped // it spans mappings
		}
		old := debug.SetPanicOnFault(true)
		defer func() {
			debug.SetPanicOnFault(old)
			if r := recover(); r != nil {
				err = fmt.Errorf("%w: %v", ErrLost, r)
			}
		}()
		f(b)
		return nil
	}
	err := s.allows(addr, false)
	if err == nil {
		_, err = s.local(addr, make([]byte, size), true, allowed, by)
	}
	if err != nil {
		return fmt.Errorf("DMA at %#x+%#x: %w", addr, size, err)
	}
	return nil
}

// touchAside is like touch, by a system call: when the call sleeps, the runtime gives its
// processor to other goroutines, whereas a load that sleeps keeps it. It uses the file if it can.
// A sleeping access through the mapping may hold the lock of this process's address space
// (mmap_lock), and every goroutine that maps memory, the runtime included, then waits.
func touchAside(a *area, off uint64, p []byte, write bool) error {
	if err := a.has(off, len(p)); err != nil {
		return err
	}
	how := "process_vm"
	n, err := a.byFile(off, p, write)
	if errors.Is(err, errByMapping) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
		// EPERM: sealed against writing meanwhile, which mappings survive. EINVAL: hugetlbfs.
		var b []byte
		if b, err = a.at(off, len(p)); err != nil {
			return err
		}
		n, err = byMapping(b, p, write)
	} else {
		how = "file"
	}
	if err != nil || n != len(p) {
		return fmt.Errorf("%w: %d of %d bytes: %w", ErrLost, max(n, 0), len(p), os.NewSyscallError(how, err))
	}
	return nil
}

// errByMapping reports that the area has no descriptor.
var errByMapping = errors.New("the file is only mapped")

// byFile reads or writes the file itself. It extends the file only if the peer truncates it at
// that very moment.
func (a *area) byFile(off uint64, p []byte, write bool) (int, error) {
	if a.file < 0 {
		return 0, errByMapping
	}
	if !write {
		return unix.Pread(a.file, p, int64(off))
	}
	var st unix.Stat_t
	if err := unix.Fstat(a.file, &st); err != nil || off+uint64(len(p)) > uint64(st.Size) {
		return 0, err
	}
	return unix.Pwrite(a.file, p, int64(off))
}

// byMapping copies between b, which is mapped, and p.
func byMapping(b, p []byte, write bool) (int, error) {
	call := unix.ProcessVMReadv
	if write {
		call = unix.ProcessVMWritev
	}
	local := [1]unix.Iovec{{Base: &p[0]}}
	local[0].SetLen(len(p))
	remote := [1]unix.RemoteIovec{{Base: address(b), Len: len(b)}}
	return call(os.Getpid(), local[:], remote[:], 0)
}

// reopen opens a file again for touchAside, so that flags that the peer sets on its own
// description (O_APPEND) have no effect. It does not wait for a lease on the file (O_NONBLOCK).
// It returns -1 if only the mapping can be used.
func reopen(fd int, size uint64, writable bool) int {
	var longest unix.Rlimit // a write beyond it raises a signal
	if unix.Getrlimit(unix.RLIMIT_FSIZE, &longest) != nil || longest.Cur < size {
		return -1
	}
	mode := unix.O_RDONLY
	if writable {
		mode = unix.O_RDWR
	}
	file, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), mode|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1
	}
	return file
}

// mostKept returns for how many files of a peer a descriptor is kept: a sixteenth of this
// process's limit, at most as many files as a peer may use. Defined by this project.
func mostKept() uint32 {
	var most unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &most) != nil {
		return 0
	}
	return uint32(min(most.Cur/16, defaultMaxFiles))
}
