package guests

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/exanet/pfd/qemu"
	"github.com/exanet/pfd/qemu/agent"
)

// held returns what the serving process holds.
func (f *fleet) held() (fds, maps int) {
	f.t.Helper()
	dir := fmt.Sprintf("/proc/%d", f.NodesPID())
	list, err := os.ReadDir(dir + "/fd")
	if err != nil {
		f.t.Fatal(err)
	}
	for _, fd := range list {
		to, err := os.Readlink(dir + "/fd/" + fd.Name())
		if err == nil && (strings.HasPrefix(to, "/memfd:") || strings.HasPrefix(to, "socket:") || strings.Contains(to, "eventfd")) {
			fds++
		}
	}
	text, err := os.ReadFile(dir + "/maps")
	if err != nil {
		f.t.Fatal(err)
	}
	// QEMU's memory-backend-memfd holds the memory of the guests.
	return fds, strings.Count(string(text), "memfd:memory-backend")
}

// until waits until look returns true.
func until(t testing.TB, what string, look func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !look(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting until %s", what)
		}
	}
}

// A guest is killed during transfers. The serving process releases all its resources, and the
// next guest with the same nodes works.
func TestKilledGuest(t *testing.T) {
	f := boot(t, qemu.Options{Guests: 1, Nodes: 2, PFD: slow})
	f.run(0, "exanetctl", "write", "--dst", "absent")
	_, maps := f.held()
	if maps == 0 {
		t.Error("the serving process has none of the guest's memory mapped: this test could not detect anything")
	}
	fdsBefore := 0
	for round := range 2 {
		gone := make(chan struct{})
		r, w := io.Pipe()
		go func() {
			defer close(gone)
			_, _ = f.Run(t.Context(), 0, agent.Command{Exec: agent.Exec{Args: []string{"sh", "-c", "echo begins; exec exanetctl write --dst absent --size 1MiB --count 1000"}}, Stdout: w, Stderr: io.Discard})
			_ = w.Close()
		}()
		if _, err := r.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.Copy(io.Discard, r) }()
		var s seen
		until(t, "the transfers go on", func() bool { s = f.count(0); return s.faults > 300 })
		if err := syscall.Kill(f.GuestPID(0), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-gone
		until(t, "the guest's memory is let go", func() bool { _, maps := f.held(); return maps == 0 })
		if round == 0 {
			fdsBefore, _ = f.held()
		} else {
			until(t, "the serving process holds no more descriptors than after the first kill", func() bool { fds, _ := f.held(); return fds <= fdsBefore })
		}
		if err := f.Restart(t.Context(), cache, 0); err != nil {
			t.Fatal(err)
		}
		f.run(0, "exanetctl", "write", "--dst", "absent", "--size", "64KiB")
	}
}

// A guest reboots, or panics, during transfers, and then uses its nodes again.
func TestReboot(t *testing.T) {
	f := boot(t, qemu.Options{Guests: 1, Nodes: 2, PFD: slow})
	for _, c := range []struct{ name, command string }{
		{"reboot", "reboot -f"},
		{"panic", "echo c >/proc/sysrq-trigger"},
	} {
		const bootID = "/proc/sys/kernel/random/boot_id"
		before := f.run(0, "cat", bootID)
		f.run(0, "sh", "-c", "exanetctl write --dst absent --size 1MiB --count 1000 >/dev/null 2>&1 &")
		faults := f.count(0).faults
		until(t, "the transfers go on", func() bool { return f.count(0).faults > faults+100 })
		f.run(0, "sh", "-c", "(sleep 0.2; "+c.command+") >/dev/null 2>&1 &")
		until(t, "the guest is up again after a "+c.name, func() bool {
			// A command that runs when the guest goes down is never answered.
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			var out strings.Builder
			code, err := f.Run(ctx, 0, agent.Command{Exec: agent.Exec{Args: []string{"cat", bootID}}, Stdout: &out})
			return err == nil && code == 0 && out.String() != before
		})
		if err := f.Begin(t.Context(), 0); err != nil {
			t.Fatalf("after a %s: %v", c.name, err)
		}
		f.run(0, "exanetctl", "write", "--dst", "absent", "--size", "64KiB")
	}
}

