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

// TypeHelper asks the process to start its memory helper (ours; docs/attach.md,
// "The memory helper").
const TypeHelper Type = 12

// The message, and what goes with it (ours).
const (
	HelperSize    = 80
	offHelperZero = 72 // u64, zero
	// HelperFDs is the number of descriptors that go with it, in this order: the
	// program, the memfd of the port, the helper's end of a socket, and an
	// eventfd that wakes pfd.
	HelperFDs = 4
)

// What the helper finds, by descriptor number (ours). Descriptors 0 to 2 are
// /dev/null.
const (
	HelperPort   = 3 // memfd of the port
	HelperSocket = 4 // its end of the socket
	HelperWake   = 5 // eventfd
	HelperPIDFD  = 6 // of the process
	HelperKeeper = 7 // of a keeper of it
)

// HelperCommand is the word by which pfd's program is told to be a helper.
const HelperCommand = "memory-helper"

// Helper is pfd's request for a memory helper: pfd itself has no right over the
// process's memory, and takes none.
type Helper struct{ Product string }

// Append appends the message to b.
func (h *Helper) Append(b []byte) []byte {
	all, _ := begin(b, TypeHelper, HelperSize, h.Product)
	return all
}

// DecodeHelper reads the message. Errors match ErrMessage.
func DecodeHelper(b []byte) (Helper, error) {
	product, err := decode(b, TypeHelper, HelperSize)
	if err == nil && binary.LittleEndian.Uint64(b[offHelperZero:]) != 0 {
		err = fmt.Errorf("%w: reserved bytes are not zero", ErrMessage)
	}
	return Helper{Product: product}, err
}

// AskHelper has the process start its helper: program is an executable, the
// others are what it works with. The descriptors stay the caller's.
func (c *Conn) AskHelper(program, port, socket, wake int) error {
	h := Helper{Product: Product()}
	return c.Send(h.Append(nil), program, port, socket, wake)
}

// ErrProgram says that a helper's program is none that the process should run.
var ErrProgram = errors.New("not a program to be trusted")

// startHelper starts the program that pfd sent, with the rights of this process.
// It runs only what root or the own user has installed and nobody else can
// change: pfd's word is not enough.
func (c *Conn) startHelper(_ Helper, fds Descriptors) error {
	if len(fds) != HelperFDs {
		return fmt.Errorf("%w: %d descriptors, want %d", ErrMessage, len(fds), HelperFDs)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fds[0], &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if !executable(&st, uint32(os.Geteuid()), c.trust) {
		return fmt.Errorf("%w: it belongs to uid %d and has mode %#o: want root's or this user's own, writable by nobody else",
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
	// pfd's keeper lets pfd in, this one what the process starts (keeper.StartFor).
	if c.lent, err = keeper.Start(); err != nil {
		return err
	}
	var files []*os.File
	for _, fd := range []int{int(null.Fd()), int(null.Fd()), int(null.Fd()), fds[1], fds[2], fds[3], self, c.lent.PIDFD(), fds[0]} {
		// Above the numbers that they get, so that none takes another's place.
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, HelperKeeper+1)
		if err != nil {
			return os.NewSyscallError("fcntl F_DUPFD_CLOEXEC", err)
		}
		f := os.NewFile(uintptr(dup), "helper")
		defer f.Close()
		files = append(files, f)
	}
	last := len(files) - 1
	// A process group of its own: the signals of a terminal are not for it. Not a session:
	// where the scheduler groups by sessions (autogroup), a helper that has to run beside a
	// busy session would wait for as long as that session's share lasts.
	p, err := os.StartProcess("/proc/self/fd/"+strconv.Itoa(int(files[last].Fd())), []string{"pfd", HelperCommand},
		&os.ProcAttr{Dir: "/", Env: []string{}, Files: files[:last], Sys: &syscall.SysProcAttr{Setpgid: true}})
	if err != nil {
		return fmt.Errorf("starting pfd's program: %w", err)
	}
	c.helper = p
	return nil
}

// executable reports whether a process of user own executes a helper's program: a regular file of
// a user that it trusts, which nobody else may write.
func executable(st *unix.Stat_t, own uint32, trust []uint32) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&0o022 == 0 && uids.Trusted(st.Uid, own, trust)
}

// ErrHelper says that a killed memory helper has not ended yet.
var ErrHelper = errors.New("the memory helper has not ended")

// reapTime is how long Close waits for the end of a helper (ours).
const reapTime = 5 * time.Second

// reapHelper ends the helper, which ends by itself when pfd closes its socket. One
// that sleeps in a page of the process's that never comes is not waited for: an
// error matches ErrHelper.
func (c *Conn) reapHelper() error {
	if c.helper == nil {
		return nil
	}
	_ = c.helper.Kill() // it may have ended
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = c.helper.Wait()
	}()
	select {
	case <-ended:
		return nil
	case <-time.After(reapTime):
		return fmt.Errorf("%w: process %d is killed and waits for a page of this process's memory that does not come (a file system or a userfaultfd that does not answer): do not reuse exported memory before it has ended",
			ErrHelper, c.helper.Pid)
	}
}
