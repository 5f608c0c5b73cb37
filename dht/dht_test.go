package dht

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gsas"
)

var ctx = context.Background()

func mustCreate(t *testing.T, m Memory, o Options) *Table {
	t.Helper()
	table, err := Create(ctx, m, "t", o)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func value(n uint64) (v [16]byte) {
	binary.LittleEndian.PutUint64(v[:], n)
	binary.LittleEndian.PutUint64(v[8:], ^n)
	return v
}

// TestWords: the words of elements, worked out from figure 14 and docs/dht.md, after each operation.
func TestWords(t *testing.T) {
	m := newWords()
	table := mustCreate(t, m, Options{Nodes: []device.NodeID{0, 1}, Keys: 16}) // 2^7 elements, 64 a node
	// h1(1) = finalize(1) >> 57. finalize(1) = 0x5692161d100b05e5, so 0x2b = 43, on node 0.
	if got := finalize(1); got != 0x5692161d100b05e5 {
		t.Fatalf("finalize(1) = %#x", got)
	}
	at := table.parts[0] + 43*32
	check := func(at gsas.Address, want [4]uint64) {
		t.Helper()
		if got := m.at[at]; got != want {
			t.Errorf("at %#x: %#x, want %#x", at, got, want)
		}
	}
	v := [16]byte{0: 0x11, 7: 0x22, 8: 0x33, 15: 0x44}
	lo, hi := uint64(0x22000000_00000011), uint64(0x44000000_00000033)
	ok(t, table.Put(ctx, 1, v))
	check(at, [4]uint64{1 << 32, 1, lo, hi})
	ok(t, table.Put(ctx, 1, v))
	check(at, [4]uint64{2 << 32, 1, lo, hi})
	if had, err := table.Delete(ctx, 1); !had || err != nil {
		t.Fatal(had, err)
	}
	check(at, [4]uint64{3<<32 | 4, 1, 0, 0})
	ok(t, table.Put(ctx, 1, v))
	check(at, [4]uint64{4 << 32, 1, lo, hi})

	// Another key of the same element makes it indirect; both are in a container of the same node.
	other := uint64(2)
	for hash1(other, 7) != 43 {
		other++
	}
	ok(t, table.Put(ctx, other, v))
	e := m.at[at]
	if e[0] != 5<<32|1 || nodeOf(gsas.Address(e[1])) != 0 || e[1]%4096 != 0 || e[2] != 0 || e[3] != 0 {
		t.Fatalf("indirect element %#x", e)
	}
	check(gsas.Address(e[1])+32*gsas.Address(finalize(1^0x9e3779b97f4a7c15)>>57), [4]uint64{4 << 32, 1, lo, hi})
	check(gsas.Address(e[1])+32*gsas.Address(finalize(other^0x9e3779b97f4a7c15)>>57), [4]uint64{1 << 32, other, lo, hi})

	// A record.
	ok(t, table.PutBytes(ctx, []byte("key"), []byte("value")))
	h := table.KeyOf([]byte("key"))
	p, err := table.find(ctx, h)
	ok(t, err)
	if p.found[0] != 1<<32|8 || p.found[1] != h || p.found[3]&0xffffffff != 16 {
		t.Fatalf("element of a record %#x", p.found)
	}
	check(gsas.Address(p.found[2]), [4]uint64{3 | 5<<16, 'k' | 'e'<<8 | 'y'<<16 | 'v'<<24 | 'a'<<32 | 'l'<<40 | 'u'<<48 | 'e'<<56, 0, 0})
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestSlots(t *testing.T) {
	const h2 = uint64(0b1010_111_0001_000_0101_110<<43) | 3
	for _, c := range []struct {
		level, i, want int
	}{
		{0, 0, 0b1010_111}, {0, 1, 0b1010_000}, {0, 7, 0b1010_110},
		{1, 0, 0b0001_000}, {1, 3, 0b0001_011}, {2, 0, 0b0101_110}, {2, 2, 0b0101_000},
	} {
		if got := slot(h2, c.level, c.i); got != c.want {
			t.Errorf("slot(level %d, %d) = %#b, want %#b", c.level, c.i, got, c.want)
		}
	}
}

func TestVersionIsNeverZero(t *testing.T) {
	if got := (element{0xffffffff << 32}).next(0); got != 1<<32 {
		t.Errorf("the version after 2^32 - 1: %#x", got)
	}
}

// TestModel: random operations against a map, in tables of several sizes, with keys of both kinds.
func TestModel(t *testing.T) {
	for _, o := range []Options{
		{Nodes: []device.NodeID{0}, Keys: 1}, {Nodes: []device.NodeID{3, 1, 2}, Keys: 500}, {Nodes: []device.NodeID{0, 1, 2, 3}, Keys: 4000, Dense: true},
	} {
		r := rand.New(rand.NewPCG(7, uint64(o.Keys)))
		m := newWords()
		table := mustCreate(t, m, o)
		type held struct {
			value   [16]byte
			version uint32
		}
		model, texts := map[uint64]held{}, map[string]string{}
		key := func() uint64 { return finalize(r.Uint64N(3000)) }
		text := func() string { return strings.Repeat("k", r.IntN(3)) + fmt.Sprint(r.IntN(1000)) }
		for i := range 100_000 {
			k, s := key(), text()
			switch r.IntN(8) {
			case 0, 1:
				v := value(r.Uint64())
				ok(t, table.Put(ctx, k, v))
				e, _, err := table.Lookup(ctx, k)
				ok(t, err)
				if e.Version <= model[k].version {
					t.Fatalf("version %d after %d", e.Version, model[k].version)
				}
				model[k] = held{v, e.Version}
			case 2:
				had, err := table.Delete(ctx, k)
				if _, want := model[k]; had != want || err != nil {
					t.Fatal(i, had, want, err)
				}
				delete(model, k)
			case 3:
				want, has := model[k]
				if r.IntN(3) == 0 {
					want.version ^= 1
				}
				v := value(r.Uint64())
				done, err := table.CompareAndPut(ctx, k, v, want.version)
				if should := has && want.version == model[k].version || !has && want.version == 0; done != should || err != nil {
					t.Fatal(i, done, should, err)
				}
				if done {
					e, _, _ := table.Lookup(ctx, k)
					model[k] = held{v, e.Version}
				}
			case 4:
				v := strings.Repeat("v", r.IntN(100)) + fmt.Sprint(i)
				ok(t, table.PutBytes(ctx, []byte(s), []byte(v)))
				texts[s] = v
			case 5:
				got, has, err := table.GetBytes(ctx, []byte(s))
				want, should := texts[s]
				if string(got) != want || has != should || err != nil {
					t.Fatalf("%d: key %q: %q %t %v, want %q %t", i, s, got, has, err, want, should)
				}
			case 6:
				had, err := table.DeleteBytes(ctx, []byte(s))
				if _, want := texts[s]; had != want || err != nil {
					t.Fatal(i, had, want, err)
				}
				delete(texts, s)
			default:
				got, has, err := table.Get(ctx, k)
				want, should := model[k]
				if got != want.value || has != should || err != nil {
					t.Fatalf("%d: key %#x: %v %t %v, want %v %t", i, k, got, has, err, want, should)
				}
			}
		}
		got := map[uint64]held{}
		var sum Stats
		for part := range o.Nodes {
			ok(t, table.Range(ctx, part, func(k uint64, e Entry) bool {
				if !e.Record {
					got[k] = held{e.Value, e.Version}
				}
				return true
			}))
			s, err := table.Stats(ctx, part)
			ok(t, err)
			sum.Keys += s.Keys
			sum.Elements += s.Elements
			sum.Containers += s.Containers
		}
		if !maps.Equal(got, model) {
			t.Errorf("%v: Range finds %d keys, and the model has %d", o, len(got), len(model))
		}
		n, err := table.Len(ctx)
		if int(n) != len(model)+len(texts) || sum.Keys != int(n) || err != nil {
			t.Errorf("%v: Len %d, Stats %d, want %d, %v", o, n, sum.Keys, len(model)+len(texts), err)
		}
		if sum.Elements != 1<<table.log || sum.Containers == 0 && o.Keys != 500 {
			t.Errorf("%v: %+v", o, sum)
		}
	}
}

// TestLinearizable: histories of four clients on few keys, which meet in elements and in containers,
// in an order by seed, some of whose clients die at each of their operations. A dead client's last
// operation may have been done or not.
func TestLinearizable(t *testing.T) {
	for seed := range uint64(1000) {
		m := newWords()
		table := mustCreate(t, m, Options{Nodes: []device.NodeID{0, 1}, Keys: 1})
		keys := Colliding(seed, 4, int(seed%3))
		var history []porcupine.Operation
		now := int64(0)
		r := rand.New(rand.NewPCG(seed, 2))
		lives := make([]int, 4)
		if seed%2 == 1 {
			lives[0] = 1 + r.IntN(40)
		}
		run := func(id int) func(Memory) {
			r := rand.New(rand.NewPCG(seed, uint64(10+id)))
			return func(c Memory) {
				table, err := Open(ctx, c, "t")
				if err != nil {
					return
				}
				for i := range 12 {
					in := Input{Key: keys[r.IntN(len(keys))], Verb: []string{"get", "get", "put", "put", "delete"}[r.IntN(5)], Value: uint64(id<<16 | i)}
					now++
					op := porcupine.Operation{ClientId: id, Input: in, Call: now, Return: 1 << 40}
					out, e := in.Do(ctx, table)
					err = e
					now++
					if err != nil {
						if in.Verb == "put" { // done or not: it may take effect at any later time
							op.Output = out
							history = append(history, op)
						}
						return
					}
					op.Output, op.Return = out, now
					history = append(history, op)
				}
			}
		}
		interleave(seed, m, lives, run(0), run(1), run(2), run(3))
		// The last put of a dead client has no end in the history. If no other client saw its value, the
		// model may place it behind all others.
		if r := porcupine.CheckOperationsTimeout(KeyModel, history, time.Minute); r != porcupine.Ok {
			t.Fatalf("seed %d: %v", seed, r)
		}
		seen := map[uint64]bool{}
		for part := range 2 {
			ok(t, table.Range(ctx, part, func(k uint64, _ Entry) bool {
				if seen[k] {
					t.Errorf("seed %d: key %#x is in two places", seed, k)
				}
				seen[k] = true
				return true
			}))
		}
	}
}

// TestFull: keys that meet in each container end in ErrFull, and those that were put are all there.
func TestFull(t *testing.T) {
	m := newWords()
	table := mustCreate(t, m, Options{Nodes: []device.NodeID{0}, Keys: 1})
	keys := Colliding(1, 100, 1)
	var put int
	for i, k := range keys {
		err := table.Put(ctx, k, value(uint64(i)))
		if errors.Is(err, ErrFull) {
			break
		}
		ok(t, err)
		put++
	}
	// Each container of a bucket keeps 7 keys and the pointer to the next one; the last one keeps 8.
	if want := 7*(containerLevels-1) + 8; put != want {
		t.Errorf("%d keys were put, want %d", put, want)
	}
	for i, k := range keys {
		v, has, err := table.Get(ctx, k)
		if err != nil || has != (i < put) || has && v != value(uint64(i)) {
			t.Errorf("key %d: %v %t %v", i, v, has, err)
		}
	}
}

// TestNoRoom: an allocation that fails leaves the table as it was.
func TestNoRoom(t *testing.T) {
	m := newWords()
	m.limit = 5
	table := mustCreate(t, m, Options{Nodes: []device.NodeID{0}, Keys: 16})
	keys := Colliding(1, 2, 1)
	ok(t, table.Put(ctx, keys[0], value(1)))
	m.limit = 0
	if err := table.Put(ctx, keys[1], value(2)); !errors.Is(err, gsas.ErrRoom) {
		t.Error(err)
	}
	if err := table.PutBytes(ctx, []byte("k"), nil); !errors.Is(err, gsas.ErrRoom) {
		t.Error(err)
	}
	if v, has, err := table.Get(ctx, keys[0]); v != value(1) || !has || err != nil {
		t.Error(v, has, err)
	}
	pages := len(m.pages)
	if _, err := Create(ctx, m, "u", Options{Nodes: []device.NodeID{0}}); !errors.Is(err, gsas.ErrRoom) || len(m.pages) != pages {
		t.Error(err, len(m.pages), pages)
	}
}

func TestDirectory(t *testing.T) {
	m := newWords()
	if _, err := Open(ctx, m, "t"); !errors.Is(err, ErrNoTable) {
		t.Error(err)
	}
	table := mustCreate(t, m, Options{Nodes: []device.NodeID{1, 0}, Keys: 100})
	ok(t, table.Put(ctx, 5, value(5)))
	pages := len(m.pages)
	if _, err := Create(ctx, m, "t", Options{Nodes: []device.NodeID{0}}); !errors.Is(err, ErrExists) || len(m.pages) != pages {
		t.Error(err, len(m.pages), pages)
	}
	other, err := Open(ctx, m, "t")
	ok(t, err)
	if v, has, err := other.Get(ctx, 5); v != value(5) || !has || err != nil {
		t.Error(v, has, err)
	}
	if !slices.Equal(other.Nodes(), []device.NodeID{1, 0}) {
		t.Error(other.Nodes())
	}
	if _, err := Open(ctx, m, "other"); !errors.Is(err, ErrNoTable) {
		t.Error(err)
	}
	for _, name := range []string{"", strings.Repeat("n", 25)} {
		if _, err := Create(ctx, m, name, Options{Nodes: []device.NodeID{0}}); !errors.Is(err, ErrTooLong) {
			t.Error(err)
		}
	}
	// Two create the same name at once: one has it.
	for seed := range uint64(200) {
		m := newWords()
		var made, refused int
		create := func(c Memory) {
			switch _, err := Create(ctx, c, "t", Options{Nodes: []device.NodeID{0}}); {
			case err == nil:
				made++
			case errors.Is(err, ErrExists):
				refused++
			default:
				t.Error(err)
			}
		}
		interleave(seed, m, nil, create, create, create)
		if made != 1 || refused != 2 || len(m.pages) != 3 {
			t.Fatalf("seed %d: made %d, refused %d, %d pages", seed, made, refused, len(m.pages))
		}
	}
}

// TestLocks: the lock of a thread that has ended is taken away, also if it ends later; one that is alive is
// waited for, longer than a link may be down.
func TestLocks(t *testing.T) { synctest.Test(t, testLocks) }

func testLocks(t *testing.T) {
	m := newWords()
	table := mustCreate(t, m, Options{Nodes: []device.NodeID{0}, Keys: 1})
	ok(t, table.Put(ctx, 1, value(1)))
	p, err := table.find(ctx, 1)
	ok(t, err)
	lock := func() {
		e := m.at[p.at]
		e[0] |= flagLock | 0x840000<<holderShift
		m.at[p.at] = e
	}
	lock()
	if v, has, err := table.Get(ctx, 1); v != value(1) || !has || err != nil {
		t.Error(v, has, err)
	}
	lock()
	m.alive[0x840000] = true
	end := time.AfterFunc(9*time.Second, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.alive[0x840000] = false
	})
	if v, has, err := table.Get(ctx, 1); v != value(1) || !has || err != nil || end.Stop() {
		t.Error("while a thread lives:", v, has, err)
	}
	lock()
	m.alive[0x840000] = true
	if _, _, err := table.Get(ctx, 1); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "0x840000") {
		t.Error(err)
	}
}

