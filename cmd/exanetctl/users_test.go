package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/workload"
)

// A user without root's rights sees only their own numbers at root's pfd. The output does not show
// hidden numbers as zero, and it states the reason.
func TestPlainUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it starts processes of another user")
	}
	const uid = 1000
	dir := programs(t)
	d := startPFD(t, dir)
	for _, open := range []string{filepath.Dir(dir), filepath.Dir(d.Socket())} {
		if err := os.Chmod(open, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	ctl := func(line string) (out, errs string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "bin", "exanetctl"), append(strings.Fields(line), "--socket", d.Socket())...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		var o, e bytes.Buffer
		cmd.Dir, cmd.Stdout, cmd.Stderr = "/", &o, &e
		if err := cmd.Run(); err != nil {
			t.Errorf("%s: %v\n%s%s", line, err, o.String(), e.String())
		}
		return o.String(), e.String()
	}
	if out, _ := ctl("fault"); !strings.Contains(out, "no fault is in the log: pfd shows uid 1000 only its own processes, and none of them is attached") {
		t.Errorf("fault: %s", out)
	}
	if out, _ := ctl("host"); !strings.Contains(out, "no other host: exanet-hostd is not connected") {
		t.Errorf("host: %s", out)
	}
	if out, _ := ctl("fault 1"); !strings.Contains(out, "no fault is in the log of node 1: pfd shows") {
		t.Errorf("fault 1: %s", out)
	}
	if code, _, errs := execute(t, dir, "bin/exanetctl domain grant 0/0 5 --socket "+d.Socket()); code == exitOK || strings.Contains(errs, "CAP_SYS_PTRACE") {
		t.Errorf("root's grant without a domain: %s", errs)
	}
	execute(t, dir, "bin/exanetctl write --dst absent --socket "+d.Socket()) // root's
	if out, _ := ctl("write --dst absent"); !regexp.MustCompile(`(?m)^retransmissions +- `).MatchString(out) || strings.Contains(out, "p99") {
		t.Errorf("write says\n%s", out)
	}
	out, _ := ctl("write -j --dst absent --count 20")
	for _, want := range []string{`"rapf":null`, `"retransmits":null`, `"timeouts":null`, `"guards":null`, `"counters_others":null`, `"faults":20`} {
		if !strings.Contains(out, want) {
			t.Errorf("write -j has no %s: %s", want, out)
		}
	}
	// His faults remain, with the process and the time. Root's are not shown.
	out, errs := ctl("fault -j")
	var faults control.Faults
	if err := json.Unmarshal([]byte(out), &faults); err != nil || len(faults.Faults) != 21 {
		t.Fatalf("%d faults, want 21: %v%s", len(faults.Faults), err, errs)
	}
	for _, f := range faults.Faults {
		if age := time.Since(time.Unix(0, f.UnixNS)); f.PID == 0 || f.AgeNS <= 0 || age < 0 || age > patience {
			t.Errorf("%+v", f)
		}
	}
	const scope = "pfd shows uid 1000 only its own processes"
	for _, line := range []string{"fault stages", "node", "fifo"} {
		if _, errs := ctl(line); !strings.Contains(errs, scope) {
			t.Errorf("%s: standard error %q", line, errs)
		}
	}
	for _, line := range []string{"node -j", "domain -j", "channel -j", "transaction -j", "smmu -j", "fifo -j", "counter -j", "fault -j", "fault stages -j"} {
		if out, _ := ctl(line); !strings.Contains(out, `"sees_all":false`) {
			t.Errorf("%s: %s", line, out)
		}
	}
	if out, _ := ctl("counter -j"); !strings.Contains(out, `"counters":[]`) {
		t.Errorf("counter -j: %s", out)
	}
	for _, line := range []string{"smmu --all", "channel --all"} {
		if out, _ := ctl(line); strings.Contains(out, "--all") {
			t.Errorf("%s: %s", line, out)
		}
	}
	for _, line := range []string{"counter", "counter --all", "counter faults", "smmu", "domain", "channel", "transaction"} {
		out, errs := ctl(line)
		if errs != "" || strings.Count(out, "\n") != 1 || !strings.Contains(out, "pfd shows uid 1000 only its own processes") {
			t.Errorf("%s: %q, standard error %q", line, out, errs)
		}
	}
	if out, _ := ctl("status"); !regexp.MustCompile(`(?m)^handshakes +-$`).MatchString(out) || !regexp.MustCompile(`(?m)^faults +-\npinned +-$`).MatchString(out) || !strings.Contains(out, scope) {
		t.Errorf("status says\n%s", out)
	}
	if out, _ := ctl("top -n 1"); !strings.Contains(out, "transfers/s=- ") || !strings.Contains(out, "channels=- ") {
		t.Errorf("top says %s", out)
	}
	kept := filepath.Join(t.TempDir(), "kept")
	if err := os.WriteFile(kept, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"capture --socket " + kept, "capture 7 --socket " + d.Socket()} {
		code, _, _ := execute(t, dir, "bin/exanetctl "+line+" --write "+kept)
		if text, err := os.ReadFile(kept); string(text) != "kept" || err != nil || code == exitOK {
			t.Errorf("%s: exit code %d, the file has %q, %v", line, code, text, err)
		}
	}
	if out, _ := ctl("top -n 1 -j"); !strings.Contains(out, `"retransmits_per_s":null`) {
		t.Errorf("top says %s", out)
	}
	// A read does not report the other node's counters as its own.
	if _, out, _ := execute(t, dir, "bin/exanetctl read --dst absent --socket "+d.Socket()); !regexp.MustCompile(`(?m)^retransmissions +node 1: [1-9]`).MatchString(out) {
		t.Errorf("read says\n%s", out)
	}
}

