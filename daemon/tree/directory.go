// Package tree keeps the protection trees of GSAS threads on the nodes of one pfd (003 §2.2;
// docs/spec/gsas.md): which threads belong to which tree, the ids of both, and the pages that each tree
// has on each node. It decides and counts, and does nothing else: its user writes the registers, and
// holds the memory.
//
// A tree is named by its protection id, the thread id of its root. An id is not used for another tree
// while its tree has a thread or a page anywhere, even if its root has ended, and for a Pause after.
//
// docs/papers.md lists the papers that comments cite by number.
package tree

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
)

// Sizes. Values below are defined by this project.
const (
	// Pause is how long the id of a tree that has gone is not used again. Requests of its threads may
	// still be on a link.
	Pause = time.Second
	// DefaultQuota is how many bytes a user may have on all nodes.
	DefaultQuota = 1 << 30

	regionPages = atomics.RegionSize / device.PageSize
	areaPages   = regionPages - atomics.DirectoryPages // that a region gives
	// The last region of a partition has the directories; it belongs to no tree.
	regions = atomics.Pages/regionPages - 1

	threads = device.Interfaces - device.MailboxThread // of a node

	// The units keep a table for each chunkPages pages of which a tree has one (package soc/gsas), and this
	// package a bit for each page up to a tree's last one.
	chunkPages = 512
	chunkBytes = 8 << 10
	// A hint is not honoured if the tables of the user's pages would exceed his quota / spreadShare, and
	// spreadLeast.
	spreadShare = 32
	spreadLeast = 1 << 20

	// hostShare is how many quotas of a user all trees of another host may have together, since that host says
	// itself whose they are.
	hostShare = 4
)

// Errors of the directory.
var (
	ErrThreads    = errors.New("no thread is left")
	ErrTree       = errors.New("no such tree")
	ErrThread     = errors.New("no such thread")
	ErrRoom       = errors.New("no room for pages")
	ErrAddress    = errors.New("no allocated pages begin there")
	ErrProtection = errors.New("the pages are another tree's")
)

// Token names a tree. A thread that presents it joins the tree. Its first three bytes are the protection id,
// so that every pfd knows whose tree it is. The others are random, so that it cannot be guessed.
type Token [16]byte

// Tree returns the protection id of the tree that the token names.
func (t Token) Tree() atomics.Protection {
	return atomics.Protection(uint32(t[0]) | uint32(t[1])<<8 | uint32(t[2])<<16)
}

// proof returns what the pfds of other hosts compare with the token that a thread presents. It does not tell
// the token. Defined by this project.
func (t Token) proof() Token {
	sum := sha256.Sum256(t[:])
	return Token(sum[:len(t)])
}

// named returns the token with the protection id in it.
func (t Token) named(p atomics.Protection) Token {
	t[0], t[1], t[2] = byte(p), byte(p>>8), byte(p>>16)
	return t
}

// Thread describes a thread.
type Thread struct {
	ID         atomics.Thread
	Protection atomics.Protection // of its tree
	Token      Token              // of its tree
	Region     int                // that its tree has on its node

	number uint32 // of the message that told the tree's owner of it; 0: the tree is of this pfd
}

// Run is pages that were allocated together.
type Run struct {
	Node  device.NodeID
	Page  uint64 // of the partition
	Pages uint64
}

// Address returns the address of the first byte.
func (r Run) Address() atomics.Address { return atomics.At(r.Node, r.Page*device.PageSize) }

// Offset returns where the run begins in the memory that its tree has on the node.
func (r Run) Offset() uint64 { return r.Page % regionPages * device.PageSize }

// Config configures a directory.
type Config struct {
	Quota  uint64       // bytes of each user; SetQuota changes it
	Random func() Token // makes a token
	Now    func() int64 // a monotonic clock, ns
	// KeepLast reports whether the last free thread of a node, and the last one that a root could have, is
	// withheld from a user that has others there; nil: from no user.
	KeepLast func(uid uint32) bool
	// Tell sends a message to the pfd of another host, and returns whether it will arrive if the link stays
	// up. It must not call the directory. Nil: there are no other hosts.
	Tell func(host string, m Message) bool
}

