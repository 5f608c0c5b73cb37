package deploy

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Device is a place where the two nodes of a pfd can be.
type Device struct {
	Name string
	// Shared means that the device accesses only memory that was shared with it, and no
	// process's page tables. The rights and the size of a share are the device's limits.
	Shared bool
}

// Devices returns all places: inside pfd, and in a process of their own.
func Devices() []Device { return []Device{{Name: "emu"}, {Name: "vfio-user", Shared: true}} }

// Args returns the arguments that pfd needs to use the device. It starts a server if the device
// needs one, as user as unless that is nil; the server ends with the test. exanetctl is the
// path of the program.
func (d Device) Args(t testing.TB, exanetctl string, as *syscall.Credential) []string {
	t.Helper()
	if d.Shared {
		return Serve(t, exanetctl, as)
	}
	return nil
}

// Serve starts two nodes in a process of their own and returns the arguments that make a pfd
// drive them.
func Serve(t testing.TB, exanetctl string, as *syscall.Credential) []string {
	t.Helper()
	dir, err := os.MkdirTemp("", "nodes") // the test's own directory makes too long a socket path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if as != nil {
		if err := os.Chown(dir, int(as.Uid), int(as.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	said := &said{}
	cmd := exec.Command(exanetctl, "emu", "serve", "--nodes", "2", "--socket-dir", dir)
	cmd.Stdout, cmd.Stderr = said, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: as}
	// The server dies with this thread if the test is killed.
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() { over <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case err := <-over:
			if err != nil {
				t.Errorf("emu serve: %v\n%s", err, said)
			}
		case <-time.After(time.Minute):
			_ = cmd.Process.Kill()
			<-over
			t.Errorf("emu serve did not end by SIGTERM\n%s", said)
		}
	})
	for deadline := time.Now().Add(time.Minute); !strings.Contains(said.String(), "node 1 at "); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) || len(over) > 0 {
			t.Fatalf("emu serve does not serve: %s", said)
		}
	}
	return []string{"--device", "vfio-user:" + filepath.Join(dir, "node0.sock") + "," + filepath.Join(dir, "node1.sock")}
}

// said collects the output of a process.
type said struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
