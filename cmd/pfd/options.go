package main

import (
	"fmt"
	"io"

	"github.com/spf13/pflag"

	"github.com/exanet/pfd/daemon"
	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/config"
	"github.com/exanet/pfd/trace/probe"
)

// options are pfd's flags, which are also the keys of its configuration file.
type options struct {
	daemon.Config
	level, pdids string
	file         string   // --config
	check        bool     // --check-config
	args         []string // the command line, for reloading
}

// flagsOnly are flags that a configuration file cannot set.
var flagsOnly = []string{"config", "check-config", "help", "version"}

// flags adds the options to f.
func (o *options) flags(f *pflag.FlagSet) {
	f.StringVar(&o.file, "config", "", "configuration file, in TOML (.toml): its keys are these flags, which override it")
	f.BoolVar(&o.check, "check-config", false, "check the configuration file and the flags, print any error, and exit: 0 valid, 2 invalid")
	f.IntVar(&o.Nodes, "nodes", o.Nodes, "emulated nodes, 1 to 64")
	f.Uint32Var((*uint32)(&o.NodeBase), "node-base", 0, "id of the first emulated node; hosts that are linked (exanet-hostd) need ranges of their own")
	f.StringVar(&o.Socket, "socket", "", "control socket; the attachment socket is PATH.attach (default $RUNTIME_DIRECTORY/pfd.sock, /run/exanet/pfd.sock as root, else $XDG_RUNTIME_DIR/exanet/pfd.sock)")
	f.StringVar(&o.Device, "device", o.Device, "device to drive: emu, the emulated SoC in this process; vfio-user:PATH[,PATH...], a socket per node; vfio:ADDRESS[,ADDRESS...], a PCI function per node (exanetctl bind); or uio:NAME[,NAME...], a UIO device, or its PCI function, per node")
	f.BoolVar(&o.UnsafeNoIOMMU, "unsafe-noiommu", false, "accept functions of --device vfio: without an IOMMU: they can access all memory, and processes can share only huge pages")
	f.StringVar(&o.MetricsListen, "metrics-listen", "", "TCP address, such as 127.0.0.1:9482, that serves only GET /metrics, to all who can connect")
	f.Uint32Var(&o.DeviceUID, "device-uid", 0, "user who may serve the sockets of --device, besides root and pfd's own user")
	f.StringVar(&o.level, "log-level", o.level, "debug, info, warn or error")
	f.Uint32Var(&o.TimeoutUS, "timeout-us", o.TimeoutUS, "time-out of a block, microseconds")
	f.Uint32Var(&o.GuardUS, "guard-us", o.GuardUS, "guard time-out of a block paused by a page fault, microseconds")
	f.Uint32Var(&o.Outstanding, "outstanding", o.Outstanding, "blocks of one transfer in flight, 1 to 1024")
	f.StringVar(&o.SourceFaults, "source-faults", o.SourceFaults, "how a source fault is recovered: fifo (its block is paused and requested again) or timeout (the sender's time-out retransmits it)")
	f.StringVar(&o.FaultMode, "fault-mode", o.FaultMode, "how the SMMU treats a faulting access: terminate (abort it; its block is retransmitted) or stall (hold it until the page is present; only emulated nodes of this process)")
	f.StringVar(&o.Firmware, "firmware-options", "", "optimizations of the emulated firmware: all, none, or some of fastpath, bypass, tickets, counters, retransmission-bit, whole-blocks separated by commas; the prefix no- turns one off (default all)")
	config.Link(f, &o.Link.Delay, &o.Link.Loss, &o.Link.Seed)
	f.Var(config.Size{Bytes: &o.Window}, "window", "how much of the processes' memory, as 16MiB, is mapped for a device elsewhere at one time, per node (default 256MiB)")
	f.BoolVar(&o.Registers, "registers", false, "drive a device elsewhere only by its registers, without queues in memory")
	f.DurationVar(&o.WindowIdle, "window-idle", 0, "idle time after which such memory is unmapped (default 2s if mapping pins it, else never)")
	f.StringVar(&o.pdids, "pdid-range", "", "protection-domain ids that this pfd allocates, A-B; pfds on one network need disjoint ranges (default all)")
	f.StringVar(&o.Groups, "groups", "", "file of groups that several pfds share: lines of UID GROUP FIRST-PDID; without it a group has members of one pfd only")
	f.IntVar(&o.Quota, "quota", o.Quota, "slots of a node that one user may hold, 1 to 16")
	f.IntVar(&o.GroupSize, "group-size", o.GroupSize, "processes that a group may have on a node, and PDIDs that it owns, 1 to 16; must be equal for all pfds that share groups")
	f.DurationVar(&o.HandshakeTime, "handshake-time", o.HandshakeTime, "how long an attachment's handshake may take")
	f.IntVar(&o.HandshakesPerUID, "handshakes-per-uid", o.HandshakesPerUID, "unfinished handshakes that one user may have")
	f.Var(config.Size{Bytes: &o.GSASQuota}, "gsas-quota", "memory of the global shared address space, as 256MiB, that one user may allocate on all nodes (default 1GiB)")
	f.DurationVar(&o.DrainTime, "drain-time", o.DrainTime, "how long running transfers may continue after SIGTERM")
	f.StringVar(&o.Sandbox, "sandbox", o.Sandbox, "what pfd gives up once it listens: auto (capabilities, except CAP_SYS_PTRACE if pfd is root; new privileges; system calls that it does not use), strict (also all capabilities, and files by Landlock: pfd then accesses no process's memory itself) or off")
	f.StringVar(&o.Record, "record", "", "file for the machine's inputs with their times, for the simulator (docs/record.md); an existing file is kept as FILE.old")
	f.StringVar(&o.Probe, "trace", "", "trace this pfd with eBPF from the start (exanetctl trace), pinned in "+probe.DefaultDir+" or in the directory of --trace=DIR; if pinning fails, pfd keeps the maps and exanetctl trace latency asks pfd")
	f.Lookup("trace").NoOptDefVal = probe.DefaultDir
	f.StringVar(&o.Trace, "trace-registers", "", "print one line for each register access, with names and bits, to standard error, or to FILE with --trace-registers=FILE")
	f.Lookup("trace-registers").NoOptDefVal = "-"
}

