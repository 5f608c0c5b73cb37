package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/daemon"
	"github.com/exanet/pfd/internal/version"
)

// Exit codes, as exanetctl's (spec/api.md).
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// errUsage marks wrong usage: the exit code is exitUsage.
var errUsage = errors.New("wrong usage")

// run runs one command line until ctx ends, and gives the exit code. What goes
// wrong is one line on standard error.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cmd := command(stderr)
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(stderr, "pfd: %v\n", err)
	if errors.Is(err, errUsage) || errors.Is(err, daemon.ErrConfig) || errors.Is(err, control.ErrSocketPath) {
		fmt.Fprintln(stderr, "See pfd --help.")
		return exitUsage
	}
	return exitFailed
}

func command(stderr io.Writer) *cobra.Command {
	cfg := daemon.Default()
	level, pdids := "info", ""
	cmd := &cobra.Command{
		Use:   "pfd",
		Short: "The ExaNet page-fault daemon",
		Long: `pfd serves the page faults of RDMA transfers, so that their memory needs not be
pinned. With --device emu it holds the emulated nodes in its own process. With
--device vfio-user:PATH it drives a node that is served at a socket (exanetctl emu
serve), or several, with commas between their paths; memory then has to be shared
by the processes (rdma.Alloc), and a device that goes is waited for.

Processes attach at PATH.attach; exanetctl, curl and Prometheus ask at PATH.
SIGTERM ends it: no new attachments, running transfers may finish for a bounded
time, then exit code 0. Other exit codes: 1 failed, 2 wrong usage.`,
		Example: `  pfd --nodes 2 --socket /tmp/pfd.sock
  exanetctl --socket /tmp/pfd.sock status`,
		Version:       version.String(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("%w: pfd takes flags only, not %q", errUsage, args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cfg.LogLevel.UnmarshalText([]byte(level)); err != nil {
				return fmt.Errorf("%w: --log-level %q: want debug, info, warn or error", errUsage, level)
			}
			cfg.Log = slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: cfg.LogLevel}))
			var err error
			if cfg.FirstPDID, cfg.LastPDID, err = daemon.ParsePDIDs(pdids); err != nil {
				return err
			}
			return serve(cmd.Context(), cfg)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return fmt.Errorf("%w: %w", errUsage, err)
	})
	f := cmd.Flags()
	f.IntVar(&cfg.Nodes, "nodes", cfg.Nodes, "emulated nodes, 1 to 64")
	f.StringVar(&cfg.Socket, "socket", "", "control socket; the attachment socket is PATH.attach (default $RUNTIME_DIRECTORY/pfd.sock, /run/exanet/pfd.sock as root, else $XDG_RUNTIME_DIR/exanet/pfd.sock)")
	f.StringVar(&cfg.Device, "device", cfg.Device, "what is driven: emu, the emulated SoC in this process, or vfio-user:PATH[,PATH...], a node a socket")
	f.StringVar(&level, "log-level", level, "debug, info, warn or error")
	f.Uint32Var(&cfg.TimeoutUS, "timeout-us", cfg.TimeoutUS, "time-out of a block, microseconds")
	f.Uint32Var(&cfg.GuardUS, "guard-us", cfg.GuardUS, "guard time-out of a block paused by a page fault, microseconds")
	f.StringVar(&cfg.SourceFaults, "source-faults", cfg.SourceFaults, "how a source fault is answered: fifo (its block is paused and asked for again) or timeout (the sender's time-out does it)")
	f.Uint64Var(&cfg.Window, "window", 0, "bytes of the processes' memory that a device elsewhere has mapped at one time, a node (default 268435456)")
	f.StringVar(&pdids, "pdid-range", "", "protection-domain ids that this pfd gives out, A-B; pfds on one network need ranges apart (default all)")
	f.StringVar(&cfg.Groups, "groups", "", "file of groups that several pfds share: lines of UID GROUP FIRST-PDID; without it groups end at their pfd")
	return cmd
}

// serve runs the daemon until ctx ends.
func serve(ctx context.Context, cfg daemon.Config) error {
	if cfg.Socket == "" {
		socket, err := control.DefaultSocket()
		if err != nil {
			return err
		}
		cfg.Socket, cfg.MakeDirectory = socket, true
	}
	if err := cfg.Check(); err != nil {
		return err
	}
	m, err := daemon.Open(ctx, cfg)
	if err != nil {
		return err
	}
	d, err := daemon.New(cfg, m)
	if err != nil {
		return err
	}
	return d.Run(ctx)
}
