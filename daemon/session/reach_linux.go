package session

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/limits"
	"github.com/exanet/pfd/internal/procstatus"
	"github.com/exanet/pfd/internal/uids"
	"github.com/exanet/pfd/space/memport"
	"github.com/exanet/pfd/space/proc"
)

// helperTime returns how much of a handshake's time a process may take to start its memory
// helper, so that it can still read a refusal. The factor is defined by this project.
func helperTime(handshake time.Duration) time.Duration { return handshake / 5 * 3 }

// reach chooses the way to the process's memory. pfd touches it itself only if it has exactly
// the rights of the process's user, so that the kernel judges each access as it would for that
// user. Otherwise the process starts a helper with its own rights (package memport).
func (s *session) reach(peer attach.Peer) error {
	err := properKeeper(peer)
	if err != nil {
		return err
	}
	if s.keeper, err = exitFile(peer.Keeper); err != nil {
		return refusal(attach.CodeInternal, "pfd: watching the process's keeper: %v: see its log", limits.Explain(err))
	}
	if ownRights(peer) {
		s.process, err = proc.Open(peer.PIDFD, peer.Keeper)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, proc.ErrKeeper), errors.Is(err, proc.ErrGone):
			return refusal(attach.CodePermission, "%v", err)
		case !errors.Is(err, proc.ErrPermission) && !errors.Is(err, proc.ErrUnproven) && !errors.Is(err, proc.ErrFiltered):
			return refusal(attach.CodeInternal, "pfd: opening the process: %v: try again; see its log", limits.Explain(err))
		}
		// Yama, a process that is not dumpable, or a seccomp filter of pfd's refuses: the
		// process's own helper may be permitted.
	}
	if s.process, err = proc.Look(peer.PIDFD); limits.Remedy(err) != "" {
		return refusal(attach.CodeInternal, "pfd: opening the process: %v: see its log", limits.Explain(err))
	} else if err != nil {
		return refusal(attach.CodePermission, "%v", err)
	}
	return s.awaitHelper()
}

// ServeMemory runs a memory helper (attach.HelperCommand): it serves the memory of the process
// that started it until pfd closes its socket.
func ServeMemory() error {
	return memport.Serve(memport.Descriptors{
		Port: attach.HelperPort, Socket: attach.HelperSocket, Wake: attach.HelperWake,
		PIDFD: attach.HelperPIDFD, Keeper: attach.HelperKeeper,
	})
}

// IsMemoryHelper reports whether arguments are those of a memory helper.
func IsMemoryHelper(args []string) bool { return len(args) == 2 && args[1] == attach.HelperCommand }

// awaitHelper makes the process start its helper, and waits until it is ready.
func (s *session) awaitHelper() error {
	port, socket, err := memport.New()
	if err != nil {
		return refusal(attach.CodeInternal, "pfd: %v: see its log", limits.Explain(err))
	}
	s.memport = port
	port.SetProbe(s.group.proofVA.Page() + device.PageSize)
	program, err := s.d.program()
	if err == nil {
		err = s.conn.AskHelper(int(program.Fd()), port.FD(), int(socket.Fd()), s.pages.WakeFD())
	}
	if err := errors.Join(err, socket.Close()); err != nil {
		return fmt.Errorf("asking for a memory helper: %w", err)
	}
	wake := func() { s.n.bus.Post(func() {}) } // the engine looks at its ports then
	if err := port.Ready(time.Now().Add(helperTime(s.d.cfg.Settings().HandshakeTime)), wake); err != nil {
		return refusal(attach.CodePermission, "no memory helper: %v (pfd itself may not touch this process's memory)", err)
	}
	return nil
}

// properKeeper refuses a process that is its own keeper: after an exec its name would stand
// for another program's memory.
func properKeeper(peer attach.Peer) error {
	pid, err := proc.PIDOf(peer.PIDFD)
	keeper, keeperErr := proc.PIDOf(peer.Keeper)
	switch {
	case errors.Is(err, proc.ErrGone), errors.Is(keeperErr, proc.ErrGone):
		return refusal(attach.CodePermission, "the process, or its keeper, has ended")
	case limits.Remedy(errors.Join(err, keeperErr)) != "":
		return refusal(attach.CodeInternal, "pfd: the process's keeper: %v: see its log", limits.Explain(errors.Join(err, keeperErr)))
	case err != nil || keeperErr != nil:
		return refusal(attach.CodeProtocol, "the process's keeper: %v", errors.Join(err, keeperErr))
	case pid == keeper:
		return refusal(attach.CodeProtocol, "process %d is its own keeper: a keeper is a task of its own (docs/attach.md)", pid)
	}
	return nil
}

// ownRights reports whether pfd has the rights of the peer's user and no more: the same user,
// group and user namespace, and no capability that the peer lacks.
func ownRights(peer attach.Peer) bool {
	if !uids.Own(peer.UID) || int(peer.GID) != os.Getegid() {
		return false
	}
	own, err := capabilities("self", "CapEff")
	if err != nil || own == 0 {
		return err == nil
	}
	pid, err := proc.PIDOf(peer.PIDFD)
	if err != nil {
		return false
	}
	name := strconv.Itoa(pid)
	theirs, err := capabilities(name, "CapPrm")
	if err != nil || own&^theirs != 0 {
		return false
	}
	a, aErr := os.Readlink("/proc/self/ns/user")
	b, bErr := os.Readlink("/proc/" + name + "/ns/user")
	// If the peer is still alive, the pid named it all the time.
	return aErr == nil && bErr == nil && a == b && proc.Alive(peer.PIDFD)
}

// capabilities reads a capability set of a process (proc(5)).
func capabilities(pid, set string) (uint64, error) {
	b, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return 0, fmt.Errorf("reading capabilities: %w", err)
	}
	return procstatus.Mask(b, set)
}

// exitFile duplicates a pidfd into a file that the runtime can wait on.
func exitFile(pidfd int) (*os.File, error) {
	fd, err := unix.FcntlInt(uintptr(pidfd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl F_DUPFD_CLOEXEC", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl O_NONBLOCK", err)
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// copyOf returns the program that processes run as their memory helper, made from exe. Every
// process that needs a helper gets its descriptor. A pfd of root's returns a sealed copy: a
// process of uid 0 with few rights could reopen the file itself for writing. Any other pfd
// returns the file, since a process runs only a program of root's or its own user's (package
// attach).
func copyOf(exe *os.File) (*os.File, error) {
	if os.Geteuid() != 0 {
		return exe, nil
	}
	fd, err := unix.MemfdCreate("pfd", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // MFD_EXEC came with Linux 6.3
		fd, err = unix.MemfdCreate("pfd", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return exe, nil // vm.memfd_noexec forbids programs in memory
	}
	m := os.NewFile(uintptr(fd), "pfd")
	// Copy by read and write: pfd's sandbox permits no system call that copies.
	_, err = io.Copy(struct{ io.Writer }{m}, io.NewSectionReader(exe, 0, 1<<62))
	if err == nil {
		err = m.Chmod(0o555)
	}
	if err == nil {
		const seals = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		_ = m.Close()
		return nil, fmt.Errorf("a copy of our own program: %w", limits.Explain(err))
	}
	return m, nil
}
