package domain

import (
	"fmt"
	"time"

	"github.com/exanet/pfd/device"
)

// Outstanding is the value that Init writes to OUTSTANDING: blocks in flight per transfer
// (spec/hardware.md 3: pfd writes 8 on the emulated SoC).
const Outstanding = 8

// State is the state of a domain.
type State uint8

// The states.
const (
	Live     State = iota // in use
	Draining              // ended; accesses of its bank are still in flight
)

// String returns the state's name, as in tables.
func (s State) String() string {
	if s == Draining {
		return "draining"
	}
	return "live"
}

// Request describes the domain to create.
type Request struct {
	UID   uint32 // of the process, from its socket's credentials
	PID   int    // for display only
	Group string // "" is the user's group without a name
	// Accept lists PDIDs of other groups that may reach the domain.
	Accept []device.PDID
	// AcceptGroup admits the group's other PDIDs too.
	AcceptGroup bool
}

// Domain describes one protection domain of a node at the time of the call.
type Domain struct {
	Node device.NodeID
	Slot int // 0..15: SMMU bank, btcm page, StreamID
	PDID device.PDID
	// Generation is unique to the domain: a later domain with the same PDID has another one.
	Generation device.Generation
	UID        uint32
	PID        int
	Group      string
	Member     int           // index in the group, from 0 on
	Interface  uint8         // the process's mailbox and packetizer: 16 + Slot
	Peers      []device.PDID // PDIDs in PD_PEERS, without its own
	Windows    []device.MemoryWindow
	State      State
}

// Manager manages the domains of one node. All its methods, except NewManager, must be called on
// the goroutine that owns the windows (device.Bus).
type Manager struct {
	bus   device.Bus
	node  device.NodeID
	dir   *Directory
	after func(time.Duration, func())
	// tables returns TTBR0 of a slot's context bank; nil if the device walks the processes' own
	// tables.
	tables func(slot int) uint64
	stall  bool // Stall
	caps   uint64
	ready  bool
	slots  [device.Slots]slot
}

type slot struct {
	used      bool
	inherited bool // not used, but accesses of an earlier driver's domain are in flight
	d         Domain
	named     []device.PDID // peers held in the directory
	windows   [device.WindowsPerSlot]openWindow
	done      []func() // to call when the slot has drained
	polls     int
}

// Option configures a Manager.
type Option func(*Manager)

// WithTimer makes the manager wait with f, which calls its function once, on any goroutine, after
// the duration; the default is time.AfterFunc. A simulation passes its own clock.
func WithTimer(f func(time.Duration, func())) Option {
	return func(m *Manager) { m.after = f }
}

// WithTables makes the manager point each context bank at page tables of pfd, for a device
// without SVA. f returns TTBR0 of a slot's bank, address and ASID; it is called on the owning
// goroutine.
func WithTables(f func(slot int) uint64) Option {
	return func(m *Manager) { m.tables = f }
}

// Stall makes the faults of domains wait in the SMMU, if the node supports that (CAPS[26]),
// instead of ending their accesses.
func Stall() Option { return func(m *Manager) { m.stall = true } }

// NewManager returns the manager of a node. It accesses no register; Init does.
func NewManager(bus device.Bus, node device.NodeID, dir *Directory, opts ...Option) (*Manager, error) {
	if bus == nil || dir == nil {
		return nil, fmt.Errorf("node %d: %w: a manager needs a bus and a directory", node, ErrNotReady)
	}
	if node > device.NodeIDMask {
		return nil, fmt.Errorf("node %d: %w: a node id has %d bits", node, ErrDevice, device.NodeIDBits)
	}
	m := &Manager{bus: bus, node: node, dir: dir}
	m.after = func(d time.Duration, f func()) { time.AfterFunc(d, f) }
	for _, o := range opts {
		o(m)
	}
	return m, nil
}

// Caps returns CAPS as Init read it.
func (m *Manager) Caps() uint64 { return m.caps }

// VABits returns the width of virtual addresses on the node.
func (m *Manager) VABits() int { return int(m.caps & device.CapsVABitsMask) }

// Domains returns the domains in slot order, including draining ones.
func (m *Manager) Domains() []Domain {
	var out []Domain
	for i := range m.slots {
		if m.slots[i].used {
			out = append(out, m.slots[i].copy())
		}
	}
	return out
}

// Domain returns the domain of a slot; false if there is none.
func (m *Manager) Domain(n int) (Domain, bool) {
	if n < 0 || n >= device.Slots || !m.slots[n].used {
		return Domain{}, false
	}
	return m.slots[n].copy(), true
}

func (s *slot) copy() Domain {
	d := s.d
	d.Peers = append([]device.PDID(nil), s.d.Peers...)
	d.Windows = s.openWindows()
	return d
}
