package sockets

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// All users can connect whatever the umask is. A user who can write the directory cannot
// replace the socket while its mode is set.
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
		l, f, err := Listen("unixpacket", path, 0o666)
		if err != nil {
			continue // the link existed first
		}
		l.Close()
		f.fd = closed(t, f.fd) // the file belongs to the attacker
	}
	stop.Store(true)
	attacker.Wait()
	if info, err := os.Stat(other); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("root's file: %v, %v", info.Mode(), err)
	}
	_ = os.Remove(path)
	l, f, err := Listen("unix", path, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Remove()
	defer l.Close()
	if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("the socket: %v, %v", info.Mode(), err)
	}
}

func closed(t *testing.T, fd int) int {
	if err := unix.Close(fd); err != nil {
		t.Error(err)
	}
	return -1
}

// Only the process that created a socket's file removes it, and only while the file has its
// name.
func TestFileOfAnother(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listen := func() *File {
		t.Helper()
		l, f, err := Listen("unix", path, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		return f
	}
	check := func(f *File, want error) {
		t.Helper()
		if err := f.Check(); !errors.Is(err, want) {
			t.Errorf("the file: %v, want %v", err, want)
		}
	}
	first := listen()
	check(first, nil)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	check(first, os.ErrNotExist)
	second := listen() // the file system may reuse the inode number
	check(first, ErrReplaced)
	if err := errors.Join(first.Remove(), first.Remove()); err != nil {
		t.Error(err)
	}
	check(second, nil)
	if err := second.Remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the second socket's file still exists: %v", err)
	}
	if err := os.Symlink("elsewhere", path); err != nil {
		t.Fatal(err)
	}
	if f, err := Made(path); !errors.Is(err, ErrReplaced) {
		t.Errorf("a link is accepted as a socket: %v, %v", f, err)
	}
}
