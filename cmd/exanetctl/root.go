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

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/config"
	"github.com/exanet/pfd/internal/limits"
	"github.com/exanet/pfd/internal/version"
	"github.com/exanet/pfd/internal/workload"
)

// Exit codes (spec/api.md, "exanetctl").
const (
	exitOK       = 0
	exitFailed   = 1
	exitUsage    = 2
	exitNoDaemon = 3
	exitSkipped  = 4
)

// streams are the program's standard streams. Tests replace them.
type streams struct {
	in       io.Reader
	out, err io.Writer
	getenv   func(string) string
}

// Errors that determine the exit code; for all others it is exitFailed.
var (
	errUsage = errors.New("wrong usage")
	// errReported is the error of a command that has already printed its error.
	errReported = errors.New("failed")
)

// usageError is an error of usage. It matches errUsage.
type usageError struct{ err error }

func (e *usageError) Error() string        { return e.err.Error() }
func (e *usageError) Unwrap() error        { return e.err }
func (e *usageError) Is(target error) bool { return target == errUsage }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// run runs a command line and returns the exit code.
func run(ctx context.Context, args []string, s streams) int {
	root := newRoot(s)
	root.SetArgs(args)
	out := &config.Output{W: s.out}
	root.SetOut(out)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		err = outputError(out.Err)
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
	case errors.Is(err, workload.ErrSkipped):
		return exitSkipped
	}
	return exitFailed
}

// app is the state that all commands share: the streams and the global flags.
type app struct {
	streams
	socket string
	trust  []uint // users to whose pfd test processes may attach
	format string
	json   bool
	pretty bool
	watch  time.Duration
	// sort and columns are the columns of a table to sort by and to show. If columns is nil,
	// the width of the terminal decides.
	sort, columns []string
}

func newRoot(s streams) *cobra.Command {
	cobra.EnablePrefixMatching = true  // OBJECT and COMMAND may be abbreviated
	cobra.EnableCommandSorting = false // help lists them in the order of addCommands
	a := &app{streams: s}
	root := &cobra.Command{
		Use:   "exanetctl OBJECT [COMMAND]",
		Short: "Show and control the ExaNet page-fault daemon pfd",
		Long: `exanetctl shows the state of a running pfd and makes test transfers.

Objects and commands may be abbreviated if the abbreviation is unambiguous.
Without a COMMAND exanetctl shows the object. Tables go to standard output,
messages to standard error. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 pfd
does not answer or ended during the command, 4 skipped.`,
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
	f.StringVar(&a.socket, "socket", "", "control socket of pfd (default: the first that exists of pfd.sock in each directory of $RUNTIME_DIRECTORY, $XDG_RUNTIME_DIR/exanet/pfd.sock if not root, and the service's /run/exanet/pfd.sock)")
	f.UintSliceVar(&a.trust, "trust", nil, "uid of another user whose pfd may access the memory of test processes (write, read, perf); root, yourself and the service's user always may; in a rootless container the uid of the service is 65534")
	f.StringVarP(&a.format, "output", "o", "table", "output format: table, wide (all columns), json or csv")
	values(root, "output", formats()...)
	f.BoolVarP(&a.json, "json", "j", false, "same as -o json")
	f.BoolVarP(&a.pretty, "pretty", "p", false, "indent JSON")
	a.addCommands(root)
	root.SetHelpCommand(helpCommand(root))
	// Cobra would make it later; made here, an unknown shell is an error.
	root.InitDefaultCompletionCmd()
	if c, _, err := root.Find([]string{"completion"}); err == nil {
		c.Args, c.RunE = cobra.ArbitraryArgs, orHelp
	}
	return root
}

// trusted returns the user numbers of --trust.
func (a *app) trusted() []uint32 {
	var list []uint32
	for _, uid := range a.trust {
		list = append(list, uint32(uid))
	}
	return list
}

// helpCommand replaces cobra's, which accepts unknown words.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [OBJECT [COMMAND]]",
		Short: "Show the help of an object or command",
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

// orHelp runs a command that only has subcommands: it shows the help.
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

// unknown returns the error for a word that is no object, or that abbreviates several.
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

// values completes a flag with the words that it accepts.
func values(c *cobra.Command, flag string, words ...string) {
	completeFlag(c, flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// useLine returns a command with its arguments, without flags.
func useLine(cmd *cobra.Command) string { return strings.TrimSuffix(cmd.UseLine(), " [flags]") }

// asking returns the function of a command that asks pfd.
func (a *app) asking(ask func(cmd *cobra.Command, c *control.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.client()
		if err != nil {
			return err
		}
		return ask(cmd, c, args)
	}
}

func (a *app) client() (*control.Client, error) {
	c, err := control.New(a.socket)
	if errors.Is(err, control.ErrSocketPath) {
		return nil, usagef("%w", err)
	}
	return c, err
}

// maxArgs accepts up to n arguments.
func maxArgs(n int) cobra.PositionalArgs { return wantArgs(0, n) }

// wantArgs accepts least to most arguments. Other numbers are wrong usage.
func wantArgs(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return usagef("an argument is missing: want `%s`", useLine(cmd))
		case len(args) > most:
			return usagef("unexpected argument %q: want `%s`", strings.Join(args[most:], " "), useLine(cmd))
		}
		return nil
	}
}

// addCommands adds all commands in the groups and the order of the help text.
func (a *app) addCommands(root *cobra.Command) {
	for _, g := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"look", "Observe a running pfd:", []*cobra.Command{
			a.statusCommand(), a.topCommand(), a.uiCommand(),
			a.nodeCommand(), a.domainCommand(), a.channelCommand(), a.transactionCommand(), a.faultCommand(),
			a.fifoCommand(), a.smmuCommand(), a.gsasCommand(), a.hostCommand(), a.counterCommand(), a.traceCommand(), a.captureCommand(),
		}},
		{"transfer", "Make transfers and measure them:", []*cobra.Command{
			a.transferCommand(false), a.transferCommand(true), a.perfCommand(), a.dhtCommand(), a.demoCommand(), a.benchCommand(), a.studyCommand(), a.simCommand(),
		}},
		{"machine", "Set up a machine, real or virtual:", []*cobra.Command{
			a.doctorCommand(), a.bindCommand(), a.unbindCommand(), a.emuCommand(), a.qemuCommand(),
		}},
		{"", "", []*cobra.Command{
			a.replayCommand(), a.versionCommand(),
			a.processCommand(), a.echoCommand(), a.guestCommand(), // hidden
		}},
	} {
		if g.id != "" {
			root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		}
		for _, c := range g.commands {
			c.GroupID = g.id
			root.AddCommand(c)
		}
	}
}

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
