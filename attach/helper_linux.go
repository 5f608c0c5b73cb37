package attach

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/keeper"
	"github.com/exanet/pfd/internal/uids"
)

// TypeHelper asks the process to start its memory helper. Defined by this project (docs/attach.md,
// "The memory helper").
const TypeHelper Type = 12

// The message and its descriptors. Values below are defined by this project.
const (
	HelperSize    = 80
	offHelperZero = 72 // u64, zero
	// HelperFDs is the number of descriptors of the message, in this order: the program, the memfd
	// of the port, the helper's end of a socket, and an eventfd that wakes pfd.
	HelperFDs = 4
)

// The helper's descriptors, by number. Descriptors 0 to 2 are /dev/null. Values below are defined
// by this project.
const (
	HelperPort   = 3 // memfd of the port
	HelperSocket = 4 // its end of the socket
	HelperWake   = 5 // eventfd
	HelperPIDFD  = 6 // of the process
	HelperKeeper = 7 // of a keeper of it
)

// HelperCommand is the command of pfd's program that runs a helper.
const HelperCommand = "memory-helper"

// HelperRequest is pfd's request for a memory helper, which it sends if it has no right over the
// process's memory.
type HelperRequest struct{ Product string }

// Append appends the message to b.
func (h *HelperRequest) Append(b []byte) []byte {
	all, _ := begin(b, TypeHelper, HelperSize, h.Product)
	return all
}

// DecodeHelperRequest decodes the message. Errors match ErrMessage.
func DecodeHelperRequest(b []byte) (HelperRequest, error) {
	product, err := decode(b, TypeHelper, HelperSize)
	if err == nil && binary.LittleEndian.Uint64(b[offHelperZero:]) != 0 {
		err = fmt.Errorf("%w: reserved bytes are not zero", ErrMessage)
	}
	return HelperRequest{Product: product}, err
}

// AskHelper asks the process to start its helper: program is an executable, the others are the
// helper's. The caller still owns the descriptors.
func (c *Conn) AskHelper(program, port, socket, wake int) error {
	h := HelperRequest{Product: Product()}
	return c.Send(h.Append(nil), program, port, socket, wake)
}

// ErrProgram says that the process must not run a helper's program.
var ErrProgram = errors.New("not a program to be trusted")

// startHelper starts the program that pfd sent, with the rights of this process. It does not trust
// pfd: it runs only a program that belongs to root or this process's own user and that no other
// user can change.
func (c *Conn) startHelper(_ HelperRequest, fds Descriptors) error {
	if len(fds) != HelperFDs {
		return fmt.Errorf("%w: %d descriptors, not %d", ErrMessage, len(fds), HelperFDs)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fds[0], &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if !executable(&st, uint32(os.Geteuid()), c.trust) {
		return fmt.Errorf("%w: it belongs to uid %d and has mode %#o: it must be root's or this user's own, writable by its owner only",
			ErrProgram, st.Uid, st.Mode&0o7777)
	}
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(self)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	// pfd's keeper serves pfd; this one serves the helper (keeper.StartFor).
	if c.lent, err = keeper.Start(); err != nil {
		return err
	}
	var files []*os.File
	// Above the helper's own numbers, so that no duplicate occupies one of them. The program is below the
	// others: os.StartProcess uses numbers above the highest of Files for itself.
	least := HelperKeeper + 1
	for _, fd := range []int{fds[0], int(null.Fd()), int(null.Fd()), int(null.Fd()), fds[1], fds[2], fds[3], self, c.lent.PIDFD()} {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, least)
		if errors.Is(err, unix.EINVAL) { // least is not below the limit of descriptors (fcntl(2))
			err = unix.EMFILE
		}
		if err != nil {
			return os.NewSyscallError("fcntl F_DUPFD_CLOEXEC", err)
		}
		f := os.NewFile(uintptr(dup), "helper")
		defer f.Close()
		if len(files) == 0 {
			least = dup + 1
		}
		files = append(files, f)
	}
	// A separate process group, so that a terminal's signals do not reach it. Not a separate
	// session: where the scheduler groups by sessions (autogroup), a helper beside a busy session
	// would wait for that session's share.
	p, err := os.StartProcess("/proc/self/fd/"+strconv.Itoa(int(files[0].Fd())), []string{"pfd", HelperCommand},
		&os.ProcAttr{Dir: "/", Env: []string{}, Files: files[1:], Sys: &syscall.SysProcAttr{Setpgid: true}})
	if err != nil {
		return fmt.Errorf("start pfd's program: %w", err)
	}
	c.helper = p
	return nil
}

// executable reports whether a process of user own may run a helper's program: a regular file of a
// trusted user that no other user may write.
func executable(st *unix.Stat_t, own uint32, trust []uint32) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&0o022 == 0 && uids.Trusted(st.Uid, own, trust)
}

// ErrHelper says that a killed memory helper has not ended yet.
var ErrHelper = errors.New("the memory helper has not ended")

// reapTime is how long Close waits for the end of a helper. Defined by this project.
const reapTime = 5 * time.Second

// reapHelper ends the helper, which ends by itself when pfd closes its socket. It does not wait
// for a helper that sleeps in a page of the process that never arrives: the error then matches
// ErrHelper.
func (c *Conn) reapHelper() error {
	if c.helper == nil {
		return nil
	}
	_ = c.helper.Kill() // fails if it has ended
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = c.helper.Wait()
	}()
	select {
	case <-ended:
		return nil
	case <-time.After(reapTime):
		return fmt.Errorf("%w: process %d is killed and waits for a page of this process's memory that is not paged in (a file system or a userfaultfd that does not answer): do not reuse exported memory before it has ended",
			ErrHelper, c.helper.Pid)
	}
}
