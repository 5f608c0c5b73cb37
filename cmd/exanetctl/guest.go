package main

import (
	"github.com/spf13/cobra"

	"github.com/exanet/pfd/qemu/guest"
)

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
