// Package outfile opens the files that a program writes at a name that its user gives. Such
// a name may lie in a directory that others may write, as /tmp, so that who may do so must
// gain nothing.
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
	// ErrInUse says that another program writes the file.
	ErrInUse = errors.New("another program writes it")
	// ErrOfOthers says that a file is not root's and not the user's own.
	ErrOfOthers = errors.New("the file is another user's")
)

// Options say how a file is opened.
type Options struct {
	Mode fs.FileMode // of the file; 0: its owner alone may read and write it
	Keep bool        // a former file is kept as PATH.old, else it is emptied
}

// Open opens a file for writing, and makes it where there is none. A file that another program
// writes is left alone. A symbolic link is not followed, and what is another user's, or has a
// second name, is left alone; what this process has open (/dev/stdout, /dev/fd/N) is its own.
func Open(path string, o Options) (*os.File, error) {
	mode := cmp.Or(o.Mode, 0o600)
	const flags = os.O_WRONLY | os.O_CREATE | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK
	if isOpen(path) {
		return os.OpenFile(path, os.O_WRONLY|unix.O_CLOEXEC, 0)
	}
	for {
		f, err := os.OpenFile(path, flags, mode)
		if errors.Is(err, unix.ELOOP) {
			return nil, fmt.Errorf("%w: it is a symbolic link, which is not followed: name the file itself", err)
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
			// One that was there already has the mode of then; root's, made for this user, keeps it.
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
		// The lock goes with the old file; the name is free then.
		err = os.Rename(path, path+".old")
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("keeping the former file: %w", err)
		}
	}
}

// readerPause is the time between two looks for the reader of a pipe (ours).
const readerPause = 20 * time.Millisecond

// Await is Open, but it waits for the reader of a pipe, until ctx ends. Another user's pipe is
// refused at once.
func Await(ctx context.Context, path string, o Options) (*os.File, error) {
	for {
		f, err := Open(path, o)
		if !errors.Is(err, unix.ENXIO) { // nobody has it open for reading
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

// Write writes a whole file that everybody may read, as os.WriteFile does, by Open.
func Write(path string, b []byte) error {
	f, err := Open(path, Options{Mode: 0o644})
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}

// isOpen reports whether a name is one of a descriptor that this process has.
func isOpen(path string) bool {
	return path == "/dev/stdout" || path == "/dev/stderr" || strings.HasPrefix(path, "/dev/fd/") || strings.HasPrefix(path, "/proc/self/fd/")
}

// Check refuses a file, by what Stat says of it, that this process must not write.
func Check(path string, info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return fmt.Errorf("%s: the system does not say whose it is", path)
	case st.Uid != 0 && !uids.Own(st.Uid):
		return fmt.Errorf("%s: %w (uid %d): name another", path, ErrOfOthers, st.Uid)
	case info.Mode().IsRegular() && st.Nlink > 1:
		return fmt.Errorf("%s: %w, perhaps: it has a second name (%d links): name another", path, ErrOfOthers, st.Nlink)
	}
	return nil
}
