package scenario

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// The same scenarios have the same reports, to the byte, on arm64 and on this machine.
func TestSameOnArm64(t *testing.T) {
	if os.Getenv("PFD_REPORTS") != "" {
		for seed := range uint64(10) {
			f := parse(t, failing)
			f.Seed = seed
			r, err := Run(t.Context(), f, Options{})
			if err != nil {
				t.Fatal(err)
			}
			b, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(os.Stderr, "%s\n", b)
		}
		return
	}
	qemu, err := exec.LookPath("qemu-aarch64")
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("qemu-aarch64 runs programs of arm64: apt-get install qemu-user")
	}
	if err != nil {
		t.Fatal(err)
	}
	reports := func(program ...string) []byte {
		t.Helper()
		c := exec.CommandContext(t.Context(), program[0], append(program[1:], "-test.run", "TestSameOnArm64$")...)
		c.Env = append(os.Environ(), "PFD_REPORTS=1")
		var out bytes.Buffer
		c.Stderr = &out
		if err := c.Run(); err != nil {
			t.Fatalf("%q: %v\n%s", program, err, out.Bytes())
		}
		return out.Bytes()
	}
	other := filepath.Join(t.TempDir(), "arm64")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-pgo=off", "-o", other, ".")
	build.Env = append(os.Environ(), "GOARCH=arm64", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	here, there := reports(os.Args[0]), reports(qemu, other)
	if bytes.Count(here, []byte("\n")) != 10 || !bytes.Equal(here, there) {
		t.Errorf("on %s\n%son arm64\n%s", runtime.GOARCH, here, there)
	}
}
