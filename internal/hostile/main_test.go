package hostile

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// nobodyUID is another user.
const nobodyUID = 65534

// patience limits every wait; only a hang reaches it. orderPatience does so for what a process is told to do,
// such as the wait for a transfer of many bytes.
const (
	patience      = 20 * time.Second
	orderPatience = 2 * time.Minute
)

// hung is how long a call that fails at once may take on a busy machine. A call that waits for
// an event that never happens takes longer.
const hung = patience / 2

const agentEnv = "PFD_HOSTILE_AGENT"

// work is a directory for programs and sockets that every user may read.
var work string

func TestMain(m *testing.M) {
	if os.Getenv(agentEnv) != "" {
		os.Exit(agent())
	}
	var err error
	if work, err = os.MkdirTemp("", "hostile"); err == nil {
		err = os.Chmod(work, 0o755)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := os.RemoveAll(work); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// build returns a function that builds a pfd once and returns its path.
func build(name string, args ...string) func() (string, error) {
	return buildOf("pfd", name, args...)
}

func buildOf(program, name string, args ...string) func() (string, error) {
	return sync.OnceValues(func() (string, error) {
		path := filepath.Join(work, name)
		cmd := exec.Command("go", append(append([]string{"build", "-buildvcs=false", "-o", path}, args...), "../../cmd/"+program)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
		return path, nil
	})
}

var (
	pfdProgram       = build("pfd")
	exanetctlProgram = buildOf("exanetctl", "exanetctl")
)

// self returns the path of a copy of this test's program that every user can execute.
var self = sync.OnceValues(func() (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	b, err := os.ReadFile(exe)
	if err != nil {
		return "", err
	}
	path := filepath.Join(work, "agent")
	return path, os.WriteFile(path, b, 0o755)
})
