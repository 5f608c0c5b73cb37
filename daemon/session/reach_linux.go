package session

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/internal/limits"
	"github.com/exanet/pfd/internal/procstatus"
	"github.com/exanet/pfd/internal/uids"
	"github.com/exanet/pfd/memport"
	"github.com/exanet/pfd/pagein"
	"github.com/exanet/pfd/proc"
)

// helperTime is how much of a handshake's time a process may take to start its memory
// helper (ours): it reads a refusal before the time is over.
func helperTime(handshake time.Duration) time.Duration { return handshake / 5 * 3 }

// reach finds the way to the process's memory. pfd touches it by itself only
// where it has the rights of the process's user and no others, so that the
// kernel judges each access as it would for that user; else the process starts a
// helper that has them (package memport).
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
		// Yama, a process that is not dumpable, or a filter of pfd's that refuses kcmp or process_vm_readv: its own
		// helper may do better.
	}
	if s.process, err = proc.Look(peer.PIDFD); limits.Remedy(err) != "" {
		return refusal(attach.CodeInternal, "pfd: opening the process: %v: see its log", limits.Explain(err))
	} else if err != nil {
		return refusal(attach.CodePermission, "%v", err)
	}
	return s.startHelper()
}

// ServeMemory is a memory helper (attach.HelperCommand): it serves the memory of
// the process that started it until pfd closes its socket.
func ServeMemory() error {
	return memport.Serve(memport.Descriptors{
		Port: attach.HelperPort, Socket: attach.HelperSocket, Wake: attach.HelperWake,
		PIDFD: attach.HelperPIDFD, Keeper: attach.HelperKeeper,
	})
}

// IsMemoryHelper tells whether arguments are those of a memory helper.
func IsMemoryHelper(args []string) bool { return len(args) == 2 && args[1] == attach.HelperCommand }

// startHelper has the process start its helper, and waits until it is ready.
func (s *session) startHelper() error {
	port, socket, err := memport.New()
	if err != nil {
		return refusal(attach.CodeInternal, "pfd: %v: see its log", limits.Explain(err))
	}
	s.memport = port
	port.SetProbe(s.group.proofVA.Page() + device.PageSize)
	program, err := s.d.program()
	if err == nil {
		err = s.conn.AskHelper(int(program.Fd()), port.FD(), int(socket.Fd()), s.memory.WakeFD())
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

// properKeeper refuses the process itself as its own keeper: it may execute
// another program, and the name would be that program's.
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

// byMachine tells whether the machine pages in by the process's helper.
func (s *session) byMachine() bool {
	return s.memport != nil && s.d.features.Sharing == nil && s.method != pagein.Populate
}

// looker returns the process's memory, to be looked at.
func (s *session) looker() gup.Looker {
	if s.memport != nil {
		return s.memport
	}
	return s.process
}

// ownRights tells whether pfd has the rights of the peer's user and no more: the
// same user and group, and no capability that the peer has not in the same user
// namespace.
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
	// The number was the peer's all the time if the peer is there still.
	return aErr == nil && bErr == nil && a == b && proc.Alive(peer.PIDFD)
}

// capabilities reads one of the capability sets of a process (proc(5)).
func capabilities(pid, set string) (uint64, error) {
	b, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return 0, fmt.Errorf("reading capabilities: %w", err)
	}
	return procstatus.Mask(b, set)
}

// exitFile makes a duplicate of a pidfd that the runtime can wait on.
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
