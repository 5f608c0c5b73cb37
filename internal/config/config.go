// Package config reads a configuration file whose keys are the names of command
// line flags. A flag on the command line wins over the file. What is wrong in a
// file is an error that names the line.
package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
	"github.com/spf13/pflag"

	"github.com/exanet/pfd/internal/plaintext"
)

// ErrConfig says that a configuration file cannot be used.
var ErrConfig = errors.New("configuration file")

// maxSize bounds a file (ours).
const maxSize = 1 << 20

// Entry is one key with its value as a flag would have it.
type Entry struct {
	Key, Value string
	Line       int
}

// Load sets those flags of fs that the file names and the command line has not
// set, and gives the keys that it took. skip are flags that a file may not set. Its
// errors match ErrConfig.
func Load(fs *pflag.FlagSet, file string, skip ...string) ([]Entry, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe is not waited for
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && (!info.Mode().IsRegular() || info.Size() > maxSize) {
		return nil, fmt.Errorf("%w %s: not a file of at most %d bytes", ErrConfig, file, maxSize)
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	entries, err := Parse(file, data)
	if err != nil {
		return nil, err
	}
	return Apply(fs, file, entries, skip...)
}

// Apply is Load for entries that have been read already.
func Apply(fs *pflag.FlagSet, file string, entries []Entry, skip ...string) (taken []Entry, _ error) {
	// What the command line has set is known before the file sets anything.
	given := map[string]bool{}
	fs.Visit(func(f *pflag.Flag) { given[f.Name] = true })
	for _, e := range entries {
		f := fs.Lookup(e.Key)
		if f == nil || slices.Contains(skip, e.Key) {
			return nil, fmt.Errorf("%w %s:%d: unknown key %q: the keys are %s", ErrConfig, file, e.Line, e.Key, strings.Join(keys(fs, skip), ", "))
		}
		if given[e.Key] {
			continue
		}
		if err := fs.Set(e.Key, e.Value); err != nil {
			return nil, fmt.Errorf("%w %s:%d: %w", ErrConfig, file, e.Line, Explain(fs, err))
		}
		taken = append(taken, e)
	}
	return taken, nil
}

func keys(fs *pflag.FlagSet, skip []string) (list []string) {
	fs.VisitAll(func(f *pflag.Flag) {
		if !slices.Contains(skip, f.Name) {
			list = append(list, f.Name)
		}
	})
	return list
}

// Blame says in which line a value stands that an error is about: the first flag that
// err names as --KEY, where the file has set it.
func Blame(file string, taken []Entry, err error) error {
	if err == nil {
		return nil
	}
	m := flagName.FindStringSubmatch(err.Error())
	for _, e := range taken {
		if m != nil && e.Key == m[1] {
			return fmt.Errorf("%s:%d: %w", file, e.Line, err)
		}
	}
	return err
}

var flagName = regexp.MustCompile(`--([a-z][a-z-]*)`)

// Parse reads the text of a file, whose name must end in .toml. Its errors match ErrConfig.
func Parse(file string, data []byte) ([]Entry, error) {
	data, err := plaintext.Text(data)
	if err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrConfig, file, err)
	}
	if ext := filepath.Ext(file); ext != ".toml" {
		return nil, fmt.Errorf("%w %s: its name ends in %q: the language is TOML, and the name must end in .toml", ErrConfig, file, ext)
	}
	return parseTOML(file, data)
}

func parseTOML(file string, data []byte) (list []Entry, err error) {
	// The parser below reads what is well formed; this also checks keys that come
	// twice, dates and the like.
	var all map[string]any
	if err := toml.Unmarshal(data, &all); err != nil {
		var d *toml.DecodeError
		if errors.As(err, &d) {
			line, _ := d.Position()
			return nil, fmt.Errorf("%w %s:%d: %w", ErrConfig, file, line, err)
		}
		return nil, fmt.Errorf("%w %s: %w", ErrConfig, file, err)
	}
	var p unstable.Parser
	p.Reset(data)
	for p.NextExpression() {
		e := p.Expression()
		if e.Kind == unstable.Comment {
			continue
		}
		k := e.Key()
		if !k.Next() {
			continue
		}
		line := p.Shape(k.Node().Raw).Start.Line
		key := string(k.Node().Data)
		if e.Kind != unstable.KeyValue || !k.IsLast() {
			return nil, fmt.Errorf("%w %s:%d: %q: there are no sections here, keys have no dots", ErrConfig, file, line, key)
		}
		value, ok := tomlValue(e.Value())
		if !ok {
			return nil, fmt.Errorf("%w %s:%d: %s: want a text, a number, true or false, or a list of them", ErrConfig, file, line, key)
		}
		list = append(list, Entry{key, value, line})
	}
	if err := p.Error(); err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrConfig, file, err)
	}
	return list, nil
}

func tomlValue(n *unstable.Node) (string, bool) {
	switch n.Kind {
	case unstable.String, unstable.Integer, unstable.Float, unstable.Bool:
		return string(n.Data), true
	case unstable.Array:
		var parts []string
		for it := n.Children(); it.Next(); {
			if it.Node().Kind == unstable.Comment {
				continue
			}
			v, ok := tomlValue(it.Node())
			if !ok {
				return "", false
			}
			parts = append(parts, v)
		}
		return strings.Join(parts, ","), true
	}
	return "", false
}
