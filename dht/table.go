// Package dht is a hash table that is spread over the nodes of a system: 64-bit keys with values of 128
// bits, and keys and values of bytes. Its words lie in a global address space (package gsas): a get is
// one read of 256 bits from the node that the key belongs to, and no process there serves it. Any thread
// of a protection tree may use the table at any time; operations on one key are in one order.
//
// Source: ExaNoDe D3.7 §2.5, whose dhtGet and dhtPut are Get and Put. docs/dht.md describes the table
// and its words.
package dht

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gsas"
)

// Errors that a table adds to those of package gsas.
var (
	// ErrFull means that a key has no place: there is a container at each level below its element, and
	// each has other keys where this one belongs.
	ErrFull = errors.New("no place for the key")
	// ErrBusy means that others changed or locked the place of the key for too long.
	ErrBusy = errors.New("the key's place is busy")
	// ErrCorrupt means that words of the table cannot be its own: a member of the tree wrote over them.
	ErrCorrupt = errors.New("the table is corrupt")
	// ErrNoTable means that the tree has no table of this name.
	ErrNoTable = errors.New("no such table")
	// ErrExists means that the tree has a table of this name.
	ErrExists = errors.New("a table of this name exists")
	// ErrKind means that the key holds a value of the other kind: bytes in place of 128 bits, or 128
	// bits, or another key of bytes with the same hash, in place of the key's bytes.
	ErrKind = errors.New("the key holds another kind of value")
	// ErrTooLong means that a name, a key or a value has more bytes than there is room for.
	ErrTooLong = errors.New("too long")
)

// Memory has the operations of the address space that a table uses. A gsas.Thread is one. Its methods may be called by
// several goroutines at once.
type Memory interface {
	Load256(ctx context.Context, at gsas.Address) ([4]uint64, error)
	Store256(ctx context.Context, at gsas.Address, w [4]uint64) error
	CompareStore256(ctx context.Context, at gsas.Address, expected uint64, w [4]uint64) (old [4]uint64, err error)
	FetchAdd(ctx context.Context, at gsas.Address, n uint64) (old uint64, err error)
	Alloc(ctx context.Context, node device.NodeID, pages uint64, hint gsas.Address) (gsas.Address, error)
	Free(ctx context.Context, at gsas.Address) error
	Alive(ctx context.Context, thread uint32) (bool, error)
	// Directory returns the address of a page at the root's node that Alloc returns only if it is the hint.
	// The tree's directory of tables is there.
	Directory() gsas.Address
}

// Limits of tables. They follow from their words (docs/dht.md).
const (
	// MaxName is the length of the longest name of a table, in bytes.
	MaxName = 24
	// MaxTables is the number of tables of a tree.
	MaxTables = gsas.PageSize / elementBytes
	// MaxNodes is the number of nodes that one table may be spread over.
	MaxNodes = 4 * (gsas.PageSize/elementBytes - headerElements)

	minLog, maxLog = 7, 40
)

// Options says what a table is to be like.
type Options struct {
	// Nodes are the nodes that the table is spread over, in their order.
	Nodes []device.NodeID
	// Keys is how many keys the table is made for. More fit, and cost more memory each.
	Keys uint64
	// Dense makes a table of 129 bytes a key, for 492: a get takes two reads in place of one for most.
	Dense bool
}

// log returns the logarithm of the number of elements of the first level: an eighth of a key an element,
// or 32 keys. docs/dht.md has the bytes a key that follow.
func (o Options) log() uint {
	elements := max(o.Keys, 1)
	if o.Dense {
		elements = (elements + 31) / 32
	} else if elements <= 1<<(maxLog-3) {
		elements *= 8
	}
	return min(max(uint(bits.Len64(elements-1)), minLog), maxLog)
}

// The page of a table's header, which no one changes but for the counter:
//
//	element 0  word 0 magic, word 1 [7:0] layout 1, [15:8] logarithm of the number of elements of the
//	           first level, [31:16] number of nodes, word 2 keys that it was made for
//	element 1  word 0 number of keys that it holds, counted as Table.Len says
//	element 2  and on: addresses of the parts of the first level, one a node, in their order
const (
	headerElements = 2
	headerMagic    = 0x4854_444e_4158_4521 // "!EXANDTH" from the low byte on
	headerLayout   = 2
	headerCounter  = elementBytes
)

// A Table is one thread's handle of a table. Several goroutines may use it at once.
type Table struct {
	memory Memory
	name   string
	header gsas.Address
	log    uint
	keys   uint64
	seed   uint64         // of the hash of keys of bytes
	parts  []gsas.Address // of the first level, of each node
	each   uint64         // elements of a part

	count   atomic.Int64 // keys that were added, less those deleted, not yet in the header
	kept    atomic.Int64 // how many changes are kept back; more if the header could not be written
	mu      sync.Mutex
	reserve map[device.NodeID][]gsas.Address // containers that are all zero, by node
	heap    heap
}

