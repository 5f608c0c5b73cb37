package sockets

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// File is the file of a socket that this process has made. It holds the file open, by which
// another one that has its name later is told from it: a number of an inode is used again.
type File struct {
	path string
	fd   int // O_PATH
}

// Made returns the file of a socket that has just been made at path.
func Made(path string) (*File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, os.NewSyscallError("open", err))
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && (st.Mode&unix.S_IFMT != unix.S_IFSOCK || int(st.Uid) != unix.Geteuid()) {
		err = ErrReplaced
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("socket %s: %w", path, err), unix.Close(fd))
	}
	return &File{path: path, fd: fd}, nil
}

// Path returns the name that the file was made with.
func (f *File) Path() string { return f.path }

// ErrReplaced says that another file has the name of a socket now.
var ErrReplaced = errors.New("another file has its name")

// Check returns nil where the file has its name still, an error that matches
// os.ErrNotExist where none has it, or ErrReplaced.
func (f *File) Check() error {
	var own, there unix.Stat_t
	if err := unix.Fstat(f.fd, &own); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if err := unix.Lstat(f.path, &there); err != nil {
		return os.NewSyscallError("lstat", err)
	}
	if own.Dev != there.Dev || own.Ino != there.Ino {
		return ErrReplaced
	}
	return nil
}

// Remove removes the file if it has its name still. What another has put there stays. It may
// be called again.
func (f *File) Remove() error {
	if f.fd < 0 {
		return nil
	}
	var err error
	if f.Check() == nil {
		if err = unix.Unlink(f.path); errors.Is(err, unix.ENOENT) {
			err = nil
		}
	}
	err = errors.Join(os.NewSyscallError("unlink", err), os.NewSyscallError("close", unix.Close(f.fd)))
	f.fd = -1
	return err
}
