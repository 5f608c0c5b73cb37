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

	"github.com/exanet/pfd/qemu"
	"github.com/exanet/pfd/trace/probe"
)

// Tracing is switched on and off repeatedly under load: no transfer fails, the counts are
// right, and no pin is left.
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
		r.before = r.metrics()
		r.ctl("trace", "on", "--bpffs", r.dir)
		c := r.status().Counters
		if most := r.since("exanet_faults_total"); c["faults"] > most {
			t.Errorf("%d faults are counted, but pfd had %d", c["faults"], most)
		}
		if c["bad_records"] != 0 || c["unreadable"] != 0 {
			t.Errorf("%v", c)
		}
		r.ctl("trace", "off", "--bpffs", r.dir)
		if _, err := os.Lstat(r.dir); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("%s still exists: %v", r.dir, err)
		}
	}
	close(stop)
	<-done
	r.on()
	r.write("--dst", "absent", "--count", "10")
	r.exact()
}

// A traced pfd is killed; the next one is traced at once.
func TestKilled(t *testing.T) {
	r := newRig(t)
	r.on()
	r.write("--dst", "absent", "--count", "10")
	if w := r.status().Watched; len(w) != 1 {
		t.Errorf("one pfd runs, with a process that discards pages: %+v", w)
	}
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

// bpftool and cat read the same numbers as trace latency.
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
			continue // wake-ups continue
		}
		got := rows[l.Stage+" "+l.Method+" "+l.Kind]
		want := []string{strconv.FormatUint(l.Count, 10), strconv.FormatUint(l.P50NS, 10), strconv.FormatUint(l.P99NS, 10), strconv.FormatUint(l.MaxNS, 10)}
		if !slices.Equal(got, want) {
			t.Errorf("%s: cat reads %v, trace latency %v", l.Stage, got, want)
		}
	}

	for name, words := range bpftools(t) {
		dump := func(pin string, v any) {
			t.Helper()
			out, err := exec.Command(words[0], append(words[1:len(words):len(words)], "-j", "map", "dump", "pinned", filepath.Join(r.dir, pin))...).Output()
			if err == nil {
				err = json.Unmarshal(out, v)
			}
			if err != nil {
				t.Fatalf("%s: %s: %v\n%s", name, pin, err, out)
			}
		}
		var counters []struct {
			Formatted struct {
				Key   string `json:"key"`
				Value uint64 `json:"value"`
			} `json:"formatted"`
		}
		dump("fault_counters", &counters)
		if len(counters) != len(probe.CounterNames()) {
			t.Errorf("%s finds %d counters, want %d", name, len(counters), len(probe.CounterNames()))
		}
		for _, d := range counters {
			if d.Formatted.Value != c[d.Formatted.Key] {
				t.Errorf("%s: %s is %d, by trace status %d", name, d.Formatted.Key, d.Formatted.Value, c[d.Formatted.Key])
			}
		}
		var latencies []struct {
			Formatted struct {
				Key   struct{ Stage, Method, Kind string }
				Value struct {
					Count uint64
					SumNS uint64 `json:"sum_ns"`
					MaxNS uint64 `json:"max_ns"`
				}
			} `json:"formatted"`
		}
		dump("fault_latency", &latencies)
		seen := 0
		for _, l := range list {
			for _, d := range latencies {
				if k, v := d.Formatted.Key, d.Formatted.Value; l.Method == "gup" && k.Stage == l.Stage && k.Method == l.Method && k.Kind == l.Kind {
					seen++
					if v.Count != l.Count || v.SumNS != l.SumNS || v.MaxNS != l.MaxNS {
						t.Errorf("%s: %+v is %+v, by trace latency %+v", name, k, v, l)
					}
				}
			}
		}
		if seen < 8 {
			t.Errorf("%s finds %d stages by their names: %+v", name, seen, latencies)
		}
	}
}

// bpftools are the machine's bpftool and that of Debian 13, which exanetctl qemu setup has
// fetched.
func bpftools(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	if path, err := exec.LookPath("bpftool"); err == nil {
		found["the machine's bpftool"] = []string{path}
	} else {
		t.Logf("bpftool is not installed: contrib/scripts/setup.sh test")
	}
	cache := os.Getenv("EXANET_QEMU_CACHE")
	if cache == "" {
		var err error
		if cache, err = qemu.DefaultCache(); err != nil {
			t.Log(err)
		}
	}
	root := filepath.Join(cache, "root")
	path := filepath.Join(root, "usr/sbin/bpftool")
	if _, err := os.Stat(path); err != nil {
		t.Logf("%v: exanetctl qemu setup --refresh", err)
	} else {
		found["Debian 13's bpftool"] = []string{filepath.Join(root, "usr/lib64/ld-linux-x86-64.so.2"), "--library-path", filepath.Join(root, "usr/lib/x86_64-linux-gnu"), path}
	}
	for name, words := range found {
		out, err := exec.Command(words[0], append(words[1:len(words):len(words)], "version")...).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v %s", name, err, out)
		}
		version, _, _ := strings.Cut(string(out), "\n")
		t.Logf("%s is %s", name, version)
	}
	if len(found) == 0 {
		if os.Getenv("STRICT") == "1" {
			t.Error("there is no bpftool")
		}
		t.Log("there is no bpftool: only cat is compared")
	}
	return found
}

// Two capabilities suffice without root, and an error names a missing one.
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

// Every error names its cause and a remedy.
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
			t.Errorf("trace on %v leaves %s behind", args, r.dir)
		}
		return string(out)
	}
	want := func(got string, words ...string) {
		t.Helper()
		for _, w := range words {
			if !strings.Contains(got, w) {
				t.Errorf("output %q, want %q in it", got, w)
			}
		}
		if strings.Count(strings.TrimSpace(got), "\n") > 0 {
			t.Errorf("more than one line: %q", got)
		}
	}
	want(on("--program", "/bin/true"), "no probe point", "it is not pfd")
	want(on("--program", "/etc/passwd"), "no probe point", "not a program")
	want(on("--program", "/does/not/exist"), "no such file")

	// One pfd's records have another layout, and another's code was changed.
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
	// The mark of the semaphore. The probe's own code contains it, too, after other bytes.
	change(strings.Repeat("\x00", 8)+"exanet\x01\x00", strings.Repeat("\x00", 8)+"exanet\x02\x00")
	want(on("--program", other), "no probe point", "semaphore's mark")

	// A directory of another user, or outside a bpffs.
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

	r.ctl("trace", "on", "--bpffs", r.dir)
	want(on(), "tracing is on already", "trace off")
	r.ctl("trace", "clean", "--bpffs", r.dir)
	r.ctl("trace", "clean", "--bpffs", r.dir)
	if out, err := r.try("trace", "status", "--bpffs", r.dir); err == nil || !strings.Contains(err.Error(), "trace on") {
		t.Errorf("%v %s", err, out)
	}
}
