package manual

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func TestPages(t *testing.T) {
	root := &cobra.Command{Use: "tool OBJECT", Short: "Do things", Long: "tool does things.", Example: "  tool thing"}
	sub := &cobra.Command{Use: "thing", Short: "Do a thing", Run: func(*cobra.Command, []string) {}}
	sub.Flags().Int("window", 0, "bytes")
	sub.Flags().Duration("idle", 0, "time")
	sub.Flags().Bool("all", false, "everything")
	sub.Flags().String("name", "", "who")
	sub.Flags().Int("nodes", 20, "how many")
	root.AddCommand(sub)
	dir := t.TempDir()
	p := Program{
		Section: "8", SeeAlso: "\\fBother(7)\\fP",
		Root: []Section{{"FILES", "none"}}, All: []Section{{"EXIT STATUS", "0"}},
	}
	if err := p.Write(root, dir); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	page := read("tool.8")
	at := -1
	for _, section := range []string{"NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES", "FILES", "EXIT STATUS", "SEE ALSO"} {
		i := strings.Index(page, "\n.SH "+section+"\n")
		if i <= at {
			t.Errorf("section %s is at %d, the one before at %d:\n%s", section, i, at, page)
		}
		at = i
	}
	if !strings.Contains(page, "\\fBother(7)\\fP") || !strings.Contains(page, "tool-thing(8)") {
		t.Errorf("it refers to\n%s", page[at:])
	}
	page = read("tool-thing.8")
	for _, bad := range []string{"=0", "=\"\"", "=false", ".SH FILES"} {
		if strings.Contains(page, bad) {
			t.Errorf("%s in\n%s", bad, page)
		}
	}
	if !strings.Contains(page, "=20") || !strings.Contains(page, ".SH EXIT STATUS") {
		t.Errorf("the page is\n%s", page)
	}
	if list, err := filepath.Glob(filepath.Join(dir, "*powershell*")); err != nil || len(list) != 0 {
		t.Errorf("pages %q, %v", list, err)
	}
	if strings.Contains(read("tool-completion.8"), "powershell(8)") {
		t.Error("a page refers to a missing page")
	}
}

func TestSettings(t *testing.T) {
	f := pflag.NewFlagSet("tool", pflag.ContinueOnError)
	f.Int("nodes", 2, "how many")
	f.String("name", "a-b", ".who")
	f.Int("window", 0, "bytes")
	f.String("config", "", "not a key")
	text := string(Settings("tool.toml", "5", "settings", ".SH DESCRIPTION\nText.", ".SH FILES", f, "config"))
	for _, want := range []string{".TH \"TOOL.TOML\" \"5\"", ".B nodes = 2\nhow many\n", ".B name = \"a\\-b\"\n\\&.who\n", ".B window\nbytes\n", "Text.\n.SH KEYS\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "not a key") {
		t.Error("the page has a flag that is not a key")
	}
}
