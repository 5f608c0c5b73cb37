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

// writePiece is how many bytes of a WriteV the kernel checks at a time. The time between the
// check and the copy grows with it. Of a 256 KiB write in one piece, half was seen to land in
// memory that had just been made read-only; of a write in blocks, next to nothing, and that takes
// an eighth more time. A read changes nothing and is one piece.
const writePiece = device.BlockSize

// ReadV reads the process's memory from va on into 1..64 buffers, one after the other, 256 KiB at
// most, and returns how many bytes it read. The kernel checks the right to each page as it would
// for the process itself. If it reads fewer bytes than asked for, the error is ErrGone,
// ErrInaccessible, ErrPermission, ErrRange, ErrClosed, or an errno.
func (p *Process) ReadV(dst [][]byte, va device.VA) (int, error) {
	return p.move("read", unix.SYS_PROCESS_VM_READV, dst, va, MaxBytes)
}

// WriteV writes 1..64 buffers into the process's memory from va on, one after the other, 256 KiB
// at most, and returns how many bytes it wrote. The kernel checks the right to each page of a
// block as it would for the process itself, and then copies the block. It does not notice a right
// that is revoked between the two (docs/security.md). Errors are those of ReadV.
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
	// The remembered mappings may be out of date.
	p.surprise()
	switch {
	case n > 0 || errno == unix.EFAULT:
		return n, &Error{op, p.pid, va + device.VA(n), ErrInaccessible}
	case errno == unix.EPERM:
		return 0, &Error{op, p.pid, va, ErrPermission}
	}
	return 0, p.fail(op, va, errno)
}

// MayMove reports whether the caller may move memory between processes at all. It returns nil, or
// ErrFiltered with the errno of a seccomp filter or of a kernel without
// CONFIG_CROSS_MEMORY_ATTACH.
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

// tryMoves tries to read and to write a byte at an address where no process has memory. The
// kernel checks the right to the process before the address.
func tryMoves(pid int) unix.Errno {
	b := [][]byte{{0}}
	for _, trap := range []uintptr{unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV} {
		if _, errno := move(pid, trap, b, ^device.VA(0)&^(device.PageSize-1), 1, MaxBytes); errno != 0 && errno != unix.EFAULT {
			return errno
		}
	}
	return 0
}