// Directory keeps the trees of one pfd for all its nodes. It is safe for concurrent use.
type Directory struct {
	cfg Config

	mu     sync.Mutex
	quota  uint64 // pages
	trees  map[atomics.Protection]*tree
	nodes  map[device.NodeID]*node
	used   map[uint32]uint64 // pages by user
	abroad map[string]uint64 // pages of the trees of other hosts, by their owner
	hosts  map[string]*host
	life   Token  // of this directory; other hosts notice a new one
	number uint32 // number of the last Asked
}

// node is the threads and regions of a node.
type node struct {
	threads    [threads]*tree // by interface - device.MailboxThread
	next       int            // of threads: where the search begins
	regions    map[int]*tree
	nextRegion int
	rests      [threads]rest // of the ids of places
}

// rest is the time in which an id names no new tree, after a user's.
type rest struct {
	until int64
	uid   uint32
}

// tree is a tree of threads.
type tree struct {
	id      atomics.Protection
	uid     uint32
	token   Token // zero: another host's, of which no thread has joined here
	threads int
	areas   map[device.NodeID]*area
	ended   bool            // its last thread on all hosts has ended, or its owner is gone
	members map[string]bool // hosts that have shown the token: their threads may use the pages here

	shares map[string]*share // hosts that asked for it
	freed  bool              // its pages are gone, and its id waits for the shares

	foreign *foreign // of another host's tree
}

// New returns an empty directory.
func New(cfg Config) *Directory {
	d := &Directory{
		cfg: cfg, trees: map[atomics.Protection]*tree{}, nodes: map[device.NodeID]*node{},
		used: map[uint32]uint64{}, abroad: map[string]uint64{}, hosts: map[string]*host{},
	}
	d.SetQuota(cfg.Quota)
	return d
}

// SetQuota changes how many bytes each user may have. A user that has more keeps them.
func (d *Directory) SetQuota(bytes uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.quota = bytes / device.PageSize
}

func (d *Directory) node(id device.NodeID) *node {
	n := d.nodes[id]
	if n == nil {
		n = &node{regions: map[int]*tree{}}
		d.nodes[id] = n
	}
	return n
}

// Begin makes a thread of a user on a node, and a tree of which it is the root. Errors match
// ErrThreads.
func (d *Directory) Begin(id device.NodeID, uid uint32) (Thread, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.node(id)
	at, err := d.free(n, id, uid, true)
	if err != nil {
		return Thread{}, err
	}
	t := newTree(atomics.Protection(interfaceOf(id, at)))
	t.uid, t.token, t.shares = uid, d.cfg.Random().named(t.id), map[string]*share{}
	d.trees[t.id] = t
	return d.add(n, id, at, t), nil
}

// Join makes a thread of a user on a node, in the tree with a token. Errors match ErrTree or
// ErrThreads.
func (d *Directory) Join(id device.NodeID, uid uint32, token Token) (Thread, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.trees[token.Tree()]
	if t == nil || t.ended || t.uid != uid || !t.has(token) {
		return Thread{}, fmt.Errorf("%w: uid %d has none with this token: its last thread has ended, or this pfd has no link to the one that has it", ErrTree, uid)
	}
	n := d.node(id)
	at, err := d.free(n, id, uid, false)
	if err != nil {
		return Thread{}, err
	}
	t.token = token
	th := d.add(n, id, at, t)
	if t.foreign != nil {
		d.ask(t.foreign.owner, t.id, t, nil)
		th.number = t.foreign.last
	}
	return th, nil
}

func newTree(p atomics.Protection) *tree {
	return &tree{id: p, areas: map[device.NodeID]*area{}, members: map[string]bool{}}
}

// has reports whether a token is the tree's.
func (t *tree) has(token Token) bool {
	if t.foreign != nil {
		return t.foreign.known && t.foreign.proof == token.proof()
	}
	return t.token == token
}

// interfaceOf returns the thread of place at in a node's threads.
func interfaceOf(id device.NodeID, at int) atomics.Thread {
	return atomics.ThreadOf(id, device.MailboxThread+at)
}

