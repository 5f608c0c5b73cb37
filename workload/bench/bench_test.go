package bench

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/exanet/pfd/workload"
)

// processEnv makes the test program a test process of package workload.
const processEnv = "PFD_BENCH_PROCESS"

func TestMain(m *testing.M) {
	if os.Getenv(processEnv) != "" {
		if err := workload.Process(context.Background(), os.Stdin, os.Stdout); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestRun has every table come out: each figure is there, and each is of
// transfers whose bytes were checked.
func TestRun(t *testing.T) {
	pfd := filepath.Join(t.TempDir(), "pfd")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", pfd, "github.com/exanet/pfd/cmd/pfd").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	t.Setenv(processEnv, "1")
	t.Setenv("GORACE", "atexit_sleep_ms=0") // the processes would each wait a second
	l := Lab{PFD: pfd, Command: []string{"/proc/self/exe"}, Small: 2, Large: 1, Largest: 64 << 10, Window: 20 * time.Millisecond}
	r, err := l.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r.PinnedBytes != 0 {
		t.Errorf("%d bytes pinned", r.PinnedBytes)
	}
	if len(r.Methods) != 4 || len(r.Sizes) != 3 || len(r.Outstanding) != 3 || len(r.Firmware) != 7 || len(r.Channels) != 6 {
		t.Errorf("%d methods, %d sizes, %d windows, %d options, %d numbers of channels", len(r.Methods), len(r.Sizes), len(r.Outstanding), len(r.Firmware), len(r.Channels))
	}
	// An idle pfd may have used no time that the clock shows.
	r.Idle.Percent++
	r.PinnedBytes = 1
	positive(t, "report", reflect.ValueOf(r))
	text := r.Markdown()
	for _, want := range []string{"| present | ", "| populate | ", "| 64 KiB | ", "| `no-counters` | ", "| 1024 | ", "16 attached processes"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
		t.Errorf("not all are figures:\n%s", text)
	}
}

// positive wants every figure to be more than 0. What a fault adds may be less
// in a run of four.
func positive(t *testing.T, name string, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); !strings.HasPrefix(f.Name, "Added") {
				positive(t, name+"."+f.Name, v.Field(i))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			positive(t, name, v.Index(i))
		}
	case reflect.Float64:
		if !(v.Float() > 0) {
			t.Errorf("%s is %v", name, v.Float())
		}
	default:
		if v.IsZero() {
			t.Errorf("%s is %v", name, v)
		}
	}
}

func TestOnly(t *testing.T) {
	l := Lab{PFD: "/nonexistent", Only: []string{"idle"}}
	if _, err := l.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "/nonexistent") {
		t.Errorf("error %v, want one that names the program", err)
	}
	l.Only = []string{"nothing"}
	r, err := l.Run(t.Context())
	if err != nil || len(r.Markdown()) == 0 {
		t.Errorf("nothing to measure: %v", err)
	}
}

func TestReplace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "doc.md")
	write := func(s string) {
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("before\n<!-- a -->\nold\n<!-- /a -->\nafter\n<!-- b -->\nother\n<!-- /b -->\n")
	for range 2 { // and again
		if err := Replace(file, "a", "new\n"); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(file)
	if want := "before\n<!-- a -->\nnew\n<!-- /a -->\nafter\n<!-- b -->\nother\n<!-- /b -->\n"; err != nil || string(b) != want {
		t.Errorf("%q, %v: want %q", b, err, want)
	}
	if err := Replace(file, "c", ""); !errors.Is(err, ErrSection) || !strings.Contains(err.Error(), "<!-- c -->") {
		t.Errorf("a section that is not there: %v", err)
	}
	write("<!-- /a -->\n<!-- a -->\n")
	if err := Replace(file, "a", ""); !errors.Is(err, ErrSection) {
		t.Errorf("a section that does not end: %v", err)
	}
	if err := Replace(file+"x", "a", ""); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no document: %v", err)
	}
}
