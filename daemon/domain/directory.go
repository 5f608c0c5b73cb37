package domain

import (
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/groupname"
	"github.com/exanet/pfd/internal/quota"
)

// Default limits of groups and users (defined by this project): one user may have a process in
// each slot of a node, in one group.
const (
	DefaultGroupSize = device.Slots
	DefaultQuota     = device.Slots
)

// A PDID that a domain admits by name is not assigned to others, so that part of the range that a user,
// and all users, may name is limited: an eighth and a half. Defined by this project.
const (
	eachNames = 8
	allNames  = 2
)

// DirectoryConfig says which PDIDs a pfd may assign. If several pfds serve one network, their
// ranges must not overlap.
type DirectoryConfig struct {
	// First and Last are the ends of the range, inclusive. Both zero: 1 to device.MaxPDID.
	First, Last device.PDID
	// Groups are groups whose PDIDs are fixed and not taken from the range: groups that several
	// pfds share, each configured with the same list.
	Groups []Group
	// GroupSize is the number of a group's processes on one node and of the PDIDs that a group
	// owns, 1 to 16; 0: DefaultGroupSize.
	GroupSize int
	// Quota is how many of a node's sixteen slots one user may hold, 1 to 16; 0: DefaultQuota.
	// SetQuota changes it.
	Quota int
	// KeepLast reports whether the last free slot of a node is withheld from a user that has
	// others there; nil: from no user.
	KeepLast func(uid uint32) bool
	// Generation is the first one assigned; 0: a random one, so that a pfd that takes over a
	// device does not reuse those of the pfd before it.
	Generation device.Generation
}

// Group is a group with fixed PDIDs: DirectoryConfig.GroupSize of them, starting with First.
type Group struct {
	UID   uint32
	Name  string
	First device.PDID
}

// Directory keeps the groups and PDIDs of one pfd for all its nodes. It is safe for concurrent
// use: the nodes' managers may run on different goroutines.
type Directory struct {
	first, last uint32
	size        int                   // of groups
	keepLast    func(uid uint32) bool // DirectoryConfig.KeepLast
	names       *quota.Quota          // of PDIDs of the range that domains admit by name

	mu     sync.Mutex
	quota  int
	groups map[groupKey]*group
	used   map[device.PDID]bool // owned by a group
	held   map[device.PDID]int  // how often live domains admit the PDID by name
	next   uint32               // where the search for free PDIDs continues
	newest device.Generation    // the last one assigned
}

type groupKey struct {
	uid  uint32
	name string
}

type group struct {
	given   bool // its PDIDs are from the configuration: it is permanent
	pdids   []device.PDID
	members map[device.NodeID]uint16 // bit k: member k lives on that node
}

// NewDirectory returns an empty directory. An error matches ErrRange, ErrLimit or ErrGroupName.
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
	n := int(d.last - d.first + 1)
	d.names = quota.New(max(n/eachNames, 1), max(n/allNames, 1), func(uid uint32) bool { return cfg.KeepLast != nil && !cfg.KeepLast(uid) })
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

// give adds a group with fixed PDIDs.
func (d *Directory) give(g Group) error {
	if err := checkGroupName(g.Name); err != nil {
		return err
	}
	first, last := uint32(g.First), uint32(g.First)+uint32(d.size)-1
	k := groupKey{g.UID, g.Name}
	switch {
	case first == 0 || last > uint32(device.MaxPDID):
		return fmt.Errorf("%w: group %q of uid %d has PDIDs %d to %d; use PDIDs within 1 to %d", ErrRange, g.Name, g.UID, first, last, device.MaxPDID)
	case first <= d.last && last >= d.first:
		return fmt.Errorf("%w: group %q of uid %d has PDIDs %#x to %#x, which overlap pfd's own range %#x to %#x; use disjoint ranges", ErrRange, g.Name, g.UID, first, last, d.first, d.last)
	case d.groups[k] != nil:
		return fmt.Errorf("%w: group %q of uid %d is listed twice", ErrRange, g.Name, g.UID)
	}
	e := &group{given: true, members: make(map[device.NodeID]uint16)}
	for i := range d.size {
		p := g.First + device.PDID(i)
		if d.used[p] {
			return fmt.Errorf("%w: PDID %d of group %q of uid %d also belongs to another group: each group has %d PDIDs", ErrRange, p, g.Name, g.UID, d.size)
		}
		e.pdids = append(e.pdids, p)
	}
	for _, p := range e.pdids {
		d.used[p] = true
	}
	d.groups[k] = e
	return nil
}

// Range returns the first and the last PDID that the directory may assign.
func (d *Directory) Range() (first, last device.PDID) {
	return device.PDID(d.first), device.PDID(d.last)
}

// Quota returns how many slots of a node one user may hold.
func (d *Directory) Quota() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.quota
}

// SetQuota changes the quota for later domains; n is 1 to 16.
func (d *Directory) SetQuota(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.quota = n
}

// checkGroupName accepts the names that the attachment protocol accepts; the empty name is that
// of processes without a group name.
func checkGroupName(name string) error {
	if name == "" {
		return nil
	}
	return groupname.Check(name)
}

// join takes the lowest free member index of a group on a node, and creates the group if
// necessary.
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

// leave frees a member index; with its last member the group frees its PDIDs.
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

// take reserves a group's PDIDs. The search continues where the last one ended, so that a PDID is
// reused as late as possible. A PDID that a live domain admits by name is not assigned to another
// group.
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

// generation returns the next domain's generation. Generations repeat after 2^32 domains.
func (d *Directory) generation() device.Generation {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.newest++; d.newest == 0 {
		d.newest++
	}
	return d.newest
}

// hold counts PDIDs that a domain of a user admits by name. It returns an error that matches ErrNames,
// and counts none, if that are too many. release undoes it.
func (d *Directory) hold(uid uint32, pdids []device.PDID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, p := range pdids {
		if d.owns(p) && !d.names.Take(uid) {
			d.drop(uid, pdids[:i])
			return fmt.Errorf("%w: the domains of uid %d admit %d of the range %d to %d, or those of all users half of it: close memory windows, or give pfd a wider range",
				ErrNames, uid, d.names.Per(), d.first, d.last)
		}
		d.held[p]++
	}
	return nil
}

func (d *Directory) release(uid uint32, pdids []device.PDID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop(uid, pdids)
}

// drop is release with the lock held.
func (d *Directory) drop(uid uint32, pdids []device.PDID) {
	for _, p := range pdids {
		if d.held[p]--; d.held[p] <= 0 {
			delete(d.held, p)
		}
		if d.owns(p) {
			d.names.Give(uid)
		}
	}
}

// owns reports whether a PDID is of the range. Others are not assigned here.
func (d *Directory) owns(p device.PDID) bool { return uint32(p) >= d.first && uint32(p) <= d.last }
