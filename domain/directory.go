package domain

import (
	"fmt"
	"sync"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/groupname"
)

// Limits of groups and users (design.md "Rights"; ours).
const (
	// GroupSize is how many processes of a group a node takes, and how many
	// PDIDs a group owns.
	GroupSize = 8
	// Quota is how many of a node's sixteen slots one user may hold.
	Quota = 8
)

// DirectoryConfig says which PDIDs a pfd may give out. Where several pfds serve
// one network their ranges must not overlap.
type DirectoryConfig struct {
	// First and Last bound the range, both included. Both zero: 1 to 65535.
	First, Last device.PDID
	// Groups are groups whose PDIDs do not come from the range: those that several
	// pfds share, each with the same list.
	Groups []Group
}

// Group is a group whose PDIDs are given: GroupSize of them, from First on.
type Group struct {
	UID   uint32
	Name  string
	First device.PDID
}

// Directory knows the groups and PDIDs of one pfd over all its nodes. It is safe
// for concurrent use: the nodes' managers may run on different goroutines.
type Directory struct {
	first, last uint32

	mu     sync.Mutex
	groups map[groupKey]*group
	used   map[device.PDID]bool // owned by a group
	held   map[device.PDID]int  // named in the peers of so many live domains
	next   uint32               // where the search for free PDIDs goes on
}

type groupKey struct {
	uid  uint32
	name string
}

type group struct {
	given   bool // its PDIDs are Config's: it stays
	pdids   [GroupSize]device.PDID
	members map[device.NodeID]uint8 // bit k: member k lives on that node
}

// NewDirectory makes an empty directory. An error matches ErrRange or
// ErrGroupName.
func NewDirectory(cfg DirectoryConfig) (*Directory, error) {
	if cfg.First == 0 && cfg.Last == 0 {
		cfg.First, cfg.Last = 1, device.PDIDMask
	}
	if cfg.First == 0 || cfg.Last < cfg.First {
		return nil, fmt.Errorf("%w: %d to %d; take one within 1 to %d", ErrRange, cfg.First, cfg.Last, device.PDIDMask)
	}
	d := &Directory{
		first:  uint32(cfg.First),
		last:   uint32(cfg.Last),
		groups: make(map[groupKey]*group),
		used:   make(map[device.PDID]bool),
		held:   make(map[device.PDID]int),
		next:   uint32(cfg.First),
	}
	for _, g := range cfg.Groups {
		if err := d.give(g); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// give lists a group with its own PDIDs.
func (d *Directory) give(g Group) error {
	if err := checkGroupName(g.Name); err != nil {
		return err
	}
	first, last := uint32(g.First), uint32(g.First)+GroupSize-1
	k := groupKey{g.UID, g.Name}
	switch {
	case first == 0 || last > device.PDIDMask:
		return fmt.Errorf("%w: group %q of uid %d has PDIDs %d to %d; take them within 1 to %d", ErrRange, g.Name, g.UID, first, last, device.PDIDMask)
	case first <= d.last && last >= d.first:
		return fmt.Errorf("%w: group %q of uid %d has PDIDs %d to %d, within pfd's own %d to %d; keep them apart", ErrRange, g.Name, g.UID, first, last, d.first, d.last)
	case d.groups[k] != nil:
		return fmt.Errorf("%w: group %q of uid %d is listed twice", ErrRange, g.Name, g.UID)
	}
	e := &group{given: true, members: make(map[device.NodeID]uint8)}
	for i := range e.pdids {
		if e.pdids[i] = g.First + device.PDID(i); d.used[e.pdids[i]] {
			return fmt.Errorf("%w: PDID %d of group %q of uid %d is another group's too", ErrRange, e.pdids[i], g.Name, g.UID)
		}
	}
	for _, p := range e.pdids {
		d.used[p] = true
	}
	d.groups[k] = e
	return nil
}

// Range gives the first and the last PDID that the directory may give out.
func (d *Directory) Range() (first, last device.PDID) {
	return device.PDID(d.first), device.PDID(d.last)
}

// checkGroupName lets nothing be a group's name that the attachment protocol does
// not; the empty name is that of processes that were given none.
func checkGroupName(name string) error {
	if name == "" {
		return nil
	}
	return groupname.Check(name)
}

// join takes the lowest free member index of a group on a node, and makes the
// group if need be.
func (d *Directory) join(node device.NodeID, uid uint32, name string) (member int, pdids [GroupSize]device.PDID, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	k := groupKey{uid, name}
	g := d.groups[k]
	if g == nil {
		p, ok := d.take()
		if !ok {
			return 0, pdids, &LimitError{Err: ErrNoPDID, Node: node, UID: uid, Group: name, Used: len(d.groups)}
		}
		g = &group{pdids: p, members: make(map[device.NodeID]uint8)}
		d.groups[k] = g
	}
	live := g.members[node]
	for i := 0; i < GroupSize; i++ {
		if live&(1<<i) == 0 {
			g.members[node] = live | 1<<i
			return i, g.pdids, nil
		}
	}
	return 0, pdids, &LimitError{Err: ErrGroupFull, Node: node, UID: uid, Group: name, Used: GroupSize, Limit: GroupSize}
}

// leave gives a member index back; with its last member the group gives its
// PDIDs back.
func (d *Directory) leave(node device.NodeID, uid uint32, name string, member int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	k := groupKey{uid, name}
	g := d.groups[k]
	if g == nil {
		return
	}
	if g.members[node] &^= 1 << member; g.members[node] != 0 {
		return
	}
	delete(g.members, node)
	if len(g.members) > 0 || g.given {
		return
	}
	for _, p := range g.pdids {
		delete(d.used, p)
	}
	delete(d.groups, k)
}

// take reserves GroupSize PDIDs. The search goes on where the last one ended, so
// that a PDID comes back as late as possible; one that a live domain admits by
// name is not given to a stranger.
func (d *Directory) take() (p [GroupSize]device.PDID, ok bool) {
	n, next := 0, d.next
	for left := d.last - d.first + 1; left > 0 && n < GroupSize; left-- {
		id := device.PDID(next)
		if next++; next > d.last {
			next = d.first
		}
		if !d.used[id] && d.held[id] == 0 {
			p[n] = id
			n++
		}
	}
	if n < GroupSize {
		return p, false
	}
	for _, id := range p {
		d.used[id] = true
	}
	d.next = next
	return p, true
}

// hold and release count the live domains that admit a PDID by name.
func (d *Directory) hold(pdids []device.PDID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range pdids {
		d.held[p]++
	}
}

func (d *Directory) release(pdids []device.PDID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range pdids {
		if d.held[p]--; d.held[p] <= 0 {
			delete(d.held, p)
		}
	}
}
