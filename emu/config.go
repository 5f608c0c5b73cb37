package emu

import (
	"errors"
	"log/slog"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc/link"
	"github.com/exanet/pfd/soc/r5"
	"github.com/exanet/pfd/soc/smmu"
	"github.com/exanet/pfd/soc/wire"
	"github.com/exanet/pfd/space"
	"github.com/exanet/pfd/space/view"
	"github.com/exanet/pfd/trace"
)

// Attachment ties a process to a domain slot.
type Attachment struct {
	Pages *attach.Pages // descriptors, doorbell, packetizer, wake flags
	Wake  int           // eventfd by which the process wakes a sleeping engine
	// Space is the process's memory. The engine closes it when it detaches the slot.
	Space space.Space
	// ReadOnly, if not nil, is the memory that the process shares read-only: no access writes it,
	// whatever the process itself may do.
	ReadOnly *view.ReadOnly
	// Gone, if not nil, is called once, on the owning goroutine, when the process's address space is
	// found gone (exit or exec). It must not block.
	Gone func()
	// Declined, if not nil, is called on the owning goroutine with each RAPF with the fail bit that
	// the process sends to source. If it returns true, the RAPF is not sent. It must not block.
	Declined func(source device.NodeID, r mailbox.RAPF) bool
	// Bells, if not nil, are the process's rings.
	Bells *attach.Bells
	// UID is the process's user. If that user's memory was slow, the slot begins slow.
	UID uint32
	// PID is the process's own, for traces; 0: unknown.
	PID int
	// Log, if not nil, names the process and its user in each line about it.
	Log *slog.Logger
}

// Config configures an engine.
type Config struct {
	Nodes int // 1..MaxNodes; node i has id Base + i
	// Base is the id of the first node. Ids above atomics.MaxNode have no part of the global shared
	// address space and are refused.
	Base device.NodeID
	// Carrier, if not nil, is the way to the nodes of other hosts.
	Carrier Carrier
	VABits  int // 39..48; 0: 48
	// NoTXFIFO leaves source faults to the senders' time-outs.
	NoTXFIFO bool
	// Stall lets the nodes stall faulting accesses (CAPS[26]).
	Stall bool
	// Firmware switches off optimizations of the firmware.
	Firmware r5.Options
	// Spin is how long the engine polls for work before it sleeps in the kernel; 0: DefaultSpin,
	// negative: not at all. It grows up to SpinMax while work arrives soon after; 0:
	// DefaultSpinMax.
	Spin, SpinMax time.Duration
	Log           *slog.Logger // nil: slog.Default
	// Link describes the nodes' links to each other.
	Link link.Options
	// OnLink, if not nil, is called with each frame on its way. It returns what arrives: the frame
	// itself, another one, or nil. For tests.
	OnLink func(f *wire.Frame) *wire.Frame
	// Outside, if not nil, describes node i, which is driven from another process: no process
	// attaches to it here, and its SMMU walks tables in device memory (shadow translation) instead
	// of the processes' own.
	Outside func(i int) Outside
	// Trace, if not nil, takes the records of refused blocks, together with those of the engine's
	// user. The engine passes them on to its readers.
	Trace *trace.Log
}

// Carrier carries frames to the nodes of other hosts. Its methods are called on the owning goroutine and
// must not block.
type Carrier interface {
	// Reaches reports whether id is a node of another host, whether that host can be reached now or
	// not.
	Reaches(id device.NodeID) bool
	// Send sends a frame to a node of another host. It copies what it keeps: the frame remains the
	// caller's. A frame for a link that is down is dropped.
	Send(f *wire.Frame)
	// Flush is called after one or more calls of Send: what they took is to leave now.
	Flush()
}

// Limits and defaults of an engine. Values below are defined by this project.
const (
	MaxNodes       = 64
	DefaultSpin    = 50 * time.Microsecond
	DefaultSpinMax = time.Millisecond
)

// Outside describes a node that is driven from another process.
type Outside struct {
	// BTCM is the memory of window btcm, which the driver also maps.
	BTCM []byte
	// Memory returns the memory of a slot, by the tables that the slot's context bank has at that
	// moment; its operations never wait. It is called on the engine goroutine; nil is memory that
	// fails every access.
	Memory func(slot int, t smmu.Tables) space.Space
	// DMA is the driver's memory, for the queues in memory; nil: the node has none.
	DMA DMA
	// Words is the driver's memory as the memory of all trees; nil: the node has no GSAS unit. Its PageIn
	// fails: the driver brings pages in.
	Words Words
	// Remote, if not nil, reports whether memory is reached by asking the driver, which may itself
	// wait for the engine. Such accesses are made apart, one of the node at a time. It is called on
	// the owning goroutine.
	Remote func() bool
}

// DMA is the memory of a driver in another process, by DMA addresses. Its queues in memory are there.
type DMA interface {
	Read(addr uint64, p []byte) error
	Write(addr uint64, p []byte) error
}

// Words is memory for atomic operations, as view.Atomic describes it.
type Words interface {
	Do(op atomics.Op, at uint64, args *[atomics.MaxArgs]uint64) (values [atomics.MaxValues]uint64, ok bool)
	PageIn(at uint64) error
}

// ErrConfig means that an engine cannot be built as configured.
var ErrConfig = errors.New("emulated machine")
