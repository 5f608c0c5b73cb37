package packaging

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A machine of the test: systemd as the first process of its own process, mount, network, IPC,
// host name and control group namespaces, on this machine's kernel. Its root is this machine's
// root below a writable layer in memory, so that nothing is fetched and nothing stays. It
// differs from a separate machine: the kernel's settings are read-only, there are no devices,
// and only the services of every boot run.

const (
	machineEnv = "EXANET_TEST_MACHINE"
	// cannot is the exit code of a first process that may not set up its root on this machine.
	cannot = 42
	// patience limits every wait; only a hang reaches it.
	patience = 2 * time.Minute
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(machineEnv); dir != "" {
		fmt.Fprintln(os.Stderr, firstProcess(dir))
		os.Exit(cannot)
	}
	if os.Getenv(containedEnv) != "" {
		fmt.Fprintln(os.Stderr, contain(os.Args[1:]))
		os.Exit(cannot)
	}
	os.Exit(m.Run())
}

// systemdPrograms are the paths of systemd in distributions.
var systemdPrograms = []string{"/usr/lib/systemd/systemd", "/lib/systemd/systemd"}

type machine struct {
	t     *testing.T
	cmd   *exec.Cmd
	ended chan error
	said  *os.File // its console output
}

// boot starts a machine, which ends with the test.
func boot(t *testing.T) *machine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root: a machine with systemd needs namespaces of its own")
	}
	need(t, "systemctl", "journalctl", "nsenter", "setpriv", "dpkg")
	if !slices.ContainsFunc(systemdPrograms, func(p string) bool { return unix.Access(p, unix.X_OK) == nil }) {
		t.Skip("systemd is not installed: contrib/scripts/setup.sh installs it")
	}
	group, err := controlGroup()
	if err != nil {
		t.Skipf("no control group for a machine: %v", err)
	}
	m := &machine{t: t, ended: make(chan error, 1)}
	t.Cleanup(func() { removeGroups(t, group) })
	gfd, err := os.Open(group)
	if err != nil {
		t.Fatal(err)
	}
	defer gfd.Close()
	dir := t.TempDir()
	if m.said, err = os.Create(filepath.Join(t.TempDir(), "console")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.said.Close() })
	m.cmd = exec.Command(os.Args[0])
	m.cmd.Env = append(os.Environ(), machineEnv+"="+dir)
	m.cmd.Stdout, m.cmd.Stderr = m.said, m.said
	// The machine dies with this thread if the test is killed.
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	m.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP,
		Setsid:     true, Pdeathsig: syscall.SIGKILL,
		UseCgroupFD: true, CgroupFD: int(gfd.Fd()),
	}
	if err := m.cmd.Start(); err != nil {
		t.Skipf("this machine gives no namespaces: %v", err)
	}
	go func() { m.ended <- m.cmd.Wait() }()
	t.Cleanup(m.halt)
	m.until("systemd has started", func() bool {
		select {
		case err := <-m.ended:
			m.ended <- err
			var exit *exec.ExitError
			if errors.As(err, &exit) && exit.ExitCode() == cannot {
				t.Skipf("this machine does not let a test set up another: %s", m.console())
			}
			t.Fatalf("the machine ended: %v: %s", err, m.console())
		default:
		}
		out, _ := m.try("systemctl", "is-system-running")
		if strings.Contains(out, "degraded") {
			// Some services of this machine may fail in another one; they do not matter.
			out, _ := m.try("systemctl", "--failed", "--no-pager")
			t.Logf("some services of the machine do not run:\n%s", out)
			return true
		}
		return strings.Contains(out, "running")
	})
	return m
}

// step runs a part of the test; a failed part ends the test.
func (m *machine) step(name string, f func(t *testing.T)) {
	m.t.Helper()
	old := m.t
	if !old.Run(name, func(t *testing.T) { m.t = t; f(t) }) {
		m.t = old
		old.FailNow()
	}
	m.t = old
}

// halt ends the machine: all processes end with its first.
func (m *machine) halt() {
	_ = m.cmd.Process.Kill()
	<-m.ended
}

