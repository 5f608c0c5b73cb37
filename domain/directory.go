package domain

import (
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/groupname"
)

// Limits of groups and users where nothing else is configured (ours): one user
// may have a process in each slot of a node, in one group.
const (
	DefaultGroupSize = device.Slots
	DefaultQuota     = device.Slots
)

// DirectoryConfig says which PDIDs a pfd may give out. Where several pfds serve
// one network their ranges must not overlap.
type DirectoryConfig struct {
	// First and Last bound the range, both included. Both zero: 1 to
	// device.MaxPDID.
	First, Last device.PDID
	// Groups are groups whose PDIDs do not come from the range: those that several
	// pfds share, each with the same list.
	Groups []Group
	// GroupSize is how many processes of a group a node takes, and how many PDIDs
	// a group owns, 1 to 16; 0: DefaultGroupSize.
	GroupSize int
	// Quota is how many of a node's sixteen slots one user may hold, 1 to 16; 0:
	// DefaultQuota. SetQuota changes it.
	Quota int
	// KeepLast reports whether the last slot of a node is kept from a user who has others
	// there; nil: from none.
	KeepLast func(uid uint32) bool
	// Generation is the first one given out; 0: a random one, so that a pfd that
	// takes over a device does not give out those of the pfd before it.
	Generation device.Generation
}

// Group is a group whose PDIDs are given: as many as DirectoryConfig's GroupSize,
// from First on.
type Group struct {
	UID   uint32
	Name  string
	First device.PDID
}

// Directory knows the groups and PDIDs of one pfd over all its nodes. It is safe
// for concurrent use: the nodes' managers may run on different goroutines.
type Directory struct {
	first, last uint32
	size        int                   // of groups
	keepLast    func(uid uint32) bool // DirectoryConfig.KeepLast

	mu     sync.Mutex
	quota  int
	groups map[groupKey]*group
	used   map[device.PDID]bool // owned by a group
	held   map[device.PDID]int  // named in the peers of so many live domains
	next   uint32               // where the search for free PDIDs goes on
	newest device.Generation    // given out last
}

type groupKey struct {
	uid  uint32
	name string
}

type group struct {
	given   bool // its PDIDs are Config's: it stays
	pdids   []device.PDID
	members map[device.NodeID]uint16 // bit k: member k lives on that node
}

// NewDirectory makes an empty directory. An error matches ErrRange, ErrLimit or
// ErrGroupName.
func NewDirectory(cfg DirectoryConfig) (*Directory, error) {
	if cfg.First == 0 && cfg.Last == 0 {
		cfg.First, cfg.Last = 1, device.MaxPDID
	}
	if cfg.First == 0 || cfg.Last < cfg.First || cfg.Last > device.MaxPDID {
		return nil, fmt.Errorf("%w: %d to %d; take one within 1 to %d", ErrRange, cfg.First, cfg.Last, device.MaxPDID)
	}
	for _, n := range []*int{&cfg.GroupSize, &cfg.Quota} {
		if *n == 0 {
			*n = device.Slots
		}
		if *n < 0 || *n > device.Slots {
			return nil, fmt.Errorf("%w: group size %d, quota %d; a node has slots for 1 to %d", ErrLimit, cfg.GroupSize, cfg.Quota, device.Slots)
		}
	}
	d := &Directory{
		first:    uint32(cfg.First),
		last:     uint32(cfg.Last),
		size:     cfg.GroupSize,
		keepLast: cfg.KeepLast,
		quota:    cfg.Quota,
		groups:   make(map[groupKey]*group),
		used:     make(map[device.PDID]bool),
		held:     make(map[device.PDID]int),
		next:     uint32(cfg.First),
		newest:   cfg.Generation - 1,
	}
	if cfg.Generation == 0 {
		d.newest = device.Generation(rand.Uint32())
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
	first, last := uint32(g.First), uint32(g.First)+uint32(d.size)-1
	k := groupKey{g.UID, g.Name}
	switch {
	case first == 0 || last > uint32(device.MaxPDID):
		return fmt.Errorf("%w: group %q of uid %d has PDIDs %d to %d; take them within 1 to %d", ErrRange, g.Name, g.UID, first, last, device.MaxPDID)
	case first <= d.last && last >= d.first:
		return fmt.Errorf("%w: group %q of uid %d has PDIDs %d to %d, within pfd's own %d to %d; keep them apart", ErrRange, g.Name, g.UID, first, last, d.first, d.last)
	case d.groups[k] != nil:
		return fmt.Errorf("%w: group %q of uid %d is listed twice", ErrRange, g.Name, g.UID)
	}
	e := &group{given: true, members: make(map[device.NodeID]uint16)}
	for i := range d.size {
		p := g.First + device.PDID(i)
		if d.used[p] {
			return fmt.Errorf("%w: PDID %d of group %q of uid %d is another group's too: each has %d", ErrRange, p, g.Name, g.UID, d.size)
		}
		e.pdids = append(e.pdids, p)
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

// Quota gives how many slots of a node one user may hold.
func (d *Directory) Quota() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.quota
}

// SetQuota changes it, for domains to come; n is 1 to 16.
func (d *Directory) SetQuota(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.quota = n
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
func (d *Directory) join(node device.NodeID, uid uint32, name string) (member int, pdids []device.PDID, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	k := groupKey{uid, name}
	g := d.groups[k]
	if g == nil {
		p, ok := d.take()
		if !ok {
			return 0, nil, &LimitError{Err: ErrNoPDID, Node: node, UID: uid, Group: name, Used: len(d.groups)}
		}
		g = &group{pdids: p, members: make(map[device.NodeID]uint16)}
		d.groups[k] = g
	}
	live := g.members[node]
	for i := range d.size {
		if live&(1<<i) == 0 {
			g.members[node] = live | 1<<i
			return i, g.pdids, nil
		}
	}
	return 0, nil, &LimitError{Err: ErrGroupFull, Node: node, UID: uid, Group: name, Used: d.size, Limit: d.size}
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

// take reserves a group's PDIDs. The search goes on where the last one ended, so
// that a PDID comes back as late as possible; one that a live domain admits by
// name is not given to a stranger.
func (d *Directory) take() (p []device.PDID, ok bool) {
	next := d.next
	for left := d.last - d.first + 1; left > 0 && len(p) < d.size; left-- {
		id := device.PDID(next)
		if next++; next > d.last {
			next = d.first
		}
		if !d.used[id] && d.held[id] == 0 {
			p = append(p, id)
		}
	}
	if len(p) < d.size {
		return nil, false
	}
	for _, id := range p {
		d.used[id] = true
	}
	d.next = next
	return p, true
}

// generation gives the next domain its generation. They come again after 2^32
// domains.
func (d *Directory) generation() device.Generation {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.newest++; d.newest == 0 {
		d.newest++
	}
	return d.newest
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
