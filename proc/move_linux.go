package proc

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// Bounds of one ReadV or WriteV.
const (
	MaxBuffers = 64
	MaxBytes   = 256 << 10
)

// writePiece is how much of a WriteV the kernel judges at a time, bytes. The time
// between the judgement and the copy grows with it: of a 256 KiB write in one
// piece half was seen to land in memory that had just been made read-only, and
// next to nothing of one in blocks, which takes an eighth more time. A read
// changes nothing, and is one piece.
const writePiece = device.BlockSize

// ReadV reads the process's memory from va on into the buffers, one after the
// other, 1..64 of them with 256 KiB at most, and returns how many bytes it read.
// The kernel judges the right to each page as it would for the process itself.
// Errors, with fewer bytes than asked for: ErrGone, ErrInaccessible,
// ErrPermission, ErrRange, ErrClosed, or an errno.
func (p *Process) ReadV(dst [][]byte, va device.VA) (int, error) {
	return p.move("read", unix.SYS_PROCESS_VM_READV, dst, va, MaxBytes)
}

// WriteV writes the buffers into the process's memory from va on, one after the
// other, 1..64 of them with 256 KiB at most, and returns how many bytes it wrote.
// The kernel judges the right to each page as it would for the process itself,
// block by block, and then copies: a right that goes between the two is not
// noticed (docs/security.md). Errors are those of ReadV.
func (p *Process) WriteV(src [][]byte, va device.VA) (int, error) {
	return p.move("write", unix.SYS_PROCESS_VM_WRITEV, src, va, writePiece)
}

func (p *Process) move(op string, trap uintptr, bufs [][]byte, va device.VA, piece int) (int, error) {
	total := 0
	for _, b := range bufs {
		total += len(b)
	}
	if len(bufs) < 1 || len(bufs) > MaxBuffers || total < 1 || total > MaxBytes {
		return 0, &Error{op, p.pid, va, ErrRange}
	}
	if !p.enter() {
		return 0, &Error{op, p.pid, va, ErrClosed}
	}
	defer p.leave()
	if va >= maxVA {
		return 0, &Error{op, p.pid, va, ErrInaccessible}
	}
	if ended(p.end) {
		return 0, &Error{op, p.pid, va, ErrGone}
	}
	n, errno := move(p.keeper, trap, bufs, va, total, piece)
	if n == total {
		return n, nil
	}
	// A surprise: what is known of the mappings may be wrong.
	p.surprise()
	switch {
	case n > 0 || errno == unix.EFAULT:
		return n, &Error{op, p.pid, va + device.VA(n), ErrInaccessible}
	case errno == unix.EPERM:
		return 0, &Error{op, p.pid, va, ErrPermission}
	}
	return 0, p.fail(op, va, errno)
}

// MayMove reports whether this process may move memory at all: nil, ErrFiltered with the
// errno of a seccomp filter, or of a kernel without CONFIG_CROSS_MEMORY_ATTACH.
func MayMove() error {
	if errno := tryMoves(os.Getpid()); errno != 0 {
		return fmt.Errorf("%w (%w)", ErrFiltered, errno)
	}
	return nil
}

// mayMove reports whether the memory of pid may be moved: nil, ErrFiltered, ErrGone or
// ErrPermission.
func mayMove(pid int) error {
	errno := tryMoves(pid)
	if errno == 0 {
		return nil
	}
	if err := MayMove(); err != nil {
		return err
	}
	if errno == unix.ESRCH {
		return ErrGone
	}
	return fmt.Errorf("%w (%w)", ErrPermission, errno)
}

// tryMoves tries to read and to write a byte where no process has memory: the kernel judges
// the right to the process first.
func tryMoves(pid int) unix.Errno {
	b := [][]byte{{0}}
	for _, trap := range []uintptr{unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV} {
		if _, errno := move(pid, trap, b, ^device.VA(0)&^(device.PageSize-1), 1, MaxBytes); errno != 0 && errno != unix.EFAULT {
			return errno
		}
	}
	return 0
}
