package qemu

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/exanet/pfd/internal/sockets"
	"github.com/exanet/pfd/qemu/agent"
	"github.com/exanet/pfd/qemu/guest"
)

// MaxGuests limits a fleet: each guest's pfd has its own range of protection domains, and those
// of Group follow. Values below are defined by this project.
const (
	MaxGuests  = 15
	domains    = 1 << 12 // per guest
	groupFirst = MaxGuests * domains
)

// Group is a group that processes of different guests can attach in; all guests share it
// (docs/deployments.md, "Groups").
const Group = "guests"

// Errors of a fleet.
var (
	// ErrRunning reports that a fleet already runs.
	ErrRunning = errors.New("guests run already: end them with exanetctl qemu stop")
	// ErrNone reports that no fleet runs.
	ErrNone = errors.New("no guests run: start them with exanetctl qemu boot")
	// ErrGuest reports that a guest does not exist, or has failed.
	ErrGuest = errors.New("guest")
)

// DefaultDir returns the directory of a fleet's sockets: exanet/qemu below $XDG_RUNTIME_DIR, or
// below /run for root.
func DefaultDir() (string, error) {
	base := os.Getenv("XDG_RUNTIME_DIR")
	if os.Geteuid() == 0 {
		base = "/run"
	}
	if base == "" {
		return "", errors.New("no directory for guests: XDG_RUNTIME_DIR is not set: name one with --dir")
	}
	return filepath.Join(base, "exanet", "qemu"), nil
}

// Fleet is a set of running guests with the process that emulates their nodes. The emulator
// must outlive them: QEMU aborts when a device's server closes its socket.
type Fleet struct {
	Dir   string
	state fleetState
}

// fleetState is the state that a fleet's directory stores.
type fleetState struct {
	Options Options   `json:"options"`
	Nodes   process   `json:"nodes"`
	Guests  []process `json:"guests"`
}

// Options are the options of Boot.
type Options struct {
	Guests int      // 1 to MaxGuests
	Nodes  int      // per guest, 0 to MaxNodes
	Server []string // command that serves nodes; --nodes and --socket-dir are appended
	// Modules is the set of modules that guests load: guest.SetStock, or guest.SetIOMMUFD if it
	// was built; "": the stock set.
	Modules string
	System  System
	// Machine is the kind of machine: MachineX86, MachineBare or MachineARM; "": MachineX86.
	// Only MachineX86 supports Debian.
	Machine string
	// UIO makes UIO drive the nodes of MachineBare. Otherwise VFIO without an IOMMU drives
	// them, which needs guest.SetIOMMUFD.
	UIO bool
	// PFD are arguments of the pfd in each guest, added to its device; nil: no pfd is started.
	PFD []string
	// Memory is QEMU's object for the guests' memory, without size and id; "": a file that the
	// serving process also maps.
	Memory string
}

// Check returns an error for options that Boot does not support.
func (o Options) Check() error {
	switch {
	case o.Guests < 1 || o.Guests > MaxGuests:
		return fmt.Errorf("%d guests: want 1 to %d", o.Guests, MaxGuests)
	case o.Nodes < 0 || o.Nodes > MaxNodes:
		return fmt.Errorf("%d nodes a guest: want 0 to %d", o.Nodes, MaxNodes)
	case boards[o.machine()].args == nil:
		return fmt.Errorf("machine %q: want %s, %s or %s", o.Machine, MachineX86, MachineBare, MachineARM)
	case o.System == Debian && o.machine() != MachineX86:
		return fmt.Errorf("guests with Debian on machine %s: want %s", o.machine(), MachineX86)
	case o.UIO && o.machine() != MachineBare:
		return fmt.Errorf("UIO on machine %s: want %s", o.machine(), MachineBare)
	}
	return nil
}

func (o Options) machine() string {
	if o.Machine == "" {
		return MachineX86
	}
	return o.Machine
}

