package user

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/sockets"
)

// A server that runs as another user is accepted only if that user is named.
func TestServerOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root: becoming another user")
	}
	const uid = 3100
	path := filepath.Join(t.TempDir(), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	// The credentials are those of the thread that listens.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	become := func(uid int) {
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
			t.Fatal(errno)
		}
	}
	become(uid)
	err = unix.Listen(fd, 8)
	become(0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Dial(t.Context(), path, Options{}); !errors.Is(err, ErrStranger) {
		t.Errorf("%v, want ErrStranger", err)
	}
	c, err := dial(path, uid)
	if err != nil {
		t.Errorf("a user that is named: %v", err)
	}
	closeFDs([]int{c})
}

// TestOutOfDescriptors: a process that is out of descriptors does not blame its peer.
func TestOutOfDescriptors(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer closeFDs(pair[:])
	if err := unix.Sendmsg(pair[0], []byte{1}, unix.UnixRights(pair[0], pair[1]), nil, 0); err != nil {
		t.Fatal(err)
	}
	var old unix.Rlimit
	lowest, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
	if err := errors.Join(err, unix.Close(lowest), unix.Getrlimit(unix.RLIMIT_NOFILE, &old)); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(uintptr(pair[1]), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := newSocket(fd)
	defer s.close()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(lowest), Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	_, _, err = s.recv(make([]byte, 1), 0)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, sockets.ErrDescriptors) || errors.Is(err, ErrMalformed) {
		t.Errorf("%v", err)
	}
}
