package scenario

import (
	"fmt"
	"io"

	"github.com/exanet/pfd/internal/sim"
)

// recording is the part of a recording of pfd that a workload uses.
type recording struct {
	nodes int
	list  []sim.Rung
}

// Recordings returns the names of the recordings that the file names. Each must be loaded before the
// scenario runs.
func (f *File) Recordings() (names []string) {
	for i := range f.Workload {
		if name := f.Workload[i].File; name != "" {
			names = append(names, name)
		}
	}
	return names
}

// Load reads a recording, which a file names. Errors match ErrFile.
func (f *File) Load(name string, in io.Reader) error {
	list, r, err := sim.Transfers(in)
	if err != nil {
		return fmt.Errorf("%w: recording %s: %w", ErrFile, name, err)
	}
	if f.recordings == nil {
		f.recordings = map[string]*recording{}
	}
	f.recordings[name] = &recording{r.Header.Nodes, list}
	return nil
}

// replay adds the transfers of a recording: the first one at the workload's start, the others as long after
// it as they were recorded. Transfers that no machine would accept are left out.
func (e *expansion) replay(group int, w *Workload, r *recording) error {
	if r == nil {
		return fmt.Errorf("%w: recording %s is not loaded", ErrFile, w.File)
	}
	if r.nodes > e.nodes {
		return fmt.Errorf("%w: recording %s has %d nodes, and the topology has %d", ErrFile, w.File, r.nodes, e.nodes)
	}
	for i := range r.list {
		if len(e.list) > maxTransfers {
			return nil // Expand refuses it
		}
		t := &r.list[i]
		if t.Size == 0 || t.Size > maxSize || int(t.To) >= r.nodes {
			continue
		}
		one := *w
		one.Read, one.Urgent = t.Read, t.Urgent
		at := e.put(group, &one, int(t.From), int(t.To), int(t.Size), -1)
		e.list[at].Start += t.At - r.list[0].At
	}
	return nil
}