// TestScribbles: whatever a member of the tree writes over a table, its operations end, without a panic.
func TestScribbles(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 4))
		m := newWords()
		table := mustCreate(t, m, Options{Nodes: []device.NodeID{0, 1}, Keys: 1})
		var addresses []gsas.Address
		for i := range 300 {
			ok(t, table.Put(ctx, uint64(i), value(uint64(i))))
			ok(t, table.PutBytes(ctx, fmt.Append(nil, i), bytes.Repeat([]byte{1}, i%100)))
		}
		for at := range m.at {
			addresses = append(addresses, at)
		}
		slices.Sort(addresses)
		for range 1 + r.IntN(200) {
			at := addresses[r.IntN(len(addresses))]
			w := m.at[at]
			switch r.IntN(4) {
			case 0:
				w[r.IntN(4)] = r.Uint64()
			case 1:
				w[r.IntN(4)] ^= 1 << r.IntN(64)
			case 2:
				w = m.at[addresses[r.IntN(len(addresses))]]
			case 3:
				w[0], w[1] = w[0]&^flagLock|flagIndirect, uint64(addresses[r.IntN(len(addresses))])&^4095
			}
			w[0] &^= flagLock // a live thread's lock is only a wait
			m.at[at] = w
		}
		operations := 0
		m.before = func(string, gsas.Address) error {
			if operations++; operations > 4_000_000 {
				t.Fatalf("seed %d: more than 4,000,000 operations", seed)
			}
			return nil
		}
		for i := range 300 {
			k := fmt.Append(nil, i)
			_, _, _ = table.Get(ctx, uint64(i))
			_, _, _ = table.GetBytes(ctx, k)
			_ = table.Put(ctx, uint64(i), value(1))
			_ = table.PutBytes(ctx, k, k)
			_, _ = table.DeleteBytes(ctx, k)
		}
		for part := range 2 {
			_, _ = table.Stats(ctx, part)
		}
		_, _ = Open(ctx, m, "t")
	}
}

