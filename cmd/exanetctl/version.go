package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/internal/version"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show this program's version",
		Args:  maxArgs(0),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(a.out, "exanetctl", version.String())
			return err
		},
	}
}
