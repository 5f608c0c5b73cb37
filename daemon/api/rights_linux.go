package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/procstatus"
	"github.com/exanet/pfd/internal/sockets"
	"github.com/exanet/pfd/internal/uids"
)

// Peer is the process that a connection comes from, as the kernel says.
type Peer struct {
	PID int
	UID uint32
	All bool // it may see and change everything
}

type peerKey struct{}

// WithPeer returns a context for the requests of a peer.
func WithPeer(ctx context.Context, p Peer) context.Context {
	return context.WithValue(ctx, peerKey{}, p)
}

// noUID belongs to no user (uid_t -1: credentials(7), setuid(2)).
const noUID = ^uint32(0)

// sees reports whether the peer may see and change objects of a uid. A view that knows only a slot
// or a PDID finds the uid first (seen.owns, ownsDomain, ownsPDID; Peer.shows).
func (p Peer) sees(uid uint32) bool { return p.All || p.UID == uid }

// peerOf returns the peer of a connection. It may see and change everything if it has
// CAP_SYS_PTRACE in pfd's user namespace, by which it can access the memory of all these
// processes anyway, or if it is the user that pfd runs as and that is not root. Root without
// the capability, as in a container, is a user like any other.
func peerOf(c syscall.Conn) (Peer, error) {
	var p Peer
	err := sockets.Control(c, func(fd int) error {
		cred, err := sockets.Peer(fd)
		if err != nil {
			return err
		}
		p = Peer{PID: int(cred.Pid), UID: cred.Uid}
		if uids.Ambiguous(p.UID) {
			p.UID = noUID // the number stands for several users: nothing is its own
		}
		if p.UID != 0 && uids.Own(p.UID) {
			p.All = true
			return nil
		}
		pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		if err != nil {
			return nil // it has ended, or Linux is older than 6.5: it is a plain user
		}
		defer unix.Close(pidfd)
		p.All = capable(p, pidfd)
		return nil
	})
	if err != nil {
		return Peer{}, fmt.Errorf("peer of a connection: %w", err)
	}
	return p, nil
}

// capable reports whether the process of pidfd has CAP_SYS_PTRACE in pfd's user namespace. A
// process that has executed a set-uid program, or one with file capabilities, since it
// connected has rights that its user lacks. So all of its uids must be that of the connection,
// and it must be dumpable (proc(5): its files are its own).
func capable(p Peer, pidfd int) bool {
	dir, err := os.OpenRoot("/proc/" + strconv.Itoa(p.PID))
	if err != nil {
		return false
	}
	defer dir.Close()
	// While the peer lives the number names it, and dir is its directory.
	if unix.PidfdSendSignal(pidfd, 0, nil, 0) != nil && !errors.Is(unix.PidfdSendSignal(pidfd, 0, nil, 0), unix.EPERM) {
		return false
	}
	status, err := dir.ReadFile("status")
	if err != nil {
		return false
	}
	info, err := dir.Stat("status")
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Uid == p.UID && hasPtrace(status, p.UID) && ownNamespace(dir)
}

// hasPtrace reports whether a process's status (proc(5)) shows the capability, and only uid.
func hasPtrace(status []byte, uid uint32) bool {
	ids, _ := procstatus.Field(status, "Uid")
	all := slices.Repeat([]string{strconv.FormatUint(uint64(uid), 10)}, 4)
	caps, err := procstatus.Mask(status, "CapEff")
	return err == nil && caps>>unix.CAP_SYS_PTRACE&1 != 0 && slices.Equal(strings.Fields(ids), all)
}

// ownNamespace reports whether a process is in pfd's user namespace. A pfd without privilege may
// not read that link of root's processes; for these it compares the maps of ids instead.
func ownNamespace(dir *os.Root) bool {
	own, err := os.Readlink("/proc/self/ns/user")
	if err != nil {
		return false
	}
	theirs, err := dir.Readlink("ns/user")
	if err == nil {
		return own == theirs
	}
	a, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return false
	}
	b, err := dir.ReadFile("uid_map")
	return err == nil && bytes.Equal(a, b)
}
