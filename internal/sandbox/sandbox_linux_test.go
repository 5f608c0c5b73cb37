package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"golang.org/x/sys/unix"
)

const (
	childEnv      = "EXANET_SANDBOX_TEST"
	unfilteredEnv = "EXANET_SANDBOX_TEST_UNFILTERED"
	unqueuedEnv   = "EXANET_SANDBOX_TEST_UNQUEUED"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		child(dir)
		os.Exit(0)
	}
	if os.Getenv(unfilteredEnv) != "" {
		unfiltered()
		os.Exit(0)
	}
	if os.Getenv(unqueuedEnv) != "" {
		unqueued()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// answers are the results of a process in its sandbox.
type answers struct {
	Missing []string
	Errs    map[string]string // by attempt: "" for success, else the errno's text
	Threads []map[string]string
}

// child applies rules that keep a directory, and then attempts forbidden operations.
func child(dir string) {
	rules := Rules{
		Capabilities: []int{unix.CAP_DAC_OVERRIDE},
		Calls: append(Runtime(), "socket", "connect", "getsockname", "getpeername", "setsockopt", "getsockopt",
			"unlinkat", "getdents64", "process_vm_readv"),
		Files: &Files{Read: []string{"/proc", filepath.Join(dir, "read"), filepath.Join(dir, "none")}, Write: []string{filepath.Join(dir, "write")}},
	}
	a := answers{Errs: map[string]string{}}
	for _, m := range Apply(rules) {
		a.Missing = append(a.Missing, fmt.Sprintf("%s: %v", m.Step, m.Err))
	}
	try := func(what string, err error) {
		a.Errs[what] = ""
		var errno syscall.Errno
		if errors.As(err, &errno) {
			a.Errs[what] = errno.Error()
		} else if err != nil {
			a.Errs[what] = err.Error()
		}
	}
	socket := func(family int) error {
		fd, err := unix.Socket(family, unix.SOCK_STREAM, 0)
		if err == nil {
			_ = unix.Close(fd)
		}
		return err
	}
	try("exec", unix.Exec("/proc/self/exe", []string{"x"}, nil))
	try("mount", unix.Mount("none", dir, "tmpfs", 0, ""))
	try("setuid", unix.Setresuid(1, 1, 1))
	try("inet", socket(unix.AF_INET))
	try("unix", socket(unix.AF_UNIX))
	_, err := os.ReadFile(filepath.Join(dir, "read", "file"))
	try("read", err)
	try("write to what is read", os.WriteFile(filepath.Join(dir, "read", "file"), nil, 0o600))
	_, err = os.ReadFile(filepath.Join(dir, "other"))
	try("read another", err)
	try("write", os.WriteFile(filepath.Join(dir, "write", "new"), nil, 0o600))
	try("remove", os.Remove(filepath.Join(dir, "write", "new")))
	conn, err := net.Dial("unix", filepath.Join(dir, "socket"))
	try("connect", err)
	if err == nil {
		_ = conn.Close()
	}
	var b [8]byte
	local := []unix.Iovec{{Base: &b[0], Len: 8}}
	_, err = unix.ProcessVMReadv(os.Getppid(), local, []unix.RemoteIovec{{Base: 4096, Len: 8}}, 0)
	try("memory of another", err)

	a.threads(try)
	_ = json.NewEncoder(os.Stdout).Encode(a)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// threads reads the status of each thread of this process.
func (a *answers) threads(try func(string, error)) {
	tasks, err := os.ReadDir("/proc/self/task")
	try("tasks", err)
	for _, task := range tasks {
		text, err := os.ReadFile(filepath.Join("/proc/self/task", task.Name(), "status"))
		try("status", err)
		status := map[string]string{}
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(line, ":")
			status[key] = strings.TrimSpace(value)
		}
		a.Threads = append(a.Threads, status)
	}
}

// unfiltered applies rules while the kernel refuses seccomp filters of this thread.
func unfiltered() {
	runtime.LockOSThread()
	if err := seccomp.LoadFilter(seccomp.Filter{Policy: seccomp.Policy{
		DefaultAction: seccomp.ActionAllow,
		Syscalls:      []seccomp.SyscallGroup{{Names: []string{"seccomp"}, Action: seccomp.ActionErrno}},
	}}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var a answers
	for _, m := range Apply(Rules{Calls: Runtime()}) {
		a.Missing = append(a.Missing, string(m.Step))
	}
	a.threads(func(string, error) {})
	_ = json.NewEncoder(os.Stdout).Encode(a)
}

// unqueued applies rules while no signal can be queued.
func unqueued() {
	if err := unix.Setrlimit(unix.RLIMIT_SIGPENDING, &unix.Rlimit{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var a answers
	for _, m := range Apply(Rules{Calls: Runtime(), Files: &Files{Read: []string{"/proc"}}}) {
		a.Missing = append(a.Missing, fmt.Sprintf("%s: %v", m.Step, m.Err))
	}
	_ = json.NewEncoder(os.Stdout).Encode(a)
}

// ask runs this program with an additional setting and returns its answers.
func ask(t *testing.T, setting string) (a answers) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), setting)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out, &a); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return a
}

