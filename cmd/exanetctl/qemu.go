package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/qemu"
	"github.com/exanet/pfd/qemu/agent"
	"github.com/exanet/pfd/qemu/guest"
)

// exitError is the exit code of a command in a guest. err is nil if the command has printed
// its error itself.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err != nil {
		return e.err.Error()
	}
	return fmt.Sprintf("exit code %d", e.code)
}

func (e *exitError) Is(target error) bool { return target == errReported && e.err == nil }
func (e *exitError) Unwrap() error        { return e.err }

// qemuFlags are the flags of all qemu commands.
type qemuFlags struct {
	cache, dir, programs string
	deb, kernel          string
	fetch                bool
	what                 qemu.What
	qemu.Options
	debian, noPFD bool
}

func (a *app) qemuCommand() *cobra.Command {
	f := &qemuFlags{}
	c := &cobra.Command{
		Use:   "qemu",
		Short: "Run virtual machines that have emulated nodes as PCI devices",
		Long: `qemu boots virtual machines whose PCI devices are emulated nodes. A pfd in each
drives the nodes through the guest's VFIO (docs/guests.md).`,
		Example: `  exanetctl qemu setup
  exanetctl qemu boot --nodes 2
  exanetctl qemu run 0 -- exanetctl write --dst absent
  exanetctl qemu shell 1
  exanetctl qemu stop`,
		Args: cobra.ArbitraryArgs,
		RunE: orHelp,
	}
	p := c.PersistentFlags()
	p.StringVar(&f.cache, "cache", "", "directory of the files that setup fetches and makes (default $XDG_CACHE_HOME/exanet/qemu)")
	p.StringVar(&f.dir, "dir", "", "directory of the running guests (default /run/exanet/qemu as root, else $XDG_RUNTIME_DIR/exanet/qemu)")
	p.StringVar(&f.programs, "programs", "", "directory of the pfd and exanetctl for the guests (default that of this exanetctl)")
	p.StringVar(&f.deb, "package", "", "package of make deb that guests with Debian install (default the newest beside the programs)")
	p.StringVar(&f.kernel, "kernel", "", "the guests' kernel, by the first numbers of its version: 6.12, or 6.12-amd64 for the one with all modules (default the newest for clouds)")

	setup := &cobra.Command{
		Use:   "setup",
		Short: "Fetch QEMU and a kernel, make a guest, boot it once and save it",
		Long: `setup prepares everything for boot: QEMU 10.1 or newer, from PATH or from Debian's
archive, a Debian kernel with its VFIO modules, an initramfs with pfd and exanetctl,
and the saved state of a guest that was booted once. It needs apt and dpkg of a
Debian host and installs nothing. After an interruption it continues where it
stopped. When all files exist it needs no network.`,
		Args: maxArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.what.ARM && (f.what.Debian || f.what.IOMMUFD) {
				return usagef("--arm64 makes other guests: use it without --debian and --iommufd")
			}
			cache, err := a.qemuCache(f)
			if err != nil {
				return err
			}
			if f.fetch {
				return cache.Fetch(cmd.Context(), f.what)
			}
			return cache.Setup(cmd.Context(), f.what)
		},
	}
	setup.Flags().BoolVar(&f.what.Refresh, "refresh", false, "fetch the archive's newest packages even if the cache has others")
	setup.Flags().BoolVar(&f.what.IOMMUFD, "iommufd", false, "also build kernel modules with iommufd and files for VFIO devices, which Debian's modules lack, and the kernel's tests of VFIO (fetches some 240 MB)")
	setup.Flags().BoolVar(&f.what.Debian, "debian", false, "also make guests with Debian's systemd, where pfd is installed from its package and runs as a service (fetches some 40 MB)")
	setup.Flags().BoolVar(&f.what.ARM, "arm64", false, "prepare boot --machine arm64 instead (fetches some 62 MB)")
	setup.Flags().BoolVar(&f.fetch, "fetch", false, "only fetch; the first boot makes the rest")

	boot := &cobra.Command{
		Use:   "boot",
		Short: "Start guests, and a pfd in each",
		Args:  maxArgs(0),
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.qemuBoot(cmd.Context(), f) },
	}
	boot.Flags().IntVar(&f.Guests, "guests", 2, "guests, 1 to 15")
	boot.Flags().IntVar(&f.Nodes, "nodes", 2, "nodes of each guest, 1 to 4")
	boot.Flags().StringVar(&f.Modules, "modules", guest.SetStock, "VFIO modules: stock (Debian's, with groups and type 1), or iommufd (setup --iommufd)")
	boot.Flags().BoolVar(&f.debian, "debian", false, "guests with Debian's systemd and pfd as its service (setup --debian)")
	boot.Flags().StringVar(&f.Machine, "machine", qemu.MachineX86, "x86, no-iommu (with --modules iommufd or --uio), or arm64 (setup --arm64)")
	boot.Flags().BoolVar(&f.UIO, "uio", false, "with --machine no-iommu: drive the nodes by UIO instead of VFIO")
	boot.Flags().BoolVar(&f.noPFD, "no-pfd", false, "plug the nodes in, but start no pfd")

	run := &cobra.Command{
		Use:   "run GUEST -- COMMAND...",
		Short: "Run a command in a guest and exit with its exit code",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 && args[1] == "--" {
				args = append(args[:1:1], args[2:]...)
			}
			if len(args) < 2 {
				return usagef("qemu run: want the number of a guest and a command: `%s`", useLine(cmd))
			}
			return a.qemuRun(cmd.Context(), f, args[0], agent.Command{Exec: agent.Exec{Args: args[1:]}, Stdin: a.in, Stdout: a.out, Stderr: a.err})
		},
	}
	run.Flags().SetInterspersed(false) // flags after the guest's number are the command's

	shell := &cobra.Command{
		Use:   "shell GUEST",
		Short: "Run a shell in a guest; exit or Ctrl-D ends it",
		Args:  wantArgs(1, 1),
		RunE:  func(cmd *cobra.Command, args []string) error { return a.qemuShell(cmd.Context(), f, args[0]) },
	}
	stop := &cobra.Command{
		Use:   "stop",
		Short: "End the guests and then the process that serves their nodes",
		Args:  maxArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			fleet, err := f.open()
			if errors.Is(err, qemu.ErrNone) {
				return nil
			}
			if err != nil {
				return err
			}
			return fleet.Stop(cmd.Context())
		},
	}
	list := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "Show the running guests",
		Args:    maxArgs(0),
		RunE:    func(*cobra.Command, []string) error { return a.qemuList(f) },
	}
	a.tableFlags(list, guestColumns...)
	run.ValidArgsFunction, shell.ValidArgsFunction = once(f.guestWords()), once(f.guestWords())
	c.AddCommand(setup, boot, list, run, shell, stop)
	return c
}

