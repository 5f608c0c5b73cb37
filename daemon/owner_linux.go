package daemon

import (
	"errors"
	"os"
	"strconv"
	"syscall"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/proc"
)

func ownerUnknown(err error) error {
	return refusal(attach.CodeInternal, "opening the process: %v: try again; see pfd's log", err)
}

// checkOwner refuses a process that is not its user's alone any more. A client
// may connect, hand its socket to a child and execute a set-uid program: the
// socket's credentials still name the user, and a privileged pfd could open
// that program's memory. The kernel gives the files of such a process (set-uid,
// set-gid, file capabilities: not dumpable) to root (proc(5), "dumpable"), and
// that is what is looked at, for the image that p holds.
func checkOwner(p *proc.Process, peer attach.Peer) error {
	info, err := os.Stat("/proc/" + strconv.Itoa(p.PID()) + "/maps")
	if err != nil {
		return ownerUnknown(err)
	}
	// The number named our process if it is still there, with the address
	// space that p holds.
	if err := p.Current(); err != nil {
		if errors.Is(err, proc.ErrGone) {
			return refusal(attach.CodePermission, "%v", proc.ErrChanged)
		}
		return ownerUnknown(err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return refusal(attach.CodeInternal, "the system does not say who owns process %d", p.PID())
	}
	if st.Uid == peer.UID && (st.Gid == peer.GID || peer.UID == 0) {
		return nil
	}
	return refusal(attach.CodePermission,
		"process %d is not dumpable or has changed its user (its files in /proc are those of uid %d, gid %d; it connected as %d, %d): "+
			"a set-uid program cannot attach; a program that called prctl(PR_SET_DUMPABLE, 0) calls it with 1 first",
		p.PID(), st.Uid, st.Gid, peer.UID, peer.GID)
}
