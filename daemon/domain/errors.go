package domain

import (
	"errors"
	"fmt"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/groupname"
)

// Reasons for a refusal. Every error of this package that callers may need to distinguish matches
// one of them or one of the types below.
var (
	// ErrNoSlot: all sixteen slots of the node are taken or still draining.
	ErrNoSlot = errors.New("no free protection domain slot")
	// ErrLastSlot: the node has one free slot, and it is reserved for users without a domain there.
	// It matches ErrQuota.
	ErrLastSlot = fmt.Errorf("the node's last slot is reserved for a user who has none: %w", ErrQuota)
	// ErrQuota: the user holds as many slots of the node as one user may.
	ErrQuota = errors.New("slot quota of the user reached")
	// ErrGroupFull: the group has as many processes on the node as it may.
	ErrGroupFull = errors.New("group full")
	// ErrNoPDID: the range has too few free PDIDs for a new group.
	ErrNoPDID = errors.New("no free PDIDs")
	// ErrPeers: PD_PEERS of the slot would need more than sixteen PDIDs.
	ErrPeers = errors.New("too many peers")
	// ErrPDID: no domain can have this PDID.
	ErrPDID = errors.New("invalid PDID")
	// ErrGroupName: the name is not a valid group name.
	ErrGroupName = groupname.ErrName
	// ErrNoDomain: the slot holds no live domain.
	ErrNoDomain = errors.New("no live domain")
	// ErrWindow: a memory window is invalid.
	ErrWindow = errors.New("bad memory window")
	// ErrWindowLimit: the domain has as many memory windows as a slot may.
	ErrWindowLimit = errors.New("no free memory window")
	// ErrNames: the user's domains admit as many PDIDs by name as they may.
	ErrNames = errors.New("too many PDIDs admitted by name")
	// ErrNoThreads: the node has no GSAS unit.
	ErrNoThreads = errors.New("the node has no unit for the global shared address space")
	// ErrNoWindow: the domain has no such memory window.
	ErrNoWindow = errors.New("no such memory window")
	// ErrNoWindows: the device has no memory windows.
	ErrNoWindows = errors.New("the device has no memory windows")
	// ErrDevice: the device is not a node, or not one that this driver supports.
	ErrDevice = errors.New("not a device of this driver")
	// ErrNotReady: Init has not run, or failed.
	ErrNotReady = errors.New("node not initialized")
	// ErrRange: a range of PDIDs is empty, invalid or overlaps another.
	ErrRange = errors.New("bad PDID range")
	// ErrLimit: the quota or group size is out of range.
	ErrLimit = errors.New("bad limit")
)

// LimitError says which limit of a node refused a domain, and what to do. It matches ErrNoSlot,
// ErrQuota, ErrGroupFull or ErrNoPDID.
type LimitError struct {
	Err   error
	Node  device.NodeID
	UID   uint32
	Group string
	Used  int // slots, members or groups now in use
	Limit int
}

func (e *LimitError) Error() string {
	switch {
	case errors.Is(e.Err, ErrLastSlot):
		return fmt.Sprintf("node %d: the last slot is reserved for a user who has none: uid %d holds %d of the node's %d; end one of its processes, or attach on another node", e.Node, e.UID, e.Used, e.Limit)
	case errors.Is(e.Err, ErrQuota):
		return fmt.Sprintf("node %d: %v: uid %d holds %d of its %d slots; end one of its processes, attach on another node, or raise pfd's quota", e.Node, e.Err, e.UID, e.Used, e.Limit)
	case errors.Is(e.Err, ErrGroupFull):
		return fmt.Sprintf("node %d: %v: group %q of uid %d has %d of at most %d processes here; use another group, another node, or a larger group-size of pfd", e.Node, e.Err, e.Group, e.UID, e.Used, e.Limit)
	case errors.Is(e.Err, ErrNoPDID):
		return fmt.Sprintf("node %d: %v for group %q of uid %d: %d groups use the whole range; end a group, or give pfd a wider range", e.Node, e.Err, e.Group, e.UID, e.Used)
	default:
		return fmt.Sprintf("node %d: %v: %d of %d in use; end a process there (exanetctl domain show), or attach on another node", e.Node, e.Err, e.Used, e.Limit)
	}
}

// Unwrap returns the reason.
func (e *LimitError) Unwrap() error { return e.Err }

// PeersError means that a slot's PD_PEERS cannot hold all the PDIDs that it should admit. It
// matches ErrPeers.
type PeersError struct {
	Slot   int // -1 before a slot was assigned
	Wanted int
	Limit  int
}

func (e *PeersError) Error() string {
	return fmt.Sprintf("%v: %d PDIDs to admit, PD_PEERS holds %d; accept fewer, or put the processes into one group", ErrPeers, e.Wanted, e.Limit)
}

// Unwrap returns ErrPeers.
func (e *PeersError) Unwrap() error { return ErrPeers }