// Boot restores guests from the cache, plugs their nodes in, and starts pfd in each. After an
// error it ends what it has started.
func Boot(ctx context.Context, c *Cache, dir string, o Options) (f *Fleet, err error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	if len(agent.Socket(guestDir(dir, MaxGuests), agent.Ports)) > 107 { // sun_path, unix(7)
		return nil, fmt.Errorf("directory %s: its name is too long for sockets: choose a shorter --dir", dir)
	}
	c = c.of(o.machine())
	unlock, err := c.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if old, err := Open(dir); err == nil {
		if err := old.running(); err == nil {
			return nil, fmt.Errorf("%s: %w", dir, ErrRunning)
		}
		if err := old.Stop(ctx); err != nil {
			return nil, err
		}
	}
	if o.Modules == guest.SetIOMMUFD && !exists(c.modules(o.Modules)) {
		return nil, fmt.Errorf("modules with iommufd: %w --iommufd", ErrNotSetUp)
	}
	s, err := c.prepare(ctx, o.System, o.machine())
	if err != nil {
		return nil, err
	}
	if err := sockets.MakeDir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("directory of the guests: %w", err)
	}
	f = &Fleet{Dir: dir, state: fleetState{Options: o}}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Stop(context.WithoutCancel(ctx)))
			f = nil
		}
	}()
	if err := f.serve(o); err != nil {
		return f, err
	}
	for i := range o.Guests {
		f.state.Guests = append(f.state.Guests, process{})
		if err := f.restore(ctx, s, i); err != nil {
			return f, fmt.Errorf("%w %d: %w", ErrGuest, i, err)
		}
	}
	for i := range o.Guests {
		if err := f.Begin(ctx, i); err != nil {
			return f, fmt.Errorf("%w %d: %w", ErrGuest, i, err)
		}
	}
	return f, nil
}

// Restart ends a guest, unless it has ended, and starts it again with the same nodes, which
// stay up.
func (f *Fleet) Restart(ctx context.Context, c *Cache, i int) error {
	if i < 0 || i >= len(f.state.Guests) {
		return fmt.Errorf("%w %d: there are %d", ErrGuest, i, len(f.state.Guests))
	}
	c = c.of(f.state.Options.machine())
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	s, err := c.prepare(ctx, f.state.Options.System, f.state.Options.machine())
	if err == nil {
		err = f.state.Guests[i].end(ctx)
	}
	if err == nil {
		err = f.restore(ctx, s, i)
	}
	if err == nil {
		err = f.Begin(ctx, i)
	}
	if err != nil {
		return fmt.Errorf("%w %d: %w", ErrGuest, i, err)
	}
	return nil
}

// Begin prepares a guest that was restored or has rebooted by itself: it loads the modules and
// starts pfd.
func (f *Fleet) Begin(ctx context.Context, i int) error {
	if err := f.load(ctx, i); err != nil {
		return err
	}
	return f.startPFD(ctx, i)
}

