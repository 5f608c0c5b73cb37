package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/domain"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/internal/logs"
	"github.com/exanet/pfd/internal/spool"
	"github.com/exanet/pfd/internal/uids"
	"github.com/exanet/pfd/shadow"
	links "github.com/exanet/pfd/soc/link"
	"github.com/exanet/pfd/soc/r5"
	"github.com/exanet/pfd/uio"
	"github.com/exanet/pfd/vfio/kernel"
)

// Ways to learn that a source fault's page is there (spec/faultpath.md,
// "Source fault").
const (
	SourceFIFO    = "fifo"    // by TXFIFO: the block is paused, a RAPF ends the pause
	SourceTimeout = "timeout" // as the thesis and PART: page in, the sender's time-out does the rest

	// How the SMMU takes a fault (Config.FaultMode).
	FaultTerminate = "terminate" // the access ends, its block is sent again
	FaultStall     = "stall"     // the access waits for the page (000 5.2)
)

// What pfd gives up once it listens (internal/sandbox).
const (
	SandboxAuto   = "auto"
	SandboxStrict = "strict"
	SandboxOff    = "off"
)

// DeviceEmu names the emulated SoC in pfd's own process.
const DeviceEmu = "emu"

// DeviceVFIOUser comes before the sockets of nodes that are served elsewhere:
// vfio-user:PATH, or several of them with commas between, a node each.
const DeviceVFIOUser = "vfio-user:"

// DeviceVFIO comes before the PCI addresses of nodes that this machine's kernel
// gives to pfd: vfio:ADDRESS, or several of them with commas between, a node each.
const DeviceVFIO = "vfio:"

// DeviceUIO comes before the names of UIO devices, as uio0, or PCI addresses: uio:NAME,
// or several of them with commas between, a node each.
const DeviceUIO = "uio:"

// MaxNodes bounds --nodes: what the emulated machine takes.
const MaxNodes = emu.MaxNodes

// ErrConfig says that a flag or key has a value that cannot be.
var ErrConfig = errors.New("configuration")

// Config is what pfd is told by its flags and its configuration file.
type Config struct {
	Nodes  int    // nodes of the emulated machine
	Socket string // control socket; the attachment socket is beside it
	// MakeDirectory has the control socket's directory made where it is not
	// there: for the default socket only.
	MakeDirectory bool
	// Device is DeviceEmu, or DeviceVFIOUser, DeviceVFIO or DeviceUIO with names.
	Device string
	// UnsafeNoIOMMU takes a DeviceVFIO that has no IOMMU.
	UnsafeNoIOMMU bool
	// MetricsListen is a TCP address for metrics alone, "": none.
	MetricsListen string
	// DeviceUID may serve the sockets of Device, besides root and pfd's own user.
	DeviceUID    uint32
	LogLevel     slog.Level
	TimeoutUS    uint32 // block time-out, microseconds
	GuardUS      uint32 // guard time-out of a paused block, microseconds
	Outstanding  uint32 // blocks of a transfer in flight, 1..1024
	SourceFaults string // SourceFIFO or SourceTimeout
	FaultMode    string // FaultTerminate or FaultStall

	// Firmware says which optimizations the firmware of the emulated nodes has, in
	// the words of r5.ParseOptions; "": all.
	Firmware string
	// Link is what the links between the emulated nodes are like.
	Link links.Options

	// Window is how much of the processes' memory a device elsewhere has mapped
	// at one time, bytes a node; 0: shadow.DefaultWindow.
	Window uint64
	// WindowIdle is after how long without use such memory is unmapped; 0: after 2
	// seconds where mapping pins it (mediate.DefaultWindowIdle), else never.
	WindowIdle time.Duration
	// Registers has such a device driven by its registers alone, though it has
	// queues in memory (docs/spec/queues.md).
	Registers bool
	// FirstPDID and LastPDID are the PDIDs that this pfd gives out; both 0: all.
	FirstPDID, LastPDID device.PDID
	// Groups names a file of groups that several pfds share (ParseGroups).
	Groups string
	// Quota is how many of a node's sixteen slots one user may hold, GroupSize how
	// many processes a group may have on a node, and PDIDs: 1 to 16 each. 0 means
	// 16.
	Quota, GroupSize int

	// Sandbox is SandboxAuto, SandboxStrict or SandboxOff: what the process gives up
	// once it listens (cmd/pfd).
	Sandbox string

	Log *slog.Logger
	// Level is what Log goes by; Reload sets it. May be nil.
	Level *slog.LevelVar
	// LogLimit is what Log writes through: its counters are shown, and what it
	// holds back is told now and then. May be nil.
	LogLimit *logs.Handler
	// LogFile is what LogLimit writes to, for its counters. May be nil.
	LogFile *spool.Writer

	// Record names a file for the machine's inputs (docs/record.md); "": none.
	Record string
	// Trace names a file for one line a register access, "-" standard error;
	// "": none.
	Trace string

	// Probe names the directory, of a bpffs, that the eBPF probe is pinned in which pfd
	// attaches to itself (cmd/pfd); "": it does not.
	Probe string
	// Traced gives what that probe has measured, where pfd keeps its maps; nil: it does
	// not.
	Traced func() (any, error)

	// HandshakeTime bounds an attachment's handshake and each answer that a
	// client has to take. 0 means 5 seconds.
	HandshakeTime time.Duration
	// HandshakesPerUID bounds the unfinished handshakes of one uid. 0 means 64.
	HandshakesPerUID int
	// DrainTime bounds the wait for running transfers, and then the wait for
	// accesses in flight, when pfd ends. 0 means 3 seconds.
	DrainTime time.Duration
}

