// Package config reads a configuration file whose keys are the names of command line flags. A
// flag on the command line overrides the file. An error in a file names the line.
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

// ErrConfig reports that a configuration file cannot be used.
var ErrConfig = errors.New("configuration file")

// maxSize limits the size of a file; defined by this project.
const maxSize = 1 << 20

// Entry is one key of a file, with its value in the form that a flag accepts.
type Entry struct {
	Key, Value string
	Line       int
}

// Load sets the flags of fs that the file names and the command line has not set. It returns
// the entries that it applied. A file may not set the flags in skip. Errors match ErrConfig.
func Load(fs *pflag.FlagSet, file string, skip ...string) ([]Entry, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0) // opening a pipe does not block
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && (!info.Mode().IsRegular() || info.Size() > maxSize) {
		return nil, fmt.Errorf("%w %s: not a regular file of at most %d bytes", ErrConfig, file, maxSize)
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

// Apply is like Load, for entries that Parse has returned.
func Apply(fs *pflag.FlagSet, file string, entries []Entry, skip ...string) (taken []Entry, _ error) {
	// Collect the flags of the command line before the file sets any.
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

// Blame adds the file and the line to err, where the file has set the first flag that err names
// as --KEY.
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

// Parse reads the text of a file, whose name must end in .toml. Errors match ErrConfig.
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
	// The parser below reads well-formed text. Unmarshal also rejects duplicate keys, bad dates
	// and the like.
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
			return nil, fmt.Errorf("%w %s:%d: %q: sections and dotted keys are not supported", ErrConfig, file, line, key)
		}
		value, ok := tomlValue(e.Value())
		if !ok {
			return nil, fmt.Errorf("%w %s:%d: %s: a value must be a string, a number, true, false, or a list of these", ErrConfig, file, line, key)
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