// free returns the place of a free thread of a node, for a root or another thread. Places are used in turns,
// so that the last one to be free is used again last. A root needs a place whose id names no tree, and the
// others leave such places to roots.
func (d *Directory) free(n *node, id device.NodeID, uid uint32, root bool) (int, error) {
	now := d.cfg.Now()
	at, atRoot, left, roots, own := -1, -1, 0, 0, 0
	for k := range threads {
		i := (n.next + k) % threads
		th, named, rest := n.threads[i], d.trees[atomics.Protection(interfaceOf(id, i))], n.rests[i]
		rests := now < rest.until
		if th != nil && th.uid == uid || named != nil && named.uid == uid || rests && rest.uid == uid {
			own++
		}
		if th != nil {
			continue
		}
		if left++; named == nil && !rests {
			if roots++; atRoot < 0 {
				atRoot = i
			}
		} else if at < 0 {
			at = i
		}
	}
	if root || at < 0 {
		at = atRoot
	}
	switch {
	case at < 0 && left > 0:
		return 0, fmt.Errorf("%w: the %d that are free on node %d name trees that have other threads, or ended less than %v ago: end those, or try again later", ErrThreads, left, id, Pause)
	case at < 0:
		return 0, fmt.Errorf("%w: node %d has its %d threads: end one, or use another node", ErrThreads, id, threads)
	case (left == 1 || at == atRoot && roots == 1) && own > 0 && d.cfg.KeepLast != nil && d.cfg.KeepLast(uid):
		return 0, fmt.Errorf("%w: uid %d has %d threads on node %d, or trees that are named by them, and the last one is kept for other users", ErrThreads, uid, own, id)
	}
	return at, nil
}

// add adds a thread to a tree.
func (d *Directory) add(n *node, id device.NodeID, at int, t *tree) Thread {
	n.threads[at], n.next = t, (at+1)%threads
	t.threads++
	return Thread{ID: interfaceOf(id, at), Protection: t.id, Token: t.token, Region: d.area(n, id, t).region}
}

// area returns the area of a tree on a node, which is made if there is none. A node has more regions
// than all nodes have threads.
func (d *Directory) area(n *node, id device.NodeID, t *tree) *area {
	if a := t.areas[id]; a != nil {
		return a
	}
	r := n.nextRegion
	for n.regions[r] != nil {
		r = (r + 1) % regions
	}
	n.regions[r], n.nextRegion = t, (r+1)%regions
	a := &area{region: r, runs: map[uint64]uint64{}}
	t.areas[id] = a
	return a
}

// End ends a thread. If it is the last one of its tree, last is true: the tree cannot be joined any
// more, and allocates nothing. The caller then frees what Ended returns, and calls Remove. A tree that other
// hosts know ends as Effects say. Errors match ErrThread.
func (d *Directory) End(id atomics.Thread) (p atomics.Protection, last bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, at := d.nodes[id.Node()], id.Interface()-device.MailboxThread
	if n == nil || at < 0 || n.threads[at] == nil {
		return 0, false, fmt.Errorf("%w: %#x", ErrThread, uint32(id))
	}
	t := n.threads[at]
	n.threads[at] = nil
	t.threads--
	switch {
	case t.foreign == nil:
		d.endIfOver(t)
	case !t.ended:
		d.ask(t.foreign.owner, t.id, t, nil)
	}
	return t.id, t.ended && t.threads == 0, nil
}

// Alive reports whether a thread lives and belongs to a tree.
func (d *Directory) Alive(id atomics.Thread, p atomics.Protection) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, at := d.nodes[id.Node()], id.Interface()-device.MailboxThread
	return n != nil && at >= 0 && n.threads[at] != nil && n.threads[at].id == p
}

// Alloc assigns consecutive pages of a node to a tree. The address hint is honoured if it names the first
// byte of free pages of the tree's region on that node, not too far from the others of its user (spreadShare),
// or the tree's directory; 0 is none. Errors match ErrTree or ErrRoom.
func (d *Directory) Alloc(p atomics.Protection, id device.NodeID, pages uint64, hint atomics.Address) (Run, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.trees[p]
	switch {
	case t == nil || t.ended:
		return Run{}, fmt.Errorf("%w: %#x", ErrTree, uint32(p))
	case pages == 0 || pages > areaPages:
		return Run{}, fmt.Errorf("%w: %d pages: a tree has at most %d on a node", ErrRoom, pages, areaPages)
	case pages > d.quota || d.used[t.uid] > d.quota-pages:
		return Run{}, fmt.Errorf("%w: uid %d has %d pages, and %d more exceed its quota of %d (gsas-quota)", ErrRoom, t.uid, d.used[t.uid], pages, d.quota)
	case t.foreign != nil && d.abroad[t.foreign.owner] > hostShare*d.quota-pages:
		return Run{}, fmt.Errorf("%w: the trees of host %s have %d pages here, and %d more exceed %d times the quota of a user (gsas-quota)", ErrRoom, t.foreign.owner, d.abroad[t.foreign.owner], pages, hostShare)
	}
	n := d.node(id)
	a := d.area(n, id, t)
	if hint != 0 && hint != p.Directory() && d.spread(t.uid)+a.cost(hint.Page(), pages) > max(d.quota*device.PageSize/spreadShare, spreadLeast) {
		hint = 0
	}
	page, ok := t.take(a, id, pages, hint)
	if !ok {
		return Run{}, fmt.Errorf("%w: no %d consecutive pages are free on node %d", ErrRoom, pages, id)
	}
	a.runs[page] = pages
	d.used[t.uid] += pages
	if t.foreign != nil {
		d.abroad[t.foreign.owner] += pages
	}
	return Run{Node: id, Page: page, Pages: pages}, nil
}

