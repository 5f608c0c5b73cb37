package domain

import (
	"fmt"
	"time"

	"github.com/exanet/pfd/device"
)

// Outstanding is what Init writes to OUTSTANDING: blocks in flight a transfer
// (spec/hardware.md 3: pfd writes 8 on the emulated SoC).
const Outstanding = 8

// State of a domain.
type State uint8

// The states.
const (
	Live     State = iota // in use
	Draining              // ended; accesses of its bank are still in flight
)

// String gives the state's name as tables have it.
func (s State) String() string {
	if s == Draining {
		return "draining"
	}
	return "live"
}

// Request asks for a domain.
type Request struct {
	UID   uint32 // of the process, from its socket's credentials
	PID   int    // for people: nothing is decided by it
	Group string // "" is the user's group without a name
	// Accept names PDIDs of other groups that may reach the domain.
	Accept []device.PDID
	// AcceptGroup admits the group's other PDIDs too.
	AcceptGroup bool
}

// Domain is one protection domain of a node, as it stands when it is handed out.
type Domain struct {
	Node device.NodeID
	Slot int // 0..15: SMMU bank, btcm page, StreamID
	PDID device.PDID
	// Generation is the domain's alone: a later one of the same PDID has another.
	Generation device.Generation
	UID        uint32
	PID        int
	Group      string
	Member     int           // index in the group, from 0 on
	Interface  uint8         // the process's mailbox and packetizer: 16 + Slot
	Peers      []device.PDID // what PD_PEERS admits, without its own
	State      State
}

// Manager gives out the domains of one node. All its methods belong on the
// goroutine that owns the windows (device.Bus), NewManager excepted.
type Manager struct {
	bus   device.Bus
	node  device.NodeID
	dir   *Directory
	after func(time.Duration, func())
	// tables gives TTBR0 of a slot's context bank; nil where the device walks
	// the processes' own tables.
	tables func(slot int) uint64
	stall  bool // Stall
	caps   uint64
	ready  bool
	slots  [device.Slots]slot
}

type slot struct {
	used  bool
	left  bool // not used, but accesses of an earlier driver's domain are in flight
	d     Domain
	named []device.PDID // peers held in the directory
	done  []func()      // to call when the slot is quiet
	polls int
}

// Option changes how a Manager works.
type Option func(*Manager)

// WithTimer has the manager wait by f, which calls its function once, on any
// goroutine, after the duration; the default is time.AfterFunc. A simulation
// gives its own clock.
func WithTimer(f func(time.Duration, func())) Option {
	return func(m *Manager) { m.after = f }
}

// WithTables has the manager point each context bank at tables of pfd's, for a
// device without SVA: f gives TTBR0 of a slot's bank, address and ASID. It is
// called on the owning goroutine.
func WithTables(f func(slot int) uint64) Option {
	return func(m *Manager) { m.tables = f }
}

// Stall has the faults of domains wait in the SMMU, where the node can (CAPS[26]), instead
// of ending their accesses.
func Stall() Option { return func(m *Manager) { m.stall = true } }

// NewManager makes the manager of a node. It touches no register: Init does.
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

// Caps gives CAPS as Init read it.
func (m *Manager) Caps() uint64 { return m.caps }

// VABits gives the width of virtual addresses on the node.
func (m *Manager) VABits() int { return int(m.caps & device.CapsVABitsMask) }

// Domains lists the domains in the order of their slots, draining ones too.
func (m *Manager) Domains() []Domain {
	var out []Domain
	for i := range m.slots {
		if m.slots[i].used {
			out = append(out, m.slots[i].copy())
		}
	}
	return out
}

// Domain gives the domain of a slot; false where there is none.
func (m *Manager) Domain(n int) (Domain, bool) {
	if n < 0 || n >= device.Slots || !m.slots[n].used {
		return Domain{}, false
	}
	return m.slots[n].copy(), true
}

func (s *slot) copy() Domain {
	d := s.d
	d.Peers = append([]device.PDID(nil), s.d.Peers...)
	return d
}
