package tracing

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/trace/probe"
)

// On and off again and again under load: no transfer fails, nothing is counted that was
// not, and nothing pinned is left.
func TestOnAndOffUnderLoad(t *testing.T) {
	if refused != "" {
		t.Skip(refused)
	}
	t.Setenv("GOGC", "5")
	times := 10
	if v := os.Getenv("PFD_TRACE_CYCLES"); v != "" {
		var err error
		if times, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	r := newRig(t)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			out, err := r.try("write", "-j", "--dst", "absent", "--size", "64KiB", "--count", "100")
			if err != nil {
				t.Errorf("%v\n%s", err, out)
				return
			}
		}
	}()
	for range times {
		r.ctl("trace", "on", "--bpffs", r.dir)
		c := r.status().Counters
		if c["bad_records"] != 0 || c["unreadable"] != 0 {
			t.Errorf("%v", c)
		}
		r.ctl("trace", "off", "--bpffs", r.dir)
		if _, err := os.Lstat(r.dir); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("%s is left: %v", r.dir, err)
		}
	}
	close(stop)
	<-done
	r.on()
	r.write("--dst", "absent", "--count", "10")
	r.exact()
}

// A pfd that was killed while it was traced: the next one is seen at once.
func TestKilled(t *testing.T) {
	r := newRig(t)
	r.on()
	r.write("--dst", "absent", "--count", "10")
	if err := r.pfd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = r.pfd.Wait()
	r.start()
	before := r.status().Counters["faults"]
	r.write("--dst", "absent", "--count", "10")
	r.until("the faults of the next pfd are seen", func() bool { return r.status().Counters["faults"] == before+10 })
	alive := 0
	for _, w := range r.status().Watched {
		if w.Alive {
			alive++
		}
	}
	if alive != 1 {
		t.Errorf("%+v", r.status().Watched)
	}
}

// What bpftool and cat read are the numbers of trace latency.
func TestOthersReadTheSame(t *testing.T) {
	r := newRig(t)
	r.on()
	r.write("--dst", "absent", "--count", "100")
	c := r.exact()

	table, err := os.ReadFile(filepath.Join(r.dir, "latency"))
	if err != nil {
		t.Fatal(err)
	}
	m := r.maps()
	defer m.Close()
	list, err := m.Latencies()
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][]string{}
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) == 7 {
			rows[strings.Join(f[:3], " ")] = f[3:]
		}
	}
	for _, l := range list {
		if l.Method != "gup" {
			continue // waking goes on
		}
		got := rows[l.Stage+" "+l.Method+" "+l.Kind]
		want := []string{strconv.FormatUint(l.Count, 10), strconv.FormatUint(l.P50NS, 10), strconv.FormatUint(l.P99NS, 10), strconv.FormatUint(l.MaxNS, 10)}
		if !slices.Equal(got, want) {
			t.Errorf("%s: cat reads %v, trace latency %v", l.Stage, got, want)
		}
	}

	bpftool, err := exec.LookPath("bpftool")
	if err != nil {
		t.Skip("bpftool is not installed: apt-get install bpftool")
	}
	out, err := exec.Command(bpftool, "-j", "map", "dump", "pinned", filepath.Join(r.dir, "fault_counters")).Output()
	if err != nil {
		t.Fatal(err)
	}
	var dump []struct {
		Formatted struct {
			Key   string `json:"key"`
			Value uint64 `json:"value"`
		} `json:"formatted"`
	}
	if err := json.Unmarshal(out, &dump); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if len(dump) != len(probe.CounterNames()) {
		t.Errorf("bpftool finds %d counters, want %d", len(dump), len(probe.CounterNames()))
	}
	for _, d := range dump {
		if d.Formatted.Value != c[d.Formatted.Key] {
			t.Errorf("%s: bpftool reads %d, trace status %d", d.Formatted.Key, d.Formatted.Value, c[d.Formatted.Key])
		}
	}
}

// Without root two capabilities do, and each is missed by its name.
func TestCapabilities(t *testing.T) {
	r := newRig(t)
	const nobody = 65534
	dir := filepath.Join(bpffs, "nobody")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, nobody, nobody), os.Chmod(bpffs, 0o711), os.Chmod(bin, 0o755)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(dir) })
	for _, tt := range []struct {
		caps []uintptr
		want string
	}{
		{[]uintptr{unix.CAP_BPF, unix.CAP_PERFMON}, ""},
		{[]uintptr{unix.CAP_BPF}, "CAP_PERFMON missing"},
		{[]uintptr{unix.CAP_PERFMON}, "CAP_BPF missing"},
		{nil, "CAP_BPF and CAP_PERFMON missing"},
	} {
		cmd := exec.Command(filepath.Join(bin, "exanetctl"), "trace", "on", "--bpffs", filepath.Join(dir, "exanet"), "--program", filepath.Join(bin, "pfd"))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, AmbientCaps: tt.caps}
		out, err := cmd.CombinedOutput()
		if tt.want == "" {
			if err != nil {
				t.Fatalf("with both: %v\n%s", err, out)
			}
			r.dir = filepath.Join(dir, "exanet")
			r.write("--dst", "absent", "--count", "10")
			r.until("the faults are seen", func() bool { return r.status().Counters["faults"] == 10 })
			for _, s := range r.status().Sources {
				t.Logf("%s: %v %s", s.Name, s.Attached, s.Reason)
			}
			off := exec.Command(filepath.Join(bin, "exanetctl"), "trace", "off", "--bpffs", r.dir)
			off.SysProcAttr = cmd.SysProcAttr
			if out, err := off.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		} else if err == nil || !strings.Contains(string(out), tt.want) {
			t.Errorf("with %v: %v %s, want %q", tt.caps, err, out, tt.want)
		}
	}
}

