package config

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

type flags struct {
	*pflag.FlagSet
	nodes  int
	socket string
	drain  time.Duration
	quiet  bool
	names  []string
}

func newFlags() *flags {
	f := &flags{FlagSet: pflag.NewFlagSet("pfd", pflag.ContinueOnError)}
	f.IntVar(&f.nodes, "nodes", 2, "")
	f.StringVar(&f.socket, "socket", "", "")
	f.DurationVar(&f.drain, "drain-time", time.Second, "")
	f.BoolVar(&f.quiet, "quiet", false, "")
	f.StringSliceVar(&f.names, "names", nil, "")
	f.String("config", "", "")
	return f
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoad(t *testing.T) {
	const text = "# pfd\nnodes = 3\nsocket = \"/run/a b.sock\" # there\ndrain-time = \"2s\"\nquiet = true\nnames = [\"a\", \"b\"]\n"
	file := write(t, "a.toml", text)
	f := newFlags()
	if _, err := Load(f.FlagSet, file, "config"); err != nil {
		t.Fatal(err)
	}
	if f.nodes != 3 || f.socket != "/run/a b.sock" || f.drain != 2*time.Second || !f.quiet || !slices.Equal(f.names, []string{"a", "b"}) {
		t.Errorf("%+v", f)
	}
	// The command line overrides the file.
	f = newFlags()
	if err := f.Parse([]string{"--nodes", "7"}); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(f.FlagSet, file, "config"); err != nil || f.nodes != 7 || f.drain != 2*time.Second {
		t.Errorf("%+v, %v", f, err)
	}
}

func TestEmpty(t *testing.T) {
	for _, text := range []string{"", "\n", "# nothing\n"} {
		if _, err := Load(newFlags().FlagSet, write(t, "e.toml", text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestErrorsNameTheLine(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"a.toml", "nodes = 3\n\nnode = 3\n", "a.toml:3: unknown key \"node\": the keys are drain-time, names, nodes, quiet, socket"},
		{"a.toml", "config = \"x\"\n", "a.toml:1: unknown key"},
		{"a.toml", "\nnodes = \"many\"\n", "a.toml:2: --nodes many: want a whole number"},
		{"a.toml", "nodes = 3\nnodes = 4\n", "a.toml:2: "},
		{"a.toml", "nodes = 3\nsocket =\n", "a.toml:2: "},
		{"a.toml", "[pfd]\nnodes = 3\n", "a.toml:1: \"pfd\": sections and dotted keys are not supported"},
		{"a.toml", "pfd.nodes = 3\n", "a.toml:1: \"pfd\": sections and dotted keys are not supported"},
		{"a.toml", "nodes = {a = 1}\n", "a.toml:1: nodes: a value must be a string"},
		{"a.json", "{}", "must end in .toml"},
		{"a.yaml", "nodes: 3\n", "must end in .toml"},
	} {
		_, err := Load(newFlags().FlagSet, write(t, c.name, c.text), "config")
		if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %q: %v, want %q", c.name, c.text, err, c.want)
		}
	}
	if _, err := Load(newFlags().FlagSet, filepath.Join(t.TempDir(), "none.toml")); !errors.Is(err, ErrConfig) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if _, err := Load(newFlags().FlagSet, t.TempDir()); !errors.Is(err, ErrConfig) {
		t.Errorf("a directory: %v", err)
	}
}

// Byte order marks and other line ends are removed; other encodings are rejected.
func TestEditors(t *testing.T) {
	const mark = "\xef\xbb\xbf"
	for _, c := range []struct {
		file, text string
		want       string // text of the error; "": none
	}{
		{"f.toml", mark + "nodes = 3\r\n", ""},
		{"f.toml", "nodes = 3", ""},
		{"f.toml", "\tnodes\t=\t3\n", ""},
		{"f.toml", "\xff\xfen\x00", "UTF-16"},
		{"f.toml", "nodes = 3\n\x00", "line 2"},
	} {
		list, err := Parse(c.file, []byte(c.text))
		switch {
		case c.want == "" && (err != nil || len(list) != 1 || list[0].Key != "nodes" || list[0].Value != "3"):
			t.Errorf("%s %q: %v, %v", c.file, c.text, list, err)
		case c.want != "" && (!errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s %q: %v, want %q", c.file, c.text, err, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"nodes = 3\n", "a = [1, 'b']\n", "[x]\n", "a.b = 1\n", "a = {b = 1}\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list, err := Parse("f.toml", []byte(text))
		if err != nil && !errors.Is(err, ErrConfig) {
			t.Errorf("%v does not match ErrConfig", err)
		}
		for _, e := range list {
			if e.Line < 1 || e.Line > 1+strings.Count(text, "\n") {
				t.Errorf("%+v is in no line of %q", e, text)
			}
		}
	})
}
