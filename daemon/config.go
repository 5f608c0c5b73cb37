package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/daemon/domain"
	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/daemon/tree"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/internal/groupname"
	"github.com/exanet/pfd/internal/logs"
	"github.com/exanet/pfd/internal/plaintext"
	"github.com/exanet/pfd/internal/quota"
	"github.com/exanet/pfd/internal/spool"
	"github.com/exanet/pfd/internal/uids"
	links "github.com/exanet/pfd/soc/link"
	"github.com/exanet/pfd/soc/r5"
	"github.com/exanet/pfd/space/shadow"
	"github.com/exanet/pfd/vfio/kernel"
	"github.com/exanet/pfd/vfio/uio"
)

// How a source fault's block is retransmitted (spec/faultpath.md, "Source fault").
const (
	SourceFIFO    = "fifo"    // the block is in TXFIFO and paused; a RAPF ends the pause
	SourceTimeout = "timeout" // the sender's time-out retransmits it, as in the thesis and PART

	// How the SMMU handles a fault (Config.FaultMode).
	FaultTerminate = "terminate" // the access ends, and its block is retransmitted
	FaultStall     = "stall"     // the access waits for the page (000 5.2)
)

// The rights that pfd drops once it listens (internal/sandbox).
const (
	SandboxAuto   = "auto"
	SandboxStrict = "strict"
	SandboxOff    = "off"
)

// DeviceEmu names the emulated SoC in pfd's own process.
const DeviceEmu = "emu"

// DeviceVFIOUser precedes the sockets of nodes that other processes serve:
// vfio-user:PATH[,PATH...], one node each.
const DeviceVFIOUser = "vfio-user:"

// DeviceVFIO precedes the PCI addresses of nodes that pfd gets from the kernel's VFIO:
// vfio:ADDRESS[,ADDRESS...], one node each.
const DeviceVFIO = "vfio:"

// DeviceUIO precedes the names of UIO devices, as uio0, or PCI addresses:
// uio:NAME[,NAME...], one node each.
const DeviceUIO = "uio:"

// MaxNodes bounds --nodes.
const MaxNodes = emu.MaxNodes

// ErrConfig says that a flag or key has an invalid value.
var ErrConfig = errors.New("configuration")

// Config holds the values of the flags and of the configuration file.
type Config struct {
	Nodes  int    // nodes of the emulated machine
	Socket string // control socket; the attachment socket is beside it
	// MakeDirectory creates the control socket's directory if it is missing. It is for the
	// default socket only.
	MakeDirectory bool
	// Device is DeviceEmu, or DeviceVFIOUser, DeviceVFIO or DeviceUIO with names.
	Device string
	// UnsafeNoIOMMU permits a DeviceVFIO without an IOMMU.
	UnsafeNoIOMMU bool
	// MetricsListen is a TCP address for metrics alone, "": none.
	MetricsListen string
	// DeviceUID may serve the sockets of Device, as root and pfd's own user may.
	DeviceUID    uint32
	LogLevel     slog.Level
	TimeoutUS    uint32 // block time-out, microseconds
	GuardUS      uint32 // guard time-out of a paused block, microseconds
	Outstanding  uint32 // blocks of a transfer in flight, 1..1024
	SourceFaults string // SourceFIFO or SourceTimeout
	FaultMode    string // FaultTerminate or FaultStall

	// Firmware names the optimizations of the emulated nodes' firmware, as r5.ParseOptions
	// takes them; "": all.
	Firmware string
	// Link are the delay and the loss of the links between the emulated nodes.
	Link links.Options

	// Window bounds the memory of the processes that a device elsewhere has mapped at one
	// time, in bytes a node; 0: shadow.DefaultWindow.
	Window uint64
	// WindowIdle is the time without use after which such memory is unmapped; 0: 2 seconds
	// where mapping pins it (mediate.DefaultWindowIdle), else never.
	WindowIdle time.Duration
	// Registers drives such a device by its registers alone, even if it has queues in
	// memory (docs/spec/queues.md).
	Registers bool
	// NodeBase is the id of the first emulated node; the others follow.
	NodeBase device.NodeID
	// FirstPDID and LastPDID bound the PDIDs that this pfd assigns; both 0: all.
	FirstPDID, LastPDID device.PDID
	// Groups names a file of groups that several pfds share (ParseGroups).
	Groups string
	// Quota bounds the slots of a node, of sixteen, that one user may hold. GroupSize bounds
	// the processes, and so the PDIDs, of a group on a node. 1 to 16 each; 0 means 16.
	Quota, GroupSize int

	// Sandbox is SandboxAuto, SandboxStrict or SandboxOff.
	Sandbox string

	Log *slog.Logger
	// Level is the level of Log; Reload sets it. May be nil.
	Level *slog.LevelVar
	// LogLimit is the handler behind Log, for its counters. May be nil.
	LogLimit *logs.Handler
	// LogFile is the file behind LogLimit, for its counters. May be nil.
	LogFile *spool.Writer

	// Record names a file for the machine's inputs (docs/record.md); "": none.
	Record string
	// Trace names a file for one line per register access; "-": standard error; "": none.
	Trace string

	// Probe names the directory, on a bpffs, where cmd/pfd pins the eBPF probe that it
	// attaches to pfd; "": none.
	Probe string
	// Traced returns the measurements of that probe; nil: pfd keeps none.
	Traced func() (any, error)

	// Discard discards pages of memory that processes share; nil: in this process, which then cannot end
	// while a process keeps that from ending (package discard).
	Discard func(fd int, offset, size int64) error

	// HandshakeTime bounds an attachment's handshake. 0 means 5 seconds.
	HandshakeTime time.Duration
	// HandshakesPerUID bounds the unfinished handshakes of one uid. 0 means 64.
	HandshakesPerUID int
	// GSASQuota is how much memory of the global shared address space one uid may have, in bytes. 0
	// means 1 GiB.
	GSASQuota uint64
	// DrainTime bounds, when pfd ends, first the wait for running transfers and then the
	// wait for accesses in flight. 0 means 3 seconds.
	DrainTime time.Duration
}