// Open returns the fleet of a directory.
func Open(dir string) (*Fleet, error) {
	f := &Fleet{Dir: dir}
	b, err := os.ReadFile(f.path("fleet.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNone
	}
	if err == nil {
		err = json.Unmarshal(b, &f.state)
	}
	if err != nil {
		return nil, fmt.Errorf("guests of %s: %w", dir, err)
	}
	return f, nil
}

func (f *Fleet) path(name string) string { return filepath.Join(f.Dir, name) }

func guestDir(dir string, i int) string { return filepath.Join(dir, "guest"+strconv.Itoa(i)) }

// Guests returns the number of guests.
func (f *Fleet) Guests() int { return len(f.state.Guests) }

// Guest is one guest of a fleet.
type Guest struct {
	Index   int    `json:"guest"`
	PID     int    `json:"pid"` // of the guest's QEMU
	Alive   bool   `json:"alive"`
	Nodes   int    `json:"nodes"`
	Machine string `json:"machine"`
}

// List returns the guests.
func (f *Fleet) List() []Guest {
	list := make([]Guest, len(f.state.Guests))
	for i, g := range f.state.Guests {
		list[i] = Guest{Index: i, PID: g.PID, Alive: g.alive() == nil, Nodes: f.state.Options.Nodes, Machine: f.state.Options.machine()}
	}
	return list
}

// GuestPID returns the pid of a guest's QEMU.
func (f *Fleet) GuestPID(i int) int { return f.state.Guests[i].PID }

// NodesPID returns the pid of the process that emulates the nodes.
func (f *Fleet) NodesPID() int { return f.state.Nodes.PID }

// record stores the running processes, before more are started.
func (f *Fleet) record() error {
	b, err := json.Marshal(f.state)
	if err == nil {
		err = replace(f.path("fleet.json"), b)
	}
	if err != nil {
		return fmt.Errorf("storing the guests: %w", err)
	}
	return nil
}

// running returns nil while any process of the fleet runs.
func (f *Fleet) running() error {
	err := f.state.Nodes.alive()
	for _, g := range f.state.Guests {
		if err == nil {
			return nil
		}
		err = g.alive()
	}
	return err
}

// serve starts the process with the nodes. Guests can be restored meanwhile; served waits for
// the nodes.
func (f *Fleet) serve(o Options) error {
	if o.Nodes == 0 {
		return nil
	}
	sockets := f.path("nodes")
	if err := os.RemoveAll(sockets); err != nil {
		return fmt.Errorf("sockets of the nodes: %w", err)
	}
	args := append(o.Server[1:len(o.Server):len(o.Server)], "--nodes", strconv.Itoa(o.Guests*o.Nodes), "--socket-dir", sockets)
	p, err := startProcess(f.path("nodes.log"), nil, o.Server[0], args...)
	if err != nil {
		return err
	}
	f.state.Nodes = p
	return f.record()
}

// served waits until the nodes can be plugged in.
func (f *Fleet) served(ctx context.Context) error {
	o := f.state.Options
	for last := f.node(o.Guests*o.Nodes - 1); o.Nodes > 0 && !exists(last); {
		if err := errors.Join(f.state.Nodes.alive(), pause(ctx)); err != nil {
			return fmt.Errorf("the process of the nodes: %w", err)
		}
	}
	return nil
}

// node returns the socket of a node (package emu/serve).
func (f *Fleet) node(i int) string {
	return filepath.Join(f.path("nodes"), "node"+strconv.Itoa(i)+".sock")
}

// restore starts a guest.
func (f *Fleet) restore(ctx context.Context, s saved, i int) error {
	o := f.state.Options
	dir := guestDir(f.Dir, i)
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		return err
	}
	p, err := s.emulator.start(dir, append(machineArgs(s.machine, s.accel, dir, s.image, cmp.Or(o.Memory, sharedMemory)), "-incoming", "defer")...)
	if err != nil {
		return err
	}
	f.state.Guests[i] = p
	if err := f.record(); err != nil {
		return err
	}
	m, err := dialMonitor(ctx, monitorSocket(dir), p.alive)
	if err != nil {
		return err
	}
	defer m.close()
	if err := errors.Join(m.restore(ctx, s.state), f.served(ctx)); err != nil {
		return err
	}
	for n := range o.Nodes {
		if err := m.plug("node"+strconv.Itoa(n), rootPort(n), f.node(i*o.Nodes+n)); err != nil {
			return fmt.Errorf("node %d: %w", n, err)
		}
	}
	return nil
}

// load loads the modules in a guest.
func (f *Fleet) load(ctx context.Context, i int) error {
	_, err := f.run(ctx, i, "loading its modules", "exanetctl", "guest", "load", cmp.Or(f.state.Options.Modules, guest.SetStock))
	return err
}

// groupsFile has the groups of all pfds in the guests.
const groupsFile = "/run/groups"

// HugePages is how many huge pages of 2 MiB a guest without an IOMMU reserves, for memory that
// its processes share and for pfd's own; defined by this project.
const HugePages = 96

