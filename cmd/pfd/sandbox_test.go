package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// What a running pfd has given up, each thread of it; and with that it reloads its
// configuration, answers, and ends in good order.
func TestSandbox(t *testing.T) {
	root := os.Geteuid() == 0
	for _, c := range []struct {
		sandbox                 string
		privileges, calls, caps string // caps of a pfd of root's
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
					want["CapEff"], want["CapPrm"], want["CapBnd"] = c.caps, c.caps, c.caps
				}
				for key, value := range want {
					if value != "" && status[key] != value {
						t.Errorf("thread %s: %s is %s, want %s", status["Pid"], key, status[key], value)
					}
				}
			}
			// As an editor does it: another file of the same name.
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
			if code := p.code(); code != exitOK {
				t.Errorf("exit code %d: %s", code, l.buf.String())
			}
			for _, path := range []string{socket, socket + ".attach"} {
				if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s stays: %v", path, err)
				}
			}
		})
	}
}

// threads gives the lines of /proc/PID/task/TID/status.
func threads(t *testing.T, pid int) (list []map[string]string) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(tasks) == 0 {
		t.Fatalf("%d threads, %v", len(tasks), err)
	}
	for _, path := range tasks {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
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