// Default returns the configuration of a pfd without flags, except the socket.
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
		GSASQuota:        tree.DefaultQuota,
		DrainTime:        3 * time.Second,
	}
}

// Check returns an error if the configuration is invalid. It matches ErrConfig or
// control.ErrSocketPath.
func (c *Config) Check() error {
	switch {
	case c.Nodes < 1 || c.Nodes > MaxNodes:
		return fmt.Errorf("%w: --nodes %d: want 1 to %d", ErrConfig, c.Nodes, MaxNodes)
	case int64(c.NodeBase)+int64(c.Nodes)-1 > atomics.MaxNode:
		return fmt.Errorf("%w: --node-base %d: with --nodes %d the highest id is %d: want at most %d, since node %d is the last that has a part of the global shared address space", ErrConfig, c.NodeBase, c.Nodes, int64(c.NodeBase)+int64(c.Nodes)-1, atomics.MaxNode+1-c.Nodes, atomics.MaxNode)
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

// devices returns the kind of the device, and the sockets or addresses of its nodes; none if
// pfd emulates them.
func (c *Config) devices() (kind string, names []string) {
	for _, kind := range []string{DeviceVFIOUser, DeviceVFIO, DeviceUIO} {
		if list, ok := strings.CutPrefix(c.Device, kind); ok {
			return kind, strings.Split(list, ",")
		}
	}
	return c.Device, nil
}

// checkDevice checks Device and the options that depend on it.
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
	case c.NodeBase != 0 && c.Device != DeviceEmu:
		return fmt.Errorf("%w: --node-base needs --device %s: the ids of a device elsewhere are its own", ErrConfig, DeviceEmu)
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
		return fmt.Errorf("%w: --window-idle %v: want more than 0, or 0 for the default", ErrConfig, c.WindowIdle)
	case c.Groups != "" && c.FirstPDID == 0:
		return fmt.Errorf("%w: --groups needs --pdid-range: a range of this pfd's own, apart from the PDIDs of the groups", ErrConfig)
	}
	return nil
}

// settings returns the parts that nodes and attachments use.
func (c *Config) settings() session.Settings {
	return session.Settings{
		TimeoutUS: c.TimeoutUS, GuardUS: c.GuardUS, Outstanding: c.Outstanding,
		SourceTimeout: c.SourceFaults == SourceTimeout, Stall: c.FaultMode == FaultStall,
		HandshakeTime: c.HandshakeTime, HandshakesPerUID: c.HandshakesPerUID, GSASQuota: c.GSASQuota,
	}
}

