package proc

import (
	"errors"
	"fmt"
	"iter"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// kcmpVM is KCMP_VM of linux/kcmp.h.
const kcmpVM = 1

// shares returns nil if the process and its keeper share an address space. It compares any thread
// of the process: the first one may have ended and then has no memory.
func (p *Process) shares(probe device.VA) error {
	var first error
	for tid := range tasks(p.pid) {
		err := sameMemory(tid, p.keeper)
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
		if !errors.Is(first, ErrKeeper) {
			break
		}
	}
	if errors.Is(first, ErrUnproven) && probe != 0 {
		return p.probe(probe)
	}
	return first
}

// mostThreads bounds how many threads of a process are looked at. Defined here.
const mostThreads = 64

// tasks yields the threads of a process, the thread leader first.
func tasks(pid int) iter.Seq[int] {
	return func(yield func(int) bool) {
		if !yield(pid) {
			return
		}
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			return
		}
		for _, t := range threads[:min(len(threads), mostThreads)] {
			if tid, err := strconv.Atoi(t.Name()); err == nil && tid != pid && !yield(tid) {
				return
			}
		}
	}
}

// sameMemory returns nil if two tasks share an address space, as kcmp(2) reports.
func sameMemory(pid, keeper int) error {
	if pid == keeper {
		return nil
	}
	r, errno := kcmp(pid, keeper)
	switch {
	case errno == 0 && r == 0:
		return nil
	case errno == 0:
		return ErrKeeper
	case errno == unix.ESRCH:
		return ErrGone
	}
	// Every task may compare itself with itself. If that fails too, a seccomp filter refuses the
	// call or the kernel lacks it; the right over the process is not the reason.
	if own := os.Getpid(); !kcmpWorks(own) {
		return fmt.Errorf("kcmp: %w (%w)", ErrUnproven, errno)
	}
	if errno == unix.EPERM || errno == unix.EACCES {
		return fmt.Errorf("kcmp: %w (%w)", ErrPermission, errno)
	}
	return os.NewSyscallError("kcmp", errno)
}

func kcmp(a, b int) (r uintptr, errno unix.Errno) {
	r, _, errno = unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), kcmpVM, 0, 0, 0)
	return r, errno
}

func kcmpWorks(own int) bool {
	_, errno := kcmp(own, own)
	return errno == 0
}

// probe reads the absent page at va by the keeper's pid and looks for it in the process's page
// table. Another address space would have another page table.
func (p *Process) probe(va device.VA) error {
	pagemap, err := pagemapOf(p.pid)
	if err != nil {
		return err
	}
	defer unix.Close(pagemap)
	present := func() (bool, error) {
		var e [1]Entry
		if n, _ := preadEntries(pagemap, e[:], uint64(va)>>device.PageShift); n < 1 {
			return false, ErrGone
		}
		return e[0].Present() || e[0].Swapped(), nil
	}
	there, err := present()
	if err != nil {
		return err
	}
	if there {
		return fmt.Errorf("the page for the proof at %v is not absent: %w", va, ErrUnproven)
	}
	var b [1]byte
	if _, err := p.ReadV([][]byte{b[:]}, va); err != nil {
		if errors.Is(err, ErrInaccessible) {
			err = ErrUnproven
		}
		return fmt.Errorf("the page for the proof at %v: %w", va, err)
	}
	if there, err = present(); err == nil && !there {
		err = ErrKeeper
	}
	return err
}

// pagemapOf opens the page table of a process through a thread that has memory.
func pagemapOf(pid int) (int, error) {
	for tid := range tasks(pid) {
		fd, e := unix.Open(fmt.Sprintf("/proc/%d/task/%d/pagemap", pid, tid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if e == unix.EACCES || e == unix.EPERM {
			return -1, fmt.Errorf("open pagemap: %w (%w)", ErrPermission, e)
		}
		if e != nil {
			continue // a thread that has ended
		}
		var first [1]Entry
		if n, _ := preadEntries(fd, first[:], 0); n == 1 {
			return fd, nil
		}
		_ = unix.Close(fd) // the descriptor is unused
	}
	return -1, ErrGone
}
