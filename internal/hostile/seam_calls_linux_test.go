package hostile

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// sysCall is a system call that can be made to fail.
type sysCall struct {
	Name string
	nr   int
	// arg, mask and value distinguish calls with the same number by the bits of an argument;
	// mask 0 means no distinction.
	arg         int
	mask, value uint64
	// on distinguishes calls by the kind of the descriptor in their first argument.
	on fdKind
	// Errnos are the errors that a loaded or confined machine causes, among those in the call's
	// manual page.
	Errnos []syscall.Errno
}

// fdKind is the kind of a descriptor.
type fdKind uint8

const (
	anyFD fdKind = iota
	socketFD
	fileFD // with a name, or a pipe
	otherFD
)

// Values of linux/fs.h, linux/fcntl.h and linux/userfaultfd.h. The low half of a request is its
// type and number, whatever its size.
const (
	ioctlNumber  = 0xffff
	procmapQuery = 0x6611
	uffdCopy     = 0xaa03
	uffdZero     = 0xaa04
	uffdWake     = 0xaa02
	wholeArg     = 1<<32 - 1
)

// sysCalls returns all calls that can be made to fail, each once. Their errors include EAGAIN
// only if no poller waits for an edge afterwards: after a real EAGAIN the kernel signals an
// edge, after an injected one it does not.
func sysCalls() []sysCall {
	none := func(name string, nr int, e ...syscall.Errno) sysCall { return sysCall{Name: name, nr: nr, Errnos: e} }
	with := func(name string, nr, arg int, mask, value uint64, e ...syscall.Errno) sysCall {
		return sysCall{Name: name, nr: nr, arg: arg, mask: mask, value: value, Errnos: e}
	}
	const (
		again, intr, nomem, mfile = syscall.EAGAIN, syscall.EINTR, syscall.ENOMEM, syscall.EMFILE
		acces, perm, io, nobufs   = syscall.EACCES, syscall.EPERM, syscall.EIO, syscall.ENOBUFS
		fault, nospc              = syscall.EFAULT, syscall.ENOSPC
	)
	list := []sysCall{
		none("openat", unix.SYS_OPENAT, mfile, nomem, acces, intr),
		{Name: "read of a socket", nr: unix.SYS_READ, on: socketFD, Errnos: []syscall.Errno{intr}},
		{Name: "read of a file", nr: unix.SYS_READ, on: fileFD, Errnos: []syscall.Errno{intr, io}},
		{Name: "read of another", nr: unix.SYS_READ, on: otherFD, Errnos: []syscall.Errno{intr}},
		{Name: "write to a socket", nr: unix.SYS_WRITE, on: socketFD, Errnos: []syscall.Errno{intr, syscall.EPIPE}},
		{Name: "write to a file", nr: unix.SYS_WRITE, on: fileFD, Errnos: []syscall.Errno{intr, io, nospc}},
		{Name: "write to another", nr: unix.SYS_WRITE, on: otherFD, Errnos: []syscall.Errno{intr}},
		none("pread64", unix.SYS_PREAD64, io, nomem, intr),
		none("preadv", unix.SYS_PREADV, io, nomem, fault, intr),
		none("preadv2", unix.SYS_PREADV2, intr, nomem),
		none("pwrite64", unix.SYS_PWRITE64, io, nomem, fault, intr),
		none("pwritev", unix.SYS_PWRITEV, io, nomem, fault, intr),
		none("process_vm_readv", unix.SYS_PROCESS_VM_READV, nomem, perm, intr, again),
		none("process_vm_writev", unix.SYS_PROCESS_VM_WRITEV, nomem, perm, intr, again),
		with("PROCMAP_QUERY", unix.SYS_IOCTL, 1, ioctlNumber, procmapQuery, nomem, intr),
		with("UFFDIO_COPY", unix.SYS_IOCTL, 1, ioctlNumber, uffdCopy, again, nomem),
		with("UFFDIO_ZEROPAGE", unix.SYS_IOCTL, 1, ioctlNumber, uffdZero, again, nomem),
		with("UFFDIO_WAKE", unix.SYS_IOCTL, 1, ioctlNumber, uffdWake, again),
		none("newfstatat", newfstatat, nomem, acces),
		none("fstat", unix.SYS_FSTAT, nomem),
		none("readlinkat", unix.SYS_READLINKAT, nomem, acces),
		none("unlinkat", unix.SYS_UNLINKAT, perm, acces),
		none("mkdirat", unix.SYS_MKDIRAT, acces, nospc),
		none("fchmodat", unix.SYS_FCHMODAT, perm, io),
		none("flock", unix.SYS_FLOCK, intr, again, syscall.ENOLCK),
		none("socket", unix.SYS_SOCKET, mfile, nomem, nobufs),
		none("socketpair", unix.SYS_SOCKETPAIR, mfile, nomem, nobufs),
		none("bind", unix.SYS_BIND, syscall.EADDRINUSE, nomem, acces),
		none("listen", unix.SYS_LISTEN, syscall.EADDRINUSE),
		none("connect", unix.SYS_CONNECT, again, syscall.ECONNREFUSED, acces),
		none("accept4", unix.SYS_ACCEPT4, mfile, nomem, nobufs, syscall.ECONNABORTED, intr),
		none("getsockopt", unix.SYS_GETSOCKOPT, mfile, nomem, syscall.ENOPROTOOPT),
		none("setsockopt", unix.SYS_SETSOCKOPT, nomem, nobufs),
		none("sendto", unix.SYS_SENDTO, again, nobufs, intr, syscall.ECONNREFUSED),
		none("sendmsg", unix.SYS_SENDMSG, nobufs, nomem, intr, syscall.EPIPE),
		none("recvmsg", unix.SYS_RECVMSG, nomem, intr, syscall.ECONNRESET),
		none("memfd_create", unix.SYS_MEMFD_CREATE, mfile, nomem),
		none("ftruncate", unix.SYS_FTRUNCATE, intr, nospc),
		with("F_DUPFD_CLOEXEC", unix.SYS_FCNTL, 1, wholeArg, unix.F_DUPFD_CLOEXEC, mfile),
		with("F_ADD_SEALS", unix.SYS_FCNTL, 1, wholeArg, unix.F_ADD_SEALS, perm, syscall.EBUSY),
		with("F_GET_SEALS", unix.SYS_FCNTL, 1, wholeArg, unix.F_GET_SEALS, syscall.EINVAL),
		with("F_SETFL", unix.SYS_FCNTL, 1, wholeArg, unix.F_SETFL, perm),
		// The runtime maps only private memory.
		with("mmap shared", unix.SYS_MMAP, 3, unix.MAP_SHARED, unix.MAP_SHARED, nomem, syscall.ENFILE),
		none("eventfd2", unix.SYS_EVENTFD2, mfile, nomem),
		none("epoll_create1", unix.SYS_EPOLL_CREATE1, mfile, nomem),
		none("epoll_ctl", unix.SYS_EPOLL_CTL, nomem, nospc),
		none("epoll_pwait2", unix.SYS_EPOLL_PWAIT2, intr),
		none("timerfd_create", unix.SYS_TIMERFD_CREATE, mfile, nomem),
		none("pidfd_open", unix.SYS_PIDFD_OPEN, mfile, nomem),
		none("pidfd_send_signal", unix.SYS_PIDFD_SEND_SIGNAL, perm),
		none("cachestat", unix.SYS_CACHESTAT, nomem),
		none("shutdown", unix.SYS_SHUTDOWN, syscall.ENOTCONN),
	}
	return append(list, archCalls()...)
}

// findCall returns the index of the call, or -1.
func findCall(calls []sysCall, n *seamNotif) int {
	d := &n.data
	return slices.IndexFunc(calls, func(c sysCall) bool {
		return c.nr == int(d.nr) && (c.mask == 0 || d.args[c.arg]&c.mask == c.value) && (c.on == anyFD || c.on == n.on())
	})
}

// on returns the kind of the descriptor that the call uses.
func (n *seamNotif) on() fdKind {
	to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", n.pid, int32(n.data.args[0])))
	switch {
	case err == nil && strings.HasPrefix(to, "socket:"):
		return socketFD
	case err == nil && (strings.HasPrefix(to, "/") || strings.HasPrefix(to, "pipe:")):
		return fileFD
	}
	return otherFD
}
