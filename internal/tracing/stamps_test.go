package tracing

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// cClient builds the example client in C with libexanet's sources; flags apply to both.
func cClient(t *testing.T, flags ...string) string {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("gcc is not installed: make test installs it")
	}
	exe := filepath.Join(t.TempDir(), "exanet")
	library, err := filepath.Glob("../../libexanet/*.c")
	if err != nil || len(library) == 0 {
		t.Fatal("no libexanet", err)
	}
	args := append(append(flags, "-std=gnu11", "-O2", "-pthread", "-I", "../../libexanet", "-o", exe, "../../examples/c/exanet.c"), library...)
	if out, err := exec.Command(gcc, args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return exe
}

// one makes one process of the client write to another.
func (r *rig) one(exe, method string) {
	r.t.Helper()
	target := exec.Command(exe, "target", r.socket, "1", method, "4096")
	target.Stderr = os.Stderr
	out, err := target.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	in, err := target.StdinPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := target.Start(); err != nil {
		r.t.Fatal(err)
	}
	b := bufio.NewReader(out)
	line, err := b.ReadString('\n')
	if err != nil {
		r.t.Fatal(err)
	}
	args := append([]string{"write", r.socket, "0", method, "4096"}, strings.Fields(line)...)
	if out, err := exec.Command(exe, args...).CombinedOutput(); err != nil {
		_ = target.Process.Kill()
		r.t.Errorf("write: %v %s", err, out)
	}
	_, _ = b.ReadString('\n')
	in.Close() // the client waits for this
	if err := target.Wait(); err != nil {
		r.t.Errorf("target: %v", err)
	}
}

// A client in C reports when it rang the doorbell and when it saw the end.
func TestStamps(t *testing.T) {
	r := newRig(t)
	r.on()
	exe := cClient(t)
	r.until("the stamps are there", func() bool {
		r.one(exe, "gup")
		r.exact()
		n := r.latencies(r.dir)
		return n["ring"] > 0 && n["seen"] > 0
	})
	if n := r.status().Counters["stamp_bad"]; n != 0 {
		t.Errorf("%d stamps are bad", n)
	}
}

// Impossible time stamps are counted, and only their stages are left out.
func TestStampsLie(t *testing.T) {
	exe := cClient(t, "-include", "testdata/lie.h")
	for name, lie := range map[string]string{"future": "10000000000", "past": "-10000000000"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("LIE", lie)
			r := newRig(t)
			r.on()
			seen := r.follow()
			for range 5 {
				r.one(exe, "gup")
			}
			c := r.exact()
			n := r.latencies(r.dir)
			if c["stamp_bad"] == 0 || n["ring"] != 0 || n["seen"] != 0 {
				t.Errorf("%d stamps are bad; %v", c["stamp_bad"], n)
			}
			if n["total"] != c["faults"] || n["send"] == 0 || n["resend"] == 0 {
				t.Errorf("of %d faults: %v", c["faults"], n)
			}
			m := r.maps()
			defer m.Close()
			r.sums(m, seen(c))
		})
	}
}