// Default gives the configuration that pfd has without flags, less the socket.
func Default() Config {
	return Config{
		Nodes:            2,
		Device:           DeviceEmu,
		TimeoutUS:        device.TimeoutReset,
		GuardUS:          device.GuardReset,
		Outstanding:      domain.Outstanding,
		SourceFaults:     SourceFIFO,
		FaultMode:        FaultTerminate,
		Quota:            domain.DefaultQuota,
		GroupSize:        domain.DefaultGroupSize,
		Sandbox:          SandboxAuto,
		HandshakeTime:    5 * time.Second,
		HandshakesPerUID: 64,
		DrainTime:        3 * time.Second,
	}
}

// Check tells whether the configuration can be. Its errors match ErrConfig, or
// control.ErrSocketPath.
func (c *Config) Check() error {
	switch {
	case c.Nodes < 1 || c.Nodes > MaxNodes:
		return fmt.Errorf("%w: --nodes %d: want 1 to %d", ErrConfig, c.Nodes, MaxNodes)
	case c.SourceFaults != SourceFIFO && c.SourceFaults != SourceTimeout:
		return fmt.Errorf("%w: --source-faults %q: want %q or %q", ErrConfig, c.SourceFaults, SourceFIFO, SourceTimeout)
	case c.FaultMode != FaultTerminate && c.FaultMode != FaultStall:
		return fmt.Errorf("%w: --fault-mode %q: want %q or %q", ErrConfig, c.FaultMode, FaultTerminate, FaultStall)
	case c.Sandbox != SandboxAuto && c.Sandbox != SandboxStrict && c.Sandbox != SandboxOff:
		return fmt.Errorf("%w: --sandbox %q: want %q, %q or %q", ErrConfig, c.Sandbox, SandboxAuto, SandboxStrict, SandboxOff)
	case c.TimeoutUS == 0:
		return fmt.Errorf("%w: --timeout-us 0: a block without a time-out is never sent again: want 1 or more", ErrConfig)
	case c.GuardUS == 0:
		return fmt.Errorf("%w: --guard-us 0: want 1 or more", ErrConfig)
	case c.Outstanding < 1 || c.Outstanding > device.Transactions:
		return fmt.Errorf("%w: --outstanding %d: want 1 to %d blocks", ErrConfig, c.Outstanding, device.Transactions)
	case c.Quota < 0 || c.Quota > device.Slots:
		return fmt.Errorf("%w: --quota %d: want 1 to %d slots", ErrConfig, c.Quota, device.Slots)
	case c.GroupSize < 0 || c.GroupSize > device.Slots:
		return fmt.Errorf("%w: --group-size %d: want 1 to %d processes", ErrConfig, c.GroupSize, device.Slots)
	case c.LastPDID != 0 && int(c.LastPDID)-int(c.FirstPDID) < c.withDefaults().GroupSize-1:
		return fmt.Errorf("%w: --pdid-range %d-%d: a group has %d PDIDs (--group-size): want that many at least", ErrConfig, c.FirstPDID, c.LastPDID, c.withDefaults().GroupSize)
	case c.HandshakeTime < 0:
		return fmt.Errorf("%w: --handshake-time %v: want more than 0", ErrConfig, c.HandshakeTime)
	case c.HandshakesPerUID < 0:
		return fmt.Errorf("%w: --handshakes-per-uid %d: want 1 or more", ErrConfig, c.HandshakesPerUID)
	case c.DrainTime < 0:
		return fmt.Errorf("%w: --drain-time %v: want more than 0", ErrConfig, c.DrainTime)
	}
	if _, err := r5.ParseOptions(c.Firmware); err != nil {
		return fmt.Errorf("%w: --firmware-options: %w", ErrConfig, err)
	}
	if err := c.Link.Check(); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if timeout := time.Duration(c.TimeoutUS) * time.Microsecond; c.Link.Delay > 0 && 2*c.Link.Delay >= timeout {
		return fmt.Errorf("%w: --link-delay %v: a block's answer takes twice that, and its time-out is %v: want less, or more --timeout-us", ErrConfig, c.Link.Delay, timeout)
	}
	if c.MetricsListen != "" {
		_, port, err := net.SplitHostPort(c.MetricsListen)
		if err == nil {
			_, err = net.LookupPort("tcp", port)
		}
		if err != nil {
			return fmt.Errorf("%w: --metrics-listen %s: %w: want an address and a port, as 127.0.0.1:9482", ErrConfig, c.MetricsListen, err)
		}
	}
	if err := c.checkDevice(); err != nil {
		return err
	}
	return control.CheckSocket(c.Socket)
}

