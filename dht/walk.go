package dht

import (
	"context"
	"fmt"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gsas"
)

// Nodes returns the nodes that the table is spread over, in the order of its parts.
func (t *Table) Nodes() []device.NodeID {
	n := make([]device.NodeID, len(t.parts))
	for i, at := range t.parts {
		n[i] = nodeOf(at)
	}
	return n
}

// Stats describes the memory of a table's part.
type Stats struct {
	Keys       int // that it holds
	Deleted    int // elements of keys that were deleted
	Elements   int // of the first level
	Containers int
	Depth      int // containers below the deepest element
}

// Range calls f for each key of a part of the table, until it returns false. A change that is made at
// the same time is seen or not. Range reads each page of the part, which brings it into memory.
func (t *Table) Range(ctx context.Context, part int, f func(key uint64, e Entry) bool) error {
	_, err := t.walk(ctx, part, f)
	return err
}

// Stats reads a part of the table, and describes it.
func (t *Table) Stats(ctx context.Context, part int) (Stats, error) {
	return t.walk(ctx, part, func(uint64, Entry) bool { return true })
}

func (t *Table) walk(ctx context.Context, part int, f func(key uint64, e Entry) bool) (Stats, error) {
	if part < 0 || part >= len(t.parts) {
		return Stats{}, fmt.Errorf("dht: table %q has parts 0 to %d, and no part %d", t.name, len(t.parts)-1, part)
	}
	w := walker{t: t, f: f, visited: make(map[gsas.Address]bool)}
	from := uint64(part) * t.each
	w.Elements = int(max(min(t.each, 1<<t.log-min(from, 1<<t.log)), 0))
	for i := range uint64(w.Elements) {
		if err := w.visit(ctx, t.first(from+i), 0); err != nil {
			return Stats{}, fmt.Errorf("dht: walk part %d of table %q: %w", part, t.name, err)
		}
		if w.ended {
			break
		}
	}
	return w.Stats, nil
}

// A walker visits elements. Each container belongs to one element: one that it meets twice was not put
// there by the table, and could keep it for ever.
type walker struct {
	Stats
	t       *Table
	f       func(uint64, Entry) bool
	visited map[gsas.Address]bool
	ended   bool
}

func (w *walker) visit(ctx context.Context, at gsas.Address, depth int) error {
	e, err := w.t.load(ctx, at)
	switch {
	case err != nil || e.empty():
		return err
	case e.deleted():
		w.Deleted++
		return nil
	case !e.indirect():
		w.Keys++
		w.ended = !w.f(e[1], e.entry())
		return nil
	}
	container := gsas.Address(e[1])
	if err := w.t.checkContainer(at, container); err != nil {
		return err
	}
	if depth == containerLevels || w.visited[container] {
		return fmt.Errorf("the element at %#x leads to %#x again: %w", at, container, ErrCorrupt)
	}
	w.visited[container] = true
	w.Containers++
	w.Depth = max(w.Depth, depth+1)
	for i := 0; i < containerBytes/elementBytes && !w.ended; i++ {
		if err := w.visit(ctx, container+elementBytes*gsas.Address(i), depth+1); err != nil {
			return corruptAt(at, container, err)
		}
	}
	return nil
}