var guestColumns = []string{"GUEST", "PID", "STATE", "NODES", "MACHINE"}

// qemuList shows the guests that were started and not stopped.
func (a *app) qemuList(f *qemuFlags) error {
	t := a.table(guestColumns...)
	if err := t.check(); err != nil {
		return err
	}
	guests := []qemu.Guest{}
	fleet, err := f.open()
	switch {
	case errors.Is(err, qemu.ErrNone):
		fmt.Fprintln(a.err, err)
	case err != nil:
		return err
	default:
		guests = fleet.List()
	}
	if a.wantJSON() {
		return a.printJSON(struct {
			Version int          `json:"version"`
			Guests  []qemu.Guest `json:"guests"`
		}{control.Version, guests})
	}
	if len(guests) == 0 {
		return nil
	}
	for _, g := range guests {
		state := "runs"
		if !g.Alive {
			state = "ended"
		}
		t.add(g.Index, g.PID, state, g.Nodes, g.Machine)
	}
	return t.flush()
}

// guestWords completes the number of a guest.
func (f *qemuFlags) guestWords() cobra.CompletionFunc {
	return words(func(context.Context) (list []string, _ error) {
		fleet, err := f.open()
		if err != nil {
			return nil, err
		}
		for i := range fleet.Guests() {
			list = append(list, strconv.Itoa(i))
		}
		return list, nil
	})
}

func (a *app) qemuCache(f *qemuFlags) (*qemu.Cache, error) {
	c := &qemu.Cache{Dir: f.cache, Programs: f.programs, Package: f.deb, Kernel: f.kernel, Say: func(format string, args ...any) {
		_, _ = fmt.Fprintf(a.err, "qemu: "+format+"\n", args...) // best effort
	}}
	var err error
	if c.Dir == "" {
		if c.Dir, err = qemu.DefaultCache(); err != nil {
			return nil, err
		}
	}
	if c.Dir, err = filepath.Abs(c.Dir); err != nil {
		return nil, err
	}
	if c.Programs == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("directory of the programs: %w: name it with --programs", err)
		}
		c.Programs = filepath.Dir(self)
	}
	return c, nil
}

func (f *qemuFlags) directory() (string, error) {
	if f.dir == "" {
		return qemu.DefaultDir()
	}
	return filepath.Abs(f.dir)
}

func (f *qemuFlags) open() (*qemu.Fleet, error) {
	dir, err := f.directory()
	if err != nil {
		return nil, err
	}
	return qemu.Open(dir)
}

