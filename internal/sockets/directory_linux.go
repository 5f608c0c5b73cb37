package sockets

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// MakeDir creates a directory with a mode, and its missing parents like mkdir -p. An existing
// directory stays as it is. All users may enter the directory of the machine's socket (Root),
// whatever the mode and the umask: creating a program's own directory below it must not lock
// other users out of pfd.
func MakeDir(dir string, mode fs.FileMode) error { return makeDir(filepath.Dir(Root), dir, mode) }

func makeDir(shared, dir string, mode fs.FileMode) error {
	dir = filepath.Clean(dir)
	if dir == shared || strings.HasPrefix(dir, shared+"/") {
		if err := makeOne(shared, 0o755); err != nil || dir == shared {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	return makeOne(dir, mode)
}

// makeOne creates a directory with exactly this mode, despite the umask.
func makeOne(dir string, mode fs.FileMode) error {
	err := os.Mkdir(dir, mode)
	if errors.Is(err, fs.ErrExist) {
		if info, serr := os.Stat(dir); serr == nil && info.IsDir() {
			return nil
		}
		return &fs.PathError{Op: "mkdir", Path: dir, Err: syscall.ENOTDIR}
	}
	if err != nil {
		return err
	}
	// Use a descriptor: a user who may write the parent directory could put a link in its
	// place.
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(mode), f.Close())
}

// Why explains err, which connect(2) returned for the socket at path, by the state of the path.
// It returns "" if it knows no more than err.
func Why(path string, err error) string {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return barred(path)
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nobody listens on the socket that is there: its pfd was killed or is just starting, and the next one replaces it"
	case errors.Is(err, fs.ErrNotExist):
		var st unix.Stat_t
		dir := filepath.Dir(path)
		if unix.Stat(dir, &st) == nil && st.Nlink == 0 {
			return fmt.Sprintf("directory %s was removed, and perhaps made again, after it was mounted here: start this container again", dir)
		}
	}
	return ""
}

// barred names the first directory of path that this user may not enter.
func barred(path string) string {
	path, err := filepath.Abs(path)
	if err != nil {
		return ""
	}
	for i := 1; i < len(path); i++ {
		if path[i] != '/' {
			continue
		}
		dir := path[:i]
		if unix.Faccessat(unix.AT_FDCWD, dir, unix.X_OK, unix.AT_EACCESS) == nil {
			continue
		}
		var st unix.Stat_t
		if unix.Stat(dir, &st) != nil {
			return ""
		}
		return fmt.Sprintf("this user may not enter directory %s, of uid %d with mode %#o: its owner can run chmod 755 %s", dir, st.Uid, st.Mode&0o7777, dir)
	}
	return ""
}