// TestSlowReader: a reader whose record is replaced, and used again, between its reads finds the old
// value or a new one, and never a mixture.
func TestSlowReader(t *testing.T) {
	for seed := range uint64(300) {
		m := newWords()
		mustCreate(t, m, Options{Nodes: []device.NodeID{0}, Keys: 1})
		key := []byte("the key")
		text := func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, 40+i%20) }
		write := func(c Memory) {
			table, err := Open(ctx, c, "t")
			ok(t, err)
			for i := range 30 {
				ok(t, table.PutBytes(ctx, key, text(i)))
				table.heap.mu.Lock()
				for _, n := range table.heap.nodes {
					for j := range n.retired {
						n.retired[j].at = time.Time{} // at once, in place of after 10 ms
					}
				}
				table.heap.mu.Unlock()
			}
		}
		read := func(c Memory) {
			table, err := Open(ctx, c, "t")
			ok(t, err)
			for range 30 {
				got, has, err := table.GetBytes(ctx, key)
				if err != nil && !errors.Is(err, ErrBusy) || has && !bytes.Equal(got, text(int(got[0]))) {
					t.Errorf("seed %d: %x %v", seed, got, err)
				}
			}
		}
		interleave(seed, m, nil, write, read, read)
	}
}

// TestSeeds: keys of bytes that have one hash in a table have two in another.
func TestSeeds(t *testing.T) {
	m := newWords()
	table := mustCreate(t, m, Options{Nodes: []device.NodeID{0}})
	another, err := Create(ctx, m, "another", Options{Nodes: []device.NodeID{0}})
	ok(t, err)
	other, err := Open(ctx, m, "another")
	ok(t, err)
	first := finalize(16 ^ 0x9e3779b97f4a7c15 ^ table.seed)
	after := func(w uint64) uint64 { return finalize(finalize(first^w) ^ table.seed) }
	a := binary.LittleEndian.AppendUint64([]byte("12345678"), 1)
	w := binary.LittleEndian.Uint64(a)
	b := binary.LittleEndian.AppendUint64([]byte("87654321"), 1^after(w)^after(binary.LittleEndian.Uint64([]byte("87654321"))))
	if table.KeyOf(a) != table.KeyOf(b) || another.KeyOf(a) == another.KeyOf(b) || another.KeyOf(a) != other.KeyOf(a) {
		t.Errorf("%#x, %#x; %#x, %#x", table.KeyOf(a), table.KeyOf(b), another.KeyOf(a), another.KeyOf(b))
	}
	if h := keyOf(0x0123456789abcdef, []byte("key and more")); h != 0x767375c9ffa07d2c {
		t.Errorf("%#x", h)
	}
}