func (a *app) qemuBoot(ctx context.Context, f *qemuFlags) error {
	cache, err := a.qemuCache(f)
	if err != nil {
		return err
	}
	dir, err := f.directory()
	if err != nil {
		return err
	}
	if f.Modules != guest.SetStock && f.Modules != guest.SetIOMMUFD {
		return usagef("--modules %q: want %q or %q", f.Modules, guest.SetStock, guest.SetIOMMUFD)
	}
	if f.Nodes < 1 {
		return usagef("--nodes %d: want 1 to %d", f.Nodes, qemu.MaxNodes)
	}
	o := f.Options
	o.Server = []string{filepath.Join(cache.Programs, "exanetctl"), "emu", "serve"}
	if f.debian {
		o.System = qemu.Debian
	}
	if err := o.Check(); err != nil {
		return usagef("%w", err)
	}
	if !f.noPFD {
		// A guest without KVM is slow: a block takes many times as long as on a real node,
		// and its mappings must still exist when it arrives.
		o.PFD = []string{"--timeout-us", "1000000", "--guard-us", "2000000", "--window-idle", "10s"}
	}
	if _, err := qemu.Boot(ctx, cache, dir, o); err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.out, "%d guests with %d nodes each: exanetctl qemu run 0 -- exanetctl status\n", f.Guests, f.Nodes)
	return err
}

// guest returns the fleet and the number of a guest.
func (f *qemuFlags) guest(word string) (*qemu.Fleet, int, error) {
	n, err := strconv.Atoi(word)
	if err != nil {
		return nil, 0, usagef("guest %q: want a number, 0 for the first", word)
	}
	fleet, err := f.open()
	return fleet, n, err
}

func (a *app) qemuRun(ctx context.Context, f *qemuFlags, word string, c agent.Command) error {
	fleet, n, err := f.guest(word)
	if err != nil {
		return err
	}
	return commandExit(fleet.Run(ctx, n, c))
}

// commandExit returns the error for the exit code of a command in a guest. As in a shell, the
// code is 127 if the guest could not start the command.
func commandExit(code int, err error) error {
	if err == nil && code == 0 || err != nil && !errors.Is(err, agent.ErrStart) {
		return err
	}
	return &exitError{code, err}
}

func (a *app) qemuShell(ctx context.Context, f *qemuFlags, word string) error {
	in, ok := a.in.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return usagef("qemu shell: standard input is not a terminal: use `exanetctl qemu run %s -- sh`", word)
	}
	size := func() agent.Size {
		w, h, err := term.GetSize(int(in.Fd()))
		if err != nil {
			return agent.Size{Rows: 24, Columns: 80}
		}
		return agent.Size{Rows: uint16(h), Columns: uint16(w)}
	}
	now := size()
	old, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return fmt.Errorf("the terminal: %w", err)
	}
	defer func() { _ = term.Restore(int(in.Fd()), old) }()
	changed := make(chan os.Signal, 1)
	defer close(changed)
	signal.Notify(changed, syscall.SIGWINCH)
	defer signal.Stop(changed)
	sizes := make(chan agent.Size)
	over := make(chan struct{})
	defer close(over)
	go func() {
		for range changed {
			select {
			case sizes <- size():
			case <-over:
				return
			}
		}
	}()
	return a.qemuRun(ctx, f, word, agent.Command{
		Exec:  agent.Exec{Args: []string{"sh", "-l"}, TTY: &now, Env: []string{"TERM=" + a.getenv("TERM")}},
		Stdin: io.Reader(in), Stdout: a.out, Stderr: a.err, Resize: sizes,
	})
}

// guestCommand runs in guests: the initramfs of exanetctl qemu starts it.
func (a *app) guestCommand() *cobra.Command {
	c := &cobra.Command{
		Use:    "guest",
		Short:  "Run as the first process of a guest, or as its agent",
		Hidden: true,
		Args:   cobra.ArbitraryArgs,
		RunE:   orHelp,
	}
	c.AddCommand(
		&cobra.Command{Use: "init", Short: "Run as the first process of a guest", Args: cobra.ArbitraryArgs, RunE: func(*cobra.Command, []string) error { return guest.Init(a.err) }},
		&cobra.Command{Use: "load SET", Short: "Load a set of modules", Args: cobra.ExactArgs(1), RunE: func(_ *cobra.Command, args []string) error { return guest.Load(args[0]) }},
		&cobra.Command{Use: "agent", Short: "Run the commands of the guest's host", Args: maxArgs(0), RunE: func(cmd *cobra.Command, _ []string) error { return guest.Agent(cmd.Context()) }},
	)
	return c
}
