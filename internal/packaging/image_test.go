package packaging

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// buildah builds the image of contrib/oci, and it runs: pfd in its sandbox, as a user without
// rights. No registry is used: the base image is a shell and this machine's Go, under the name
// in Containerfile.
func TestImage(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("buildah's chroot isolation needs root here")
	}
	need(t, "buildah", "busybox")
	if out, err := exec.CommandContext(t.Context(), "busybox", "sh", "-c", "exit 7").CombinedOutput(); err == nil || len(out) > 0 {
		t.Skipf("busybox has no shell: %v: %s", err, out)
	}
	const cache = "/var/lib/containers/cache" // no option selects another directory
	if _, err := os.Stat(cache); os.IsNotExist(err) {
		t.Cleanup(func() {
			if err := os.RemoveAll(cache); err != nil {
				t.Error(err)
			}
			_ = os.Remove(filepath.Dir(cache)) // fails unless it is empty
		})
	}
	dir := t.TempDir()
	buildah := func(args ...string) *exec.Cmd {
		args = append([]string{"--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run"), "--storage-driver", "vfs"}, args...)
		cmd := exec.CommandContext(t.Context(), "buildah", args...)
		cmd.Dir = root
		return cmd
	}
	do := func(args ...string) string {
		t.Helper()
		out, err := buildah(args...).CombinedOutput()
		if err != nil {
			t.Fatalf("buildah %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	base := filepath.Join(dir, "base")
	for _, d := range []string{"bin", "tmp"} {
		if err := os.MkdirAll(filepath.Join(base, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "sh", "-c", "cp $(command -v busybox) "+base+"/bin/busybox && ln -s busybox "+base+"/bin/sh && ln -s busybox "+base+"/bin/mkdir")
	const golang = "FROM scratch\nCOPY bin /bin/\nCOPY tmp /tmp/\nENV PATH=/usr/local/go/bin:/bin GOPATH=/go HOME=/root GOPROXY=off GOTOOLCHAIN=local\n"
	if err := os.WriteFile(filepath.Join(base, "Containerfile"), []byte(golang), 0o644); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "contrib", "oci", "Containerfile"))
	if err != nil {
		t.Fatal(err)
	}
	from, _, ok := strings.Cut(strings.TrimPrefix(string(text[strings.Index(string(text), "\nFROM ")+1:]), "FROM "), " AS build")
	if !ok {
		t.Fatal("contrib/oci/Containerfile has no stage build")
	}
	do("build", "--isolation", "chroot", "-t", from, base)
	// The image is built without a network. Its go mod download needs a file of each module
	// (.info) that a build on this machine does not fetch.
	run(t, "go", "mod", "download")
	goenv := func(name string) string { return strings.TrimSpace(run(t, "go", "env", name)) }
	do("build", "--pull-never", "--isolation", "chroot", "-t", "localhost/exanet/pfd",
		"-v", goenv("GOROOT")+":/usr/local/go:ro", "-v", goenv("GOMODCACHE")+":/go/pkg/mod", "-v", goenv("GOCACHE")+":/root/.cache/go-build",
		"-f", "contrib/oci/Containerfile", ".")

	sockets := filepath.Join(dir, "sockets")
	if err := os.Mkdir(sockets, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(sockets, 65532, 65532); err != nil {
		t.Fatal(err)
	}
	container := do("from", "--pull-never", "localhost/exanet/pfd")
	config := do("inspect", "--format", "{{.OCIv1.Config.User}} {{.OCIv1.Config.Entrypoint}} {{.OCIv1.Config.Cmd}}", container)
	if config != "65532:65532 [/usr/bin/pfd] [--socket /run/exanet/pfd.sock --sandbox strict]" {
		t.Errorf("the image runs %q", config)
	}
	in := []string{"run", "--isolation", "chroot", "-v", sockets + ":/run/exanet", container, "--"}
	var log strings.Builder
	pfd := buildah(append(in, "/usr/bin/pfd", "--socket", "/run/exanet/pfd.sock", "--sandbox", "strict")...)
	pfd.Stdout, pfd.Stderr = &log, &log
	if err := pfd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- pfd.Wait() }()
	var status struct {
		PID, UID int
		State    string
	}
	for status.PID == 0 {
		select {
		case err := <-ended:
			t.Fatalf("pfd in its image: %v\n%s", err, log.String())
		case <-time.After(50 * time.Millisecond):
		}
		if out, err := buildah(append(in, "/usr/bin/exanetctl", "--socket", "/run/exanet/pfd.sock", "status", "-j")...).Output(); err == nil {
			if err := json.Unmarshal(out, &status); err != nil || status.State != "ready" || status.UID != 65532 {
				t.Errorf("status: %v\n%s", err, out)
			}
		}
	}
	// chroot isolation creates no PID namespace.
	if err := syscall.Kill(status.PID, syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("pfd: %v\n%s", err, log.String())
	}
}
