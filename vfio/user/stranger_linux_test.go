package user

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// A server of another user's is believed only where that user is named.
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
