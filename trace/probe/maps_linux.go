package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Maps are the pinned maps of a tracer, to be read.
type Maps struct {
	dir  string
	maps map[string]*ebpf.Map
}

// Open opens the maps of a directory. Errors match ErrOff where nothing is pinned, and
// ErrDir where it is not what this program pins.
func Open(dir string) (*Maps, error) {
	if dir == "" {
		dir = DefaultDir
	}
	return open(dir)
}

func open(dir string) (*Maps, error) {
	spec, err := loadProbe()
	if err != nil {
		return nil, err
	}
	m := &Maps{dir: dir, maps: map[string]*ebpf.Map{}}
	for _, name := range shared {
		p, err := ebpf.LoadPinnedMap(filepath.Join(dir, name), nil)
		if errors.Is(err, fs.ErrNotExist) {
			m.Close()
			return nil, fmt.Errorf("%w: nothing is pinned in %s: run `exanetctl trace on`", ErrOff, dir)
		}
		if err != nil {
			m.Close()
			return nil, fmt.Errorf("%w: %s: %w", ErrDir, filepath.Join(dir, name), explain(err))
		}
		m.maps[name] = p
		want := spec.Maps[name]
		if p.Type() != want.Type || p.KeySize() != want.KeySize || p.ValueSize() != want.ValueSize {
			m.Close()
			return nil, fmt.Errorf("%w: %s was pinned by another version: run `exanetctl trace clean`", ErrDir, filepath.Join(dir, name))
		}
	}
	return m, nil
}

// Close closes the maps; what is pinned stays.
func (m *Maps) Close() {
	for _, p := range m.maps {
		p.Close()
	}
}

// Status tells about a tracer.
type Status struct {
	Dir      string        `json:"bpffs"`
	Program  string        `json:"program"`  // the file that is watched
	Replaced bool          `json:"replaced"` // another file stands there by now
	Sources  []SourceState `json:"sources"`
	Watched  []Watched     `json:"watched"`
	// Counters are fault_counters, by their names.
	Counters map[string]uint64 `json:"counters"`
}

// SourceState is one source: it is attached, or why not.
type SourceState struct {
	Name     string `json:"name"`
	Attached bool   `json:"attached"`
	Nop      int    `json:"nop,omitempty"` // bytes
	Reason   string `json:"reason,omitempty"`
}

// Watched is a pfd that has shown a batch.
type Watched struct {
	PID     uint32 `json:"pid"`
	Batches uint64 `json:"batches"`
	LastNS  uint64 `json:"last_ns"` // CLOCK_MONOTONIC
	Alive   bool   `json:"alive"`
}

func (s *Status) attached() bool { return len(s.Sources) > 0 && s.Sources[0].Attached }

// Status reads what is attached, and who is watched.
func (m *Maps) Status() (*Status, error) {
	s := &Status{Dir: m.dir, Counters: map[string]uint64{}}
	if l, err := m.link(); err == nil {
		if info, err := l.Info(); err == nil {
			if u := info.UprobeMulti(); u != nil {
				s.Program = u.File
				s.Replaced = strings.HasSuffix(u.File, " (deleted)")
			}
		}
		l.Close()
	} else {
		return nil, fmt.Errorf("%w: the link to the point: %w: run `exanetctl trace clean`", ErrDir, err)
	}
	for _, src := range sources {
		var v probeSourceState
		if err := m.maps[sourcesMap].Lookup(src.id, &v); err != nil {
			continue
		}
		s.Sources = append(s.Sources, SourceState{
			Name: sourceNames[src.id], Attached: v.Attached != 0, Nop: int(v.Nop), Reason: text(v.Reason[:]),
		})
	}
	var pid uint32
	var p probePfd
	for it := m.maps[pfdsMap].Iterate(); it.Next(&pid, &p); {
		_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
		s.Watched = append(s.Watched, Watched{PID: pid, Batches: p.Batches, LastNS: p.LastNs, Alive: err == nil})
	}
	for c := range probeCounterCOUNTERS {
		var v uint64
		if err := m.maps[countersMap].Lookup(c, &v); err != nil {
			return nil, fmt.Errorf("map %s: %w", countersMap, err)
		}
		s.Counters[counterNames[c]] = v
	}
	return s, nil
}

func text(b []int8) string {
	var t strings.Builder
	for _, c := range b {
		if c == 0 {
			break
		}
		t.WriteByte(byte(c))
	}
	return t.String()
}

// link opens the pinned link to the point.
func (m *Maps) link() (link.Link, error) {
	var errs []error
	for _, name := range sources[0].programs {
		l, err := link.LoadPinnedLink(filepath.Join(m.dir, linkPrefix+name), nil)
		if err == nil {
			return l, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}
