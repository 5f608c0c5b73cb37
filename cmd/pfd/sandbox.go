package main

import (
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/daemon"
	"github.com/exanet/pfd/internal/sandbox"
)

// memoryCalls are what a pfd needs which touches memory itself (proc): that of
// processes of its own user, who have all the rights that it has.
var memoryCalls = []string{"kcmp", "process_vm_readv", "process_vm_writev"}

// memoryCapabilities are what root needs for that: its processes have capabilities,
// and the kernel wants this one for them.
func memoryCapabilities() []int {
	if os.Geteuid() != 0 {
		return nil
	}
	return []int{unix.CAP_SYS_PTRACE}
}

// calls are the system calls of pfd once it listens, beside the Go runtime's.
var calls = []string{
	// Connections, descriptors that travel, netlink; pfd listens to nothing new.
	"accept4", "bind", "connect", "getpeername", "getsockname", "getsockopt", "recvfrom", "recvmsg", "recvmmsg",
	"sendmsg", "sendto", "setsockopt", "shutdown", "socket", "socketpair",
	// Clients: who they are, whether they live.
	"geteuid", "getgid", "getegid", "getuid", "pidfd_open", "pidfd_send_signal",
	// The pages that are shared with clients, and files of theirs in /proc.
	"fallocate", "fchmod", "ftruncate", "ioctl", "memfd_create", "preadv", "preadv2", "pwritev", "pwritev2",
	"userfaultfd",
	// The engine's waiting, and its helper's processor.
	"epoll_wait", "timerfd_settime", "sched_setaffinity",
	// Files of its own: the sockets go at the end, records are written.
	"fdatasync", "flock", "fsync", "fstatfs", "getdents64", "statfs", "unlink", "unlinkat",
}

// mayCall are those that the unit leaves out, since a systemd before 254 does not know them: pfd
// does without, by others.
var mayCall = []string{"cachestat"}

// shutIn takes from pfd what it does not need once its sockets listen and its files
// are open, and says in the log what stays open.
func shutIn(cfg *daemon.Config, files ...string) {
	if cfg.Sandbox == daemon.SandboxOff {
		return
	}
	r := sandbox.Rules{Calls: slices.Concat(sandbox.Runtime(), calls, mayCall)}
	if cfg.Traced != nil {
		r.Calls = append(r.Calls, "bpf") // its maps are read; without rights no more than that
	}
	switch cfg.Sandbox {
	case daemon.SandboxAuto:
		r.Capabilities = memoryCapabilities()
		r.Calls = append(r.Calls, memoryCalls...)
	case daemon.SandboxStrict:
		r.Files = &sandbox.Files{Read: []string{"/proc", "/sys/fs/cgroup"}, Write: []string{filepath.Dir(cfg.Socket)}}
		if cfg.Probe != "" { // its pins go at the end
			r.Files.Write = append(r.Files.Write, filepath.Dir(cfg.Probe))
		}
		for _, f := range files {
			if f != "" { // its directory: an editor puts another file in its place
				r.Files.Read = append(r.Files.Read, filepath.Dir(f))
			}
		}
	}
	for _, m := range sandbox.Apply(r) {
		cfg.Log.Warn("sandbox: a step is not taken", "step", m.Step, "err", m.Err)
	}
}
