package user

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// silentFile opens a file of a FUSE file system that answers no further request until the end of
// the test. The numbers are from linux/fuse.h, protocol 7.31.
func silentFile(t *testing.T) int {
	t.Helper()
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("no FUSE: %v", err)
	}
	dir := t.TempDir()
	if err := unix.Mount("silent", dir, "fuse", unix.MS_NODEV|unix.MS_NOSUID, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", dev)); err != nil {
		_ = unix.Close(dev)
		t.Skipf("FUSE cannot be mounted here: %v", err)
	}
	var silent atomic.Bool
	served := make(chan struct{})
	go func() {
		defer close(served)
		buf := make([]byte, 1<<17)
		for {
			n, err := unix.Read(dev, buf)
			if err == unix.EINTR || err == unix.ENOENT {
				continue
			}
			if err != nil || n < 40 {
				return // unmounted
			}
			attr := func(mode int) []byte { // no time in which it is good
				return le(uint64(2), uint64(4096), make([]byte, 44), mode, 1, make([]byte, 20))
			}
			var body []byte
			switch order.Uint32(buf[4:]) {
			case 26: // INIT
				body = le(7, 31, make([]byte, 56))
			case 1: // LOOKUP
				body = append(le(uint64(2), make([]byte, 32)), attr(unix.S_IFREG|0o600)...)
			case 3: // GETATTR
				body = append(make([]byte, 16), attr(unix.S_IFDIR|0o700)...)
			case 14: // OPEN
				body = make([]byte, 16)
			default:
				continue
			}
			if silent.Load() {
				continue
			}
			_, _ = unix.Write(dev, le(16+len(body), 0, buf[8:16], body)) // interrupted, then
		}
	}()
	fd, err := unix.Open(filepath.Join(dir, "file"), unix.O_RDWR|unix.O_CLOEXEC, 0)
	silent.Store(true)
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
		<-served
		_ = unix.Close(dev)
		_ = unix.Close(fd)
	})
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// TestMapOfSilentFile: a file whose server does not even answer a stat is refused and blocks no
// access.
func TestMapOfSilentFile(t *testing.T) {
	fd := silentFile(t)
	s := newSpace(10)
	if !soon(func() {
		if err := s.add(DMAMap{32, both, 0, 0, 4096}, fd); !errors.Is(err, unix.EINVAL) {
			t.Error(err)
		}
	}) {
		t.Error("a mapping waits for it")
	}
	if !soon(func() { _ = s.access(0, make([]byte, 8), false, nil, nil) }) {
		t.Error("an access waits for it")
	}
}
