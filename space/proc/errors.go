package proc

import (
	"errors"
	"fmt"

	"github.com/exanet/pfd/device"
)

// Causes of an error of this package: each is wrapped in an *Error, as is the kernel's errno.
var (
	// ErrGone says that the process exited, was killed or has executed another program.
	ErrGone = errors.New("address space gone: the process exited or executed another program")
	// ErrUnmapped says that nothing is mapped at the address.
	ErrUnmapped = errors.New("no mapping at the address")
	// ErrDenied says that the mapping does not grant the right that was asked for.
	ErrDenied = errors.New("the mapping does not grant this right")
	// ErrPastEnd says that the mapped file ends before the address.
	ErrPastEnd = errors.New("beyond the end of the mapped file")
	// ErrUnknown says that the kernel does not let pfd look.
	ErrUnknown = errors.New("unknown: looking needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN")
	// ErrInaccessible says that the kernel could not move the bytes: the memory is unmapped,
	// beyond the end of its file, or device memory.
	ErrInaccessible = errors.New("memory not accessible")
	// ErrPermission says that the caller has no right over the process's memory.
	ErrPermission = errors.New("no right over the memory of the process: it has other users, capabilities or namespaces, " +
		"is not dumpable (PR_SET_DUMPABLE), or kernel.yama.ptrace_scope forbids it")
	// ErrFiltered says that the caller itself may not move the memory of any process.
	ErrFiltered = errors.New("process_vm_readv or process_vm_writev is refused to the process that would move memory: allow both in its seccomp policy, or use a kernel with CONFIG_CROSS_MEMORY_ATTACH")
	// ErrKeeper says that a process and its keeper do not share an address space.
	ErrKeeper = errors.New("the keeper shares no address space with the process: it executed another program, or named another's: attach again")
	// ErrUnproven says that pfd could not check whether a process and its keeper share an address
	// space.
	ErrUnproven = errors.New("cannot show that the keeper shares the process's memory: a seccomp filter refuses kcmp(2), or the kernel lacks it, " +
		"and the process's library is older than pfd: build the program with the library of pfd's release, or allow kcmp")
	// ErrClosed says that the Process was closed.
	ErrClosed = errors.New("process closed")
	// ErrRange says that a call asked for nothing, or for more than one call can do.
	ErrRange = errors.New("count of pages, buffers or bytes out of range")
)

// Error is the error type of the exported functions: the operation, the process, the address and
// the cause.
type Error struct {
	Op  string    // "open", "walk", "read", "write", "mapping", "file", "pagemap", "status"
	PID int       // the pid at Open; 0 if unknown
	VA  device.VA // 0 where the operation has no address
	Err error
}

// Error returns the error as one line.
func (e *Error) Error() string {
	if e.VA != 0 {
		return fmt.Sprintf("%s of process %d at %v: %v", e.Op, e.PID, e.VA, e.Err)
	}
	return fmt.Sprintf("%s of process %d: %v", e.Op, e.PID, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
