// Package manual generates the manual pages of a program from its commands: cobra's pages in
// man(7), with more sections.
package manual

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

// Section is a section that follows the options.
type Section struct{ Name, Text string } // Text in man(7)

// Program describes a program with its manual pages.
type Program struct {
	Section string // of the manual
	// All appear in every page, Root only in the program's own page, in this order.
	Root, All []Section
	SeeAlso   string // of the program's own page, in man(7)
}

// noValue matches defaults without information, of flags that are off, empty or unset.
var noValue = regexp.MustCompile(`(?m)^(\\fB.*\\fP)(\[=(false|"")\]|=("")|=0s?)$`)

// Write writes a page for c and each command below it into dir. It leaves out those for shells
// of other systems.
func (p *Program) Write(c *cobra.Command, dir string) error {
	c.DisableAutoGenTag = true
	c.InitDefaultHelpFlag()
	if !c.HasParent() {
		c.InitDefaultCompletionCmd()
	}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "powershell" {
			if err := p.Write(sub, dir); err != nil {
				return err
			}
		}
	}
	page, err := p.page(c)
	if err != nil {
		return err
	}
	name := strings.ReplaceAll(c.CommandPath(), " ", "-") + "." + p.Section
	return os.WriteFile(filepath.Join(dir, name), page, 0o644)
}

func (p *Program) page(c *cobra.Command) ([]byte, error) {
	var b bytes.Buffer
	if err := doc.GenMan(c, &doc.GenManHeader{Section: p.Section, Source: "ExaNet", Manual: "ExaNet manual"}, &b); err != nil {
		return nil, fmt.Errorf("%s: %w", c.CommandPath(), err)
	}
	text := noValue.ReplaceAllString(b.String(), "$1")
	text = strings.ReplaceAll(text, "\n.SH EXAMPLE\n", "\n.SH EXAMPLES\n")
	text = regexp.MustCompile(`, \\fB[a-z-]+-completion-powershell\([0-9]\)\\fP`).ReplaceAllString(text, "")
	var more strings.Builder
	list := p.All
	if !c.HasParent() {
		list = append(append([]Section{}, p.Root...), p.All...)
	}
	for _, s := range list {
		fmt.Fprintf(&more, ".SH %s\n%s\n", s.Name, strings.TrimSpace(s.Text))
	}
	body, also, ok := strings.Cut(text, "\n.SH SEE ALSO\n")
	if !c.HasParent() && p.SeeAlso != "" {
		also = strings.Trim(p.SeeAlso+",\n"+strings.TrimSpace(also), ",\n") + "\n"
		ok = true
	}
	text = body + "\n" + more.String()
	if ok {
		text += ".SH SEE ALSO\n" + also
	}
	return []byte(text), nil
}

// Settings returns the page name.section of a configuration file whose keys are flags. intro
// and after are in man(7); flags in skip are not keys.
func Settings(name, section, summary, intro, after string, f *pflag.FlagSet, skip ...string) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %q %q \"\" \"ExaNet\" \"ExaNet manual\"\n.SH NAME\n%s \\- %s\n%s\n.SH KEYS\n", strings.ToUpper(name), section, name, summary, strings.TrimSpace(intro))
	no := map[string]bool{}
	for _, s := range skip {
		no[s] = true
	}
	f.VisitAll(func(fl *pflag.Flag) {
		if no[fl.Name] {
			return
		}
		value := ""
		switch fl.DefValue {
		case "", "0", "0s":
		default:
			value = " = " + fl.DefValue
			if t := fl.Value.Type(); t == "string" || t == "duration" {
				value = fmt.Sprintf(" = %q", fl.DefValue)
			}
		}
		fmt.Fprintf(&b, ".TP\n.B %s%s\n%s\n", escape(fl.Name), escape(value), escape(fl.Usage))
	})
	return []byte(b.String() + strings.TrimSpace(after) + "\n")
}

// escape escapes text for man(7).
func escape(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}