// spread returns how many bytes of tables the pages of a user cost.
func (d *Directory) spread(uid uint32) (bytes uint64) {
	for _, t := range d.trees {
		if t.uid == uid {
			for _, a := range t.areas {
				bytes += uint64(len(a.words)*8 + a.chunks*chunkBytes)
			}
		}
	}
	return bytes
}

// take takes free pages for an area, and returns the first.
func (t *tree) take(a *area, id device.NodeID, pages uint64, hint atomics.Address) (page uint64, ok bool) {
	first := uint64(a.region) * regionPages
	if at, there := hint.Node(); there && at == id && hint.Offset()%device.PageSize == 0 {
		switch page := hint.Page(); {
		case hint == t.id.Directory() && pages == 1 && !a.directory:
			a.directory = true
			return page, true
		case page >= first && page-first < areaPages && pages <= areaPages-(page-first) && a.isFree(page-first, pages):
			a.set(page-first, pages, true)
			return page, true
		}
	}
	at, ok := a.find(pages)
	if ok {
		a.set(at, pages, true)
	}
	return first + at, ok
}

// Free takes the pages of one Alloc from a tree. They and their part of the quota are not free before
// the caller has made them zero and calls Freed. Errors match ErrTree, ErrAddress or ErrProtection.
func (d *Directory) Free(p atomics.Protection, at atomics.Address) (Run, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.trees[p]
	if t == nil || t.ended {
		return Run{}, fmt.Errorf("%w: %#x", ErrTree, uint32(p))
	}
	id, _ := at.Node()
	if at.Offset()%device.PageSize != 0 {
		return Run{}, fmt.Errorf("%w: %v", ErrAddress, at)
	}
	if a := t.areas[id]; a != nil {
		if pages := a.runs[at.Page()]; pages > 0 {
			delete(a.runs, at.Page())
			return Run{Node: id, Page: at.Page(), Pages: pages}, nil
		}
	}
	for _, o := range d.trees {
		if a := o.areas[id]; a != nil && a.runs[at.Page()] > 0 {
			return Run{}, fmt.Errorf("%w: those at %v", ErrProtection, at)
		}
	}
	return Run{}, fmt.Errorf("%w: %v", ErrAddress, at)
}

// Freed makes the pages of a Free free again.
func (d *Directory) Freed(p atomics.Protection, r Run) {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.trees[p]
	if t == nil || t.areas[r.Node] == nil {
		return
	}
	if r.Address() == p.Directory() {
		t.areas[r.Node].directory = false
	} else {
		t.areas[r.Node].set(r.Page%regionPages, r.Pages, false)
	}
	d.give(t, r.Pages)
}

func (d *Directory) give(t *tree, pages uint64) {
	if d.used[t.uid] -= pages; d.used[t.uid] == 0 {
		delete(d.used, t.uid)
	}
	if f := t.foreign; f != nil {
		if d.abroad[f.owner] -= pages; d.abroad[f.owner] == 0 {
			delete(d.abroad, f.owner)
		}
	}
}

// Ended returns ranges of pages that cover all that a tree has on any node, and nothing of another
// tree. A range may have holes.
func (d *Directory) Ended(p atomics.Protection) (all []Run) {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.trees[p]
	if t == nil {
		return nil
	}
	for id, a := range t.areas {
		if len(a.words) > 0 {
			all = append(all, Run{Node: id, Page: uint64(a.region) * regionPages, Pages: uint64(len(a.words)) * wordBits})
		}
		if a.directory {
			all = append(all, Run{Node: id, Page: p.Directory().Page(), Pages: 1})
		}
	}
	return all
}

