package tracing

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/trace/probe"
)

// copyOf copies pfd to another file.
func copyOf(t *testing.T) string {
	t.Helper()
	code, err := os.ReadFile(filepath.Join(bin, "pfd"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "pfd")
	if err := os.WriteFile(path, code, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// said runs exanetctl and returns both of its outputs.
func (r *rig) said(args ...string) (string, error) {
	out, err := exec.CommandContext(r.t.Context(), filepath.Join(bin, "exanetctl"), append([]string{"--socket", r.socket}, args...)...).CombinedOutput()
	return string(out), err
}

// Another file replaces that of a running pfd. The running pfd is traced, and a message says
// that further ones will not be; the next `trace on` uses the new file.
func TestReplacedFile(t *testing.T) {
	r := newRig(t)
	if err := r.pfd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = r.pfd.Wait()
	program := copyOf(t)
	r.program = program
	r.start()
	replace := func() {
		t.Helper()
		if err := os.Rename(copyOf(t), program); err != nil {
			t.Fatal(err)
		}
	}
	replace()
	if out, err := r.said("trace", "on", "--bpffs", r.dir); err != nil || !strings.Contains(out, program+" was replaced while pfd runs") {
		t.Fatalf("%v: %s", err, out)
	}
	r.before = r.metrics()
	r.write("--dst", "absent", "--count", "10")
	r.exact()
	if out := r.ctl("trace", "status", "--bpffs", r.dir); !strings.Contains(out, "replaced") || !strings.Contains(out, "exanetctl trace on") {
		t.Errorf("it says\n%s", out)
	}

	_ = r.pfd.Process.Kill()
	_ = r.pfd.Wait()
	r.start()
	if out, err := r.said("trace", "on", "--bpffs", r.dir); err != nil || !strings.Contains(out, "pins that a dead or older tracer left") {
		t.Fatalf("%v: %s", err, out)
	}
	r.before = r.metrics()
	r.write("--dst", "absent", "--count", "10")
	r.exact()
	if s := r.status(); len(s.Programs) != 1 || s.Programs[0].Replaced {
		t.Errorf("%+v", s)
	}
}

// A full map loses the entries without room and counts them; the rest is exact.
func TestFullMap(t *testing.T) {
	r := newRig(t)
	r.on()
	m, err := ebpf.LoadPinnedMap(filepath.Join(r.dir, "fault_domains"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for i := range m.MaxEntries() {
		key := [3]uint32{^uint32(0), i, i}
		if err := m.Put(&key, make([]byte, m.ValueSize())); err != nil {
			t.Fatal(err)
		}
	}
	res := r.write("--dst", "absent", "--count", "20")
	if res.Failed != 0 || !res.Verified {
		t.Errorf("%+v", res)
	}
	c := r.settled(20)
	if c["faults"] != 20 || c["joined"] != 20 || c["pages"] != 20 || c["full"] == 0 {
		t.Errorf("20 faults: %v", c)
	}
	if out := r.ctl("trace", "status", "--bpffs", r.dir); !strings.Contains(out, "a map was full") || !strings.Contains(out, "trace off") {
		t.Errorf("it says\n%s", out)
	}
}

// Pins of another layout are reported by name, and the next `trace on` removes them. Of several
// concurrent ones exactly one succeeds.
func TestForeignPins(t *testing.T) {
	r := newRig(t)
	r.on()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	pin := filepath.Join(r.dir, "fault_latency")
	if err := errors.Join(os.Remove(pin), m.Pin(pin)); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"status", "latency"} {
		if out, err := r.said("trace", command, "--bpffs", r.dir); err == nil || !strings.Contains(out, pin) || !strings.Contains(out, "trace clean") {
			t.Errorf("%s: %v %s", command, err, out)
		}
	}
	if out, err := r.said("trace", "on", "--bpffs", r.dir); err != nil || !strings.Contains(out, "removed") {
		t.Fatalf("%v %s", err, out)
	}
	r.ctl("trace", "off", "--bpffs", r.dir)

	var wg sync.WaitGroup
	outs, errs := make([]string, 4), make([]error, 4)
	for i := range outs {
		wg.Go(func() { outs[i], errs[i] = r.said("trace", "on", "--bpffs", r.dir) })
	}
	wg.Wait()
	ok := 0
	for i, err := range errs {
		switch {
		case err == nil:
			ok++
		case !strings.Contains(outs[i], "tracing is on already") && !strings.Contains(outs[i], "another exanetctl is using it"):
			t.Errorf("%v: %s", err, outs[i])
		}
	}
	if ok != 1 {
		t.Errorf("%d of %d succeed: %q", ok, len(errs), outs)
	}
	r.before = r.metrics()
	r.write("--dst", "absent", "--count", "10")
	r.exact()
}

// A missing BTF of the kernel is reported.
func TestNoBTF(t *testing.T) {
	r := newRig(t)
	const dir = "/sys/kernel/btf"
	if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil { // in the tests' mount namespace
		t.Skipf("hiding %s: %v", dir, err)
	}
	defer func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	out, err := r.said("trace", "on", "--bpffs", r.dir)
	if err != nil {
		if !strings.Contains(out, "CONFIG_DEBUG_INFO_BTF") {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	r.before = r.metrics()
	r.write("--dst", "absent", "--count", "10")
	r.exact()
	for _, s := range r.status().Sources {
		if !s.Attached && !strings.Contains(s.Reason, "BTF") {
			t.Errorf("%s: %s", s.Name, s.Reason)
		}
	}
}

// A reader that does not read loses events, which are counted, and causes nothing else. The
// next reader, after its death, gets the events that it requested and no earlier ones.
func TestEventsThatNobodyReads(t *testing.T) {
	r := newRig(t)
	r.on()
	reader := func(args ...string) (*exec.Cmd, io.Reader) {
		t.Helper()
		cmd := exec.Command(filepath.Join(bin, "exanetctl"), append([]string{"trace", "faults", "-j", "--bpffs", r.dir}, args...)...)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		r.until("the reader reads", func() bool {
			m, err := ebpf.LoadPinnedMap(filepath.Join(r.dir, "fault_settings"), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			b, err := m.LookupBytes(uint32(0))
			return err == nil && binary.NativeEndian.Uint32(b) == uint32(cmd.Process.Pid)
		})
		return cmd, out
	}
	// It blocks on its output, which is not read.
	stuck, _ := reader()
	if err := stuck.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	r.write("--dst", "absent", "--size", "1MiB", "--count", "40")
	c := r.exact()
	if c["events_lost"] == 0 {
		t.Errorf("%d faults, but no event is lost: %v", c["faults"], c)
	}
	if out := r.ctl("trace", "status", "--bpffs", r.dir); !strings.Contains(out, "these events were not read") {
		t.Errorf("it says\n%s", out)
	}
	if out, err := r.said("trace", "faults", "--bpffs", r.dir); err == nil || !strings.Contains(out, "end that one first") {
		t.Errorf("a second reader: %v %s", err, out)
	}
	_ = stuck.Process.Kill()
	_ = stuck.Wait()

	_, out := reader("--node", "0")
	r.write("--dst", "absent", "--from", "1", "--to", "0", "--count", "5")
	d := json.NewDecoder(out)
	for i := range 5 {
		var e probe.Event
		if err := d.Decode(&e); err != nil {
			t.Fatal(err)
		}
		if e.Node != 0 {
			t.Fatalf("event %d is of another node than requested: %+v", i, e)
		}
	}
}

// A pfd in another pid namespace has another pid there. exanetctl finds its file by the process
// that listens on its socket, with its pid here.
func TestOtherPIDNamespace(t *testing.T) {
	r := newRig(t)
	_ = r.pfd.Process.Kill()
	_ = r.pfd.Wait()
	r.starter = []string{"unshare", "--pid", "--fork", "--kill-child", "--mount-proc"}
	r.start()
	t.Cleanup(func() { _ = r.pfd.Process.Kill() }) // unshare ignores SIGTERM
	s, err := r.client.Status(t.Context())
	if err != nil || s.PID != 1 {
		t.Fatalf("pfd is process %d to itself, %v", s.PID, err)
	}
	r.ctl("trace", "on", "--bpffs", r.dir)
	if s := r.status(); len(s.Programs) != 1 || s.Programs[0].File != filepath.Join(bin, "pfd") {
		t.Errorf("%+v is traced", s.Programs)
	}
}

const forger = `package main

import (
	"context"
	"encoding/json"
	"os"
	"os/signal"
	"time"

	"github.com/exanet/pfd/trace"
)

func main() {
	for !trace.On() {
		time.Sleep(time.Millisecond)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	now, err := trace.Base(func() int64 { return 0 })
	if err != nil {
		panic(err)
	}
	var l trace.Log
	var list []trace.Record
	if err := json.NewDecoder(os.Stdin).Decode(&list); err != nil {
		panic(err)
	}
	for i := range list {
		l.Fabric = list[i].Fabric
		for k, at := range list[i].Times {
			if at != 0 {
				list[i].Times[k] = now + at
			}
		}
		l.Add(&list[i])
		l.Show()
	}
	os.Stdout.WriteString("shown\n")
	<-ctx.Done()
}
`

// Records of a lying program are counted as such and produce no stage.
func TestForgedRecords(t *testing.T) {
	if refused != "" {
		t.Skip(refused)
	}
	src := filepath.Join(t.TempDir(), "main.go")
	exe := filepath.Join(t.TempDir(), "forger")
	if err := os.WriteFile(src, []byte(forger), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", exe, src)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const second = int64(1e9)
	fault := func(tr int, page uint64, times ...int64) object {
		return object{"Kind": 1, "Flags": 2, "Method": 1, "FaultKind": 1, "Outcome": 1, "Fabric": 7, "Transaction": tr, "Page": page, "Times": times}
	}
	block := func(tr int, times ...int64) object {
		return object{"Kind": 3, "Flags": 8 | 16, "Fabric": 7, "Transaction": tr, "Times": times}
	}
	honest := []int64{-90, -80, -70, -60, -50}
	for _, tt := range []struct {
		name    string
		records []object
		want    map[string]uint64
		none    []string // stages that must stay empty
	}{
		{"rung after the doorbell", []object{fault(1, 0x1000, honest...), block(1, 5*second, -110, -100, -40, -30, 0)}, map[string]uint64{"stamp_bad": 1, "joined": 1}, []string{"ring"}},
		{"rung long ago", []object{fault(1, 0x1000, honest...), block(1, -3*second, -110, -100, -40, -30, 0)}, map[string]uint64{"stamp_bad": 1, "joined": 1}, []string{"ring"}},
		{"seen in the future", []object{fault(1, 0x1000, honest...), block(1, -120, -110, -100, -40, -30, 3600*second)}, map[string]uint64{"stamp_bad": 1, "joined": 1}, []string{"seen"}},
		{"seen before it was there", []object{fault(1, 0x1000, honest...), block(1, -120, -110, -100, -40, -30, -35)}, map[string]uint64{"stamp_bad": 1, "joined": 1}, []string{"seen"}},
		{"no address of a process", []object{fault(1, 0xffffffff81000000, honest...), block(1, -120, -110, -100, -40, -30, 0),
			{"Kind": 2, "Flags": 32, "Method": 1, "FaultKind": 1, "Pages": 1, "Page": uint64(0xffffffff81000000), "Times": []int64{-70, -60}}},
			map[string]uint64{"joined": 1, "pages": 1, "kernel_page_ins": 0, "kernel_missed": 1}, []string{"kernel_enter", "kernel_populate"}},
		{"stages out of order", []object{fault(1, 0x1000, -50, -90, -10, -95, -20), block(1, -120, -110, -100, -40, -30, 0)}, map[string]uint64{"joined": 1}, nil},
		{"kinds and values that are none", []object{{"Kind": 9}, {"Kind": 1, "Method": 200}, {"Kind": 1, "Outcome": 77}, {"Kind": 2, "FaultKind": 255}}, map[string]uint64{"bad_records": 4, "faults": 0}, nil},
		{"a fault of no fabric", []object{{"Kind": 1, "Flags": 2, "Method": 1, "FaultKind": 1, "Outcome": 1, "Times": honest}}, map[string]uint64{"faults": 1, "halves": 1, "joined": 0}, []string{"raise", "resend"}},
		{"a fault that names no block", []object{{"Kind": 1, "Method": 1, "FaultKind": 1, "Outcome": 1, "Times": honest}}, map[string]uint64{"faults": 1, "bare": 1, "joined": 0}, []string{"raise", "resend"}},
		{"a block without its faults", []object{block(7, -120, -110, -100, -40, -30, 0)}, map[string]uint64{"lone": 1, "joined": 0}, []string{"total"}},
		{"nine faults of one refusal", append([]object{
			fault(1, 1<<12, honest...), fault(1, 2<<12, honest...), fault(1, 3<<12, honest...), fault(1, 4<<12, honest...), fault(1, 5<<12, honest...),
			fault(1, 6<<12, honest...), fault(1, 7<<12, honest...), fault(1, 8<<12, honest...), fault(1, 9<<12, honest...),
		}, block(1, -120, -110, -100, -40, -30, 0)), map[string]uint64{"faults": 9, "crowded": 1, "joined_faults": 8}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(bpffs, strings.ReplaceAll(strings.ReplaceAll(t.Name(), "/", "_"), " ", "_"))
			if _, err := probe.On(probe.Start{Dir: dir, Programs: []string{exe}}); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := probe.Off(dir); err != nil {
					t.Error(err)
				}
			}()
			b, err := json.Marshal(tt.records)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, exe)
			cmd.Stdin = strings.NewReader(string(b))
			cmd.Stderr = os.Stderr
			out, err := cmd.StdoutPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			}()
			if _, err := io.ReadFull(out, make([]byte, len("shown\n"))); err != nil {
				t.Fatal(err)
			}
			r := &rig{t: t, dir: dir}
			c := r.status().Counters
			for name, want := range tt.want {
				if c[name] != want {
					t.Errorf("%s: %d, want %d: %v", name, c[name], want, c)
				}
			}
			m := r.maps()
			defer m.Close()
			list, err := m.Latencies()
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range list {
				for _, none := range tt.none {
					if l.Stage == none {
						t.Errorf("it produces the stage %s: %+v", none, l)
					}
				}
				if l.Method != "unknown" && l.MaxNS > uint64(second) {
					t.Errorf("a stage of %d ns: %+v", l.MaxNS, l)
				}
			}
			slowest, err := m.Slowest()
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range slowest {
				var sum int64
				for _, ns := range e.StagesNS {
					sum += ns
				}
				if uint64(sum) != e.TotalNS {
					t.Errorf("its stages are %d ns, its total %d: %+v", sum, e.TotalNS, e)
				}
			}
		})
	}
}

// object is a record in the form that the forging program reads.
type object map[string]any
