package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The pfd of `make pgo` writes a CPU profile of itself, and says why if it cannot.
func TestProfiledPFD(t *testing.T) {
	dir := t.TempDir()
	exe, profiles := filepath.Join(dir, "pfd"), filepath.Join(dir, "profiles")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-pgo=off", "-tags", "profile", "-o", exe, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	run := func() (string, error) {
		cmd := exec.CommandContext(t.Context(), exe, "--version")
		cmd.Env = append(os.Environ(), "PFD_PROFILES="+profiles)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run(); err == nil || !strings.HasPrefix(out, "pfd: profile: ") || !strings.Contains(out, profiles) {
		t.Errorf("without a directory: %v: %s", err, out)
	}
	if err := os.Mkdir(profiles, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := run(); err != nil || !strings.HasPrefix(out, "pfd version ") {
		t.Errorf("%v: %s", err, out)
	}
	files, err := filepath.Glob(filepath.Join(profiles, "pfd-*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%d profiles: %v", len(files), err)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	r, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(r); err != nil || !bytes.Contains(text, []byte("nanoseconds")) {
		t.Errorf("%s is no CPU profile: %v", files[0], err)
	}
}
