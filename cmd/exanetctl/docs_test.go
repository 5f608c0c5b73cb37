package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/exanet/pfd/workload/bench"
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
