package dht

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/exanet/pfd/gsas"
)

// An Entry is what a table holds for a key.
type Entry struct {
	Value [16]byte
	// Version grows with each change of the key's value. It is never 0.
	Version uint32
	// Record tells that the value is where a key and a value of bytes are (GetBytes).
	Record bool
}

func (e element) entry() Entry {
	n := Entry{Version: e.version(), Record: e.record()}
	binary.LittleEndian.PutUint64(n.Value[0:], e[2])
	binary.LittleEndian.PutUint64(n.Value[8:], e[3])
	return n
}

func valueOf(v [16]byte) element {
	return element{2: binary.LittleEndian.Uint64(v[0:]), 3: binary.LittleEndian.Uint64(v[8:])}
}

// Lookup returns what the table holds for a key, and whether it holds it: dhtGet of the seed, which has
// an invalid value for a key that is not there.
func (t *Table) Lookup(ctx context.Context, key uint64) (Entry, bool, error) {
	p, err := t.find(ctx, key)
	if err != nil {
		return Entry{}, false, t.failed("get", key, err)
	}
	if !p.found.holds(key) || p.found.deleted() {
		return Entry{}, false, nil
	}
	return p.found.entry(), true, nil
}

// Get returns the value of a key, and whether the table has one. A key of bytes is for GetBytes.
func (t *Table) Get(ctx context.Context, key uint64) ([16]byte, bool, error) {
	e, ok, err := t.Lookup(ctx, key)
	if ok && e.Record {
		return [16]byte{}, false, t.failed("get", key, ErrKind)
	}
	return e.Value, ok, err
}

// Put sets the value of a key: dhtPut of the seed.
func (t *Table) Put(ctx context.Context, key uint64, value [16]byte) error {
	_, err := t.put(ctx, key, func(now element, has bool) (element, error) { return valueOf(value), notRecord(now, has) })
	return err
}

// CompareAndPut sets the value of a key if its version is still the one that was looked up; version 0 stands
// for a key that the table does not hold. It reports whether it did.
func (t *Table) CompareAndPut(ctx context.Context, key uint64, value [16]byte, version uint32) (bool, error) {
	return t.put(ctx, key, func(now element, has bool) (element, error) {
		if has && now.version() != version || !has && version != 0 {
			return element{}, errUnwanted
		}
		return valueOf(value), notRecord(now, has)
	})
}

// notRecord returns ErrKind for a record, which is a key of bytes: it is not to be lost to a 64-bit key that
// is equal to its hash.
func notRecord(now element, has bool) error {
	if has && now.record() {
		return ErrKind
	}
	return nil
}

func (t *Table) put(ctx context.Context, key uint64, to update) (bool, error) {
	was, done, err := t.update(ctx, key, to)
	if done && was.record() {
		t.heap.retire(was)
	}
	return done, t.failed("put", key, err)
}

// Delete takes a key away, and reports whether the table had it.
func (t *Table) Delete(ctx context.Context, key uint64) (bool, error) {
	return t.delete(ctx, key, func(now element) error { return notRecord(now, true) })
}

// delete takes a key away if a check of its element permits it.
func (t *Table) delete(ctx context.Context, key uint64, check func(element) error) (bool, error) {
	was, done, err := t.update(ctx, key, func(now element, has bool) (element, error) {
		if !has {
			return element{}, errUnwanted
		}
		return element{flagDeleted}, check(now)
	})
	if done && was.record() {
		t.heap.retire(was)
	}
	return done, t.failed("delete", key, err)
}

func (t *Table) failed(verb string, key uint64, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("dht: %s key %#x of table %q: %w", verb, key, t.name, err)
}

// An update returns what is to become of a key. It is told the element of the key's place, and whether
// it holds the key. The flags of word 0 and the words of the value are its own; the rest is filled in.
// It may be called several times, since others may write to the place at the same time.
type update func(now element, has bool) (element, error)

// errUnwanted ends an update that is not to write anything, without another error. errSlow only ends an
// attempt.
var errUnwanted = errors.New("not wanted")

// attempts is how often an update that others forestall is begun again.
const attempts = 10_000

// update performs an update of a key: it reads the key's place, and writes there if the place is still
// as it was read. There is no lock. It returns the element of the key that it replaced, and whether it
// did.
func (t *Table) update(ctx context.Context, key uint64, to update) (was element, done bool, err error) {
	slow, damaged := 0, element{}
	for range attempts {
		if err := ctx.Err(); err != nil {
			return element{}, false, err
		}
		p, err := t.find(ctx, key)
		if err != nil {
			return element{}, false, err
		}
		own := p.found.holds(key)
		has := own && !p.found.deleted()
		e, err := to(p.found, has)
		switch {
		case errors.Is(err, errSlow):
			if slow++; slow == slowLimit {
				return element{}, false, errTooSlow
			}
			if p.found == damaged {
				return element{}, false, errDamaged
			}
			damaged = p.found
			continue
		case errors.Is(err, errUnwanted):
			return element{}, false, nil
		case err != nil:
			return element{}, false, err
		}
		e[1] = key
		done, sent, err := t.write(ctx, p, e)
		if !done && e.record() && (err == nil || !sent) { // else the record may be in use
			t.heap.free(e)
		}
		if err != nil {
			return element{}, false, err
		}
		if !done {
			continue
		}
		if !own {
			p.found = element{}
		}
		if has == e.deleted() { // the number of keys changed
			n := int64(1)
			if has {
				n = -1
			}
			t.added(ctx, n)
		}
		return p.found, true, nil
	}
	return element{}, false, fmt.Errorf("others changed it %d times: %w", attempts, ErrBusy)
}

// write writes an element into its place. It reports whether it did, which it does not if the place was
// changed meanwhile, and whether it tried.
func (t *Table) write(ctx context.Context, p place, e element) (done, sent bool, err error) {
	compareWrite := func(e element) (bool, bool, error) {
		now, err := t.memory.CompareStore256(ctx, p.at, p.found[0], e)
		return err == nil && now[0] == p.found[0], true, err
	}
	if p.found.empty() || p.found.holds(e[1]) {
		e[0] = p.found.next(e[0])
		return compareWrite(e)
	}
	// Another key has the place: a container takes both, and they appear in it at once.
	level := p.level + 1
	if level == containerLevels {
		return false, false, fmt.Errorf("%d containers lie below element %d: %w", level, p.index, ErrFull)
	}
	container, err := t.take(ctx, nodeOf(p.at))
	if err != nil {
		return false, false, err
	}
	one, two := slot(hash2(p.found[1]), level, 0), slot(hash2(e[1]), level, 0)
	if one == two {
		two = slot(hash2(e[1]), level, 1)
	}
	e[0] = element{}.next(e[0])
	places := [2]gsas.Address{container + elementBytes*gsas.Address(one), container + elementBytes*gsas.Address(two)}
	store := func(w [2]element) error {
		for i, at := range places {
			if err := t.memory.Store256(ctx, at, w[i]); err != nil {
				return err
			}
		}
		return nil
	}
	if err := store([2]element{p.found, e}); err != nil {
		return false, false, err
	}
	done, sent, err = compareWrite(element{p.found.next(flagIndirect), uint64(container)})
	if done || err != nil { // after an error the container may be in use
		return done, sent, err
	}
	if err := store([2]element{}); err == nil { // else the container is not used again
		t.giveBack(container)
	}
	return false, true, nil
}
