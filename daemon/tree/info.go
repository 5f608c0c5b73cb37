package tree

import (
	"cmp"
	"maps"
	"slices"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
)

// Info describes a tree.
type Info struct {
	Protection atomics.Protection
	Owner      string // the host whose pfd has it; "": this one
	UID        uint32
	Threads    []atomics.Thread // in their order
	Areas      []Area           // by node
	Ended      bool             // its last thread has ended
}

// Area describes what a tree has on a node.
type Area struct {
	Node   device.NodeID
	Region int
	Runs   int    // that were allocated
	Pages  uint64 // with those that are not zero yet
}

// Trees returns the trees by their ids.
func (d *Directory) Trees() []Info {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := map[atomics.Protection]*Info{}
	for p, t := range d.trees {
		if t.freed || t.foreign != nil && !t.foreign.known {
			continue
		}
		info := &Info{Protection: p, UID: t.uid, Ended: t.ended}
		if t.foreign != nil {
			info.Owner = t.foreign.owner
		}
		for id, a := range t.areas {
			info.Areas = append(info.Areas, Area{Node: id, Region: a.region, Runs: len(a.runs), Pages: a.count()})
		}
		slices.SortFunc(info.Areas, func(a, b Area) int { return cmp.Compare(a.Node, b.Node) })
		all[p] = info
	}
	for _, id := range slices.Sorted(maps.Keys(d.nodes)) {
		for at, t := range d.nodes[id].threads {
			if t != nil {
				all[t.id].Threads = append(all[t.id].Threads, interfaceOf(id, at))
			}
		}
	}
	out := make([]Info, 0, len(all))
	for _, p := range slices.Sorted(maps.Keys(all)) {
		out = append(out, *all[p])
	}
	return out
}

// Used returns how many bytes each user has.
func (d *Directory) Used() map[uint32]uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	used := make(map[uint32]uint64, len(d.used))
	for uid, pages := range d.used {
		used[uid] = pages * device.PageSize
	}
	return used
}
