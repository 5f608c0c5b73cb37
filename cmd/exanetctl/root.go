package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/internal/config"
	"github.com/exanet/pfd/internal/limits"
	"github.com/exanet/pfd/internal/version"
	"github.com/exanet/pfd/workload"
)

// Exit codes (spec/api.md, "exanetctl").
const (
	exitOK       = 0
	exitFailed   = 1
	exitUsage    = 2
	exitNoDaemon = 3
	exitSkipped  = 4
)

// streams are the program's standard streams; tests give their own.
type streams struct {
	in       io.Reader
	out, err io.Writer
	getenv   func(string) string
}

// Errors that choose the exit code; the others are exitFailed.
var (
	errUsage   = errors.New("wrong usage")
	errSkipped = errors.New("skipped")
	// errReported ends a command that has already said what went wrong.
	errReported = errors.New("failed")
)

// usageError is wrong usage; it matches errUsage.
type usageError struct{ err error }

func (e *usageError) Error() string        { return e.err.Error() }
func (e *usageError) Unwrap() error        { return e.err }
func (e *usageError) Is(target error) bool { return target == errUsage }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// run runs one command line and gives the exit code.
func run(ctx context.Context, args []string, s streams) int {
	root := newRoot(s)
	root.SetArgs(args)
	out := &config.Output{W: s.out}
	root.SetOut(out)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil && out.Err != nil {
		err = fmt.Errorf("standard output: %w", out.Err)
	}
	code := exitCode(err)
	if err != nil && !errors.Is(err, errReported) {
		fmt.Fprintf(s.err, "exanetctl: %v\n", limits.Explain(err))
		if code == exitUsage {
			fmt.Fprintf(s.err, "See %s --help.\n", cmd.CommandPath())
		}
	}
	return code
}

func exitCode(err error) int {
	var exit *exitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exit):
		return exit.code
	case errors.Is(err, errUsage):
		return exitUsage
	case errors.Is(err, control.ErrNoDaemon), errors.Is(err, control.ErrEnded):
		return exitNoDaemon
	case errors.Is(err, errSkipped), errors.Is(err, workload.ErrSkipped):
		return exitSkipped
	}
	return exitFailed
}

// app is what all commands share: the streams and the global flags.
type app struct {
	streams
	socket string
	trust  []uint // users whose pfd test processes attach to
	format string
	json   bool
	pretty bool
	watch  time.Duration
	// Of a table: the columns to sort by, and those to show; nil is as the width allows.
	sort, columns []string
}

func newRoot(s streams) *cobra.Command {
	cobra.EnablePrefixMatching = true  // OBJECT and COMMAND may be abbreviated
	cobra.EnableCommandSorting = false // help has them in the order of commands
	a := &app{streams: s}
	root := &cobra.Command{
		Use:   "exanetctl OBJECT [COMMAND]",
		Short: "Show and drive the ExaNet page-fault daemon pfd",
		Long: `exanetctl shows what a running pfd does and makes test transfers.

Objects and commands may be abbreviated as long as they stay unambiguous;
without a COMMAND an object is shown. Tables go to standard output, messages to
standard error. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 pfd is not
reachable or ended meanwhile, 4 skipped.`,
		Version:       version.String(),
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          orHelp,
		Args:          cobra.ArbitraryArgs,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			return a.checkFlags()
		},
	}
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w", config.Explain(cmd.Flags(), err))
	})
	config.UseHelp(root)
	f := root.PersistentFlags()
	f.StringVar(&a.socket, "socket", "", "control socket of pfd (default: the first that exists of pfd.sock in each directory of $RUNTIME_DIRECTORY, $XDG_RUNTIME_DIR/exanet/pfd.sock if not root, and the machine's /run/exanet/pfd.sock)")
	f.UintSliceVar(&a.trust, "trust", nil, "uid of a user whose pfd may reach the memory of test processes (write, read, perf), besides root, oneself and the machine's; in a rootless container the machine's pfd is 65534")
	f.StringVarP(&a.format, "output", "o", "table", "output format: table, wide (all columns), json or csv")
	values(root, "output", formats()...)
	f.BoolVarP(&a.json, "json", "j", false, "the same as -o json")
	f.BoolVarP(&a.pretty, "pretty", "p", false, "indent JSON")
	a.addCommands(root)
	root.SetHelpCommand(helpCommand(root))
	// Made here, not when the program runs: what it does not know is an error.
	root.InitDefaultCompletionCmd()
	if c, _, err := root.Find([]string{"completion"}); err == nil {
		c.Args, c.RunE = cobra.ArbitraryArgs, orHelp
	}
	return root
}

// trusted returns the users of --trust.
func (a *app) trusted() []uint32 {
	var list []uint32
	for _, uid := range a.trust {
		list = append(list, uint32(uid))
	}
	return list
}

// helpCommand is cobra's own, for which an unknown word is no error.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [OBJECT [COMMAND]]",
		Short: "Help about any object or command",
		RunE: func(_ *cobra.Command, args []string) error {
			c, rest, err := root.Find(args)
			if err != nil {
				return usagef("%w", err)
			}
			if len(rest) > 0 {
				return unknown(c, rest[0])
			}
			c.InitDefaultHelpFlag()
			return c.Help()
		},
	}
}

// orHelp is what a command does that is nothing without one of its own commands.
func orHelp(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return unknown(cmd, args[0])
	}
	return cmd.Help()
}

func (a *app) checkFlags() error {
	if a.json {
		a.format = formatJSON
	}
	if !slices.Contains(formats(), a.format) {
		return usagef("-o %s: the output formats are %s", a.format, strings.Join(formats(), ", "))
	}
	return nil
}

// unknown explains a word that is no object, or that abbreviates several.
func unknown(cmd *cobra.Command, word string) error {
	var like []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && strings.HasPrefix(c.Name(), word) {
			like = append(like, c.Name())
		}
	}
	if slices.Sort(like); len(like) > 1 {
		return usagef("%q is ambiguous: %s", word, strings.Join(like, ", "))
	}
	cmd.SuggestionsMinimumDistance = 2
	if meant := cmd.SuggestionsFor(word); len(meant) > 0 {
		return usagef("no object or command %q: did you mean %s?", word, strings.Join(meant, " or "))
	}
	return usagef("no object or command %q", word)
}

// values are what a flag takes, for completion.
func values(c *cobra.Command, flag string, words ...string) {
	completeFlag(c, flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// useLine is a command with its arguments, as people write it.
func useLine(cmd *cobra.Command) string { return strings.TrimSuffix(cmd.UseLine(), " [flags]") }

func (a *app) client() (*control.Client, error) {
	c, err := control.New(a.socket)
	if errors.Is(err, control.ErrSocketPath) {
		return nil, usagef("%w", err)
	}
	return c, err
}

// maxArgs refuses more than n words as wrong usage.
func maxArgs(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return usagef("unexpected argument %q: want `%s`", strings.Join(args[n:], " "), useLine(cmd))
		}
		return nil
	}
}
