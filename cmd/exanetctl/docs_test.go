package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/exanet/pfd/internal/config"
	"github.com/exanet/pfd/internal/workload/bench"
)

// docs/exanetctl.md names every command and every flag.
func TestDocsNameAll(t *testing.T) {
	text, err := os.ReadFile("../../docs/exanetctl.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(text)
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Hidden || c.Name() == "help" {
			return
		}
		if c.HasParent() && !strings.Contains(doc, "`"+c.Name()) && !strings.Contains(doc, "exanetctl "+c.Name()) && !strings.Contains(doc, c.Parent().Name()+" "+c.Name()) {
			t.Errorf("docs/exanetctl.md does not name %s", c.CommandPath())
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if c.Parent() != nil && c.Parent().Name() == "completion" {
				return // cobra's
			}
			if f.Name != "help" && f.Name != "version" && !strings.Contains(doc, "--"+f.Name) && (f.Shorthand == "" || !strings.Contains(doc, "`-"+f.Shorthand)) {
				t.Errorf("docs/exanetctl.md does not name %s --%s", c.CommandPath(), f.Name)
			}
		})
		for _, s := range c.Commands() {
			walk(s)
		}
	}
	walk(newRoot(streams{}))
	if want := fmt.Sprintf("(of `bench` and `study` %d)", bench.ReportVersion); !strings.Contains(doc, want) {
		t.Errorf("docs/exanetctl.md does not say %q", want)
	}
}

// Every help text fits 80 columns, and none contains names of Go types.
func TestHelpFitsTheTerminal(t *testing.T) {
	types := regexp.MustCompile(`\b(u?int(8|16|32|64)?|float(32|64)?|\w+Slice)\b`)
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		words := append(strings.Fields(c.CommandPath())[1:], "--help")
		_, out, _ := ctl(words...)
		for line := range strings.Lines(out) {
			if n := widest(line); n > config.HelpWidth {
				t.Errorf("%q: a line of %d columns: %s", words, n, line)
			}
			if word := types.FindString(line); word != "" {
				t.Errorf("%q: %q in %s", words, word, line)
			}
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	root := newRoot(streams{})
	walk(root)
	// All commands but cobra's own and two more are in groups.
	for _, c := range root.Commands() {
		if others := "completion help replay version"; c.IsAvailableCommand() && c.GroupID == "" && !strings.Contains(others, c.Name()) {
			t.Errorf("%s is in no group", c.Name())
		}
	}
}
