package hostile

import (
	"syscall"

	"golang.org/x/sys/unix"
)

const newfstatat = unix.SYS_NEWFSTATAT

// auditArch is AUDIT_ARCH_X86_64 (linux/audit.h).
const auditArch = unix.AUDIT_ARCH_X86_64

// archCalls are the calls that only this architecture has.
func archCalls() []sysCall {
	return []sysCall{
		{Name: "epoll_wait", nr: unix.SYS_EPOLL_WAIT, Errnos: []syscall.Errno{syscall.EINTR}},
		{Name: "poll", nr: unix.SYS_POLL, Errnos: []syscall.Errno{syscall.EINTR, syscall.ENOMEM}},
		{Name: "unlink", nr: unix.SYS_UNLINK, Errnos: []syscall.Errno{syscall.EPERM}},
		{Name: "lstat", nr: unix.SYS_LSTAT, Errnos: []syscall.Errno{syscall.ENOMEM, syscall.EACCES}},
		{Name: "stat", nr: unix.SYS_STAT, Errnos: []syscall.Errno{syscall.ENOMEM, syscall.EACCES}},
		{Name: "open", nr: unix.SYS_OPEN, Errnos: []syscall.Errno{syscall.EMFILE, syscall.ENOMEM, syscall.EACCES}},
	}
}
