package dht

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gsas"
)

// TestLocksWithoutEnd: a member of the tree that takes the lock again and again does not keep a get for
// longer than one that holds it.
func TestLocksWithoutEnd(t *testing.T) { synctest.Test(t, testLocksWithoutEnd) }

func testLocksWithoutEnd(t *testing.T) {
	m := newWords()
	table := mustCreate(t, m, Options{Nodes: []device.NodeID{0}, Keys: 1})
	ok(t, table.Put(ctx, 1, value(1)))
	p, err := table.find(ctx, 1)
	ok(t, err)
	m.alive[0x840000] = true
	turn := uint64(0)
	m.before = func(verb string, at gsas.Address) error {
		if at == p.at && verb == "load" { // with mu held
			turn++
			m.at[at] = [4]uint64{turn<<versionShift | flagLock | 0x840000<<holderShift, 1}
		}
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if _, _, err := table.Get(limited, 1); !errors.Is(err, ErrBusy) || limited.Err() != nil {
		t.Error(err)
	}
}

// TestRecordsOfManyCallers: callers of one handle that need room at the same time do not take a run of
// pages each.
func TestRecordsOfManyCallers(t *testing.T) {
	pages := func(callers int) int {
		m := newWords()
		table := mustCreate(t, m, Options{Nodes: []device.NodeID{0}, Keys: 1000})
		before := len(m.pages)
		var all sync.WaitGroup
		for c := range callers {
			all.Go(func() {
				for i := range 1600 / callers {
					if err := table.PutBytes(ctx, fmt.Appendf(nil, "%d %d", c, i), bytes.Repeat([]byte("v"), 1000)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		return len(m.pages) - before
	}
	// Containers come four at a time, and each caller may be given some.
	if one, many := pages(1), pages(16); many > one+one/4+4*16 {
		t.Errorf("%d pages for one caller, and %d for 16", one, many)
	}
}

// TestFailedPutsLoseNothing: puts that fail for want of a container give the room of their records back.
func TestFailedPutsLoseNothing(t *testing.T) {
	m := newWords()
	table := mustCreate(t, m, Options{Nodes: []device.NodeID{0}, Keys: 1})
	key := []byte("key")
	ok(t, table.PutBytes(ctx, key, key))
	var other []byte
	for i := 0; other == nil || hash1(table.KeyOf(other), table.log) != hash1(table.KeyOf(key), table.log); i++ {
		other = fmt.Append(nil, i)
	}
	m.limit = 0
	for range 1000 {
		if err := table.PutBytes(ctx, other, key); !errors.Is(err, gsas.ErrRoom) {
			t.Fatal(err)
		}
	}
	ok(t, table.PutBytes(ctx, key, []byte("new")))
}

// TestCounterFails: an operation that was done is no error because its count could not be written.
func TestCounterFails(t *testing.T) {
	m := newWords()
	table := mustCreate(t, m, Options{Nodes: []device.NodeID{0}, Keys: 10_000})
	asked := 0
	m.before = func(verb string, _ gsas.Address) error {
		if verb == "add" {
			asked++
			return gsas.ErrBusy
		}
		return nil
	}
	for i := range uint64(2000) {
		ok(t, table.Put(ctx, i, value(i)))
	}
	if asked == 0 || asked > 2000/counted {
		t.Errorf("the counter was written %d times", asked)
	}
	m.before = nil
	if n, err := table.Len(ctx); n != 2000 || err != nil {
		t.Error(n, err)
	}
}

// TestDamagedRecord: a record that a member wrote over is told apart from one that is replaced, and its
// key can be deleted.
func TestDamagedRecord(t *testing.T) {
	m := newWords()
	table := mustCreate(t, m, Options{Nodes: []device.NodeID{0}, Keys: 1})
	key := []byte("key")
	ok(t, table.PutBytes(ctx, key, []byte("value")))
	p, err := table.find(ctx, table.KeyOf(key))
	ok(t, err)
	w := m.at[gsas.Address(p.found[2])]
	w[1] ^= 1
	m.at[gsas.Address(p.found[2])] = w
	if _, _, err := table.GetBytes(ctx, key); !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
	if err := table.PutBytes(ctx, key, key); !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
	if had, err := table.DeleteBytes(ctx, key); !had || err != nil {
		t.Error(had, err)
	}
	ok(t, table.PutBytes(ctx, key, key))
}

// TestLostAnswerOfCreate: a table that may be in the directory keeps its pages.
func TestLostAnswerOfCreate(t *testing.T) {
	m := newWords()
	lost := &lostAnswer{words: m}
	if _, err := Create(ctx, lost, "t", Options{Nodes: []device.NodeID{0}, Keys: 1}); !errors.Is(err, gsas.ErrGone) {
		t.Fatal(err)
	}
	table, err := Open(ctx, m, "t")
	ok(t, err)
	ok(t, table.Put(ctx, 1, value(1)))
}

// lostAnswer performs comparisons, and their answers are lost.
type lostAnswer struct{ *words }

func (l *lostAnswer) CompareStore256(ctx context.Context, at gsas.Address, expected uint64, w [4]uint64) ([4]uint64, error) {
	_, err := l.words.CompareStore256(ctx, at, expected, w)
	return [4]uint64{}, errors.Join(gsas.ErrGone, err)
}

// TestKeysOfBytesAreKept: a 64-bit key that is equal to the hash of a key of bytes does not replace it.
func TestKeysOfBytesAreKept(t *testing.T) {
	m := newWords()
	table := mustCreate(t, m, Options{Nodes: []device.NodeID{0}, Keys: 1})
	key := []byte("key")
	ok(t, table.PutBytes(ctx, key, key))
	hash := table.KeyOf(key)
	if err := table.Put(ctx, hash, value(1)); !errors.Is(err, ErrKind) {
		t.Error(err)
	}
	if _, err := table.CompareAndPut(ctx, hash, value(1), 1); !errors.Is(err, ErrKind) {
		t.Error(err)
	}
	if _, err := table.Delete(ctx, hash); !errors.Is(err, ErrKind) {
		t.Error(err)
	}
	if v, has, err := table.GetBytes(ctx, key); string(v) != "key" || !has || err != nil {
		t.Error(v, has, err)
	}
}
