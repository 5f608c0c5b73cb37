package bench

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Outputs of the programs in Debian 12.
var peerOutputs = []struct {
	file  string
	parse func(string) (float64, error)
	want  float64
}{
	{"ucx_perftest.txt", parseUCX, 0.125},
	{"fi_pingpong.txt", parsePingPong, 19.86},
	{"fi_pingpong_1m.txt", parsePingPong, 98.21},
	{"stress-ng.txt", parseStress, 1e6 / 27602.08},
}

func TestParsePeers(t *testing.T) {
	for _, k := range peerOutputs {
		b, err := os.ReadFile(filepath.Join("testdata", "peers", k.file))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := k.parse(string(b)); err != nil || got != k.want {
			t.Errorf("%s: %v, %v, want %v", k.file, got, err, k.want)
		}
		// Truncated output and another program's output have no figure.
		first, _, _ := bytes.Cut(b, []byte("\n"))
		for _, text := range []string{"", string(first), strings.ReplaceAll(string(b), ".", "x"), "a,50.0_percentile_lat\n1,-2\n", "4k 2k =2k 15m 0.08s 206 0 0.05\n"} {
			if got, err := k.parse(text); !errors.Is(err, ErrPeer) {
				t.Errorf("%s: %q gives %v, %v", k.file, text, got, err)
			}
		}
	}
}

func FuzzParsePeers(f *testing.F) {
	for _, k := range peerOutputs {
		b, err := os.ReadFile(filepath.Join("testdata", "peers", k.file))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b))
	}
	f.Fuzz(func(t *testing.T, text string) {
		for name, parse := range map[string]func(string) (float64, error){"ucx_perftest": parseUCX, "fi_pingpong": parsePingPong, "stress-ng": parseStress} {
			if v, err := parse(text); err == nil && !(v > 0 && v <= 1e12) {
				t.Errorf("%s: a time of %v us", name, v)
			}
		}
	})
}

// If no other software is installed, each row says what to install.
func TestMissingPeers(t *testing.T) {
	l := newLab(t)
	t.Setenv("PATH", t.TempDir())
	suites, err := Choose([]string{"peers"})
	if err != nil {
		t.Fatal(err)
	}
	r, err := l.Run(t.Context(), suites)
	if err != nil {
		t.Fatal(err)
	}
	for name, rows := range map[string][2]string{
		"peers":       {"ours, pinned alike", "UCX, TCP: not installed: apt-get install ucx-utils"},
		"userfaultfd": {"ours: a write of 4 KiB, absent", "stress-ng --userfaultfd: not installed: apt-get install stress-ng"},
		"servers":     {"ours", "libvfio-user: not installed: build it from source (Debian has no package) and put build/samples on PATH"},
	} {
		ours, want := rows[0], rows[1]
		table := r.Table(name)
		if !slices.Contains(table.Rows, want) || !strings.Contains(table.Text(), want) {
			t.Errorf("%s has rows %q, want %q", name, table.Rows, want)
		}
		if v := table.Median(ours, table.Columns[0]); v <= 0 {
			t.Errorf("%s: ours is %v", name, v)
		}
	}
	var lines bytes.Buffer
	if err := r.JSON(&lines); err != nil || !strings.Contains(lines.String(), `"missing":["ucx_perftest: apt-get install ucx-utils"`) {
		t.Errorf("JSON does not tell what is missing: %v: %.300s", err, lines.String())
	}
}

// newLab builds the programs of a Lab.
func newLab(t *testing.T) *Lab {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", dir, "github.com/exanet/pfd/cmd/pfd", "github.com/exanet/pfd/cmd/exanetctl").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	t.Setenv(processEnv, "1")
	t.Setenv("GORACE", "atexit_sleep_ms=0") // the processes would each wait a second
	return &Lab{PFD: filepath.Join(dir, "pfd"), Program: filepath.Join(dir, "exanetctl"), Command: []string{"/proc/self/exe"}, Count: 2, Window: 20 * time.Millisecond}
}

// A program that does not end after SIGTERM is killed.
func TestHelperIsKilled(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c, err := helper(ctx, "sh", []*os.File{w}, "-c", "trap '' TERM; echo >&3; while :; do sleep 0.01; done")
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 1)); err != nil { // it ignores the signal from here on
		t.Fatal(err)
	}
	stop()
	_ = c.Wait() // fails because the process was killed
	if state, ok := c.ProcessState.Sys().(syscall.WaitStatus); !ok || state.Signal() != syscall.SIGKILL {
		t.Errorf("it ended by %v", c.ProcessState)
	}
}
