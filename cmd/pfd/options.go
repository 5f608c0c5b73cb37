package main

import (
	"fmt"
	"io"

	"github.com/spf13/pflag"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/daemon"
	"github.com/exanet/pfd/internal/config"
	"github.com/exanet/pfd/trace/probe"
)

// options are pfd's flags, which are the keys of its configuration file, too.
type options struct {
	daemon.Config
	level, pdids string
	file         string   // --config
	check        bool     // --check-config
	args         []string // the command line, for reading it again
}

// flagsOnly are flags that a configuration file cannot set.
var flagsOnly = []string{"config", "check-config", "help", "version"}

// flags names the options in f.
func (o *options) flags(f *pflag.FlagSet) {
	f.StringVar(&o.file, "config", "", "configuration file, in TOML (.toml): its keys are these flags, which win over it")
	f.BoolVar(&o.check, "check-config", false, "read the configuration file and the flags, say what is wrong with them, and end: 0 nothing, 2 something")
	f.IntVar(&o.Nodes, "nodes", o.Nodes, "emulated nodes, 1 to 64")
	f.StringVar(&o.Socket, "socket", "", "control socket; the attachment socket is PATH.attach (default $RUNTIME_DIRECTORY/pfd.sock, /run/exanet/pfd.sock as root, else $XDG_RUNTIME_DIR/exanet/pfd.sock)")
	f.StringVar(&o.Device, "device", o.Device, "what is driven: emu, the emulated SoC in this process, vfio-user:PATH[,PATH...], a node a socket, vfio:ADDRESS[,ADDRESS...], a node a PCI function (exanetctl bind), or uio:NAME[,NAME...], a node a UIO device or the PCI function of one")
	f.BoolVar(&o.UnsafeNoIOMMU, "unsafe-noiommu", false, "take functions of --device vfio: that have no IOMMU: they can reach all memory, and processes can share huge pages alone")
	f.StringVar(&o.MetricsListen, "metrics-listen", "", "TCP address, such as 127.0.0.1:9482, that answers GET /metrics and nothing else, to whoever reaches it")
	f.Uint32Var(&o.DeviceUID, "device-uid", 0, "user who may serve the sockets of --device, besides root and pfd's own")
	f.StringVar(&o.level, "log-level", o.level, "debug, info, warn or error")
	f.Uint32Var(&o.TimeoutUS, "timeout-us", o.TimeoutUS, "time-out of a block, microseconds")
	f.Uint32Var(&o.GuardUS, "guard-us", o.GuardUS, "guard time-out of a block paused by a page fault, microseconds")
	f.Uint32Var(&o.Outstanding, "outstanding", o.Outstanding, "blocks of one transfer in flight, 1 to 1024")
	f.StringVar(&o.SourceFaults, "source-faults", o.SourceFaults, "how a source fault is answered: fifo (its block is paused and asked for again) or timeout (the sender's time-out does it)")
	f.StringVar(&o.FaultMode, "fault-mode", o.FaultMode, "what the SMMU does with a faulting access: terminate (it ends, and its block is sent again) or stall (it waits for the page; emulated nodes of this process)")
	f.StringVar(&o.Firmware, "firmware-options", "", "optimizations of the emulated firmware: all, none, or some of fastpath, bypass, tickets, counters, retransmission-bit, whole-blocks with commas between, each perhaps with no- before it (default all)")
	config.Link(f, &o.Link.Delay, &o.Link.Loss, &o.Link.Seed)
	f.Var(config.Size{Bytes: &o.Window}, "window", "bytes, as 16MiB, of the processes' memory that a device elsewhere has mapped at one time, a node (default 256MiB)")
	f.BoolVar(&o.Registers, "registers", false, "drive a device elsewhere by its registers alone, without queues in memory")
	f.DurationVar(&o.WindowIdle, "window-idle", 0, "after how long without use such memory is unmapped again (default 2s where mapping pins it, else never)")
	f.StringVar(&o.pdids, "pdid-range", "", "protection-domain ids that this pfd gives out, A-B; pfds on one network need ranges apart (default all)")
	f.StringVar(&o.Groups, "groups", "", "file of groups that several pfds share: lines of UID GROUP FIRST-PDID; without it groups end at their pfd")
	f.IntVar(&o.Quota, "quota", o.Quota, "slots of a node that one user may hold, 1 to 16")
	f.IntVar(&o.GroupSize, "group-size", o.GroupSize, "processes that a group may have on a node, and PDIDs that it owns, 1 to 16; the same for all pfds that share groups")
	f.DurationVar(&o.HandshakeTime, "handshake-time", o.HandshakeTime, "how long an attachment's handshake may take")
	f.IntVar(&o.HandshakesPerUID, "handshakes-per-uid", o.HandshakesPerUID, "unfinished handshakes that one user may have")
	f.DurationVar(&o.DrainTime, "drain-time", o.DrainTime, "how long running transfers may go on after SIGTERM")
	f.StringVar(&o.Sandbox, "sandbox", o.Sandbox, "what pfd gives up once it listens: auto (capabilities, but for CAP_SYS_PTRACE where pfd is root, new privileges, system calls that it does not make), strict (all capabilities, and files by Landlock, too: pfd then touches no process's memory itself) or off")
	f.StringVar(&o.Record, "record", "", "file for the machine's inputs with their times, for the simulator (docs/record.md); a former one is kept as FILE.old")
	f.StringVar(&o.Probe, "trace", "", "trace this pfd with eBPF from the start (exanetctl trace), pinned in "+probe.DefaultDir+" or in the directory of --trace=DIR; where that cannot be, pfd keeps the maps and exanetctl trace latency asks it")
	f.Lookup("trace").NoOptDefVal = probe.DefaultDir
	f.StringVar(&o.Trace, "trace-registers", "", "one line for each register access, with names and bits, to standard error, or to FILE with --trace-registers=FILE")
	f.Lookup("trace-registers").NoOptDefVal = "-"
}

// load reads the configuration file, if there is one, and what flags say in
// words.
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

// complete takes what flags say in words, and checks all.
func (o *options) complete() error {
	if err := o.LogLevel.UnmarshalText([]byte(o.level)); err != nil {
		return fmt.Errorf("%w: --log-level %q: want debug, info, warn or error", errUsage, o.level)
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

// again reads command line and configuration file anew.
func (o *options) again() (daemon.Config, error) {
	n := &options{Config: daemon.Default(), level: "info", args: o.args}
	f := pflag.NewFlagSet("pfd", pflag.ContinueOnError)
	n.flags(f)
	if err := f.Parse(o.args); err != nil {
		return daemon.Config{}, fmt.Errorf("%w: %w", errUsage, err)
	}
	err := n.load(f)
	return n.Config, err
}

// checked answers --check-config, when all that load looks at is right.
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
