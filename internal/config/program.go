package config

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/internal/limits"
	"github.com/exanet/pfd/internal/version"
)

// Exit codes of the daemons; they equal exanetctl's (spec/api.md).
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2
)

// ErrUsage marks wrong usage; the exit code is ExitUsage.
var ErrUsage = errors.New("wrong usage")

// Program completes the command of a program that accepts only flags.
func Program(c *cobra.Command) {
	c.Version, c.SilenceErrors, c.SilenceUsage = version.String(), true, true
	c.Args = func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return fmt.Errorf("%w: %s accepts only flags, not %q", ErrUsage, c.Name(), args[0])
		}
		return nil
	}
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return fmt.Errorf("%w: %w", ErrUsage, Explain(c.Flags(), err))
	})
	UseHelp(c)
}

// Execute runs one command line of a Program until ctx ends, and returns the exit code. It prints an error
// as one line on standard error. Errors that match one of usage are wrong usage, too.
func Execute(ctx context.Context, c *cobra.Command, args []string, stdout, stderr io.Writer, usage ...error) int {
	c.SetArgs(args)
	out := &Output{W: stdout}
	c.SetOut(out)
	c.SetErr(stderr)
	err := c.ExecuteContext(ctx)
	if err == nil && out.Err != nil {
		err = fmt.Errorf("standard output: %w", out.Err)
	}
	if err == nil {
		return ExitOK
	}
	fmt.Fprintf(stderr, "%s: %v\n", c.Name(), limits.Explain(err))
	if slices.ContainsFunc(append(usage, ErrUsage), func(u error) bool { return errors.Is(err, u) }) {
		fmt.Fprintf(stderr, "See %s --help.\n", c.Name())
		return ExitUsage
	}
	return ExitFailed
}
