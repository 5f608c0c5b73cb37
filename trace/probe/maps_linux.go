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

// Maps are the maps of a tracer, for reading.
type Maps struct {
	dir   string
	maps  map[string]*ebpf.Map
	links map[string]link.Link // attached by this process, by the names of their pins
}

// Open opens the maps pinned in a directory. Errors match ErrOff if nothing is pinned, and
// ErrDir if the pins are not this program's.
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

// Close closes the maps. Pinned programs stay attached, others are detached.
func (m *Maps) Close() {
	for _, l := range m.links {
		l.Close()
	}
	for _, p := range m.maps {
		p.Close()
	}
}

// Status is the state of a tracer.
type Status struct {
	Dir      string        `json:"bpffs"`
	Programs []Program     `json:"programs"`
	Sources  []SourceState `json:"sources"`
	Watched  []Watched     `json:"watched"`
	Reader   uint32        `json:"reader,omitempty"` // pid of the process that reads the events
	// Counters are fault_counters by name.
	Counters map[string]uint64 `json:"counters"`
}

// Program is the file of a traced program.
type Program struct {
	File     string `json:"file"`
	Replaced bool   `json:"replaced"` // another file now has the name
}

// SourceState is the state of a source: attached, or the reason why not.
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

// Status returns what is attached, and which pfds are traced.
func (m *Maps) Status() (*Status, error) {
	s := &Status{Dir: m.dir, Counters: map[string]uint64{}}
	var err error
	if s.Programs, err = m.programs(); err != nil {
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
	var set probeSettings
	if err := m.maps[settingsMap].Lookup(uint32(0), &set); err != nil {
		return nil, fmt.Errorf("map %s: %w", settingsMap, err)
	}
	s.Reader = set.Events
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

// programs returns the files of the traced programs.
func (m *Maps) programs() ([]Program, error) {
	var list []Program
	var errs []error
	for _, name := range sources[0].programs {
		for i := 0; ; i++ {
			l, err := m.link(pointLink(name, i))
			if err != nil {
				errs = append(errs, err)
				break
			}
			var p Program
			if info, err := l.Info(); err == nil {
				if u := info.UprobeMulti(); u != nil {
					p = Program{u.File, strings.HasSuffix(u.File, " (deleted)")}
				}
			}
			list = append(list, p)
			if m.links == nil {
				l.Close()
			}
		}
	}
	if list == nil {
		return nil, errors.Join(errs...)
	}
	return list, nil
}

// link returns a link of this process, or opens a pinned one.
func (m *Maps) link(name string) (link.Link, error) {
	if m.links == nil {
		return link.LoadPinnedLink(filepath.Join(m.dir, name), nil)
	}
	if l := m.links[name]; l != nil {
		return l, nil
	}
	return nil, fs.ErrNotExist
}
