package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/internal/version"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show this program's version",
		Args:  maxArgs(0),
		RunE: func(*cobra.Command, []string) error {
			if a.wantJSON() {
				return a.printJSON(struct {
					Version   int    `json:"version"`
					Exanetctl string `json:"exanetctl_version"`
				}{control.Version, version.String()})
			}
			if _, err := fmt.Fprintln(a.out, "exanetctl", version.String()); err != nil {
				return fmt.Errorf("standard output: %w", err)
			}
			return nil
		},
	}
}
