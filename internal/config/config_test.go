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

// Both languages say the same.
func TestLoad(t *testing.T) {
	for name, text := range map[string]string{
		"a.toml": "# pfd\nnodes = 3\nsocket = \"/run/a b.sock\" # there\ndrain-time = \"2s\"\nquiet = true\nnames = [\"a\", \"b\"]\n",
		"a.yaml": "# pfd\nnodes: 3\nsocket: /run/a b.sock\ndrain-time: 2s\nquiet: true\nnames: [a, b]\n",
		"a.yml":  "---\nnodes: 0x3\nsocket: \"/run/a b.sock\"\ndrain-time: '2s'\nquiet: true\nnames:\n  - a\n  - b\n",
	} {
		t.Run(name, func(t *testing.T) {
			f := newFlags()
			if _, err := Load(f.FlagSet, write(t, name, text), "config"); err != nil {
				t.Fatal(err)
			}
			if f.nodes != 3 || f.socket != "/run/a b.sock" || f.drain != 2*time.Second || !f.quiet || !slices.Equal(f.names, []string{"a", "b"}) {
				t.Errorf("%+v", f)
			}
			// The command line wins.
			f = newFlags()
			if err := f.Parse([]string{"--nodes", "7"}); err != nil {
				t.Fatal(err)
			}
			if _, err := Load(f.FlagSet, write(t, name, text), "config"); err != nil || f.nodes != 7 || f.drain != 2*time.Second {
				t.Errorf("%+v, %v", f, err)
			}
		})
	}
}

func TestEmpty(t *testing.T) {
	for _, name := range []string{"e.toml", "e.yaml"} {
		for _, text := range []string{"", "\n", "# nothing\n"} {
			if _, err := Load(newFlags().FlagSet, write(t, name, text)); err != nil {
				t.Errorf("%s %q: %v", name, text, err)
			}
		}
	}
}

func TestErrorsNameTheLine(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"a.toml", "nodes = 3\n\nnode = 3\n", "a.toml:3: unknown key \"node\": the keys are drain-time, names, nodes, quiet, socket"},
		{"a.yaml", "nodes: 3\n\nnode: 3\n", "a.yaml:3: unknown key \"node\""},
		{"a.toml", "config = \"x\"\n", "a.toml:1: unknown key"},
		{"a.toml", "\nnodes = \"many\"\n", "a.toml:2: --nodes many: want a whole number"},
		{"a.yaml", "\nnodes: many\n", "a.yaml:2: --nodes many: want a whole number"},
		{"a.toml", "nodes = 3\nnodes = 4\n", "a.toml:2: "},
		{"a.yaml", "nodes: 3\nnodes: 4\n", "a.yaml:2: nodes stands in line 1"},
		{"a.toml", "nodes = 3\nsocket =\n", "a.toml:2: "},
		{"a.yaml", "nodes: 3\nsocket: [\n", "line 2"},
		{"a.toml", "[pfd]\nnodes = 3\n", "a.toml:1: \"pfd\": there are no sections"},
		{"a.toml", "pfd.nodes = 3\n", "a.toml:1: \"pfd\": there are no sections"},
		{"a.toml", "nodes = {a = 1}\n", "a.toml:1: nodes: want a text"},
		{"a.yaml", "nodes: {a: 1}\n", "a.yaml:1: nodes: want a text"},
		{"a.yaml", "socket:\n", "a.yaml:1: socket: want a text"},
		{"a.yaml", "- nodes\n", "a.yaml:1: want lines"},
		{"a.json", "{}", "want .toml, .yaml or .yml"},
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

// What editors and generators put around a text is no part of it, and what is no text is
// said to be none.
func TestEditors(t *testing.T) {
	const mark = "\xef\xbb\xbf"
	for _, c := range []struct {
		file, text string
		want       string // of the error; "": none
	}{
		{"f.toml", mark + "nodes = 3\r\n", ""},
		{"f.yaml", mark + "nodes: 3\r\n", ""},
		{"f.toml", "nodes = 3", ""},
		{"f.toml", "\tnodes\t=\t3\n", ""},
		{"f.yaml", "---\nnodes: 3\n...\n", ""},
		{"f.yaml", "---\nnodes: 3\n---\nnodes: 4\n", "f.yaml:3: a second document"},
		{"f.toml", "\xff\xfen\x00", "UTF-16"},
		{"f.yaml", "\xff\xfen\x00", "UTF-16"},
		{"f.toml", "nodes = 3\n\x00", "line 2"},
		{"f.yaml", "# f\xfcr\nnodes: 3\n", "line 1"},
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
	for _, s := range []string{"nodes = 3\n", "nodes: 3\n", "a = [1, 'b']\n", "a: [1, b]\n", "[x]\n", "? [a]\n: b\n", "&a x: *a\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, name := range []string{"f.toml", "f.yaml"} {
			list, err := Parse(name, []byte(text))
			if err != nil && !errors.Is(err, ErrConfig) {
				t.Errorf("%s: %v does not match ErrConfig", name, err)
			}
			for _, e := range list {
				if e.Line < 1 || e.Line > 1+strings.Count(text, "\n")+strings.Count(text, "\r")+strings.Count(text, "\u0085")+strings.Count(text, "\u2028")+strings.Count(text, "\u2029") {
					t.Errorf("%s: %+v is in no line of %q", name, e, text)
				}
			}
		}
	})
}
