package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/control"
)

// Errors of listening. Each names the socket and the remedy.
var (
	// ErrInUse says that another process listens on the socket.
	ErrInUse = errors.New("socket in use")
	// ErrNotSocket says that something else than a socket has the name.
	ErrNotSocket = errors.New("not a socket")
)

// sockets are the two listeners of a pfd.
type sockets struct {
	control *net.UnixListener // SOCK_STREAM, HTTP
	attach  *net.UnixListener // SOCK_SEQPACKET
}

// Close closes what is still open of both, and removes their files.
func (s *sockets) Close() error {
	var errs []error
	for _, l := range []*net.UnixListener{s.control, s.attach} {
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// listen makes both sockets. Files that a pfd left behind are replaced; where
// somebody listens, or something else has the name, nothing is touched.
func listen(socket string, makeDirectory bool) (_ *sockets, err error) {
	if err := control.CheckSocket(socket); err != nil {
		return nil, err
	}
	dir := filepath.Dir(socket)
	if makeDirectory {
		mode := fs.FileMode(0o700)
		if os.Geteuid() == 0 {
			mode = 0o755
		}
		if err := os.MkdirAll(dir, mode); err != nil {
			return nil, directoryError(err)
		}
	}
	unlock, err := lockDirectory(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()

	attach := control.AttachSocket(socket)
	for _, path := range []string{socket, attach} {
		if err := clearStale(path); err != nil {
			return nil, err
		}
	}
	s := &sockets{}
	if s.control, err = bind("unix", socket); err != nil {
		return nil, err
	}
	if s.attach, err = bind("unixpacket", attach); err != nil {
		s.control.Close()
		return nil, err
	}
	return s, nil
}

// directoryError says what is wrong with the control socket's directory, and the
// remedy for that.
func directoryError(err error) error {
	remedy := "make it"
	switch {
	case errors.Is(err, fs.ErrPermission):
		remedy = "run as a user who may use it"
	case errors.Is(err, unix.ENOTDIR):
		remedy = "remove the file that is in its place"
	}
	return fmt.Errorf("directory of the control socket: %w: %s, or name another with --socket PATH", err, remedy)
}

// lockDirectory keeps two pfds that start at the same time from taking each
// other's new sockets for stale ones: the lock is held from the look at the
// old files to the bind. It lies on the directory, so that no file stays.
func lockDirectory(dir string) (unlock func(), err error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, directoryError(&fs.PathError{Op: "open", Path: dir, Err: err})
	}
	// Bounded: anybody who may read the directory may lock it.
	const tries, pause = 200, 10 * time.Millisecond
	for range tries {
		if err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != unix.EWOULDBLOCK && err != unix.EINTR {
			break
		}
		time.Sleep(pause)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("directory %s of the control socket: another process holds its lock (flock): %w: end it, or name another with --socket PATH", dir, err)
	}
	return func() { unix.Close(fd) }, nil
}

// clearStale removes path if it is a socket on which nobody listens.
func clearStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("socket %s: %w", path, err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s: %w, and a pfd replaces nothing else: remove it, or name another with --socket PATH", path, ErrNotSocket)
	}
	pid, err := listener(path)
	switch {
	case err == nil:
		who := "another process"
		if pid > 0 {
			who = fmt.Sprintf("process %d", pid)
		}
		return fmt.Errorf("%s: %w: %s listens on it: end it, or start this one with another --socket PATH", path, ErrInUse, who)
	case errors.Is(err, unix.ECONNREFUSED):
		// Nobody listens: a pfd that was killed left it.
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("stale socket: %w", err)
		}
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return fmt.Errorf("socket %s: cannot tell whether it is in use: %w: remove it if no pfd runs there, or name another with --socket PATH", path, err)
}

// listener tells who listens on a socket file: nil and its pid (0: unknown),
// or ECONNREFUSED where nobody does. It never blocks.
func listener(path string) (pid int, err error) {
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET, unix.SOCK_DGRAM} {
		var fd int
		if fd, err = unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
			return 0, os.NewSyscallError("socket", err)
		}
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
		if err == nil {
			if cred, cerr := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED); cerr == nil {
				pid = int(cred.Pid)
			}
		}
		unix.Close(fd)
		switch err {
		case nil, unix.EAGAIN: // EAGAIN: somebody listens, and its queue is full
			return pid, nil
		case unix.EPROTOTYPE: // a socket of another type: look with that one
			continue
		}
		return 0, os.NewSyscallError("connect", err)
	}
	return 0, os.NewSyscallError("connect", err)
}

// bind makes one listener that anybody may connect to: the peer's credentials
// decide what it may do (spec/api.md).
func bind(network, path string) (*net.UnixListener, error) {
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w: name another place with --socket PATH", path, err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		l.Close()
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	return l, nil
}
