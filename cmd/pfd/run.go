package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/daemon"
	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/config"
	"github.com/exanet/pfd/internal/limits"
	"github.com/exanet/pfd/internal/version"
)

// Exit codes; they equal exanetctl's (spec/api.md).
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// errUsage marks wrong usage; the exit code is exitUsage.
var errUsage = errors.New("wrong usage")

// run runs one command line until ctx ends, and returns the exit code. It prints an error as
// one line on standard error.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cmd := command(args, stderr)
	cmd.SetArgs(args)
	out := &config.Output{W: stdout}
	cmd.SetOut(out)
	cmd.SetErr(stderr)
	err := cmd.ExecuteContext(ctx)
	if err == nil && out.Err != nil {
		err = fmt.Errorf("standard output: %w", out.Err)
	}
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(stderr, "pfd: %v\n", limits.Explain(err))
	if errors.Is(err, errUsage) || errors.Is(err, daemon.ErrConfig) || errors.Is(err, control.ErrSocketPath) || errors.Is(err, config.ErrConfig) {
		fmt.Fprintln(stderr, "See pfd --help.")
		return exitUsage
	}
	return exitFailed
}

func command(args []string, stderr io.Writer) *cobra.Command {
	o := &options{Config: daemon.Default(), level: "info", args: args}
	cmd := &cobra.Command{
		Use:   "pfd",
		Short: "The ExaNet page-fault daemon",
		Long: `pfd serves the page faults of RDMA transfers, so that their memory need not be
pinned. With --device emu the emulated nodes are in its own process. With
--device vfio-user:PATH it drives a node that is served at a socket (exanetctl
emu serve), or several nodes, their paths separated by commas. Processes must
then share their memory (rdma.Alloc). pfd waits for a device that is gone. With
--device vfio:ADDRESS the node is a PCI function of this machine
(docs/guests.md).

Processes attach at PATH.attach; exanetctl, curl and Prometheus use PATH.
SIGTERM ends pfd: it accepts no new attachments, waits a bounded time for
running transfers, and exits with code 0. SIGHUP makes it read --config again
and apply the settings that can change. Other exit codes: 1 failed, 2 wrong usage.`,
		Example: `  pfd --nodes 2 --socket /tmp/pfd.sock
  exanetctl --socket /tmp/pfd.sock status`,
		Version:       version.String(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("%w: pfd accepts only flags, not %q", errUsage, args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.load(cmd.Flags()); err != nil {
				return err
			}
			if o.check {
				return o.checked(cmd.OutOrStdout())
			}
			return serve(cmd.Context(), o, stderr)
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w: %w", errUsage, config.Explain(cmd.Flags(), err))
	})
	config.UseHelp(cmd)
	o.flags(cmd.Flags())
	return cmd
}