// Whatever is wrong ends in a line that names it and says what helps.
func TestBadInput(t *testing.T) {
	r := newRig(t)
	on := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(filepath.Join(bin, "exanetctl"), append([]string{"--socket", r.socket, "trace", "on", "--bpffs", r.dir}, args...)...)
		out, err := cmd.CombinedOutput()
		if err == nil {
			t.Errorf("trace on %v works", args)
		}
		if _, err := os.Lstat(r.dir); err == nil && len(args) > 0 {
			t.Errorf("trace on %v leaves %s", args, r.dir)
		}
		return string(out)
	}
	want := func(got string, words ...string) {
		t.Helper()
		for _, w := range words {
			if !strings.Contains(got, w) {
				t.Errorf("it says %q, want %q in it", got, w)
			}
		}
		if strings.Count(strings.TrimSpace(got), "\n") > 0 {
			t.Errorf("more than a line: %q", got)
		}
	}
	want(on("--program", "/bin/true"), "no probe point", "it is no pfd")
	want(on("--program", "/etc/passwd"), "no probe point", "not a program")
	want(on("--program", "/does/not/exist"), "no such file")

	// A pfd whose records have another layout, and one whose code was changed.
	code, err := os.ReadFile(filepath.Join(bin, "pfd"))
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "other")
	change := func(from, to string) {
		t.Helper()
		s := strings.Replace(string(code), from, to, 1)
		if s == string(code) {
			t.Fatalf("the program has no %x", from)
		}
		if err := os.WriteFile(other, []byte(s), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if f, err := os.Open(filepath.Join(bin, "pfd")); err == nil {
		p, err := probe.Find(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		if p.Nops[probe.Nop1] != 0 { // x86
			change("\xba\x01\x00\x58\x45", "\xba\x02\x00\x58\x45")
			want(on("--program", other), "layout 2, this program reads 1", "same release")
			change("\x90\x0f\x1f\x44\x00\x00\x66\x2e", "\xcc\x0f\x1f\x44\x00\x00\x66\x2e")
			want(on("--program", other), "no probe point")
		}
	}
	change("exanet\x01\x00", "exanet\x02\x00")
	want(on("--program", other), "no probe point", "where its semaphore should be")

	// A directory that is somebody else's, or in no bpffs.
	if err := errors.Join(os.Mkdir(r.dir, 0o700), os.Chown(r.dir, 65534, 65534)); err != nil {
		t.Fatal(err)
	}
	want(on(), "belongs to uid 65534", "--bpffs")
	if err := os.Remove(r.dir); err != nil {
		t.Fatal(err)
	}
	dir := r.dir
	r.dir = filepath.Join(t.TempDir(), "a", "b")
	want(on(), "no such file")
	r.dir = dir

	// Two at once, and pins of another layout.
	r.ctl("trace", "on", "--bpffs", r.dir)
	want(on(), "tracing is on already", "trace off")
	if out, err := exec.Command("bpftool", "map", "create", filepath.Join(r.dir, "x"), "type", "hash", "key", "4", "value", "4", "entries", "1", "name", "x").CombinedOutput(); err != nil {
		t.Skipf("bpftool: %v %s", err, out)
	}
	if err := errors.Join(os.Remove(filepath.Join(r.dir, "fault_latency")), os.Rename(filepath.Join(r.dir, "x"), filepath.Join(r.dir, "fault_latency"))); err != nil {
		t.Fatal(err)
	}
	out, err := r.try("trace", "latency", "--bpffs", r.dir)
	if err == nil {
		t.Errorf("the latencies of a map of another layout: %s", out)
	} else {
		want(err.Error(), "another version", "trace clean")
	}
	r.ctl("trace", "clean", "--bpffs", r.dir)
	r.ctl("trace", "clean", "--bpffs", r.dir)
	if out, err := r.try("trace", "status", "--bpffs", r.dir); err == nil || !strings.Contains(err.Error(), "trace on") {
		t.Errorf("%v %s", err, out)
	}
}
