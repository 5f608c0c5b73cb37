// Package seam is where pfd's own system calls are made to fail on purpose, one
// at a time, to see that what it promises holds (the sweep of package
// internal/hostile). In a program that is built without the tag "faultpoints"
// Fail is a constant, and nothing of it is left in the code.
//
// With the tag, the environment variable PFD_FAULTPOINT=NAME:N:ERRNO has the N-th
// call of that point fail with that number, once, and say so on standard error.
package seam

import "syscall"

// Point names the system calls of one place.
type Point uint8

// The points.
const (
	ProcOpen    Point = iota // open of /proc/PID and of what is in it
	ProcMaps                 // PROCMAP_QUERY
	ProcFile                 // fstatat of map_files
	ProcPagemap              // pread of pagemap
	ProcRead                 // pread, preadv of mem
	ProcWrite                // pwrite, pwritev of mem
	GupCall                  // process_vm_readv, process_vm_writev
	EmuEpoll                 // epoll_create1
	EmuWatch                 // epoll_ctl
	EmuWait                  // epoll_pwait2
	AttachMemfd              // memfd_create
	AttachSize               // ftruncate
	AttachSeal               // fcntl F_ADD_SEALS
	AttachMap                // mmap
	AttachWake               // eventfd2
	AttachPeer               // getsockopt SO_PEERCRED, SO_PEERPIDFD
	AttachFutex              // futex FUTEX_WAKE
	NetlinkOpen              // socket
	NetlinkBind              // bind, getsockname
	NetlinkSend              // sendto
	UffdIoctl                // UFFDIO_COPY, UFFDIO_ZEROPAGE, UFFDIO_WAKE
	UffdRead                 // read of a userfaultfd
	Points
)

// EnvName is the environment variable.
const EnvName = "PFD_FAULTPOINT"

// HitText begins the line on standard error that says that a call has failed.
const HitText = "faultpoint hit: "

var names = [Points]string{
	"proc-open", "proc-maps", "proc-file", "proc-pagemap", "proc-read", "proc-write", "gup-call",
	"emu-epoll", "emu-watch", "emu-wait",
	"attach-memfd", "attach-size", "attach-seal", "attach-map", "attach-wake", "attach-peer", "attach-futex",
	"netlink-open", "netlink-bind", "netlink-send", "uffd-ioctl", "uffd-read",
}

// String gives the point's name.
func (p Point) String() string {
	if p >= Points {
		return "point?"
	}
	return names[p]
}

// Errnos gives the errors, of those that the call's manual page allows, that are
// worth injecting: those that a loaded or confined machine gives.
func (p Point) Errnos() []syscall.Errno {
	switch p {
	case ProcOpen:
		return []syscall.Errno{syscall.EMFILE, syscall.ENOMEM, syscall.EACCES, syscall.ENOENT}
	case ProcMaps:
		return []syscall.Errno{syscall.ENOMEM, syscall.EINTR}
	case ProcFile:
		return []syscall.Errno{syscall.EACCES, syscall.ENOMEM}
	case ProcPagemap:
		return []syscall.Errno{syscall.ENOMEM, syscall.EINTR}
	case ProcRead, ProcWrite:
		return []syscall.Errno{syscall.EIO, syscall.ENOMEM, syscall.EFAULT, syscall.EINTR}
	case GupCall:
		return []syscall.Errno{syscall.ENOMEM, syscall.EPERM, syscall.EINTR, syscall.EAGAIN}
	case EmuEpoll, AttachWake, NetlinkOpen, AttachMemfd:
		return []syscall.Errno{syscall.EMFILE, syscall.ENOMEM}
	case EmuWatch:
		return []syscall.Errno{syscall.ENOSPC, syscall.ENOMEM}
	case EmuWait:
		return []syscall.Errno{syscall.EINTR}
	case AttachSize:
		return []syscall.Errno{syscall.EINTR, syscall.ENOSPC}
	case AttachSeal:
		return []syscall.Errno{syscall.EPERM}
	case AttachMap:
		return []syscall.Errno{syscall.ENOMEM}
	case AttachPeer:
		return []syscall.Errno{syscall.EMFILE, syscall.ENOMEM, syscall.ENOPROTOOPT}
	case AttachFutex:
		return []syscall.Errno{syscall.ENOMEM}
	case NetlinkBind:
		return []syscall.Errno{syscall.ENOMEM, syscall.EADDRINUSE}
	case NetlinkSend:
		return []syscall.Errno{syscall.EAGAIN, syscall.ENOBUFS, syscall.EINTR, syscall.ECONNREFUSED}
	case UffdIoctl:
		return []syscall.Errno{syscall.EAGAIN, syscall.ENOMEM}
	case UffdRead:
		return []syscall.Errno{syscall.EINTR}
	}
	return nil
}
