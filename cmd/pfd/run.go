package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/daemon"
	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/config"
)

// run runs one command line until ctx ends, and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return config.Execute(ctx, command(args, stderr), args, stdout, stderr, daemon.ErrConfig, control.ErrSocketPath, config.ErrConfig)
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
	config.Program(cmd)
	o.flags(cmd.Flags())
	return cmd
}
