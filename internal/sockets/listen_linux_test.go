package sockets

import (
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// Anybody may connect whatever the umask is, and who can write the directory puts
// no other file in the socket's place while its mode is set.
func TestListenMode(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "s"), filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	defer unix.Umask(unix.Umask(0o077))
	var stop atomic.Bool
	var attacker sync.WaitGroup
	attacker.Go(func() {
		aside := filepath.Join(dir, "aside")
		for !stop.Load() {
			if os.Rename(path, aside) == nil {
				_ = os.Symlink(other, path)
			}
		}
	})
	for range 300 {
		_ = os.Remove(path)
		l, err := Listen("unixpacket", path, 0o666)
		if err != nil {
			continue // the link was there first
		}
		l.SetUnlinkOnClose(false)
		l.Close()
	}
	stop.Store(true)
	attacker.Wait()
	if info, err := os.Stat(other); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("root's file: %v, %v", info.Mode(), err)
	}
	_ = os.Remove(path)
	l, err := Listen("unix", path, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("the socket: %v, %v", info.Mode(), err)
	}
}
