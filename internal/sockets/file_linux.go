package sockets

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// File is the file of a socket that this process has created. It holds the file open: that is
// how it recognizes a later file of the same name, as the kernel reuses inode numbers.
type File struct {
	path string
	fd   int // O_PATH
}

// Made returns the File of a socket that was just created at path.
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

// Path returns the name that the file was created with.
func (f *File) Path() string { return f.path }

// ErrReplaced reports that another file has the name of a socket.
var ErrReplaced = errors.New("another file has its name")

// Check returns nil if the file still has its name, an error that matches os.ErrNotExist if no
// file has the name, or ErrReplaced.
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

// Remove removes the file if it still has its name. Another file of that name stays. It may be
// called again.
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