// load reads the configuration file, if any, parses the flags with text values, and checks all.
func (o *options) load(f *pflag.FlagSet) error {
	var taken []config.Entry
	if o.file != "" {
		var err error
		if taken, err = config.Load(f, o.file, flagsOnly...); err != nil {
			return err
		}
	}
	return config.Blame(o.file, taken, o.complete())
}

// complete parses the flags with text values, and checks all options.
func (o *options) complete() error {
	if err := o.LogLevel.UnmarshalText([]byte(o.level)); err != nil {
		return fmt.Errorf("%w: --log-level %q: want debug, info, warn or error", config.ErrUsage, o.level)
	}
	var err error
	if o.FirstPDID, o.LastPDID, err = daemon.ParsePDIDs(o.pdids); err != nil {
		return err
	}
	if o.Socket == "" {
		socket, err := control.DefaultSocket()
		if err != nil {
			return err
		}
		o.Socket, o.MakeDirectory = socket, true
	}
	return o.Check()
}

// again reads the command line and the configuration file again.
func (o *options) again() (daemon.Config, error) {
	n := &options{Config: daemon.Default(), level: "info", args: o.args}
	f := pflag.NewFlagSet("pfd", pflag.ContinueOnError)
	n.flags(f)
	if err := f.Parse(o.args); err != nil {
		return daemon.Config{}, fmt.Errorf("%w: %w", config.ErrUsage, err)
	}
	err := n.load(f)
	return n.Config, err
}

// checked completes --check-config, after load has found no error.
func (o *options) checked(stdout io.Writer) error {
	if err := o.CheckGroups(); err != nil {
		return err
	}
	what := "the configuration"
	if o.file != "" {
		what = o.file
	}
	_, err := fmt.Fprintf(stdout, "%s is valid\n", what)
	return err
}
