package device

import "strings"

// Rights are the accesses that a memory window permits to a peer (spec/hardware.md 3, WIN_CTRL). Values are
// defined by this project.
type Rights uint8

// The rights.
const (
	RightRead     Rights = 1 << iota // the peer may read the range
	RightWrite                       // it may write the range
	RightAtomic                      // it may change words of the range atomically
	RightMessages                    // it may send to the domain's mailbox, whatever the range
	AllRights     = RightRead | RightWrite | RightAtomic | RightMessages
)

var rightNames = [...]string{"read", "write", "atomic", "messages"}

// String returns the rights' names with plus signs between them, as in tables.
func (r Rights) String() string {
	var names []string
	for i, name := range rightNames {
		if r>>i&1 != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, "+")
}

// MemoryWindow is a range of a domain's memory that its process has opened to a peer.
type MemoryWindow struct {
	VA     VA
	Bytes  uint64
	Peer   PDID // 0: every PDID
	Rights Rights
}

// WindowsPerSlot is the number of memory windows of one domain (defined by this project).
const WindowsPerSlot = 64

// WIN_SELECT and WIN_CTRL (spec/hardware.md 3).
const (
	WinIndexMask = WindowsPerSlot - 1
	WinSlotMask  = Slots - 1
	WinSlotShift = 8

	WinRightsShift = 16
	WinBusy        = 1 << 62 // RO: memory that it admitted is still accessed
)

// WinSelect returns WIN_SELECT for window i of a slot.
func WinSelect(slot, i int) uint32 { return uint32(slot)<<WinSlotShift | uint32(i) }

// WinCtrl returns WIN_CTRL of an enabled window.
func WinCtrl(peer PDID, r Rights) uint64 {
	return uint64(peer) | uint64(r)<<WinRightsShift | CfgEnable
}

// SplitWinCtrl decodes WIN_CTRL.
func SplitWinCtrl(v uint64) (peer PDID, r Rights, enabled bool) {
	return PDID(v), Rights(v>>WinRightsShift) & AllRights, v&CfgEnable != 0
}