// withDefaults fills in what a caller may leave out.
func (c Config) withDefaults() Config {
	d := Default()
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Quota = cmp.Or(c.Quota, d.Quota)
	c.GroupSize = cmp.Or(c.GroupSize, d.GroupSize)
	c.HandshakeTime = cmp.Or(c.HandshakeTime, d.HandshakeTime)
	c.HandshakesPerUID = cmp.Or(c.HandshakesPerUID, d.HandshakesPerUID)
	c.GSASQuota = cmp.Or(c.GSASQuota, d.GSASQuota)
	c.DrainTime = cmp.Or(c.DrainTime, d.DrainTime)
	return c
}

// directory makes the directory of groups and PDIDs.
func (c *Config) directory() (*domain.Directory, error) {
	groups, err := c.groups()
	if err != nil {
		return nil, err
	}
	made := domain.DirectoryConfig{
		First: c.FirstPDID, Last: c.LastPDID, GroupSize: c.GroupSize, Quota: c.Quota,
		KeepLast: func(uid uint32) bool { return !quota.Privileged(uid) },
	}
	if _, err := domain.NewDirectory(made); err != nil {
		return nil, err
	}
	made.Groups = groups
	d, err := domain.NewDirectory(made)
	if err != nil {
		return nil, fmt.Errorf("%w: groups in %s: %w", ErrConfig, c.Groups, err)
	}
	return d, nil
}

// groups reads the file of groups, if there is one.
func (c *Config) groups() ([]domain.Group, error) {
	if c.Groups == "" {
		return nil, nil
	}
	text, err := os.ReadFile(c.Groups)
	if err != nil {
		return nil, fmt.Errorf("%w: --groups: %w: name the file by --groups, or as groups in the configuration file (exanetctl host init makes one)", ErrConfig, err)
	}
	if text, err = plaintext.Text(text); err != nil {
		return nil, fmt.Errorf("%w: groups in %s: %w", ErrConfig, c.Groups, err)
	}
	list, err := ParseGroups(string(text), c.GroupSize)
	if err != nil {
		return nil, fmt.Errorf("groups in %s: %w", c.Groups, err)
	}
	return list, nil
}

// CheckGroups returns an error if the file of groups is invalid.
func (c *Config) CheckGroups() error {
	full := c.withDefaults()
	_, err := full.directory()
	return err
}

// ParseGroups parses a file of groups that several pfds share. A line is a group: its user's
// number, its name and the first of its PDIDs, of which it has size. A '#' begins a comment.
// Errors match ErrConfig and name the line.
func ParseGroups(text string, size int) ([]domain.Group, error) {
	most := int(device.MaxPDID) - size + 1
	var list []domain.Group
	line := 0
	for l := range strings.Lines(text) {
		line++
		l, _, _ = strings.Cut(l, "#")
		f := strings.Fields(l)
		if len(f) == 0 {
			continue
		}
		if len(f) != 3 {
			return nil, fmt.Errorf("%w: line %d has %d words: want UID GROUP FIRST-PDID", ErrConfig, line, len(f))
		}
		uid, err := strconv.ParseUint(f[0], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%w: line %d: user %q is not a number", ErrConfig, line, f[0])
		}
		if err := uids.Check(uint32(uid)); err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", ErrConfig, line, err)
		}
		if err := groupname.Check(f[1]); err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", ErrConfig, line, err)
		}
		first, err := strconv.ParseUint(f[2], 0, 16)
		if err != nil || first == 0 || first > uint64(most) {
			return nil, fmt.Errorf("%w: line %d: first PDID %q: want 1 to %d", ErrConfig, line, f[2], most)
		}
		list = append(list, domain.Group{UID: uint32(uid), Name: f[1], First: device.PDID(first)})
	}
	return list, nil
}

// ParsePDIDs parses a range of PDIDs, A-B; "" is all of them. Errors match ErrConfig.
func ParsePDIDs(s string) (first, last device.PDID, err error) {
	if s == "" {
		return 0, 0, nil
	}
	a, b, ok := strings.Cut(s, "-")
	x, errA := strconv.ParseUint(a, 0, 16)
	y, errB := strconv.ParseUint(b, 0, 16)
	if !ok || errA != nil || errB != nil || x == 0 || y < x || y > uint64(device.MaxPDID) {
		return 0, 0, fmt.Errorf("%w: --pdid-range %q: want A-B, 1 to %d", ErrConfig, s, device.MaxPDID)
	}
	return device.PDID(x), device.PDID(y), nil
}
