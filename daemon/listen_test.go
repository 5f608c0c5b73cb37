package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/daemon/control"
)

// stale leaves a socket file on which no process listens.
func stale(t *testing.T, network, path string) {
	t.Helper()
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestListenReplacesStaleSocketsOnly(t *testing.T) {
	for _, network := range []string{"unix", "unixpacket"} {
		for _, suffix := range []string{"", control.AttachSuffix} {
			t.Run(network+suffix, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "pfd.sock")
				stale(t, network, path+suffix)
				s, err := listen(path, false, true)
				if err != nil {
					t.Fatal(err)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				for _, p := range []string{path, path + control.AttachSuffix} {
					if _, err := os.Lstat(p); !errors.Is(err, os.ErrNotExist) {
						t.Errorf("%s is left behind: %v", p, err)
					}
				}
			})
		}
	}
}

// A pfd logs that another pfd has removed its sockets and created its own in their place, and does
// not remove those when it ends.
func TestSocketsOfAnother(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pfd.sock")
	first, err := listen(path, false, true)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	u := &upkeep{sockets: first, log: slog.New(slog.NewTextHandler(&text, nil))}
	said := func(before, want string) (now string) {
		t.Helper()
		text.Reset()
		now = u.lookForSockets(before)
		if got := text.String(); (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("the log has %q, want %q", got, want)
		}
		return now
	}
	said("", "")
	for _, name := range []string{path, control.AttachSocket(path), control.MetricsSocket(path), control.HostsSocket(path)} {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	gone := said("", "no such file")
	said(gone, "")
	second, err := listen(path, false, true)
	if err != nil {
		t.Fatal(err)
	}
	said(gone, "another file")
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if err := second.lost(); err != nil {
		t.Errorf("the second one's sockets: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}

// The remedy depends on the error of the directory.
func TestListenWithoutDirectory(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for socket, remedy := range map[string]string{
		filepath.Join(dir, "none", "pfd.sock"): "make it",
		filepath.Join(file, "pfd.sock"):        "remove the file",
	} {
		s, err := listen(socket, false, true)
		if err == nil {
			t.Fatal(s.Close())
		}
		if text := err.Error(); !strings.Contains(text, filepath.Dir(socket)) || !strings.Contains(text, remedy) || !strings.Contains(text, "--socket") {
			t.Errorf("%s: %q, want %q", socket, text, remedy)
		}
	}
	// Root may use every directory, so the errno stands for it.
	for _, errno := range []error{unix.EACCES, unix.EPERM} {
		err := directoryError(&fs.PathError{Op: "open", Path: dir, Err: errno})
		if !errors.Is(err, errno) || !strings.Contains(err.Error(), "run as a user") || strings.Contains(err.Error(), "make it") {
			t.Errorf("%v: %q", errno, err)
		}
	}
}

func TestListenLeavesALiveSocketAlone(t *testing.T) {
	for _, network := range []string{"unix", "unixpacket", "unixgram"} {
		for _, suffix := range []string{"", control.AttachSuffix} {
			t.Run(network+suffix, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "pfd.sock")
				addr := &net.UnixAddr{Name: path + suffix, Net: network}
				var live interface{ Close() error }
				var err error
				if network == "unixgram" {
					live, err = net.ListenUnixgram(network, addr)
				} else {
					live, err = net.ListenUnix(network, addr)
				}
				if err != nil {
					t.Fatal(err)
				}
				defer live.Close()
				_, err = listen(path, false, true)
				if !errors.Is(err, ErrInUse) || !strings.Contains(fmt.Sprint(err), path+suffix) {
					t.Fatalf("listen: %v, want ErrInUse naming %s", err, path+suffix)
				}
				if network != "unixgram" && !strings.Contains(err.Error(), fmt.Sprintf("process %d ", os.Getpid())) {
					t.Errorf("error %q does not name the process", err)
				}
				if _, err := os.Lstat(path + suffix); err != nil {
					t.Errorf("the live socket's file is gone: %v", err)
				}
				if suffix != "" {
					if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
						t.Errorf("a control socket was left behind: %v", err)
					}
				}
			})
		}
	}
}

func TestListenTouchesNothingElse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pfd.sock")
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listen(path, false, true); !errors.Is(err, ErrNotSocket) {
		t.Errorf("listen on a file: %v, want ErrNotSocket", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "mine" {
		t.Errorf("the file holds %q, %v", b, err)
	}
	if _, err := listen(filepath.Join(t.TempDir(), "none", "pfd.sock"), false, true); !errors.Is(err, os.ErrNotExist) || !strings.Contains(fmt.Sprint(err), "--socket") {
		t.Errorf("listen in a directory that is not there: %v", err)
	}
	if _, err := listen("/"+strings.Repeat("x", 108), false, true); !errors.Is(err, control.ErrSocketPath) {
		t.Errorf("listen on a long name: %v, want ErrSocketPath", err)
	}
	s, err := listen(filepath.Join(t.TempDir(), "none", "pfd.sock"), true, true)
	if err != nil {
		t.Fatalf("listen with a directory to be made: %v", err)
	}
	s.Close()
}

// Of many pfds that start at the same time over stale files, one gets the sockets, and the others
// do not disturb it.
func TestListenAtTheSameTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pfd.sock")
	stale(t, "unix", path)
	const racers = 8
	var won []*sockets
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range racers {
		wg.Go(func() {
			s, err := listen(path, false, true)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				won = append(won, s)
			case !errors.Is(err, ErrInUse):
				t.Errorf("a loser got %v, want ErrInUse", err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Errorf("%d pfds got the sockets, want 1", len(won))
	}
	if _, err := listener(path, 0); err != nil {
		t.Errorf("nobody listens in the end: %v", err)
	}
	for _, s := range won {
		s.Close()
	}
}

// Other users cannot hold the lock, since they cannot open its file.
func TestLockIsTheUsersAlone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "pfd.sock")
	// As anybody may who can read the directory.
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Flock(fd, unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	s, err := listen(path, false, true)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if info, err := os.Lstat(path + lockSuffix); err != nil || info.Mode() != 0o600 {
		t.Errorf("the lock file: %v, %v", info.Mode(), err)
	}
}

// A user with write permission to the directory can replace the lock file with a link. pfd does not
// follow a link that exists before it starts. If the link appears while pfd creates its sockets, pfd
// writes into the file that it has locked.
func TestLockFileThatIsReplaced(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	const text = "not pfd's"
	if err := os.WriteFile(victim, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	before := filepath.Join(dir, "before")
	if err := os.Symlink(victim, before+lockSuffix); err != nil {
		t.Fatal(err)
	}
	if s, err := listen(before, false, true); err == nil || !strings.Contains(err.Error(), "lock file") {
		t.Errorf("a link in the lock file's place: %v, %v", s, err)
	}
	for i := range 100 {
		path := filepath.Join(dir, strconv.Itoa(i))
		link := path + ".link"
		if err := os.Symlink(victim, link); err != nil {
			t.Fatal(err)
		}
		replaced := make(chan error)
		go func() {
			for {
				if _, err := os.Lstat(path); err == nil { // the first socket is there
					replaced <- os.Rename(link, path+lockSuffix)
					return
				}
			}
		}()
		s, err := listen(path, false, true)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(<-replaced, s.Close()); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(victim); err != nil || string(b) != text {
			t.Fatalf("after %d pfds the file that the link names holds %q, %v", i+1, b, err)
		}
	}
}
