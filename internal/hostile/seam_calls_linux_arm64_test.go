package hostile

import (
	"syscall"

	"golang.org/x/sys/unix"
)

const newfstatat = unix.SYS_FSTATAT

// auditArch is AUDIT_ARCH_AARCH64 (linux/audit.h).
const auditArch = unix.AUDIT_ARCH_AARCH64

// archCalls are the calls that only this architecture has.
func archCalls() []sysCall {
	return []sysCall{{Name: "ppoll", nr: unix.SYS_PPOLL, Errnos: []syscall.Errno{syscall.EINTR, syscall.ENOMEM}}}
}
