// Package guest runs inside a guest of exanetctl qemu boot. It is the first process, which
// mounts file systems, loads the modules, starts the agent (package qemu/agent) and reaps
// children.
package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/qemu/agent"
)

// Modules is a directory of the initramfs with sets of modules, one directory each; files are
// loaded in order of their names. Defined by this project.
const Modules = "/lib/modules"

// Sets of modules.
const (
	SetStock   = "stock"   // as built by Debian: VFIO's groups and type 1
	SetIOMMUFD = "iommufd" // built by exanetctl qemu setup: iommufd, and device files
)

// Arguments of the first process, which the kernel starts with this program. Values below are
// defined by this project.
var (
	InitArgs  = []string{"guest", "init"}
	agentArgs = []string{"guest", "agent"}
)

// mounts are the file systems of a guest.
var mounts = []struct{ source, target, kind, data string }{
	{"proc", "/proc", "proc", ""},
	{"sysfs", "/sys", "sysfs", ""},
	{"devtmpfs", "/dev", "devtmpfs", "mode=0755"},
	{"devpts", "/dev/pts", "devpts", "ptmxmode=0666,mode=0620"},
	{"tmpfs", "/dev/shm", "tmpfs", "mode=1777"},
	{"tmpfs", "/run", "tmpfs", "mode=0755"},
	{"tmpfs", "/tmp", "tmpfs", "mode=1777"},
}

// environment is the environment of all programs in the guest.
var environment = []string{"PATH=/bin:/sbin:/usr/bin:/usr/sbin", "HOME=/root", "TERM=vt100", "SHELL=/bin/sh"}

// Init is the first process. It does not return while the guest runs. It prints errors to the
// console and continues.
func Init(console io.Writer) error {
	if os.Getpid() != 1 {
		return errors.New("this is the first process of a guest: exanetctl qemu boot starts one")
	}
	say := func(err error) {
		if err != nil {
			fmt.Fprintln(console, "guest:", err)
		}
	}
	for _, m := range mounts {
		err := os.MkdirAll(m.target, 0o755)
		if err == nil {
			err = os.NewSyscallError("mount", unix.Mount(m.source, m.target, m.kind, unix.MS_NOSUID, m.data))
		}
		if err != nil {
			say(fmt.Errorf("%s: %w", m.target, err))
		}
	}
	if out, err := exec.Command("/bin/busybox", "--install", "-s", "/bin").CombinedOutput(); err != nil {
		say(fmt.Errorf("busybox: %w: %s", err, out))
	}
	say(os.NewSyscallError("sethostname", unix.Sethostname([]byte("guest"))))
	if out, err := exec.Command("/bin/busybox", "ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		say(fmt.Errorf("lo: %w: %s", err, out))
	}
	// The agent's own device must be first.
	early, err := filepath.Glob(Modules + "/" + SetStock + "/*virtio*.ko") // sorted
	say(err)
	for _, path := range early {
		if err := loadModule(path); err != nil {
			say(fmt.Errorf("module %s: %w", path, err))
		}
	}
	c := exec.Command("/proc/self/exe", agentArgs...)
	c.Env, c.Stdout, c.Stderr = environment, console, console
	if err := c.Start(); err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	fmt.Fprintln(console, "guest: ready")
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("reaping: %w", err)
		case pid == c.Process.Pid:
			return fmt.Errorf("the agent has ended: %v", status)
		}
	}
}

// Agent serves the host's commands until ctx ends.
func Agent(ctx context.Context) error { return agent.Serve(ctx) }

// Load loads a set of modules.
func Load(set string) error {
	dir := Modules + "/" + set
	list, err := os.ReadDir(dir) // sorted
	if err != nil {
		return fmt.Errorf("modules: %w", err)
	}
	var errs []error
	for _, e := range list {
		if !strings.HasSuffix(e.Name(), ".ko") {
			continue
		}
		if err := loadModule(dir + "/" + e.Name()); err != nil {
			errs = append(errs, fmt.Errorf("module %s: %w", e.Name(), err))
		}
	}
	return errors.Join(errs...)
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return os.NewSyscallError("finit_module", err)
	}
	return nil
}
