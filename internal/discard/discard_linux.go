package discard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// Command is the argument of a program that is to call Serve.
const Command = "discard"

const (
	socketFD = 3  // of the other process
	request  = 16 // bytes: offset and size, u64 little-endian; with the file and the end of a pipe
	answer   = 4  // bytes: errno, u32 little-endian
)

// ErrEnded says that the other process has ended.
var ErrEnded = errors.New("the process that discards pages has ended: restart pfd")

// Process is another process that discards pages. It ends with this one.
type Process struct{ c *net.UnixConn }

// Start starts a program with the argument Command. If it does not call Serve then, it starts no further one.
func Start(program string) (*Process, error) {
	if IsServer(os.Args) {
		return nil, errors.New("a process that is to discard pages does something else")
	}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	own, other := os.NewFile(uintptr(ends[0]), "discard"), os.NewFile(uintptr(ends[1]), "discard")
	defer own.Close()
	defer other.Close()
	none, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer none.Close()
	// It has nothing that others wait for, because it may outlive this process. Package os makes calls for
	// it that pfd's unit forbids.
	files := []uintptr{none.Fd(), none.Fd(), none.Fd(), other.Fd()}
	if _, err = syscall.ForkExec(program, []string{"pfd", Command}, &syscall.ProcAttr{Env: []string{}, Files: files}); err != nil {
		return nil, fmt.Errorf("start the process that discards pages: %w", err)
	}
	c, err := net.FileConn(own)
	if err != nil {
		return nil, err
	}
	return &Process{c.(*net.UnixConn)}, nil
}

// Close ends the process, once it discards nothing.
func (p *Process) Close() error { return p.c.Close() }

// Punch makes pages of a file absent. It waits as long as that takes. Errors are those of fallocate(2), or
// match ErrEnded.
func (p *Process) Punch(fd int, offset, size int64) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	b := binary.LittleEndian.AppendUint64(nil, uint64(offset))
	b = binary.LittleEndian.AppendUint64(b, uint64(size))
	_, _, err = p.c.WriteMsgUnix(b, unix.UnixRights(fd, int(w.Fd())), nil)
	if err = errors.Join(err, w.Close()); err != nil {
		return fmt.Errorf("%w: %w", ErrEnded, err)
	}
	var code [answer]byte
	if _, err := io.ReadFull(r, code[:]); err != nil {
		return fmt.Errorf("%w: %w", ErrEnded, err)
	}
	if errno := syscall.Errno(binary.LittleEndian.Uint32(code[:])); errno != 0 {
		return os.NewSyscallError("fallocate", errno)
	}
	return nil
}

// IsServer reports whether arguments are those of a process that is to call Serve.
func IsServer(args []string) bool { return len(args) == 2 && args[1] == Command }

// Serve discards pages until the process that has started this one ends.
func Serve() error {
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGTERM) // of all processes of a terminal or a unit
	c, err := net.FileConn(os.NewFile(socketFD, "discard"))
	if err != nil {
		return err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("descriptor %d is no socket of a family", socketFD)
	}
	var b [request]byte
	oob := make([]byte, unix.CmsgSpace(2*4))
	for {
		n, m, _, _, err := u.ReadMsgUnix(b[:], oob)
		if err != nil || n == 0 {
			return nil
		}
		fds, err := rights(oob[:m])
		if err != nil || len(fds) != 2 || n != request {
			return fmt.Errorf("a request of %d bytes and %d descriptors: %w", n, len(fds), err)
		}
		offset, size := binary.LittleEndian.Uint64(b[:]), binary.LittleEndian.Uint64(b[8:])
		go func() {
			err := Punch(fds[0], int64(offset), int64(size))
			_ = unix.Close(fds[0])
			var errno syscall.Errno
			errors.As(err, &errno)
			_, _ = unix.Write(fds[1], binary.LittleEndian.AppendUint32(nil, uint32(errno))) // nobody may wait for it any more
			_ = unix.Close(fds[1])
		}()
	}
}

// rights returns the descriptors of a message.
func rights(oob []byte) (fds []int, err error) {
	list, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(list) != 1 {
		return nil, err
	}
	return unix.ParseUnixRights(&list[0])
}

// Punch makes pages of a file absent, in this process.
func Punch(fd int, offset, size int64) error {
	for {
		err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, size)
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("fallocate", err)
		}
	}
}
