package config

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

func TestWrap(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"a paragraph is filled", "one two\nthree four five", "one two three\nfour five"},
		{"paragraphs stay apart", "one\n\ntwo", "one\n\ntwo"},
		{"an entry hangs", "  key  one two three\n  k2   four", "  key  one two\n       three\n  k2   four"},
		{"a long word stays whole", "one aaaaaaaaaaaaaaaaaa two", "one\naaaaaaaaaaaaaaaaaa\ntwo"},
		{"an end", "aaaaaaaaaaaaaaaaaa\n", "aaaaaaaaaaaaaaaaaa"},
	} {
		if got := Wrap(c.text, 14); got != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", c.name, got, c.want)
		}
	}
}

func TestHelp(t *testing.T) {
	root := &cobra.Command{Use: "tool", Long: strings.Repeat("word ", 40)}
	UseHelp(root)
	sub := &cobra.Command{Use: "sub", GroupID: "g", Short: strings.Repeat("short ", 30), Run: func(*cobra.Command, []string) {}}
	sub.Flags().Float64Slice("losses", []float64{0, 0.05, 10}, strings.Repeat("loss ", 30))
	sub.Flags().StringSlice("names", nil, "names")
	sub.Flags().Duration("idle", 0, "time")
	sub.Flags().String("kind", "all", "kind")
	sub.Flags().Duration("wait", time.Second, "time")
	root.AddGroup(&cobra.Group{ID: "g", Title: "Things:"})
	root.AddCommand(sub)
	for args, want := range map[string][]string{
		"--help":     {"\nThings:\n  sub          short", "\nOthers:\n", "\ntool COMMAND --help says"},
		"sub --help": {"--losses list", "(default 0,0.05,10)", "--names list    names\n", "--idle time     time\n", `--kind string   kind (default "all")`, "(default 1s)"},
	} {
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetArgs(strings.Fields(args))
		if err := root.Execute(); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out.String()) {
			if len(strings.TrimRight(line, "\n")) > HelpWidth {
				t.Errorf("%s: a long line: %s", args, line)
			}
		}
		for _, w := range want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("%s: no %q in\n%s", args, w, out.String())
			}
		}
	}
}
