package mpi

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/exanet/pfd/daemon/control"
)

// patience is reached only if something hangs.
const patience = 4 * time.Minute

// bin has pfd, libexanet and the provider; TestMain removes it.
var bin string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "exanet-mpi-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	bin = dir
	return m.Run()
}

// pfdBuilt builds pfd once.
var pfdBuilt = sync.OnceValue(func() error {
	out, err := exec.Command("go", "build", "-buildvcs=false", "-o", bin+"/", "../../cmd/pfd").CombinedOutput()
	if err != nil {
		return fmt.Errorf("pfd: %w\n%s", err, out)
	}
	return nil
})

// built has the directories of provider by their flags; tests do not run in parallel.
var built = map[string]string{}

// provider builds libexanet and the provider in a directory, with flags for the compiler, once.
func provider(t *testing.T, flags ...string) string {
	t.Helper()
	key := strings.Join(flags, " ")
	if dir := built[key]; dir != "" {
		return dir
	}
	dir := filepath.Join(bin, fmt.Sprint("provider", len(built)))
	Provider(t, dir, flags...)
	built[key] = dir
	return dir
}

// pfd is a pfd of a test.
type pfd struct {
	cmd    *exec.Cmd
	client *control.Client
	err    bytes.Buffer
	done   chan struct{}
}

// start starts a pfd and waits until it answers.
func start(t *testing.T, args ...string) *pfd {
	t.Helper()
	if err := pfdBuilt(); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "pfd.sock")
	p := &pfd{cmd: exec.Command(filepath.Join(bin, "pfd"), append([]string{"--socket", socket}, args...)...), done: make(chan struct{})}
	p.cmd.Stderr = &p.err
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	var err error
	if p.client, err = control.New(socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.client.Close()
		p.end(syscall.SIGTERM)
		if t.Failed() {
			t.Logf("pfd: %s", p.err.String())
		}
	})
	for _, err = p.client.Status(t.Context()); err != nil; _, err = p.client.Status(t.Context()) {
		select {
		case <-p.done:
			t.Fatalf("pfd has ended: %s", p.err.String())
		case <-time.After(10 * time.Millisecond):
		}
	}
	return p
}

func (p *pfd) end(s os.Signal) {
	_ = p.cmd.Process.Signal(s)
	<-p.done
}

// attached returns how many processes are attached.
func (p *pfd) attached(t *testing.T) (n int) {
	t.Helper()
	s, err := p.client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for node := range s.Nodes {
		list, err := p.client.Domains(t.Context(), node)
		if err != nil {
			t.Fatal(err)
		}
		n += len(list)
	}
	return n
}

// left fails the test if processes stay attached.
func (p *pfd) left(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(patience); p.attached(t) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d processes are still attached", p.attached(t))
		}
	}
}

// command is a program that uses the provider of a directory over p, and may use the named
// providers only.
func command(t *testing.T, p *pfd, dir, providers, name string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	c := exec.CommandContext(ctx, name, args...)
	c.Env = append(os.Environ(), "FI_PROVIDER_PATH="+dir, "FI_EXANET_SOCKET="+p.client.Socket(),
		"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMPI_MCA_rmaps_base_oversubscribe=1", "OMPI_MCA_plm=isolated")
	if providers != "" {
		c.Env = append(c.Env, "FI_PROVIDER="+providers)
	}
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) } // mpirun ends its ranks
	c.WaitDelay = 10 * time.Second
	return c
}

// mpirun is a job of n ranks over the provider.
func mpirun(t *testing.T, p *pfd, dir string, n int, program ...string) *exec.Cmd {
	t.Helper()
	return command(t, p, dir, Layered, "mpirun", slices.Concat(Fabric(Layered), []string{"-n", fmt.Sprint(n)}, program)...)
}