// TestKinds: keys of the two kinds that have one hash.
func TestKinds(t *testing.T) {
	m := newWords()
	table := mustCreate(t, m, Options{Nodes: []device.NodeID{0}})
	key := []byte("a")
	ok(t, table.Put(ctx, table.KeyOf(key), value(1)))
	if _, _, err := table.GetBytes(ctx, key); !errors.Is(err, ErrKind) {
		t.Error(err)
	}
	if err := table.PutBytes(ctx, key, key); !errors.Is(err, ErrKind) {
		t.Error(err)
	}
	if _, err := table.DeleteBytes(ctx, key); !errors.Is(err, ErrKind) {
		t.Error(err)
	}
	ok(t, table.PutBytes(ctx, []byte("b"), []byte("v")))
	if _, _, err := table.Get(ctx, table.KeyOf([]byte("b"))); !errors.Is(err, ErrKind) {
		t.Error(err)
	}
	for _, c := range []struct{ key, value int }{{MaxKey + 1, 0}, {1, MaxValue + 1}} {
		if err := table.PutBytes(ctx, make([]byte, c.key), make([]byte, c.value)); !errors.Is(err, ErrTooLong) {
			t.Error(c, err)
		}
	}
	long, text := bytes.Repeat([]byte("k"), MaxKey), bytes.Repeat([]byte("v"), MaxValue)
	ok(t, table.PutBytes(ctx, long, text))
	if got, has, err := table.GetBytes(ctx, long); !bytes.Equal(got, text) || !has || err != nil {
		t.Error(len(got), has, err)
	}
	if err := table.UpdateBytes(ctx, []byte("c"), func([]byte, bool) ([]byte, error) { return nil, errors.ErrUnsupported }); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
}