// Every command that follows pfd or waits for it reports the end of pfd with exit code 3.
func TestEndOfPFDIsTold(t *testing.T) {
	dir := programs(t)
	runtime.LockOSThread() // as in startPFD
	defer runtime.UnlockOSThread()
	d, err := workload.StartDaemon(t.Context(), filepath.Join(dir, "bin", "pfd"), 2)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Stop(); err == nil {
			t.Error("pfd was not killed")
		}
	}()
	lines := map[string]string{
		"write --count 1000000":                      `^exanetctl: pfd ended (during|after) transfer [0-9]+ of 1000000( \(status 10\))?\n$`,
		"read --count 1000000 --parallel 2":          `^exanetctl: pfd ended (during|after) transfer [0-9]+ of 2000000( \(status 10\))?\n$`,
		"write --count 1000000 --method touch":       `^exanetctl: pfd ended (during|after) transfer [0-9]+ of 1000000( \(status 10\))?\n$`,
		"perf bw -D 1h":                              `^exanetctl: pfd ended while transfers of 65536 bytes were measured \(status 10\)\n$`,
		"perf msg -D 1h":                             `^exanetctl: pfd ended while messages of 8 bytes were measured\n$`,
		"fault monitor":                              `exanetctl: pfd ended: it was on .*\n$`,
		"capture --write " + filepath.Join(dir, "c"): `exanetctl: pfd ended: it was on .*\n$`,
		"top --interval 100ms":                       `^exanetctl: no pfd can be reached .*\n$`,
		"domain --watch 100ms":                       `exanetctl: no pfd can be reached .*\n$`,
	}
	type follower struct {
		cmd  *exec.Cmd
		errs bytes.Buffer
	}
	running := map[string]*follower{}
	for line := range lines {
		f := &follower{cmd: exec.CommandContext(t.Context(), filepath.Join(dir, "bin", "exanetctl"), append(strings.Fields(line), "--socket", d.Socket())...)}
		f.cmd.Stderr = &f.errs
		running[line] = f
		if err := f.cmd.Start(); err != nil {
			t.Fatal(err)
		}
	}
	c, err := control.New(d.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// All make transfers, on two domains each, and the capture has begun.
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		domains, err := c.Domains(t.Context(), control.AllNodes)
		if err != nil {
			t.Fatal(err)
		}
		busy := 0
		for _, dom := range domains {
			if dom.Transfers != nil && dom.Transfers.Completed > 0 {
				busy++
			}
		}
		info, err := os.Stat(filepath.Join(dir, "c"))
		if busy == 5 && err == nil && info.Size() > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d domains transfer", busy, len(domains))
		}
	}
	s, err := c.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(s.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for line, want := range lines {
		f := running[line]
		_ = f.cmd.Wait() // its exit code says it
		if code := f.cmd.ProcessState.ExitCode(); code != exitNoDaemon || !regexp.MustCompile(want).MatchString(f.errs.String()) {
			t.Errorf("%s: exit code %d, %q, want 3 and %s", line, code, f.errs.String(), want)
		}
	}
}