// Remove removes a tree whose last thread has ended, and whose memory is gone: its id can be used
// again.
func (d *Directory) Remove(p atomics.Protection) {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.trees[p]
	if t == nil || !t.ended || t.threads > 0 {
		return
	}
	for id, a := range t.areas {
		n := d.nodes[id]
		d.give(t, a.count())
		delete(n.regions, a.region)
	}
	t.areas, t.freed = nil, true
	if t.foreign != nil {
		delete(d.trees, p)
		d.tell(t.foreign.owner, Message{Kind: Freed, Tree: p, Number: t.foreign.last})
		return
	}
	d.forget(t)
}

// forget makes the id of a tree free if its pages are gone on all hosts.
func (d *Directory) forget(t *tree) {
	if !t.freed || len(t.shares) > 0 {
		return
	}
	delete(d.trees, t.id)
	root := atomics.Thread(t.id)
	d.nodes[root.Node()].rests[root.Interface()-device.MailboxThread] = rest{d.cfg.Now() + int64(Pause), t.uid}
}

// wordBits is the number of pages in a word of an area.
const wordBits = 64

// area is the pages of a tree on one node.
type area struct {
	region    int
	runs      map[uint64]uint64 // pages that were allocated, by the first
	words     []uint64          // a bit for each page of the region that is not free
	low       int               // words before it have no free page
	chunks    int               // that have a page that is not free
	directory bool              // the tree's directory is allocated, or not zero yet
}

func (a *area) isFree(page, pages uint64) bool {
	for i := page; i < page+pages; i++ {
		if i/wordBits >= uint64(len(a.words)) {
			return true
		}
		if a.words[i/wordBits]>>(i%wordBits)&1 != 0 {
			return false
		}
	}
	return true
}

// find returns the lowest free pages of the region.
func (a *area) find(pages uint64) (page uint64, ok bool) {
	for a.low < len(a.words) && a.words[a.low] == ^uint64(0) {
		a.low++
	}
	at, n := uint64(a.low)*wordBits, uint64(0) // n pages from at on are free
	for i := a.low; i < len(a.words) && n < pages; i++ {
		for w, left := a.words[i], uint64(wordBits); left > 0 && n < pages; {
			if free := min(uint64(bits.TrailingZeros64(w)), left); free > 0 {
				n, w, left = n+free, w>>free, left-free
				continue
			}
			taken := min(uint64(bits.TrailingZeros64(^w)), left)
			w, left = w>>taken, left-taken
			at, n = uint64(i+1)*wordBits-left, 0
		}
	}
	return at, at+pages <= areaPages
}

// cost returns how many bytes of tables more pages from one of the partition on would cost, at most.
func (a *area) cost(page, pages uint64) (bytes uint64) {
	page %= regionPages
	if words := (page + pages + wordBits - 1) / wordBits; words > uint64(len(a.words)) {
		bytes = 8 * (words - uint64(len(a.words)))
	}
	return bytes + ((page+pages-1)/chunkPages-page/chunkPages+1)*chunkBytes
}

// taken returns how many of the chunks that have some pages have one that is not free.
func (a *area) taken(page, pages uint64) (chunks int) {
	const words = chunkPages / wordBits
	for c := page / chunkPages; c <= (page+pages-1)/chunkPages && c*words < uint64(len(a.words)); c++ {
		if slices.Max(a.words[c*words:min((c+1)*words, uint64(len(a.words)))]) > 0 {
			chunks++
		}
	}
	return chunks
}

// set makes pages taken or free.
func (a *area) set(page, pages uint64, taken bool) {
	before := a.taken(page, pages)
	defer func() { a.chunks += a.taken(page, pages) - before }()
	for uint64(len(a.words))*wordBits < page+pages {
		a.words = append(a.words, 0)
	}
	for i := page; i < page+pages; {
		bit := i % wordBits
		n := min(wordBits-bit, page+pages-i)
		mask := ^uint64(0) >> (wordBits - n) << bit
		if taken {
			a.words[i/wordBits] |= mask
		} else {
			a.words[i/wordBits] &^= mask
		}
		i += n
	}
	if !taken {
		a.low = min(a.low, int(page/wordBits))
	}
}

// count returns how many pages the tree has on the node, with those that are not zero yet.
func (a *area) count() (pages uint64) {
	for _, w := range a.words {
		pages += uint64(bits.OnesCount64(w))
	}
	if a.directory {
		pages++
	}
	return pages
}