func newTable(m Memory, name string, header gsas.Address) *Table {
	t := &Table{memory: m, name: name, header: header, reserve: make(map[device.NodeID][]gsas.Address)}
	t.kept.Store(counted)
	t.heap.init(m)
	return t
}

// Create makes a table and enters it into the directory of the thread's tree. It is there as long as the
// tree. It fails with ErrExists if the tree has a table of this name.
func Create(ctx context.Context, m Memory, name string, o Options) (*Table, error) {
	entry, err := nameWords(name)
	if err != nil {
		return nil, fmt.Errorf("dht: create table %q: %w", name, err)
	}
	t := newTable(m, name, 0)
	if err := t.create(ctx, entry, o); err != nil {
		return nil, fmt.Errorf("dht: create table %q: %w", name, err)
	}
	return t, nil
}

func (t *Table) create(ctx context.Context, entry [4]uint64, o Options) (err error) {
	if len(o.Nodes) == 0 || len(o.Nodes) > MaxNodes {
		return fmt.Errorf("%d nodes, and a table has 1 to %d", len(o.Nodes), MaxNodes)
	}
	t.log, t.keys, t.seed = o.log(), o.Keys, rand.Uint64()
	t.each = (1<<t.log + uint64(len(o.Nodes)) - 1) / uint64(len(o.Nodes))
	pages := (t.each*elementBytes + gsas.PageSize - 1) / gsas.PageSize
	defer func() {
		if err == nil || maybeDone(err) { // the directory may name the table
			return
		}
		ctx := context.WithoutCancel(ctx)
		for _, at := range append(t.parts, t.header) {
			if at != 0 {
				err = errors.Join(err, t.memory.Free(ctx, at))
			}
		}
	}()
	for _, node := range o.Nodes {
		at, err := t.memory.Alloc(ctx, node, pages, 0)
		if err != nil {
			return fmt.Errorf("%d pages at node %d for its part of 2^%d elements: %w", pages, node, t.log, err)
		}
		t.parts = append(t.parts, at)
	}
	root := t.memory.Directory()
	if t.header, err = t.memory.Alloc(ctx, nodeOf(root), 1, 0); err != nil {
		return fmt.Errorf("a page at node %d: %w", nodeOf(root), err)
	}
	for i := 0; i < len(t.parts); i += 4 {
		var w [4]uint64
		for j, at := range t.parts[i:min(i+4, len(t.parts))] {
			w[j] = uint64(at)
		}
		if err := t.memory.Store256(ctx, t.header+elementBytes*gsas.Address(headerElements+i/4), w); err != nil {
			return err
		}
	}
	first := [4]uint64{headerMagic, headerLayout | uint64(t.log)<<8 | uint64(len(t.parts))<<16, o.Keys, t.seed}
	if err := t.memory.Store256(ctx, t.header, first); err != nil {
		return err
	}
	entry[0] = uint64(t.header)
	return t.enter(ctx, entry)
}

// enter enters a table into the directory, at the first entry that is free: so two that enter the same
// name meet there.
func (t *Table) enter(ctx context.Context, entry [4]uint64) error {
	page := t.memory.Directory()
	if _, err := t.memory.Load256(ctx, page); errors.Is(err, gsas.ErrAddress) {
		at, err := t.memory.Alloc(ctx, nodeOf(page), 1, page)
		switch {
		case err != nil:
			return fmt.Errorf("the tree's directory of tables: %w", err)
		case at != page: // another thread was faster
			if err := t.memory.Free(ctx, at); err != nil {
				return err
			}
		}
	} else if err != nil {
		return err
	}
	for i := range MaxTables {
		was, err := t.memory.CompareStore256(ctx, page+elementBytes*gsas.Address(i), 0, entry)
		switch {
		case err != nil:
			return err
		case was[0] == 0:
			return nil
		case [3]uint64(was[1:]) == [3]uint64(entry[1:]):
			return ErrExists
		}
	}
	return fmt.Errorf("the tree has %d tables: %w", MaxTables, gsas.ErrRoom)
}

// nameWords returns the entry of a name in the directory: words 1 to 3 are its bytes.
func nameWords(name string) (w [4]uint64, err error) {
	if name == "" || len(name) > MaxName {
		return w, fmt.Errorf("a name has 1 to %d bytes: %w", MaxName, ErrTooLong)
	}
	for i := range len(name) {
		w[1+i/8] |= uint64(name[i]) << (i % 8 * 8)
	}
	return w, nil
}

// Open finds a table in the directory of the thread's tree. It fails with ErrNoTable if there is none of
// this name.
func Open(ctx context.Context, m Memory, name string) (*Table, error) {
	entry, err := nameWords(name)
	if err == nil {
		var t *Table
		if t, err = open(ctx, m, name, entry); err == nil {
			return t, nil
		}
	}
	return nil, fmt.Errorf("dht: open table %q: %w", name, err)
}

