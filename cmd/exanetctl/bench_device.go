package main

import (
	"github.com/spf13/cobra"

	"github.com/exanet/pfd/workload/bench"
)

// echoCommand is the other end of the ping-pong that bench compares register reads with.
func (a *app) echoCommand() *cobra.Command {
	return &cobra.Command{
		Use:    bench.EchoCommand,
		Short:  "Send back what comes on descriptor 3",
		Hidden: true,
		Args:   maxArgs(0),
		RunE:   func(*cobra.Command, []string) error { bench.Echo(); return nil },
	}
}
