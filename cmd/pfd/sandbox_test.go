package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/config"
)

// A running pfd has dropped its privileges in each thread. It still reloads its configuration,
// answers, and exits normally.
func TestSandbox(t *testing.T) {
	root := os.Geteuid() == 0
	for _, c := range []struct {
		sandbox                 string
		privileges, calls, caps string // caps of a pfd of root
	}{
		{"auto", "1", "2", "0000000000080000"}, // CAP_SYS_PTRACE is 19 (linux/capability.h)
		{"strict", "1", "2", "0000000000000000"},
		{"off", "", "", ""},
	} {
		t.Run(c.sandbox, func(t *testing.T) {
			dir := t.TempDir()
			socket, file := filepath.Join(dir, "s"), filepath.Join(t.TempDir(), "pfd.toml")
			writeFile(t, file, "timeout-us = 5000\n")
			l := &log{t: t}
			p := startWith(t, l, "--socket", socket, "--config", file, "--sandbox", c.sandbox)
			p.ready(socket)
			l.waitFor("msg=ready")
			for _, status := range threads(t, p.cmd.Process.Pid) {
				want := map[string]string{"NoNewPrivs": c.privileges, "Seccomp": c.calls}
				if root {
					want["CapEff"], want["CapPrm"] = c.caps, c.caps
				}
				for key, value := range want {
					if value != "" && status[key] != value {
						t.Errorf("thread %s: %s is %s, want %s", status["Pid"], key, status[key], value)
					}
				}
			}
			// Like an editor: another file with the same name.
			writeFile(t, file+"~", "timeout-us = 6000\n")
			if err := os.Rename(file+"~", file); err != nil {
				t.Fatal(err)
			}
			p.signal(syscall.SIGHUP)
			l.waitFor("configuration reloaded")
			if s := p.ready(socket); s.TimeoutUS != 6000 {
				t.Errorf("status %+v", s)
			}
			p.signal(syscall.SIGTERM)
			if code := p.code(); code != config.ExitOK {
				t.Errorf("exit code %d: %s", code, l.buf.String())
			}
			for _, path := range []string{socket, socket + ".attach"} {
				if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s still exists: %v", path, err)
				}
			}
		})
	}
}

// threads returns the lines of each /proc/PID/task/TID/status.
func threads(t *testing.T, pid int) (list []map[string]string) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(tasks) == 0 {
		t.Fatalf("%d threads, %v", len(tasks), err)
	}
	for _, path := range tasks {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // the thread has ended
		}
		status := map[string]string{}
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(line, ":")
			status[key] = strings.TrimSpace(value)
		}
		list = append(list, status)
	}
	return list
}

// TestFilteredMoves: a pfd that may not access memory itself logs that at its start, with the
// remedy, and leaves the memory to helpers.
func TestFilteredMoves(t *testing.T) {
	runtime.LockOSThread() // the filter applies to this thread, which ends with the test, and to its children
	refuse := unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	f := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // seccomp_data.nr
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: unix.SYS_PROCESS_VM_READV},
		{Code: unix.BPF_RET | unix.BPF_K, K: refuse},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0); err != nil {
		t.Fatal(err)
	}
	l := &log{t: t}
	p := startWith(t, l, "--socket", filepath.Join(t.TempDir(), "s"))
	l.waitFor("allow both in its seccomp policy")
	l.waitFor("msg=ready")
	p.signal(syscall.SIGTERM)
	if code := p.code(); code != config.ExitOK {
		t.Errorf("exit code %d: %s", code, l.buf.String())
	}
}