func (m *machine) console() string {
	b, err := os.ReadFile(m.said.Name())
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// command returns a program in the machine; it ends with the test.
func (m *machine) command(args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	m.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--target", fmt.Sprint(m.cmd.Process.Pid),
		"--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd"}, args...)...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive"}
	return cmd
}

func (m *machine) try(args ...string) (string, error) {
	out, err := m.command(args...).CombinedOutput()
	return string(out), err
}

// run runs a program that must succeed.
func (m *machine) run(args ...string) string {
	m.t.Helper()
	out, err := m.try(args...)
	if err != nil {
		m.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// user is a user without rights and without a session.
const user = 4001

// asUser prefixes a command with one that switches to that user.
func asUser(args ...string) []string {
	return append([]string{"setpriv", fmt.Sprint("--reuid=", user), fmt.Sprint("--regid=", user), "--clear-groups"}, args...)
}

func (m *machine) until(what string, f func() bool) {
	m.t.Helper()
	for deadline := time.Now().Add(patience); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			journal, _ := m.try("journalctl", "--no-pager", "-u", "pfd")
			m.t.Fatalf("never: %s\n%s\n%s", what, m.console(), journal)
		}
	}
}

// put writes a file of the machine.
func (m *machine) put(path, text string) {
	m.t.Helper()
	path = filepath.Join(fmt.Sprintf("/proc/%d/root", m.cmd.Process.Pid), path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

// controlGroup creates a cgroup (version 2) below this process's own.
func controlGroup() (string, error) {
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer mounts.Close()
	top := ""
	for s := bufio.NewScanner(mounts); s.Scan(); {
		// proc_pid_mountinfo(5): the mount point is the fifth field, and the type follows the
		// dash.
		if f := strings.Fields(s.Text()); slices.Contains(f[6:], "cgroup2") {
			top = f[4]
		}
	}
	if top == "" {
		return "", errors.New("the second version is not mounted")
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(own)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return os.MkdirTemp(filepath.Join(top, path), "exanet-test-")
		}
	}
	return "", errors.New("this process is in none")
}

// removeGroups removes a cgroup and those that systemd has created in it.
func removeGroups(t *testing.T, top string) {
	var list []string
	err := filepath.WalkDir(top, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			list = append(list, path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	slices.Reverse(list)
	for _, dir := range list {
		// The processes are dead; the kernel notifies the cgroup of the last one a little
		// later.
		for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			err := os.Remove(dir)
			if err == nil || errors.Is(err, os.ErrNotExist) {
				break
			}
			if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
				t.Error(err)
				break
			}
		}
	}
}

// firstProcess creates the machine's root at dir and executes its systemd. It returns only on
// error.
func firstProcess(dir string) error {
	runtime.LockOSThread() // capabilities belong to a thread
	root := filepath.Join(dir, "root")
	in := func(path string) string { return filepath.Join(root, path) }
	mount := func(source, target, kind string, flags uintptr, data string) error {
		if err := unix.Mount(source, target, kind, flags, data); err != nil {
			return fmt.Errorf("mount %s on %s: %w", kind, target, err)
		}
		return nil
	}
	if err := mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := mount("tmpfs", dir, "tmpfs", 0, "size=1g,mode=755"); err != nil {
		return err
	}
	for _, d := range []string{"root", "upper", "work"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	if err := mount("overlay", root, "overlay", 0, fmt.Sprintf("lowerdir=/,upperdir=%s/upper,workdir=%s/work", dir, dir)); err != nil {
		return err
	}
	for _, m := range []struct {
		on, kind string
		flags    uintptr
		data     string
	}{
		{"proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"sys", "sysfs", unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"sys/fs/cgroup", "cgroup2", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=755"},
		{"tmp", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{"dev", "tmpfs", unix.MS_NOSUID, "mode=755"},
		// Hide what this machine's administrator has enabled or changed.
		{"etc/systemd", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=755"},
	} {
		if err := mount(m.kind, in(m.on), m.kind, m.flags, m.data); err != nil {
			return err
		}
	}
	// The machines share the kernel's settings.
	for _, path := range []string{"proc/sys", "proc/sysrq-trigger"} {
		if _, err := os.Stat(in(path)); errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err := mount(in(path), in(path), "", unix.MS_BIND, ""); err != nil {
			return err
		}
		if err := mount("", in(path), "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			return err
		}
	}
	if err := devices(root, mount); err != nil {
		return err
	}
	for path, text := range map[string]string{
		"etc/machine-id":                        "0123456789abcdef0123456789abcdef\n",
		"etc/systemd/system/guest.target":       "[Unit]\nRequires=basic.target\nAfter=basic.target\nAllowIsolate=yes\n",
		"run/systemd/journald.conf.d/test.conf": "[Journal]\nStorage=volatile\nReadKMsg=no\nAudit=no\n",
	} {
		if err := os.MkdirAll(filepath.Dir(in(path)), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(in(path), []byte(text), 0o444); err != nil {
			return err
		}
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	// The new root covers the old one, which is then unmounted (pivot_root(2), Notes).
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the old root: %w", err)
	}
	for _, c := range []uintptr{unix.CAP_SYS_MODULE, unix.CAP_SYS_RAWIO, unix.CAP_SYS_TIME} {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	var err error
	for _, p := range systemdPrograms {
		err = unix.Exec(p, []string{p, "--system", "--unit=guest.target", "--show-status=no", "--log-target=journal-or-kmsg"},
			[]string{"container=exanet-test", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"})
	}
	return fmt.Errorf("start systemd: %w", err)
}

// devices creates the few devices that every system has.
func devices(root string, mount func(source, target, kind string, flags uintptr, data string) error) error {
	dev := filepath.Join(root, "dev")
	for _, d := range []string{"pts", "shm"} {
		if err := os.Mkdir(filepath.Join(dev, d), 0o755); err != nil {
			return err
		}
	}
	if err := mount("devpts", filepath.Join(dev, "pts"), "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620"); err != nil {
		return err
	}
	if err := mount("tmpfs", filepath.Join(dev, "shm"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
		return err
	}
	for name, target := range map[string]string{"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		if err := os.Symlink(target, filepath.Join(dev, name)); err != nil {
			return err
		}
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		f, err := os.Create(filepath.Join(dev, name))
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
		if err := mount(filepath.Join("/dev", name), f.Name(), "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	return nil
}

// copyIn copies a file of this machine into the other.
func (m *machine) copyIn(from, to string) {
	m.t.Helper()
	src, err := os.Open(from)
	if err != nil {
		m.t.Fatal(err)
	}
	defer src.Close()
	dst, err := os.Create(filepath.Join(fmt.Sprintf("/proc/%d/root", m.cmd.Process.Pid), to))
	if err != nil {
		m.t.Fatal(err)
	}
	if _, err := io.Copy(dst, src); err != nil {
		m.t.Fatal(err)
	}
	if err := dst.Close(); err != nil {
		m.t.Fatal(err)
	}
}

// container creates a mount namespace that contains a directory of the machine, like a volume
// of a container, and returns the command prefix that runs a command there. It stays until the
// machine ends.
func (m *machine) container(dir string) []string {
	m.t.Helper()
	const script = `mkdir -p /mnt/volume && mount --bind "$0" /mnt/volume && mount -t tmpfs run /run && mkdir "$0" &&
		mount --move /mnt/volume "$0" && echo $$ && exec sleep infinity`
	c := m.command("unshare", "--mount", "sh", "-c", script, dir)
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		_ = c.Process.Kill() // kills nsenter; its child ends with the machine
		_ = c.Wait()
	})
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		m.t.Fatalf("a container: %v", err)
	}
	return []string{"nsenter", "--target", fmt.Sprint(pid), "--mount"}
}

// document returns the block of shell commands in a document that contains words.
func (m *machine) document(name, words string) string {
	m.t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		m.t.Fatal(err)
	}
	for _, block := range strings.Split(string(text), "\n```sh\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		if strings.Contains(block, words) {
			return block
		}
	}
	m.t.Fatalf("%s has no commands with %q", name, words)
	return ""
}
