package probe

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Own is tracing that this process has started by On, and that ends with it.
type Own struct {
	dir string
	at  *os.File // the directory that On created; a later one has another inode
}

// Begun returns the tracing that On has just started in dir.
func Begun(dir string) (*Own, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrDir, dir, err)
	}
	return &Own{dir, os.NewFile(uintptr(fd), dir)}, nil
}

// End is like Off, but leaves tracing alone that another process has started since. It needs
// rights only on the directory.
func (o *Own) End() error {
	defer o.at.Close()
	own, err := o.at.Stat()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDir, err)
	}
	if there, err := os.Lstat(o.dir); err != nil || !os.SameFile(own, there) {
		return nil
	}
	if err := Off(o.dir); !errors.Is(err, ErrOff) {
		return err
	}
	return nil
}