// TestUnfiltered: if calls cannot be filtered, no thread can gain privileges all the same.
func TestUnfiltered(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: the filter that forbids filters is loaded without no_new_privs")
	}
	a := ask(t, unfilteredEnv+"=1")
	if len(a.Missing) != 1 || a.Missing[0] != string(StepCalls) {
		t.Errorf("not applied: %q, want only %q", a.Missing, StepCalls)
	}
	if len(a.Threads) < 3 {
		t.Errorf("only %d threads", len(a.Threads))
	}
	for _, status := range a.Threads {
		if status["NoNewPrivs"] != "1" {
			t.Errorf("thread %s: NoNewPrivs is %s", status["Pid"], status["NoNewPrivs"])
		}
	}
}

// TestUnqueued: if the threads cannot be signalled, their steps are skipped, and nothing hangs.
func TestUnqueued(t *testing.T) {
	want := []Step{StepFiles}
	if os.Geteuid() == 0 { // other users have no capabilities to drop
		want = append(want, StepCapabilities)
	}
	a := ask(t, unqueuedEnv+"=1")
	if len(a.Missing) != len(want) {
		t.Fatalf("not applied: %q, want %q", a.Missing, want)
	}
	for i, m := range a.Missing {
		if !strings.HasPrefix(m, string(want[i])) || !strings.Contains(m, "ulimit -i") {
			t.Errorf("%s, want that %s names ulimit -i", m, want[i])
		}
	}
}

// Other rights than those of Rules are removed from all threads; the rights that are kept work.
func TestApply(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"read", "write"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"read/file", "other"} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("unix", filepath.Join(dir, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a := ask(t, childEnv+"="+dir)
	landlock := true
	for _, m := range a.Missing {
		if !strings.HasPrefix(m, string(StepFiles)) {
			t.Errorf("not applied: %s", m)
			continue
		}
		t.Logf("this kernel has no Landlock to test with: %s", m)
		landlock = false
	}
	perm, acces := unix.EPERM.Error(), unix.EACCES.Error()
	want := map[string]string{
		"exec": perm, "mount": perm, "setuid": perm, "inet": perm, "unix": "", "read": "", "write": "", "remove": "",
		"connect": "", "tasks": "", "status": "",
	}
	if landlock {
		want["write to what is read"], want["read another"], want["memory of another"] = acces, acces, perm
	}
	for what, errno := range want {
		if got, ok := a.Errs[what]; !ok || got != errno {
			t.Errorf("%s: %q, want %q", what, got, errno)
		}
	}
	if len(a.Threads) < 3 {
		t.Errorf("only %d threads", len(a.Threads))
	}
	capabilities := "0000000000000000"
	if os.Geteuid() == 0 {
		capabilities = "0000000000000002" // CAP_DAC_OVERRIDE
	}
	for _, status := range a.Threads {
		for key, value := range map[string]string{"NoNewPrivs": "1", "Seccomp": "2", "CapEff": capabilities, "CapPrm": capabilities, "CapAmb": "0000000000000000", "CapInh": "0000000000000000"} {
			if status[key] != value {
				t.Errorf("thread %s: %s is %s, want %s", status["Pid"], key, status[key], value)
			}
		}
	}
}