// devices gives the kind of the device, and the sockets or addresses of a device
// elsewhere; none for others.
func (c *Config) devices() (kind string, names []string) {
	for _, kind := range []string{DeviceVFIOUser, DeviceVFIO, DeviceUIO} {
		if list, ok := strings.CutPrefix(c.Device, kind); ok {
			return kind, strings.Split(list, ",")
		}
	}
	return c.Device, nil
}

// checkDevice tells whether the device can be, and what belongs to it.
func (c *Config) checkDevice() error {
	switch kind, names := c.devices(); {
	case c.Device == DeviceEmu:
	case names == nil:
		return fmt.Errorf("%w: --device %q: this pfd knows %q, %sPATH, %sADDRESS and %sNAME", ErrConfig, c.Device, DeviceEmu, DeviceVFIOUser, DeviceVFIO, DeviceUIO)
	case len(names) > MaxNodes:
		return fmt.Errorf("%w: --device: %d nodes: want 1 to %d", ErrConfig, len(names), MaxNodes)
	case kind == DeviceVFIO:
		for _, addr := range names {
			if err := kernel.CheckAddress(addr); err != nil {
				return fmt.Errorf("%w: --device: %w", ErrConfig, err)
			}
		}
	case kind == DeviceUIO:
		for _, name := range names {
			if err := uio.CheckName(name); err != nil {
				return fmt.Errorf("%w: --device: %w", ErrConfig, err)
			}
		}
	default:
		for i, s := range names {
			if s == "" {
				return fmt.Errorf("%w: --device %q: socket %d has no path", ErrConfig, c.Device, i)
			}
		}
	}
	if err := uids.Check(c.DeviceUID); err != nil {
		return fmt.Errorf("%w: --device-uid: %w", ErrConfig, err)
	}
	switch {
	case c.UnsafeNoIOMMU && !strings.HasPrefix(c.Device, DeviceVFIO):
		return fmt.Errorf("%w: --unsafe-noiommu needs --device %sADDRESS", ErrConfig, DeviceVFIO)
	case c.Record != "" && c.Device != DeviceEmu:
		return fmt.Errorf("%w: --record needs --device %s: a device elsewhere has inputs that this pfd does not see", ErrConfig, DeviceEmu)
	case c.FaultMode == FaultStall && c.Device != DeviceEmu:
		return fmt.Errorf("%w: --fault-mode %s needs --device %s: no device elsewhere can stall", ErrConfig, FaultStall, DeviceEmu)
	case c.Firmware != "" && c.Device != DeviceEmu:
		return fmt.Errorf("%w: --firmware-options needs --device %s: the firmware of a device elsewhere is chosen where it is served (exanetctl emu serve --firmware-options)", ErrConfig, DeviceEmu)
	case c.Link.Some() && c.Device != DeviceEmu:
		return fmt.Errorf("%w: --link-delay and --link-loss need --device %s: the links of a device elsewhere are where it is served (exanetctl emu serve --link-delay)", ErrConfig, DeviceEmu)
	case c.Window != 0 && (c.Window < shadow.MinWindow || c.Window > shadow.MaxWindow || c.Window%device.PageSize != 0):
		return fmt.Errorf("%w: --window %d: want whole pages of %d bytes, %d to %d bytes", ErrConfig, c.Window, device.PageSize, shadow.MinWindow, shadow.MaxWindow)
	case c.WindowIdle < 0:
		return fmt.Errorf("%w: --window-idle %v: want more than 0, or 0 for what is usual", ErrConfig, c.WindowIdle)
	case c.Groups != "" && c.FirstPDID == 0:
		return fmt.Errorf("%w: --groups needs --pdid-range: a range of this pfd's own, apart from the PDIDs of the groups", ErrConfig)
	}
	return nil
}

// settings returns what the nodes and the attachments use of it.
func (c *Config) settings() session.Settings {
	return session.Settings{
		TimeoutUS: c.TimeoutUS, GuardUS: c.GuardUS, Outstanding: c.Outstanding,
		SourceTimeout: c.SourceFaults == SourceTimeout, Stall: c.FaultMode == FaultStall,
		HandshakeTime: c.HandshakeTime, HandshakesPerUID: c.HandshakesPerUID,
	}
}

// withDefaults fills what a caller other than cmd/pfd may leave out.
func (c Config) withDefaults() Config {
	d := Default()
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Quota == 0 {
		c.Quota = d.Quota
	}
	if c.GroupSize == 0 {
		c.GroupSize = d.GroupSize
	}
	if c.HandshakeTime <= 0 {
		c.HandshakeTime = d.HandshakeTime
	}
	if c.HandshakesPerUID <= 0 {
		c.HandshakesPerUID = d.HandshakesPerUID
	}
	if c.DrainTime <= 0 {
		c.DrainTime = d.DrainTime
	}
	return c
}
