package probe

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

const program = `package main

import "github.com/exanet/pfd/trace"

func main() { var l trace.Log; if trace.On() { l.Add(&trace.Record{}) } }
`

// build builds a stripped program with the point for an architecture.
func build(t *testing.T, arch string, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	src, exe := filepath.Join(dir, "main.go"), filepath.Join(dir, "main")
	if err := os.WriteFile(src, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", append(append([]string{"build", "-trimpath", "-ldflags=-s -w", "-o", exe}, args...), src)...)
	cmd.Env = append(os.Environ(), "GOARCH="+arch, "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return exe
}

// The point is found in a program without symbols, for both architectures, position-independent
// or not.
func TestFindStripped(t *testing.T) {
	for _, tt := range []struct {
		arch string
		args []string
		nops []Nop
	}{
		{"amd64", nil, []Nop{Nop1, Nop5, Nop10}},
		{"amd64", []string{"-buildmode=pie"}, []Nop{Nop1, Nop5, Nop10}},
		{"arm64", nil, []Nop{Nop4}},
	} {
		t.Run(tt.arch, func(t *testing.T) {
			f, err := os.Open(build(t, tt.arch, tt.args...))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			p, err := Find(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range tt.nops {
				if p.Nops[n] == 0 {
					t.Errorf("no NOP of %d bytes", n)
				}
			}
			if len(p.Nops) != len(tt.nops) || p.Semaphore == 0 {
				t.Errorf("the point is %+v", p)
			}
		})
	}
}
