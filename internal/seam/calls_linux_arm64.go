package seam

import (
	"syscall"

	"golang.org/x/sys/unix"
)

const newfstatat = unix.SYS_FSTATAT

// auditArch is AUDIT_ARCH_AARCH64 (linux/audit.h).
const auditArch = unix.AUDIT_ARCH_AARCH64

// others are the calls that only this architecture has.
func others() []Call {
	return []Call{{Name: "ppoll", nr: unix.SYS_PPOLL, Errnos: []syscall.Errno{syscall.EINTR, syscall.ENOMEM}}}
}