// pfd dies in a guest. The kernel resets the device, and another pfd uses it.
func TestKilledPFD(t *testing.T) {
	f := boot(t, qemu.Options{Guests: 1, Nodes: 2, PFD: slow})
	line := strings.TrimSpace(f.run(0, "sh", "-c", "tr '\\0' ' ' </proc/$(pidof pfd)/cmdline"))
	out, err := f.try(0, strings.Fields(strings.Replace(line, "pfd", "pfd --socket /run/second.sock", 1))...)
	if err == nil || !strings.Contains(out, "another process has the device") || !strings.Contains(out, "fuser -v /dev/vfio/") {
		t.Errorf("a second pfd: %q, %v", out, err)
	}
	f.run(0, "sh", "-c", "kill -9 $(pidof pfd)")
	f.run(0, "sh", "-c", "ulimit -l unlimited; "+line+" >/run/pfd.log 2>&1 & until exanetctl status >/dev/null 2>&1; do sleep 0.05; done")
	f.run(0, "exanetctl", "write", "--dst", "absent")

	f.run(0, "sh", "-c", "kill $(pidof pfd)")
	until(t, "pfd ends", func() bool { _, err := f.try(0, "pidof", "pfd"); return err != nil })
	if verdict, remedy := f.doctor(0, "vfio"); verdict != "ok" {
		t.Errorf("doctor reports %s about VFIO: %s", verdict, remedy)
	}
	f.run(0, "exanetctl", "unbind", "--all")
	if verdict, remedy := f.doctor(0, "vfio"); verdict != "warning" || !strings.HasPrefix(remedy, "exanetctl bind 0000:") {
		t.Errorf("doctor reports %s about VFIO without a driver: %s", verdict, remedy)
	}
	out, err = f.try(0, "sh", "-c", line)
	if err == nil || !strings.Contains(out, "not bound to vfio-pci") || !strings.Contains(out, "exanetctl bind 0000:") {
		t.Errorf("pfd on an unbound device: %q, %v", out, err)
	}
}

// doctor returns the verdict and the remedy of a check.
func (f *fleet) doctor(guest int, name string) (verdict, remedy string) {
	f.t.Helper()
	out, _ := f.try(guest, "exanetctl", "-j", "doctor") // the exit code covers all checks
	var r struct {
		Checks []struct{ Name, Verdict, Remedy string }
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		f.t.Fatalf("doctor: %v: %s", err, out)
	}
	for _, c := range r.Checks {
		if c.Name == name {
			return c.Verdict, c.Remedy
		}
	}
	f.t.Fatalf("doctor has no check %s: %s", name, out)
	return "", ""
}

// commands returns the first block of commands of a section.
func commands(t *testing.T, file, section string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "\n## "+section+"\n")
	_, block, opened := strings.Cut(rest, "```sh\n")
	block, _, closed := strings.Cut(block, "```")
	if !ok || !opened || !closed {
		t.Fatalf("%s has no block of commands under %s", file, section)
	}
	return block
}

// The commands of README.md, which are those of docs/guests.md, in their order.
func TestNewcomer(t *testing.T) {
	usable(t)
	block := commands(t, "../../README.md", "In virtual machines")
	if other := commands(t, "../../docs/guests.md", "Try it"); block != other {
		t.Errorf("commands of README.md:\n%scommands of docs/guests.md:\n%s", block, other)
	}
	dir, err := os.MkdirTemp("", "exanet-")
	if err != nil {
		t.Fatal(err)
	}
	run := filepath.Join(dir, "run")
	began := time.Now()
	writes := 0
	for line := range strings.Lines(block) {
		words := strings.Fields(line)
		if len(words) < 3 || words[0] != "exanetctl" || words[1] != "qemu" {
			t.Fatalf("unknown command %q", line)
		}
		if words[2] == "shell" { // it needs a terminal
			words[2] = "run"
			words = append(words, "--", "sh", "-c", "exit 0")
		}
		args := append([]string{"qemu", "--cache", cache.Dir, "--dir", run}, words[2:]...)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		cmd := exec.CommandContext(ctx, filepath.Join(bin, "exanetctl"), args...)
		out, err := cmd.CombinedOutput()
		cancel()
		if err != nil {
			t.Errorf("%s: %v: %s", strings.TrimSpace(line), err, out)
		}
		// Both documents promise this: the page faulted, every byte arrived, and nothing was
		// pinned.
		if strings.Contains(line, "exanetctl write") {
			writes++
			for _, want := range []string{`(?m)^faults +[1-9]`, `(?m)^verified +every byte is right$`, `(?m)^pinned +[1-9]`} {
				if !regexp.MustCompile(want).Match(out) {
					t.Errorf("%s: no %s in\n%s", strings.TrimSpace(line), want, out)
				}
			}
		}
		t.Logf("%5.1f s %s", time.Since(began).Seconds(), strings.TrimSpace(line))
	}
	if writes != 1 {
		t.Errorf("README.md has %d writes in a guest, want 1", writes)
	}
	if err := os.Remove(dir); err != nil { // fails if stop has left files
		t.Error(err)
	}
}