// smallPFD starts a pfd with its arguments. Mapping for a device pins memory; the guest exists
// only for pfd. The script watches pfd's log because starting a program takes long without KVM.
const smallPFD = `ulimit -l unlimited; pfd "$@" >/run/pfd.log 2>&1 &
p=$!
until grep -q msg=ready /run/pfd.log; do
	kill -0 $p 2>/dev/null || { cat /run/pfd.log; exit 1; }
	sleep 0.05
done`

// startPFD binds the guest's nodes to their driver, starts a pfd, and returns when pfd is
// ready.
func (f *Fleet) startPFD(ctx context.Context, i int) error {
	o := f.state.Options
	if o.Nodes == 0 || o.PFD == nil {
		return nil
	}
	before, driver, kind, flags := "", "vfio-pci", "vfio:", []string(nil)
	if o.machine() == MachineBare {
		before = fmt.Sprintf("echo %d >/proc/sys/vm/nr_hugepages; ", HugePages)
		if o.UIO {
			driver, kind = "uio_pci_generic", "uio:"
		} else {
			before += "echo 1 >/sys/module/vfio/parameters/enable_unsafe_noiommu_mode; "
			flags = []string{"--unsafe-noiommu"}
		}
	}
	bound, err := f.run(ctx, i, "binding its nodes", "sh", "-c", before+"exanetctl bind --all --driver "+driver+" --wait "+strconv.Itoa(o.Nodes))
	if err != nil {
		return err
	}
	own := fmt.Sprintf("%d-%d", max(i*domains, 1), (i+1)*domains-1)
	args := append([]string{"--device", kind + strings.Join(strings.Fields(bound), ","), "--groups", groupsFile, "--pdid-range", own}, append(flags, o.PFD...)...)
	script := smallPFD
	if o.System == Debian {
		script = debianPFD
	}
	script = fmt.Sprintf("echo '0 %s %#x' >%s\n", Group, groupFirst, groupsFile) + script
	ctx, cancel := context.WithTimeout(ctx, pfdTime)
	defer cancel()
	_, err = f.run(ctx, i, "starting pfd", append([]string{"sh", "-c", script, "sh"}, args...)...)
	return err
}

// run runs a command in a guest and returns its output. The error says what the command is for.
func (f *Fleet) run(ctx context.Context, i int, what string, args ...string) (string, error) {
	var out strings.Builder
	code, err := f.Run(ctx, i, agent.Command{Exec: agent.Exec{Args: args}, Stdout: &out, Stderr: &out})
	switch {
	case err != nil:
		err = fmt.Errorf("%s: %w: %s", what, err, out.String())
	case code != 0:
		err = fmt.Errorf("%s: %w: exit code %d: %s", what, ErrGuest, code, out.String())
	}
	return out.String(), err
}

// pfdTime is how long a pfd may take to become ready; defined by this project.
const pfdTime = 2 * time.Minute

// Run runs a command in a guest and returns its exit code.
func (f *Fleet) Run(ctx context.Context, i int, c agent.Command) (int, error) {
	if i < 0 || i >= len(f.state.Guests) {
		return 0, fmt.Errorf("%w %d: there are %d", ErrGuest, i, len(f.state.Guests))
	}
	code, err := agent.Run(ctx, guestDir(f.Dir, i), c)
	if err != nil {
		return code, fmt.Errorf("%w %d: %w", ErrGuest, i, errors.Join(err, f.state.Guests[i].alive()))
	}
	return code, nil
}

// Stop ends the guests, then the nodes, and removes the directory.
func (f *Fleet) Stop(ctx context.Context) error {
	var errs []error
	for _, g := range f.state.Guests {
		errs = append(errs, g.end(ctx))
	}
	if f.state.Nodes.PID != 0 {
		errs = append(errs, f.state.Nodes.end(ctx))
	}
	if err := errors.Join(errs...); err != nil {
		return err // Stop can be repeated for the rest
	}
	return os.RemoveAll(f.Dir)
}