func open(ctx context.Context, m Memory, name string, entry [4]uint64) (*Table, error) {
	page := m.Directory()
	for i := range MaxTables {
		w, err := m.Load256(ctx, page+elementBytes*gsas.Address(i))
		switch {
		case errors.Is(err, gsas.ErrAddress) || err == nil && w[0] == 0:
			return nil, ErrNoTable
		case err != nil:
			return nil, err
		case [3]uint64(w[1:]) == [3]uint64(entry[1:]):
			t := newTable(m, name, gsas.Address(w[0]))
			return t, t.read(ctx)
		}
	}
	return nil, ErrNoTable
}

// read reads the table's header.
func (t *Table) read(ctx context.Context) error {
	w, err := t.memory.Load256(ctx, t.header)
	if err != nil {
		return corruptAt(t.memory.Directory(), t.header, err)
	}
	t.log, t.keys, t.seed = uint(w[1]>>8&0xff), w[2], w[3]
	nodes := w[1] >> 16 & 0xffff
	if w[0] != headerMagic || w[1]&0xff != headerLayout || t.log < minLog || t.log > maxLog || nodes == 0 || nodes > MaxNodes {
		return fmt.Errorf("the header at %#x has words %#x and %#x: %w", t.header, w[0], w[1], ErrCorrupt)
	}
	t.each = (1<<t.log + nodes - 1) / nodes
	for i := range nodes {
		if i%4 == 0 {
			if w, err = t.memory.Load256(ctx, t.header+elementBytes*gsas.Address(headerElements+i/4)); err != nil {
				return err
			}
		}
		t.parts = append(t.parts, gsas.Address(w[i%4]))
	}
	return nil
}

// corruptAt makes an error of the table out of one that says that a pointer of it is none.
func corruptAt(from, at gsas.Address, err error) error {
	if errors.Is(err, gsas.ErrAddress) || errors.Is(err, gsas.ErrProtection) {
		return fmt.Errorf("the element at %#x points to %#x: %w: %w", from, at, ErrCorrupt, err)
	}
	return err
}

// nodeOf returns the node that an address lies at; no node has that of an address in no partition.
func nodeOf(at gsas.Address) device.NodeID {
	n, _ := at.Node()
	return n
}

// first returns the address of an element of the first level. The first elements are on the first node,
// and so on (D3.7 §2.5.2).
func (t *Table) first(index uint64) gsas.Address {
	return t.parts[index/t.each] + elementBytes*gsas.Address(index%t.each)
}

// reserved is how many containers are allocated at once.
const reserved = 4

// take returns a container at a node, all zero.
func (t *Table) take(ctx context.Context, node device.NodeID) (gsas.Address, error) {
	t.mu.Lock()
	if r := t.reserve[node]; len(r) > 0 {
		at := r[len(r)-1]
		t.reserve[node] = r[:len(r)-1]
		t.mu.Unlock()
		return at, nil
	}
	t.mu.Unlock()
	at, err := t.memory.Alloc(ctx, node, reserved, 0)
	if err != nil {
		return 0, fmt.Errorf("a container at node %d: %w", node, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := 1; i < reserved; i++ {
		t.reserve[node] = append(t.reserve[node], at+containerBytes*gsas.Address(i))
	}
	return at, nil
}

// giveBack takes back a container that did not become a part of the table, and is all zero again.
func (t *Table) giveBack(at gsas.Address) {
	t.mu.Lock()
	t.reserve[nodeOf(at)] = append(t.reserve[nodeOf(at)], at)
	t.mu.Unlock()
}

// Name returns the table's name.
func (t *Table) Name() string { return t.name }

// counted is how many changes of the number of keys one handle keeps back from the table's counter.
const counted = 256

// added counts a key that was added or deleted. That the header cannot be written is no error of the
// operation, which was done.
func (t *Table) added(ctx context.Context, n int64) {
	c, kept := t.count.Add(n), t.kept.Load()
	if c < kept && c > -kept {
		return
	}
	if _, err := t.Len(ctx); err != nil {
		t.kept.Store(kept + counted)
	}
}

// Len returns the number of keys. It is exact with respect to this handle; each other one may have up to
// 256 changes that it does not show yet.
func (t *Table) Len(ctx context.Context) (uint64, error) {
	n := t.count.Swap(0)
	old, err := t.memory.FetchAdd(ctx, t.header+headerCounter, uint64(n))
	if err != nil {
		if !maybeDone(err) {
			t.count.Add(n)
		}
		return 0, fmt.Errorf("dht: count the keys of table %q: %w", t.name, err)
	}
	t.kept.Store(counted)
	return old + uint64(n), nil
}

// maybeDone reports whether an operation that failed may have been done.
func maybeDone(err error) bool {
	return errors.Is(err, gsas.ErrGone) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// Close adds to the table's counter the changes that the handle has kept back. The table stays.
func (t *Table) Close(ctx context.Context) error {
	_, err := t.Len(ctx)
	return err
}
