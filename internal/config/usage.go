package config

import (
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// HelpWidth is the width of all help texts, in columns.
const HelpWidth = 80

// UseHelp sets the help of c and its commands: at most HelpWidth columns, commands listed by
// group. Examples are not wrapped.
func UseHelp(c *cobra.Command) {
	c.SetHelpFunc(func(c *cobra.Command, _ []string) {
		text := c.Long
		if text == "" {
			text = c.Short
		}
		// Output keeps the error of a failed write.
		_, _ = fmt.Fprintf(c.OutOrStdout(), "%s\n\n%s", Wrap(text, HelpWidth), c.UsageString())
	})
	c.SetUsageFunc(func(c *cobra.Command) error {
		usage(c.OutOrStderr(), c)
		return nil
	})
}

func usage(w io.Writer, c *cobra.Command) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }
	say("Usage:\n")
	if c.Runnable() {
		say("  %s\n", c.UseLine())
	}
	if c.HasAvailableSubCommands() && c.HasParent() {
		say("  %s COMMAND\n", c.CommandPath())
	}
	if c.HasExample() {
		say("\nExamples:\n%s\n", c.Example)
	}
	last := "Commands:"
	if len(c.Groups()) > 0 {
		last = "Others:"
	}
	for _, g := range append(c.Groups(), &cobra.Group{Title: last}) {
		title := "\n" + g.Title + "\n"
		for _, sub := range c.Commands() {
			if sub.GroupID != g.ID || !sub.IsAvailableCommand() && sub.Name() != "help" {
				continue
			}
			say("%s%s\n", title, Wrap(fmt.Sprintf("  %-*s  %s", sub.NamePadding(), sub.Name(), sub.Short), HelpWidth))
			title = ""
		}
	}
	if c.HasAvailableLocalFlags() {
		say("\nFlags:\n%s", flagUsages(c.LocalFlags()))
	}
	if c.HasAvailableInheritedFlags() {
		say("\nFlags of all commands:\n%s", flagUsages(c.InheritedFlags()))
	}
	if c.HasAvailableSubCommands() {
		say("\n%s COMMAND --help says more about a command.\n", c.CommandPath())
	}
}

// Wrap breaks text at spaces into lines of at most width columns. Consecutive lines without
// indentation form a paragraph, which is filled. An indented line stays a line of its own: its
// continuation is aligned with its last column, which two spaces separate from the one before.
func Wrap(text string, width int) string {
	var out, paragraph []string
	flush := func() {
		if len(paragraph) > 0 {
			out = append(out, fill(strings.Join(paragraph, " "), 0, width)...)
		}
		paragraph = nil
	}
	for line := range strings.SplitSeq(strings.Trim(text, "\n"), "\n") {
		if line != "" && !strings.HasPrefix(line, " ") {
			paragraph = append(paragraph, line)
			continue
		}
		flush()
		out = append(out, fill(line, max(strings.LastIndex(line, "  "), 0), width)...)
	}
	flush()
	return strings.Join(out, "\n")
}

// fill breaks a line; all lines but the first are indented by indent.
func fill(line string, indent, width int) (out []string) {
	if indent > 0 {
		indent += 2
	}
	for {
		r := []rune(line)
		if len(r) <= width {
			return append(out, line)
		}
		at := width
		for at > indent && r[at] != ' ' {
			at--
		}
		if at <= indent { // a longer word is not broken
			for at = width; at < len(r) && r[at] != ' '; at++ {
			}
		}
		out = append(out, strings.TrimRight(string(r[:at]), " "))
		rest := strings.TrimLeft(string(r[at:]), " ")
		if rest == "" {
			return out
		}
		line = strings.Repeat(" ", indent) + rest
	}
}

// zeros matches the trailing zeros of a decimal fraction.
var zeros = regexp.MustCompile(`(?:\.|(\.\d*[1-9]))0+\b`)

// flagUsages returns the texts of the flags. Kinds of values have plain names there, not Go's.
func flagUsages(fs *pflag.FlagSet) string {
	shown := pflag.NewFlagSet("", pflag.ContinueOnError)
	fs.VisitAll(func(f *pflag.Flag) {
		g := *f
		g.Value = plainValue{f.Value}
		if _, ok := f.Value.(pflag.SliceValue); ok {
			g.DefValue = zeros.ReplaceAllString(strings.Trim(f.DefValue, "[]"), "$1") // as a user writes it
		}
		if g.DefValue == "0s" {
			g.DefValue = "" // 0s carries no information
		}
		shown.AddFlag(&g)
	})
	return shown.FlagUsagesWrapped(HelpWidth)
}

type plainValue struct{ pflag.Value }

// Type implements pflag.Value.
func (v plainValue) Type() string {
	kind := v.Value.Type()
	switch {
	case strings.HasSuffix(kind, "Slice"):
		return "list"
	case strings.HasPrefix(kind, "int"), strings.HasPrefix(kind, "uint"), strings.HasPrefix(kind, "float"), kind == "count":
		return "number"
	case kind == "duration":
		return "time"
	}
	return kind
}
