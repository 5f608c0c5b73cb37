package qemu

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), (&Cache{}).program())
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestVersion(t *testing.T) {
	for _, c := range []struct {
		says, version string
		fails         bool
	}{
		{"QEMU emulator version 10.1.0 (Debian 1:10.1.0)", "10.1.0", false},
		{"QEMU emulator version 11.1.3", "11.1.3", false},
		{"QEMU emulator version 10.0.13", "10.0.13", true},
		{"QEMU emulator version 7.2.1", "7.2.1", true},
		{"something else", "", true},
	} {
		e, err := look(t.Context(), []string{script(t, "echo '"+c.says+"'")})
		if e.Version != c.version || (err != nil) != c.fails || err != nil && !errors.Is(err, ErrQEMU) {
			t.Errorf("%q: version %q, %v", c.says, e.Version, err)
		}
	}
}

// A process is ended only if its pid still belongs to it.
func TestEnd(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ name, script string }{
		{"one that ends", "exec sleep 600"},
		{"one that has ended", "exit 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := startProcess(filepath.Join(dir, "log"), nil, "sh", "-c", c.script)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.end(t.Context()); err != nil {
				t.Error(err)
			}
			if p.alive() == nil {
				t.Error("it is alive")
			}
		})
	}
	t.Run("another's number", func(t *testing.T) {
		other := exec.Command("sleep", "600")
		if err := other.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
		start, err := startTime(other.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		p := process{PID: other.Process.Pid, Start: start + 1, Log: filepath.Join(dir, "log")}
		if err := p.end(t.Context()); err != nil {
			t.Error(err)
		}
		if err := unix.Kill(other.Process.Pid, 0); err != nil {
			t.Errorf("it was ended: %v", err)
		}
	})
}

// The error contains a process's last output before its end.
func TestEndedSays(t *testing.T) {
	p, err := startProcess(filepath.Join(t.TempDir(), "qemu.log"), nil, "sh", "-c", "echo no such device >&2; exit 1")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = dialMonitor(ctx, filepath.Join(t.TempDir(), "none.sock"), p.alive)
	if !errors.Is(err, ErrEnded) || !strings.Contains(err.Error(), "no such device") {
		t.Errorf("error %v", err)
	}
}

func TestNoFleet(t *testing.T) {
	if _, err := Open(t.TempDir()); !errors.Is(err, ErrNone) {
		t.Errorf("error %v, want ErrNone", err)
	}
}

func TestNotSetUp(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // hide the machine's QEMU
	c := &Cache{Dir: t.TempDir(), Programs: t.TempDir()}
	for machine, words := range map[string]string{MachineX86: "qemu setup", MachineBare: "qemu setup", MachineARM: "qemu setup --arm64"} {
		if err := c.Prepare(t.Context(), Small, machine); !errors.Is(err, ErrNotSetUp) || !strings.HasSuffix(err.Error(), words) {
			t.Errorf("%s: error %v, want ErrNotSetUp with %q", machine, err, words)
		}
	}
	c.Kernel = "6.18"
	if err := c.Fetch(t.Context(), What{ARM: true}); !errors.Is(err, ErrArchive) || !strings.Contains(err.Error(), "arm64") {
		t.Errorf("another kernel for arm64: %v, want ErrArchive", err)
	}
}

func TestMachines(t *testing.T) {
	for _, o := range []Options{
		{Guests: 1, Machine: "riscv"},
		{Guests: 1, UIO: true},
		{Guests: 1, Machine: MachineARM, UIO: true},
		{Guests: 1, Machine: MachineBare, System: Debian},
		{Guests: 1, Machine: MachineARM, System: Debian},
	} {
		if err := o.Check(); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
	for _, o := range []Options{{Guests: 1}, {Guests: 1, System: Debian}, {Guests: 1, Machine: MachineBare, UIO: true}, {Guests: 1, Machine: MachineARM}} {
		if err := o.Check(); err != nil {
			t.Error(err)
		}
	}
}
