package proc

import (
	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// Bounds of one ReadV or WriteV.
const (
	MaxBuffers = 64
	MaxBytes   = 256 << 10
)

// ReadV reads the process's memory from va on into the buffers, one after the
// other, 1..64 of them with 256 KiB at most, and gives how many bytes it read.
// It asks nobody for permission: Walk comes first. Errors, with fewer bytes
// than asked for: ErrGone, ErrInaccessible, ErrRange, ErrClosed, or an errno.
func (p *Process) ReadV(dst [][]byte, va device.VA) (int, error) {
	return p.move("read", unix.SYS_PREAD64, unix.SYS_PREADV, dst, va)
}

// WriteV writes the buffers into the process's memory from va on, one after the
// other, 1..64 of them with 256 KiB at most, and gives how many bytes it wrote.
// The kernel lets it write read-only private memory too: Walk comes first.
// Errors, with fewer bytes than asked for: ErrGone, ErrInaccessible, ErrRange,
// ErrClosed, or an errno.
func (p *Process) WriteV(src [][]byte, va device.VA) (int, error) {
	return p.move("write", unix.SYS_PWRITE64, unix.SYS_PWRITEV, src, va)
}

func (p *Process) move(op string, plain, vector uintptr, bufs [][]byte, va device.VA) (int, error) {
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
	n, errno := move(p.mem, plain, vector, bufs, va)
	if n == total {
		return n, nil
	}
	// A surprise: what is known of the mappings may be wrong.
	p.text.forget()
	switch {
	case n > 0 || errno == unix.EIO || errno == unix.EFAULT:
		return n, &Error{op, p.pid, va + device.VA(n), ErrInaccessible}
	case errno == 0: // nothing moves once the address space is gone
		return 0, &Error{op, p.pid, va, ErrGone}
	}
	return 0, p.fail(op, va, errno)
}
