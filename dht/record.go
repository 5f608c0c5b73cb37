package dht

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"sync"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gsas"
)

// A record holds a key and a value of bytes: the element's place is that of the key's hash, and its
// value points to the record, which lies at the element's node.
//
//	element  word 2 the record's address, word 3 [31:0] its bytes, [63:32] their CRC-32C
//	record   bytes 0, 1 length of the key, 2, 3 length of the value, 4 to 7 zero, then the key and the
//	         value; zero up to the next multiple of 32 bytes
//
// A record is written before its element, and never changed while the element points to it. A reader
// that was slower than the next writer finds another checksum, and begins again.
const (
	// MaxKey and MaxValue are the lengths of the longest key and value of bytes.
	MaxKey   = 250
	MaxValue = 1024

	recordHeader  = 8
	recordLargest = recordHeader + MaxKey + MaxValue
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// KeyOf returns the 64-bit key that the table uses for a key of bytes. It depends on the table's seed, which
// only members of its tree can read: others cannot choose two keys that have one hash.
func (t *Table) KeyOf(key []byte) uint64 { return keyOf(t.seed, key) }

func keyOf(seed uint64, key []byte) uint64 {
	h := finalize(uint64(len(key)) ^ 0x9e3779b97f4a7c15 ^ seed)
	for len(key) > 0 {
		var word [8]byte
		n := copy(word[:], key)
		h = finalize(finalize(h^binary.LittleEndian.Uint64(word[:])) ^ seed)
		key = key[n:]
	}
	return h
}

// errSlow means that a record is no longer the one that its element pointed to.
var errSlow = errors.New("the record was replaced while it was read")

// slowLimit is how often a reader begins again that finds a record replaced.
const slowLimit = 64

// errDamaged: the element still points to the record that had another checksum.
var errDamaged = fmt.Errorf("its record has another checksum than its element: delete the key: %w", ErrCorrupt)

var errTooSlow = fmt.Errorf("its record was replaced each of %d times that it was read: %w", slowLimit, ErrBusy)

// readRecord reads the record of an element, and returns its key and value.
func (t *Table) readRecord(ctx context.Context, e element) (key, value []byte, err error) {
	at, n, sum := gsas.Address(e[2]), int(e[3]&0xffff_ffff), uint32(e[3]>>32)
	if n < recordHeader || n > recordLargest || at%elementBytes != 0 {
		return nil, nil, fmt.Errorf("a record of %d bytes at %#x: %w", n, at, ErrCorrupt)
	}
	b := make([]byte, (n+elementBytes-1)/elementBytes*elementBytes)
	if err := spread(len(b)/elementBytes, func(i int) error {
		w, err := t.memory.Load256(ctx, at+elementBytes*gsas.Address(i))
		for j, v := range w {
			binary.LittleEndian.PutUint64(b[elementBytes*i+8*j:], v)
		}
		return err
	}); err != nil {
		return nil, nil, corruptAt(0, at, err)
	}
	b = b[:n]
	keyed, valued := int(binary.LittleEndian.Uint16(b[0:])), int(binary.LittleEndian.Uint16(b[2:]))
	if crc32.Checksum(b, castagnoli) != sum || recordHeader+keyed+valued != n {
		return nil, nil, errSlow
	}
	return b[recordHeader : recordHeader+keyed], b[recordHeader+keyed:], nil
}

// writeRecord writes a record at a node, and returns an element that points to it.
func (t *Table) writeRecord(ctx context.Context, node device.NodeID, key, value []byte) (element, error) {
	n := recordHeader + len(key) + len(value)
	at, err := t.heap.take(ctx, node, n)
	if err != nil {
		return element{}, err
	}
	b := make([]byte, (n+elementBytes-1)/elementBytes*elementBytes)
	binary.LittleEndian.PutUint16(b[0:], uint16(len(key)))
	binary.LittleEndian.PutUint16(b[2:], uint16(len(value)))
	copy(b[recordHeader:], key)
	copy(b[recordHeader+len(key):], value)
	e := element{flagRecord, 0, uint64(at), uint64(n) | uint64(crc32.Checksum(b[:n], castagnoli))<<32}
	if err := spread(len(b)/elementBytes, func(i int) error {
		var w [4]uint64
		for j := range w {
			w[j] = binary.LittleEndian.Uint64(b[elementBytes*i+8*j:])
		}
		return t.memory.Store256(ctx, at+elementBytes*gsas.Address(i), w)
	}); err != nil {
		return element{}, err
	}
	return e, nil
}

// spread calls f for 0 to n - 1, four at a time: as many operations of a thread can be under way.
func spread(n int, f func(i int) error) error {
	const atOnce = 4
	if n <= atOnce {
		for i := range n {
			if err := f(i); err != nil {
				return err
			}
		}
		return nil
	}
	errs := make([]error, atOnce)
	var all sync.WaitGroup
	for w := range atOnce {
		all.Go(func() {
			for i := w; i < n && errs[w] == nil; i += atOnce {
				errs[w] = f(i)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// GetBytes returns the value of a key of bytes, and whether the table has one.
func (t *Table) GetBytes(ctx context.Context, key []byte) ([]byte, bool, error) {
	hash := t.KeyOf(key)
	value, ok, err := t.getBytes(ctx, hash, key)
	return value, ok, t.failed("get", hash, err)
}

func (t *Table) getBytes(ctx context.Context, hash uint64, key []byte) ([]byte, bool, error) {
	if err := checkLengths(key, nil); err != nil {
		return nil, false, err
	}
	var slow element
	for range slowLimit {
		p, err := t.find(ctx, hash)
		if err != nil {
			return nil, false, err
		}
		if !p.found.holds(hash) || p.found.deleted() {
			return nil, false, nil
		}
		if p.found == slow {
			return nil, false, errDamaged
		}
		value, err := t.valueOf(ctx, p.found, key)
		if !errors.Is(err, errSlow) {
			return value, err == nil, err
		}
		slow = p.found
	}
	return nil, false, errTooSlow
}

// valueOf returns the value in an element's record, whose key has to be the one given.
func (t *Table) valueOf(ctx context.Context, e element, key []byte) ([]byte, error) {
	if !e.record() {
		return nil, ErrKind
	}
	held, value, err := t.readRecord(ctx, e)
	if err == nil && string(held) != string(key) {
		return nil, ErrKind
	}
	return value, err
}

func checkLengths(key, value []byte) error {
	if len(key) > MaxKey {
		return fmt.Errorf("a key of %d bytes, and %d is the most: %w", len(key), MaxKey, ErrTooLong)
	}
	if len(value) > MaxValue {
		return fmt.Errorf("a value of %d bytes, and %d is the most: %w", len(value), MaxValue, ErrTooLong)
	}
	return nil
}

// PutBytes sets the value of a key of bytes.
func (t *Table) PutBytes(ctx context.Context, key, value []byte) error {
	return t.UpdateBytes(ctx, key, func([]byte, bool) ([]byte, error) { return value, nil })
}

// UpdateBytes replaces the value of a key of bytes by what a function makes of it; it is told the value,
// and whether there is one. No other change of the key lies between the two. The function may be called
// several times. An error that it returns ends the update, and is returned.
func (t *Table) UpdateBytes(ctx context.Context, key []byte, to func(old []byte, has bool) ([]byte, error)) error {
	hash := t.KeyOf(key)
	if err := checkLengths(key, nil); err != nil {
		return t.failed("put", hash, err)
	}
	node := nodeOf(t.first(hash1(hash, t.log)))
	_, err := t.put(ctx, hash, func(now element, has bool) (element, error) {
		var old []byte
		if has {
			var err error
			if old, err = t.valueOf(ctx, now, key); err != nil {
				return element{}, err
			}
		}
		value, err := to(old, has)
		if err == nil {
			err = checkLengths(key, value)
		}
		if err != nil {
			return element{}, err
		}
		return t.writeRecord(ctx, node, key, value)
	})
	return err
}

// DeleteBytes takes a key of bytes away, and reports whether the table had it.
func (t *Table) DeleteBytes(ctx context.Context, key []byte) (bool, error) {
	hash := t.KeyOf(key)
	if err := checkLengths(key, nil); err != nil {
		return false, t.failed("delete", hash, err)
	}
	var slow element
	return t.delete(ctx, hash, func(now element) error {
		if now == slow { // a damaged record goes
			return nil
		}
		_, err := t.valueOf(ctx, now, key)
		if errors.Is(err, errSlow) {
			slow = now
		}
		return err
	})
}

// A heap is the memory of a handle for records: pages that it took at a node, cut into records of
// multiples of 32 bytes.
type heap struct {
	memory Memory
	mu     sync.Mutex
	nodes  map[device.NodeID]*nodeHeap
}

type nodeHeap struct {
	next, end gsas.Address
	run       uint64                                         // pages of the next run
	unused    [recordLargest/elementBytes + 2][]gsas.Address // by size in 32 bytes
	retired   []retired                                      // in the order of their times
}

// A retired record was replaced. A slow reader may still read it, and would only find another checksum;
// that it is kept for a while saves such readers from beginning again.
type retired struct {
	element element
	at      time.Time
}

const (
	retirement = 10 * time.Millisecond
	largestRun = 8 // pages; a handle begins with one
)

func (h *heap) init(m Memory) { h.memory, h.nodes = m, make(map[device.NodeID]*nodeHeap) }

func (h *heap) node(n device.NodeID) *nodeHeap {
	if h.nodes[n] == nil {
		h.nodes[n] = &nodeHeap{run: 1}
	}
	return h.nodes[n]
}

func recordSize(bytes int) int { return (bytes + elementBytes - 1) / elementBytes }

// take returns room for a record.
func (h *heap) take(ctx context.Context, node device.NodeID, bytes int) (gsas.Address, error) {
	size := recordSize(bytes)
	for {
		if at := h.have(node, size); at != 0 {
			return at, nil
		}
		h.mu.Lock()
		pages := h.node(node).run
		h.mu.Unlock()
		at, err := h.memory.Alloc(ctx, node, pages, 0)
		if err != nil {
			return 0, fmt.Errorf("%d pages at node %d for records: %w", pages, node, err)
		}
		if !h.add(node, size, at, pages) { // another caller was faster
			if err := h.memory.Free(ctx, at); err != nil {
				return 0, err
			}
		}
	}
}

// add makes a run of pages the room for further records, and reports false if there is room enough.
func (h *heap) add(node device.NodeID, size int, at gsas.Address, pages uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.node(node)
	if n.end-n.next >= gsas.Address(size)*elementBytes {
		return false
	}
	n.next, n.end = at, at+gsas.Address(pages)*gsas.PageSize
	n.run = min(2*n.run, largestRun)
	return true
}

func (h *heap) have(node device.NodeID, size int) (at gsas.Address) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.node(node)
	for len(n.retired) > 0 && time.Since(n.retired[0].at) > retirement {
		n.put(n.retired[0].element)
		n.retired = n.retired[1:]
	}
	if u := n.unused[size]; len(u) > 0 {
		n.unused[size] = u[:len(u)-1]
		return u[len(u)-1]
	}
	if n.end-n.next >= gsas.Address(size)*elementBytes {
		at = n.next
		n.next += gsas.Address(size) * elementBytes
	}
	return at
}

func (n *nodeHeap) put(e element) {
	size := recordSize(int(e[3] & 0xffff_ffff))
	n.unused[size] = append(n.unused[size], gsas.Address(e[2]))
}

// free takes back a record that no element points to.
func (h *heap) free(e element) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.node(nodeOf(gsas.Address(e[2]))).put(e)
}

// retire takes back the record of an element that was replaced.
func (h *heap) retire(e element) {
	if n := e[3] & 0xffff_ffff; n < recordHeader || n > recordLargest || e[2]%elementBytes != 0 {
		return // a member of the tree wrote over it
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.node(nodeOf(gsas.Address(e[2])))
	n.retired = append(n.retired, retired{e, time.Now()})
}
