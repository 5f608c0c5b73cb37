package main

import (
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/daemon"
	"github.com/exanet/pfd/internal/sandbox"
)

// memoryCalls are needed by a pfd that accesses memory itself (proc): that of processes of its
// own user, who have no more rights than it.
var memoryCalls = []string{"kcmp", "process_vm_readv", "process_vm_writev"}

// memoryCapabilities returns the capabilities that root needs for that: the kernel requires this
// one for processes with capabilities.
func memoryCapabilities() []int {
	if os.Geteuid() != 0 {
		return nil
	}
	return []int{unix.CAP_SYS_PTRACE}
}

// calls are pfd's system calls once it listens, in addition to the Go runtime's.
var calls = []string{
	// Connections, passed descriptors, netlink. pfd creates no further listeners.
	"accept4", "bind", "connect", "getpeername", "getsockname", "getsockopt", "recvfrom", "recvmsg", "recvmmsg",
	"sendmsg", "sendto", "setsockopt", "shutdown", "socket", "socketpair",
	// Clients: their identity, and whether they live.
	"geteuid", "getgid", "getegid", "getuid", "pidfd_open", "pidfd_send_signal",
	// The pages shared with clients, and their files in /proc.
	"fallocate", "fchmod", "ftruncate", "ioctl", "memfd_create", "preadv", "preadv2", "pwritev", "pwritev2",
	"userfaultfd",
	// The engine's waits, and its helper's processor.
	"epoll_wait", "timerfd_settime", "sched_setaffinity",
	// Its own files: it removes the sockets at its end, and writes recordings.
	"fdatasync", "flock", "fsync", "fstatfs", "getdents64", "statfs", "unlink", "unlinkat",
}

// mayCall are calls that the unit's filter omits because systemd before 254 does not know them.
// pfd has alternatives for them.
var mayCall = []string{"cachestat"}

// shutIn drops what pfd does not need once its sockets listen and its files are open. It logs
// the steps that fail.
func shutIn(cfg *daemon.Config, files ...string) {
	if cfg.Sandbox == daemon.SandboxOff {
		return
	}
	r := sandbox.Rules{Calls: slices.Concat(sandbox.Runtime(), calls, mayCall)}
	if cfg.Traced != nil {
		r.Calls = append(r.Calls, "bpf") // to read its maps; without privileges no more is possible
	}
	switch cfg.Sandbox {
	case daemon.SandboxAuto:
		r.Capabilities = memoryCapabilities()
		r.Calls = append(r.Calls, memoryCalls...)
	case daemon.SandboxStrict:
		r.Files = &sandbox.Files{Read: []string{"/proc", "/sys/fs/cgroup"}, Write: []string{filepath.Dir(cfg.Socket)}}
		if cfg.Probe != "" { // it removes its pins at the end
			r.Files.Write = append(r.Files.Write, filepath.Dir(cfg.Probe))
		}
		for _, f := range files {
			if f != "" { // the directory, because editors replace the file
				r.Files.Read = append(r.Files.Read, filepath.Dir(f))
			}
		}
	}
	for _, m := range sandbox.Apply(r) {
		cfg.Log.Warn("sandbox: a step is not taken", "step", m.Step, "err", m.Err)
	}
}
