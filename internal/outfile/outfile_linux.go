// Package outfile opens the output files that a user names. Such a name may lie in a directory
// that other users may write, as /tmp: they must gain nothing by that.
package outfile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/uids"
)

var (
	// ErrInUse reports that another program is writing the file.
	ErrInUse = errors.New("another program is writing it")
	// ErrOfOthers reports that a file belongs neither to root nor to the user.
	ErrOfOthers = errors.New("the file is another user's")
)

// Options select how a file is opened.
type Options struct {
	Mode fs.FileMode // of the file; 0: only its owner may read and write it
	Keep bool        // keep an existing file as PATH.old instead of truncating it
}

// Open opens a file for writing and creates it if it does not exist. It refuses a file that
// another program is writing, a symbolic link, another user's file, and a file with a second
// hard link. It accepts the names of this process's descriptors (/dev/stdout, /dev/fd/N).
func Open(path string, o Options) (*os.File, error) {
	mode := cmp.Or(o.Mode, 0o600)
	const flags = os.O_WRONLY | os.O_CREATE | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK
	if isOpen(path) {
		return os.OpenFile(path, os.O_WRONLY|unix.O_CLOEXEC, 0)
	}
	for {
		f, err := os.OpenFile(path, flags, mode)
		if errors.Is(err, unix.ELOOP) {
			return nil, fmt.Errorf("%w: it is a symbolic link: name the file itself", err)
		}
		if err != nil {
			return nil, err
		}
		info, err := f.Stat()
		if err == nil {
			err = Check(path, info)
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if !info.Mode().IsRegular() {
			return f, nil
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			if errors.Is(err, unix.EWOULDBLOCK) {
				err = fmt.Errorf("%s: %w: name another file", path, ErrInUse)
			}
			return nil, errors.Join(err, f.Close())
		}
		if o.Mode == 0 {
			// An existing file may have another mode. Root's file, made for this user, keeps
			// it.
			if err := f.Chmod(mode); err != nil && !errors.Is(err, fs.ErrPermission) {
				return nil, errors.Join(err, f.Close())
			}
		}
		if info.Size() == 0 {
			return f, nil
		}
		if !o.Keep {
			if err := f.Truncate(0); err != nil {
				return nil, errors.Join(err, f.Close())
			}
			return f, nil
		}
		// The old file keeps the lock; the name becomes free.
		err = os.Rename(path, path+".old")
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("keeping the old file: %w", err)
		}
	}
}

// readerPause is the time between two attempts to find the reader of a pipe; defined by this
// project.
const readerPause = 20 * time.Millisecond

// Await is like Open, but waits for the reader of a pipe until ctx ends. It refuses another
// user's pipe at once.
func Await(ctx context.Context, path string, o Options) (*os.File, error) {
	for {
		f, err := Open(path, o)
		if !errors.Is(err, unix.ENXIO) { // no process has it open for reading
			return f, err
		}
		info, failed := os.Lstat(path)
		if failed == nil {
			failed = Check(path, info)
		}
		if failed != nil || info.Mode()&fs.ModeNamedPipe == 0 {
			return nil, cmp.Or(failed, err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: waiting for its reader: %w", path, ctx.Err())
		case <-time.After(readerPause):
		}
	}
}

// Write writes a whole file that all users may read, like os.WriteFile, but opens it by Open.
func Write(path string, b []byte) error {
	f, err := Open(path, Options{Mode: 0o644})
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}

// isOpen reports whether path names a descriptor of this process.
func isOpen(path string) bool {
	return path == "/dev/stdout" || path == "/dev/stderr" || strings.HasPrefix(path, "/dev/fd/") || strings.HasPrefix(path, "/proc/self/fd/")
}

// Check returns an error if this process must not write the file that info, its Stat,
// describes.
func Check(path string, info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return fmt.Errorf("%s: the system does not report its owner", path)
	case st.Uid != 0 && !uids.Own(st.Uid):
		return fmt.Errorf("%s: %w (uid %d): name another", path, ErrOfOthers, st.Uid)
	case info.Mode().IsRegular() && st.Nlink > 1:
		return fmt.Errorf("%s: %w, perhaps: it has %d hard links: name another", path, ErrOfOthers, st.Nlink)
	}
	return nil
}
