package fault

import (
	"errors"
	"log/slog"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/netlink"
	"github.com/exanet/pfd/space"
)

// Delegate asks a process to page in and to send the RAPF itself. Ask must not block; if the
// socket is full it returns an error that matches netlink.ErrFull.
type Delegate interface {
	Ask(netlink.Fault) error
}

// Target is a domain whose faults the driver serves.
type Target struct {
	Slot     int
	PDID     device.PDID
	Policy   Policy   // PolicyDefault: PIO
	Method   Method   // MethodDefault: GUP
	Delegate Delegate // Touch
	// Forbids reports whether a page must not be written, whatever its mapping permits; nil: no
	// such page. It does not block.
	Forbids func(page device.VA) bool
}

// ErrTarget: a Target is invalid.
var ErrTarget = errors.New("bad fault target")

// Config configures a Driver.
type Config struct {
	Bus device.Bus
	// Memory pages in.
	Memory space.Machine
	Node   device.NodeID
	// Now returns nanoseconds of a monotonic clock. Any goroutine may call it.
	Now func() int64
	// TimeoutSource makes source faults be served by FSR and FAR alone, as if the device had no
	// TXFIFO: page in, send nothing, and leave the retransmission to the sender's time-out (as in
	// the thesis).
	TimeoutSource bool
	Log           *slog.Logger // nil: nothing is logged
	// Observe, if not nil, is called with each record when its outcome is final, on the owning
	// goroutine. The record belongs to the driver: copy it to keep it.
	Observe func(*Record)
	// ObservePageIn is called in the same way with each completed page-in.
	ObservePageIn func(*PageIn)
}
