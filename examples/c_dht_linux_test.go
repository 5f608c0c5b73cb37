package examples

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/dht"
	"github.com/exanet/pfd/gsas"
)

func buildDHT(t testing.TB, flags ...string) string {
	t.Helper()
	dir := public(t)
	library(t, dir, flags...)
	return compile(t, dir, filepath.Join("..", "testdata", "dht"), flags...)
}

// dhtRig is a tree with a thread in this process and a program in C on another node.
type dhtRig struct {
	*gsasProgram
	thread *gsas.Thread
	token  string
}

func newDHTRig(t *testing.T, bin string) *dhtRig {
	t.Helper()
	socket := start(t).Socket()
	th := beginGo(t, socket)
	r := &dhtRig{thread: th, token: th.Token().String()}
	r.gsasProgram = startGSAS(t, bin, socket, "1", r.token)
	return r
}

func TestDHTOfC(t *testing.T) {
	bin := buildDHT(t)
	for name, test := range map[string]func(*testing.T, string){
		"words": dhtWords, "model": dhtModel, "together": dhtTogether, "wrong": dhtWrong, "locks": dhtLocks, "hostile": dhtHostile,
	} {
		t.Run(name, func(t *testing.T) { test(t, bin) })
	}
}

// The words of a table that a C program makes are those of docs/dht.md, as in dht.TestWords.
func dhtWords(t *testing.T, bin string) {
	r := newDHTRig(t, bin)
	load := func(at gsas.Address) [4]uint64 {
		t.Helper()
		w, err := r.thread.Load256(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	check := func(at gsas.Address, want [4]uint64) {
		t.Helper()
		if got := load(at); got != want {
			t.Errorf("at %v: %#x, want %#x", at, got, want)
		}
	}
	r.want("0", "create words 16 0 0 1")
	entry := load(r.thread.Directory())
	if entry[1] != 's'<<32|'d'<<24|'r'<<16|'o'<<8|'w' || entry[2] != 0 || entry[3] != 0 {
		t.Errorf("directory %#x", entry)
	}
	header := gsas.Address(entry[0])
	first := load(header)
	if seed := first[3]; first != [4]uint64{0x4854444e41584521, 2 | 7<<8 | 2<<16, 16, seed} || seed == 0 {
		t.Errorf("header %#x", first)
	}
	parts := load(header + 64)
	if parts[0]>>48 != 1 || parts[1]>>48 != 2 || parts[2] != 0 || parts[3] != 0 {
		t.Errorf("parts %#x", parts)
	}
	// h1(1) = 43, on node 0.
	at, lo, hi := gsas.Address(parts[0])+43*32, uint64(0x22000000_00000011), uint64(0x44000000_00000033)
	r.want("0", "put 1 %#x %#x", lo, hi)
	check(at, [4]uint64{1 << 32, 1, lo, hi})
	r.want("0", "put 1 %#x %#x", lo, hi)
	check(at, [4]uint64{2 << 32, 1, lo, hi})
	r.want("1", "delete 1")
	check(at, [4]uint64{3<<32 | 4, 1, 0, 0})
	r.want("0", "put 1 %#x %#x", lo, hi)
	check(at, [4]uint64{4 << 32, 1, lo, hi})
	r.want("1 0", "count")
	check(header+32, [4]uint64{1})

	// Another key of the same element makes it indirect; both are in a container of the same node.
	other := uint64(2)
	for splitMix(other)>>57 != 43 {
		other++
	}
	r.want("0", "put %d %#x %#x", other, hi, lo)
	e := load(at)
	if e[0] != 5<<32|1 || e[1]>>48 != 1 || e[1]%4096 != 0 || e[2] != 0 || e[3] != 0 {
		t.Fatalf("indirect element %#x", e)
	}
	const second = 0x9e3779b97f4a7c15
	check(gsas.Address(e[1])+32*gsas.Address(splitMix(1^second)>>57), [4]uint64{4 << 32, 1, lo, hi})
	check(gsas.Address(e[1])+32*gsas.Address(splitMix(other^second)>>57), [4]uint64{1 << 32, other, hi, lo})

	// A record.
	r.want("0", "put_bytes key value")
	table, err := dht.Open(t.Context(), r.thread, "words")
	if err != nil {
		t.Fatal(err)
	}
	h := table.KeyOf([]byte("key"))
	e = load(gsas.Address(parts[splitMix(h)>>57/64]) + 32*gsas.Address(splitMix(h)>>57%64))
	if e[0] != 1<<32|8 || e[1] != h || uint32(e[3]) != 16 {
		t.Fatalf("element of a record %#x", e)
	}
	check(gsas.Address(e[2]), [4]uint64{3 | 5<<16, 'k' | 'e'<<8 | 'y'<<16 | 'v'<<24 | 'a'<<32 | 'l'<<40 | 'u'<<48 | 'e'<<56, 0, 0})
	r.end()
}

// splitMix is the finalizer of SplitMix64.
func splitMix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func beginGo(t testing.TB, socket string) *gsas.Thread {
	t.Helper()
	th, err := gsas.NewThread(attachThreads(t, socket, 0))
	if err != nil {
		t.Fatal(err)
	}
	return th
}

// Random operations by handles in C and in Go on one table, against a map.
func dhtModel(t *testing.T, bin string) {
	r := newDHTRig(t, bin)
	ctx, random := t.Context(), rand.New(rand.NewPCG(3, 4))
	for i, keys := range []int{1, 200} { // containers, and nearly none
		name := fmt.Sprint("table", i)
		var table *dht.Table
		var err error
		if i == 0 {
			r.want("0", "create %s %d 1 1 0", name, keys)
			table, err = dht.Open(ctx, r.thread, name)
		} else {
			table, err = dht.Create(ctx, r.thread, name, dht.Options{Nodes: []device.NodeID{0, 1, 0}, Keys: uint64(keys)})
			r.want("0", "open %s", name)
		}
		if err != nil {
			t.Fatal(err)
		}
		ok := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		model, versions, texts := map[uint64][2]uint64{}, map[uint64]uint32{}, map[string]string{}
		for n := range 6000 {
			k, v, inC := random.Uint64N(400)*0x9e3779b97f4a7c15, [2]uint64{random.Uint64(), uint64(n)}, random.IntN(2) == 0
			text := fmt.Sprint("k", strings.Repeat("ey", random.IntN(4)), random.IntN(60))
			var value [16]byte
			binary.LittleEndian.PutUint64(value[:], v[0])
			binary.LittleEndian.PutUint64(value[8:], v[1])
			switch op := random.IntN(8); {
			case op == 0 && inC:
				r.want("0", "put %#x %#x %#x", k, v[0], v[1])
				model[k] = v
			case op == 0:
				ok(table.Put(ctx, k, value))
				model[k] = v
			case op == 1:
				e, has, err := table.Lookup(ctx, k)
				ok(err)
				want, known := model[k]
				said := fmt.Sprintf("%#x %#x %d 1", want[0], want[1], e.Version)
				if !known {
					said = "0"
				}
				r.want(said, "get %#x", k)
				if has != known || has && (binary.LittleEndian.Uint64(e.Value[:]) != want[0] || binary.LittleEndian.Uint64(e.Value[8:]) != want[1]) {
					t.Fatalf("operation %d: key %#x is %+v, %v, want %#x", n, k, e, has, want)
				}
				versions[k] = e.Version
			case op == 2:
				e, has, err := table.Lookup(ctx, k)
				ok(err)
				right := has && e.Version == versions[k] || !has && versions[k] == 0
				r.want(map[bool]string{true: "1", false: "0"}[right], "compare_and_put %#x %#x %#x %d", k, v[0], v[1], versions[k])
				if right {
					model[k] = v
				}
			case op == 3 && inC:
				_, had := model[k]
				r.want(map[bool]string{true: "1", false: "0"}[had], "delete %#x", k)
				delete(model, k)
			case op == 3:
				had, err := table.Delete(ctx, k)
				ok(err)
				if _, want := model[k]; had != want {
					t.Fatalf("operation %d: delete of key %#x: %v", n, k, had)
				}
				delete(model, k)
			case op == 4 && inC:
				s := strings.Repeat("v", random.IntN(1000)) + fmt.Sprint(n)
				r.want("0", "put_bytes %s %s", text, s)
				texts[text] = s
			case op == 4:
				s := strings.Repeat("w", random.IntN(1000)) + fmt.Sprint(n)
				ok(table.PutBytes(ctx, []byte(text), []byte(s)))
				texts[text] = s
			case op == 5 && inC:
				want, has := texts[text]
				if has {
					want += " 1"
				} else {
					want = "0"
				}
				r.want(want, "get_bytes %s", text)
			case op == 5:
				got, has, err := table.GetBytes(ctx, []byte(text))
				ok(err)
				if want, should := texts[text]; string(got) != want || has != should {
					t.Fatalf("operation %d: key %s is %q, want %q", n, text, got, want)
				}
			case op == 6 && inC:
				_, had := texts[text]
				r.want(map[bool]string{true: "1", false: "0"}[had], "delete_bytes %s", text)
				delete(texts, text)
			case op == 6:
				had, err := table.DeleteBytes(ctx, []byte(text))
				ok(err)
				if _, want := texts[text]; had != want {
					t.Fatalf("operation %d: delete of key %s: %v", n, text, had)
				}
				delete(texts, text)
			}
			if t.Failed() {
				t.Fatalf("operation %d", n)
			}
		}
		if _, err := table.Len(ctx); err != nil {
			t.Error(err)
		}
		r.want(fmt.Sprint(len(model)+len(texts), " 0"), "count")
		all := len(table.Nodes())
		for part := range all {
			s, err := table.Stats(ctx, part)
			ok(err)
			r.want(fmt.Sprint(s.Keys, s.Deleted, s.Elements, s.Containers, s.Depth, all, 0), "stats %d", part)
			sum := uint64(0)
			ok(table.Range(ctx, part, func(key uint64, e dht.Entry) bool {
				m := uint64(e.Version)
				if e.Record {
					m += 3
				}
				sum += key * m
				return true
			}))
			r.want(fmt.Sprintf("%#x 0", sum), "range %d 0", part)
			if got := r.do("range %d 2", part); !strings.HasSuffix(got, " 7") {
				t.Errorf("a range that ends at the second key: %q", got)
			}
		}
		r.want("-22", "stats %d", all)
		r.want("0", "close")
	}
	r.end()
}

// Handles in C and in Go change the same keys at the same time, and no change is lost.
func dhtTogether(t *testing.T, bin string) {
	r := newDHTRig(t, bin)
	ctx := t.Context()
	table, err := dht.Create(ctx, r.thread, "t", dht.Options{Nodes: []device.NodeID{0, 1}, Keys: 1, Dense: true})
	if err != nil {
		t.Fatal(err)
	}
	r.want("0", "open t")
	const keys, adds, own = 40, 200, 4
	var all sync.WaitGroup
	all.Go(func() { r.want("0", "add %d %d", keys, adds) })
	for range own {
		all.Go(func() {
			for i := range adds {
				for done := false; !done; {
					e, _, err := table.Lookup(ctx, uint64(i%keys))
					if err == nil {
						n := binary.LittleEndian.Uint64(e.Value[:]) + 1
						binary.LittleEndian.PutUint64(e.Value[:], n)
						binary.LittleEndian.PutUint64(e.Value[8:], ^n)
						done, err = table.CompareAndPut(ctx, uint64(i%keys), e.Value, e.Version)
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	all.Wait()
	const each = (6 + own) * adds / keys
	for k := range uint64(keys) {
		r.want(fmt.Sprintf("%#x %#x %d 1", each, ^uint64(each), each), "get %d", k)
	}
	// Records that both replace, and read whole.
	all.Go(func() { r.want("0", "texts 3 100") })
	all.Go(func() {
		for i := range 300 {
			key := []byte(fmt.Sprint("text ", i%3))
			if err := table.PutBytes(ctx, key, []byte(strings.Repeat(string(rune('A'+i%26)), 1+i*31%1024))); err != nil {
				t.Error(err)
				return
			}
			if v, has, err := table.GetBytes(ctx, key); !has || err != nil || strings.Trim(string(v), string(v[:1])) != "" {
				t.Errorf("%q, %v, %v", v, has, err)
			}
		}
	})
	all.Wait()
	r.want("0", "close")
	r.end()
}

// Calls that fail say why.
func dhtWrong(t *testing.T, bin string) {
	r := newDHTRig(t, bin)
	long := strings.Repeat("n", 25)
	r.want("-2: open table \"t\": the tree has no table of this name", "open t")
	r.want("-36:", "open")
	r.want("-36: table \""+long+"\": a name has 1 to 24 bytes", "create %s 1 0 0", long)
	r.want("-22: create table \"t\": 0 nodes: a table has 1 to 504", "create t 1 0")
	r.want("-22:", "create t 1 0"+strings.Repeat(" 0", 505))
	r.want("-14: create table \"t\": alloc at", "create t 1 0 0 77")
	r.want("-28: create table \"t\": alloc at", "create t 1000000000 0 0 1")
	r.want("0", "create %s 1 0 0 1", long[:24])
	r.want("-17: create table", "create %s 1 0 0 1", long[:24])
	r.want("-2:", "open %s", long[:23])
	r.want("0", "close")
	r.want("0", "open %s", long[:24])
	r.want("0", "get 1")
	r.want("0", "delete 1")
	r.want("1", "compare_and_put 1 2 3 0")
	r.want("0", "compare_and_put 1 2 3 0")
	r.want("0", "compare_and_put 1 2 3 2")
	r.want("1", "compare_and_put 1 2 3 1")
	r.want("0x2 0x3 2 1", "get 1")
	table, err := dht.Open(t.Context(), r.thread, long[:24])
	if err != nil {
		t.Fatal(err)
	}
	hash := table.KeyOf([]byte("key"))
	r.want("0", "put %#x 7 8", hash)
	r.want("-124: get key", "get_bytes key")
	r.want("-124: put key", "put_bytes key value")
	r.want("-124: delete key", "delete_bytes key")
	r.want("1", "delete %#x", hash)
	r.want("0", "put_bytes key value")
	r.want("-124: get key", "get %#x", hash)
	r.want(fmt.Sprintf("-105: get key %#x of table \"%s\": a value of 5 bytes, and room for 4", hash, long[:24]), "get_bytes key 4")
	r.want("value 1", "get_bytes key 5")
	r.want("-90: a key of 251 bytes: it has at most 250", "get_bytes "+strings.Repeat("k", 251))
	r.want("-90:", "delete_bytes "+strings.Repeat("k", 251))
	r.want("-90: a value of 1025 bytes: it has at most 1024", "put_bytes k "+strings.Repeat("v", 1025))
	r.want("0", "put_bytes "+strings.Repeat("k", 250)+" "+strings.Repeat("v", 1024))
	r.want(strings.Repeat("v", 1024)+" 1", "get_bytes "+strings.Repeat("k", 250))
	r.want("0", "put_bytes empty")
	r.want(" 1", "get_bytes empty")
	r.want("0", "child")
	r.want("0", "close")
	r.end()
}

// The lock of a thread that has ended is taken away, and one of a thread that lives is respected.
func dhtLocks(t *testing.T, bin string) {
	r := newDHTRig(t, bin)
	r.want("0", "create t 1 0 0 1")
	r.want("0", "put 1 5 6")
	entry, err := r.thread.Load256(t.Context(), r.thread.Directory())
	if err != nil {
		t.Fatal(err)
	}
	parts, err := r.thread.Load256(t.Context(), gsas.Address(entry[0])+64)
	if err != nil {
		t.Fatal(err)
	}
	at := gsas.Address(parts[0]) + 43*32
	for _, c := range []struct {
		holder uint32
		want   string
	}{{0x7fffff, "0x5 0x6 3 1"}, {r.thread.ID(), "-16: get key 0x1 of table \"t\": thread"}} {
		w, err := r.thread.Load256(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		w[0] = (w[0]>>32+1)<<32 | uint64(c.holder)<<8 | 2
		if err := r.thread.Store256(t.Context(), at, w); err != nil {
			t.Fatal(err)
		}
		if said := r.do("get 1"); !strings.HasPrefix(said, c.want) {
			t.Errorf("holder %#x: %q, want %q", c.holder, said, c.want)
		}
	}
}

// A member of the tree writes over the table: calls end with an error or a wrong value.
func dhtHostile(t *testing.T, bin string) {
	r := newDHTRig(t, bin)
	ctx, random := t.Context(), rand.New(rand.NewPCG(5, 6))
	r.want("0", "create t 1 0 0 1")
	for i := range 200 {
		r.want("0", "put %d 1 1", i)
		r.want("0", "put_bytes key%d some-value-of-%d", i, i)
	}
	entry, err := r.thread.Load256(ctx, r.thread.Directory())
	if err != nil {
		t.Fatal(err)
	}
	parts, err := r.thread.Load256(ctx, gsas.Address(entry[0])+64)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3000 {
		at := gsas.Address(parts[random.IntN(2)]) + 32*gsas.Address(random.IntN(64))
		w, err := r.thread.Load256(ctx, at)
		if err != nil {
			t.Fatal(err)
		}
		switch n := random.IntN(4); random.IntN(4) {
		case 0:
			w[n] ^= 1 << random.IntN(64)
		case 1:
			w[0] = w[0]&^0xff | 1 // indirect, to itself or elsewhere
			w[1] = []uint64{uint64(at) &^ 0xfff, entry[0], random.Uint64() &^ 0xfff, 0}[n]
		case 2:
			w[n] = random.Uint64()
		case 3:
			w[0] = w[0]&^0xff | 8 // a record
			w[2], w[3] = []uint64{uint64(at), uint64(at) + 8, 1 << 48, ^uint64(31)}[n], random.Uint64()&0x7ff
		}
		w[0] &^= 2 // a lock is waited for
		if err := r.thread.Store256(ctx, at, w); err != nil {
			t.Fatal(err)
		}
		r.do([]string{"get %d", "put %d 2 2", "delete %d", "get_bytes key%d", "put_bytes key%d other", "delete_bytes key%d"}[i%6], random.IntN(200))
		if i%50 == 0 {
			r.do("stats %d", i/50%2)
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	if err := r.thread.Store256(ctx, gsas.Address(entry[0]), [4]uint64{1, 2, 3, 4}); err != nil {
		t.Fatal(err)
	}
	r.want("-74: open table \"t\": the header at", "open t")
	r.want("0", "close")
	r.end()
}

// The table has no memory error, no leak and no data race, by the sanitizers.
func TestSanitizedDHT(t *testing.T) {
	for _, flags := range [][]string{{"-fsanitize=address,undefined", "-fno-omit-frame-pointer"}, {"-fsanitize=thread"}} {
		t.Run(flags[0], func(t *testing.T) {
			bin := buildDHT(t, flags...)
			for name, test := range map[string]func(*testing.T, string){"together": dhtTogether, "wrong": dhtWrong, "hostile": dhtHostile} {
				t.Run(name, func(t *testing.T) { test(t, bin) })
			}
		})
	}
}
