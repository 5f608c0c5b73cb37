package config

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A pipe without a writer is not a regular file, and opening it must not block: a reload of pfd
// would never end.
func TestPipe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "p.toml")
	if err := unix.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() {
		_, err := Load(newFlags().FlagSet, file)
		over <- err
	}()
	select {
	case err := <-over:
		if !errors.Is(err, ErrConfig) {
			t.Error(err)
		}
	case <-time.After(2 * time.Minute):
		t.Error("opening a pipe blocks")
	}
}
