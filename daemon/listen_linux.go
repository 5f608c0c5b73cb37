package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/limits"
	"github.com/exanet/pfd/internal/outfile"
	places "github.com/exanet/pfd/internal/sockets"
)

// Errors of listening. Each names the socket and the remedy.
var (
	// ErrInUse says that another process listens on the socket.
	ErrInUse = errors.New("socket in use")
	// ErrNotSocket says that a file that is no socket has the name.
	ErrNotSocket = errors.New("not a socket")
)

// sockets are the listeners of a pfd.
type sockets struct {
	control *net.UnixListener // SOCK_STREAM, HTTP
	attach  *net.UnixListener // SOCK_SEQPACKET
	metrics *net.UnixListener // SOCK_STREAM, HTTP: for pfd's own user and group
	hosts   *net.UnixListener // SOCK_SEQPACKET, for exanet-hostd; nil: this machine has no links
	files   []*places.File    // theirs
}

// Close closes the listeners and removes their files, except files that another pfd has put
// in their place.
func (s *sockets) Close() error {
	var errs []error
	for _, l := range []*net.UnixListener{s.control, s.attach, s.metrics, s.hosts} {
		if l == nil {
			continue
		}
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	for _, f := range s.files {
		errs = append(errs, f.Remove())
	}
	return errors.Join(errs...)
}

// lost returns an error that describes the first file that is not where it was made.
func (s *sockets) lost() error {
	for _, f := range s.files {
		if err := f.Check(); err != nil {
			return fmt.Errorf("%s: %w", f.Path(), err)
		}
	}
	return nil
}

// listen makes the sockets. It replaces files that a pfd has left behind. It touches nothing
// if a process listens on one of them or one is no socket. links says whether the machine has links to
// other hosts.
func listen(socket string, makeDirectory, links bool) (_ *sockets, err error) {
	if err := control.CheckSocket(socket); err != nil {
		return nil, err
	}
	dir := filepath.Dir(socket)
	if makeDirectory {
		mode := fs.FileMode(0o700)
		if os.Geteuid() == 0 {
			mode = 0o755
		}
		if err := places.MakeDir(dir, mode); err != nil {
			return nil, directoryError(err)
		}
	}
	held, former, err := lock(socket)
	if err != nil {
		return nil, err
	}
	defer held.Close()

	attaching, metrics, hosts := control.AttachSocket(socket), control.MetricsSocket(socket), control.HostsSocket(socket)
	for _, path := range []string{socket, attaching, metrics, hosts} {
		if err := clearStale(path, former); err != nil {
			return nil, err
		}
	}
	s := &sockets{}
	if s.control, err = s.bind("unix", socket, 0o666); err != nil {
		return nil, err
	}
	if s.attach, err = s.bind("unixpacket", attaching, 0o666); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if s.metrics, err = s.bind("unix", metrics, 0o660); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if links {
		if s.hosts, err = s.bind("unixpacket", hosts, 0o660); err == nil {
			// Connections inherit the option: exanet-hostd sends descriptors with its first message.
			err = places.Control(s.hosts, func(fd int) error { return places.PassRights(fd, true) })
		}
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	// Write through the descriptor that holds the lock: any user with write permission to the
	// directory may have replaced the file, or put a link in its place.
	err = held.Truncate(0)
	if err == nil {
		_, err = held.WriteAt(fmt.Appendln(nil, os.Getpid()), 0)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock file: %w", err), s.Close())
	}
	return s, nil
}

// directoryError adds the remedy to an error about the control socket's directory.
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

// lock keeps two pfds of a user that start at the same time from removing each other's new
// sockets as stale. It is held from the check of the old files to the bind. Its file is one
// that other users cannot open, and so cannot lock. The file stays, since another pfd that
// waits for the lock has it open already. former is the pid of the pfd that held it last.
func lock(socket string) (held *os.File, former int, err error) {
	path := socket + lockSuffix
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.ENOTDIR) {
			return nil, 0, directoryError(err)
		}
		return nil, 0, fmt.Errorf("lock file: %w: %s", err, limits.RemedyOr(err, "remove it, or name another socket with --socket PATH"))
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no file: remove it, or name another socket with --socket PATH", path)
	}
	if err == nil {
		err = outfile.Check(path, info)
	}
	if err == nil && info.Mode().Perm() != 0o600 {
		err = f.Chmod(0o600)
	}
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("lock file: %w", err), f.Close())
	}
	const tries, pause = 200, 10 * time.Millisecond
	for range tries {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			break
		}
		time.Sleep(pause)
	}
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("%s: another pfd holds the lock (flock): %w: end it, or name another socket with --socket PATH", path, err), f.Close())
	}
	var text [16]byte
	n, _ := f.ReadAt(text[:], 0) // empty in a new file
	former, _ = strconv.Atoi(strings.TrimSpace(string(text[:n])))
	return f, former, nil
}

// lockSuffix ends the name of the lock file, which begins as the control socket's. Defined by
// this project.
const lockSuffix = ".lock"

// clearStale removes path if it is a socket on which no process listens.
func clearStale(path string, former int) error {
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
	pid, err := listener(path, former)
	switch {
	case err == nil:
		who := "another process"
		if pid > 0 {
			who = fmt.Sprintf("process %d", pid)
		}
		return fmt.Errorf("%s: %w: %s listens on it: end it, or start this one with another --socket PATH", path, ErrInUse, who)
	case errors.Is(err, unix.ECONNREFUSED):
		// A pfd that was killed left it.
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("stale socket: %w", err)
		}
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return fmt.Errorf("socket %s: cannot tell whether it is in use: %w: remove it if no pfd runs there, or name another with --socket PATH", path, err)
}

// listener returns the pid of the process that listens on a socket file (0: unknown), or
// ECONNREFUSED if none does. It never blocks. A pfd that was killed while one of its threads
// hangs in the kernel still listens but accepts nothing: it counts as none. former is the pid
// of the last listener, which is used if the queue is full.
func listener(path string, former int) (pid int, err error) {
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET, unix.SOCK_DGRAM} {
		var fd int
		if fd, err = unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
			return 0, os.NewSyscallError("socket", err)
		}
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
		if err == nil {
			if cred, cerr := places.Peer(fd); cerr == nil {
				pid = int(cred.Pid)
			}
		}
		unix.Close(fd)
		switch err {
		case unix.EAGAIN: // a process listens, and its queue is full
			pid = former
			fallthrough
		case nil:
			if attach.Killed(pid) {
				return 0, unix.ECONNREFUSED
			}
			return pid, nil
		case unix.EPROTOTYPE: // a socket of another type: try that
			continue
		}
		return 0, os.NewSyscallError("connect", err)
	}
	return 0, os.NewSyscallError("connect", err)
}

// bind makes one listener. All users may connect; a peer's credentials decide what it may do
// (spec/api.md).
func (s *sockets) bind(network, path string, mode uint32) (*net.UnixListener, error) {
	l, f, err := places.Listen(network, path, mode)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w: %s", path, err, limits.RemedyOr(err, "name another place with --socket PATH"))
	}
	s.files = append(s.files, f)
	return l, nil
}
