package tree

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
)

// newDirectory returns a directory whose tokens come from a seed.
func newDirectory(seed, quota uint64) *Directory {
	r := rand.New(rand.NewPCG(seed, 1))
	now := int64(0) // each look at the clock takes a third of a Pause
	return New(Config{Quota: quota, Now: func() int64 { now += int64(Pause)/3 + 1; return now }, Random: func() (t Token) {
		binary.LittleEndian.PutUint64(t[:], r.Uint64())
		return t
	}})
}

func must[T any](t *testing.T, f func() (T, error)) T {
	t.Helper()
	v, err := f()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func begin(t *testing.T, d *Directory, n device.NodeID, uid uint32) Thread {
	t.Helper()
	return must(t, func() (Thread, error) { return d.Begin(n, uid) })
}

func join(t *testing.T, d *Directory, n device.NodeID, uid uint32, token Token) Thread {
	t.Helper()
	return must(t, func() (Thread, error) { return d.Join(n, uid, token) })
}

func alloc(t *testing.T, d *Directory, p atomics.Protection, n device.NodeID, pages uint64, hint atomics.Address) Run {
	t.Helper()
	return must(t, func() (Run, error) { return d.Alloc(p, n, pages, hint) })
}

// TestTree follows a tree of three threads on two nodes whose root ends first.
func TestTree(t *testing.T) {
	d := newDirectory(1, DefaultQuota)
	root := begin(t, d, 0, 1000)
	if root.ID != 0x800000 || root.Protection != 0x800000 || root.Token == (Token{}) {
		t.Fatalf("the first thread of node 0 is %+v", root)
	}
	b := join(t, d, 1, 1000, root.Token)
	c := join(t, d, 0, 1000, root.Token)
	if b.ID != 0x800001 || b.Protection != root.Protection || c.ID != 0x840000 || c.Region != root.Region || b.Token != root.Token {
		t.Errorf("members %+v and %+v of %+v", b, c, root)
	}
	if !d.Alive(b.ID, root.Protection) || d.Alive(b.ID, 1) || d.Alive(0x880000, root.Protection) || d.Alive(0x1f<<18, root.Protection) {
		t.Error("Alive knows other threads than there are")
	}
	for name, f := range map[string]func() error{
		"another user's token": func() error { _, err := d.Join(0, 1001, root.Token); return err },
		"a guessed token":      func() error { _, err := d.Join(0, 1000, Token{1}); return err },
		"no token":             func() error { _, err := d.Join(0, 1000, Token{}); return err },
		"pages of no tree":     func() error { _, err := d.Alloc(7, 0, 1, 0); return err },
	} {
		if err := f(); !errors.Is(err, ErrTree) {
			t.Errorf("%s: %v, want ErrTree", name, err)
		}
	}
	r := alloc(t, d, root.Protection, 1, 3, 0)
	if p, last, err := d.End(root.ID); err != nil || last || p != root.Protection {
		t.Fatalf("end of the root: %v, %v", last, err)
	}
	if _, _, err := d.End(root.ID); !errors.Is(err, ErrThread) {
		t.Errorf("a second end: %v", err)
	}
	// The id stays the tree's: no other root gets it, although its interface is free.
	for range threads - 2 {
		if other := begin(t, d, 0, 1001); other.Protection == root.Protection {
			t.Fatal("the id of a living tree is given to another")
		}
	}
	if _, err := d.Begin(0, 1001); !errors.Is(err, ErrThreads) {
		t.Errorf("the interface of the root, as a root: %v", err)
	}
	if again := join(t, d, 0, 1000, root.Token); again.ID != root.ID {
		t.Errorf("the interface of the root, as a member: %+v", again)
	}
	for _, id := range []atomics.Thread{root.ID, c.ID} {
		if _, last, err := d.End(id); last || err != nil {
			t.Fatal(last, err)
		}
	}
	if _, last, _ := d.End(b.ID); !last {
		t.Fatal("the last thread is not the last")
	}
	if _, err := d.Join(0, 1000, root.Token); !errors.Is(err, ErrTree) {
		t.Errorf("joining a tree that has ended: %v", err)
	}
	if _, err := d.Alloc(root.Protection, 0, 1, 0); !errors.Is(err, ErrTree) {
		t.Errorf("pages for a tree that has ended: %v", err)
	}
	if _, err := d.Begin(0, 1001); err != nil { // the interface of c
		t.Error(err)
	}
	if _, err := d.Begin(0, 1001); !errors.Is(err, ErrThreads) {
		t.Errorf("the id of a tree whose pages are still there: %v", err)
	}
	if used := d.Used(); used[1000] != 3*device.PageSize {
		t.Errorf("used %v", used)
	}
	if all := d.Ended(root.Protection); !covers(all, r) {
		t.Errorf("%v does not cover %v", all, r)
	}
	d.Remove(root.Protection)
	if len(d.Used()) != 0 {
		t.Errorf("used %v after the end", d.Used())
	}
	// Nor at once then.
	if _, err := d.Begin(0, 1001); !errors.Is(err, ErrThreads) {
		t.Errorf("the id of a tree that has just gone: %v", err)
	}
	d.cfg.Now()
	if again := begin(t, d, 0, 1001); again.Protection != root.Protection || again.Token == root.Token {
		t.Errorf("the id of a tree that is gone: %+v", again)
	}
}

func covers(all []Run, r Run) bool {
	return slices.ContainsFunc(all, func(o Run) bool {
		return o.Node == r.Node && o.Page <= r.Page && r.Page+r.Pages <= o.Page+o.Pages
	})
}

func TestLastThreadIsKept(t *testing.T) {
	d := newDirectory(1, DefaultQuota)
	d.cfg.KeepLast = func(uid uint32) bool { return uid != 0 }
	for range threads - 1 {
		begin(t, d, 3, 1000)
	}
	if _, err := d.Begin(3, 1000); !errors.Is(err, ErrThreads) {
		t.Errorf("the last thread goes to the user that has all others: %v", err)
	}
	begin(t, d, 3, 1001)
	begin(t, d, 4, 1000)
}

// A user cannot take the last id that a root of a node could have: by trees whose roots have ended, by ids
// that rest, or by threads that join.
func TestLastRootIsKept(t *testing.T) {
	for name, take := range map[string]func(d *Directory) error{
		"trees whose roots have ended": func(d *Directory) error {
			th, err := d.Begin(3, 1000)
			if err == nil {
				_, err = d.Join(4, 1000, th.Token)
			}
			if err == nil {
				_, _, err = d.End(th.ID)
			}
			return err
		},
		"ids that rest": func(d *Directory) error {
			th, err := d.Begin(3, 1000)
			if err == nil {
				_, _, err = d.End(th.ID)
				d.Remove(th.Protection)
			}
			return err
		},
		"threads that join": func(d *Directory) error {
			for _, t := range d.trees {
				_, err := d.Join(3, 1000, t.token)
				return err
			}
			_, err := d.Begin(4, 1000)
			return err
		},
	} {
		d := newDirectory(1, DefaultQuota)
		d.cfg.KeepLast = func(uid uint32) bool { return uid != 0 }
		d.cfg.Now = func() int64 { return 0 } // no rest ends
		var err error
		for range 2 * threads {
			if err = take(d); err != nil {
				break
			}
		}
		if !errors.Is(err, ErrThreads) {
			t.Errorf("%s: %v", name, err)
		}
		begin(t, d, 3, 1001)
	}
}

// A user whose hints name pages far from each other gets others: each part of the address space that has a
// page costs tables.
func TestPagesFarFromEachOther(t *testing.T) {
	d := newDirectory(1, DefaultQuota)
	a := begin(t, d, 2, 1000)
	first := atomics.At(2, uint64(a.Region)*atomics.RegionSize)
	far, last := 0, uint64(0)
	const chunk = 512
	for i := uint64(regionPages/chunk - 2); i > 0; i-- {
		hint := first + atomics.Address(i*chunk*device.PageSize)
		if r := alloc(t, d, a.Protection, 2, 1, hint); r.Address() == hint {
			far++
		} else if last++; r.Page-uint64(a.Region)*regionPages >= regionPages/chunk {
			t.Fatalf("page %d instead of one far away", r.Page)
		}
	}
	if tables := far * 8 << 10; far < 1000 || tables > DefaultQuota/32 {
		t.Errorf("%d pages far from each other: %d bytes of tables", far, tables)
	}
	if r := alloc(t, d, a.Protection, 2, 1<<17, 0); r.Pages != 1<<17 {
		t.Errorf("%+v", r)
	}
}

func TestPages(t *testing.T) {
	const quota = 100 * device.PageSize
	d := newDirectory(1, quota)
	a, b := begin(t, d, 2, 1000), begin(t, d, 2, 1001)
	p := a.Protection
	r := alloc(t, d, p, 2, 10, 0)
	if r.Page != uint64(a.Region)*regionPages || r.Offset() != 0 || r.Address() != atomics.At(2, uint64(a.Region)*atomics.RegionSize) {
		t.Errorf("the first pages are %+v at %v", r, r.Address())
	}
	second := alloc(t, d, p, 2, 20, 0)
	if second.Page != r.Page+10 || second.Offset() != 10*device.PageSize {
		t.Errorf("the next pages are %+v", second)
	}
	// Pages that were asked for.
	hint := atomics.At(2, (r.Page+40)*device.PageSize)
	if got := alloc(t, d, p, 2, 2, hint); got.Address() != hint {
		t.Errorf("asked for %v, got %v", hint, got.Address())
	}
	last := p.Directory()
	if last != atomics.At(2, (atomics.Pages-32)*device.PageSize) {
		t.Errorf("the directory of interface 32 is %v", last)
	}
	named := alloc(t, d, p, 2, 1, last)
	if named.Address() != last || named.Offset() != atomics.RegionSize-32*device.PageSize {
		t.Errorf("asked for the directory, got %v at %#x", named.Address(), named.Offset())
	}
	for name, hint := range map[string]atomics.Address{
		"taken pages":           hint,
		"taken behind":          hint - device.PageSize,
		"no page's begin":       hint + 8,
		"another node":          atomics.At(1, hint.Offset()),
		"another tree's region": atomics.At(2, uint64(b.Region)*atomics.RegionSize),
		"the end of the region": atomics.At(2, uint64(a.Region+1)*atomics.RegionSize-device.PageSize),
		"nobody's partition":    atomics.Address(hint.Offset()),
		"the directory again":   last,
		"another directory":     b.Protection.Directory(),
	} {
		got := alloc(t, d, p, 2, 2, hint)
		if got.Address() == hint || got.Page >= r.Page+40 || got.Page < r.Page+30 {
			t.Errorf("%s: %v was asked for, got %v", name, hint, got.Address())
		}
		if _, err := d.Free(p, got.Address()); err != nil {
			t.Error(err)
		}
		d.Freed(p, got)
	}
	if got := alloc(t, d, b.Protection, 2, 1, last); got.Address() == last {
		t.Error("the directory of a tree was given to another")
	}
	if _, err := d.Free(p, last); err != nil {
		t.Error(err)
	}
	d.Freed(p, named)
	if got := alloc(t, d, p, 2, 1, last); got != named {
		t.Errorf("the directory again: %v", got)
	}
	// Pages that are freed come again once they are zero.
	if _, err := d.Free(p, r.Address()); err != nil {
		t.Fatal(err)
	}
	if got := alloc(t, d, p, 2, 1, 0); got.Page < r.Page+10 {
		t.Errorf("%v comes again before it is zero", got)
	}
	d.Freed(p, r)
	if got := alloc(t, d, p, 2, 10, 0); got.Page != r.Page {
		t.Errorf("%v, want %v again", got, r)
	}
	for name, f := range map[string]struct {
		p    atomics.Protection
		at   atomics.Address
		want error
	}{
		"not allocated":       {p, atomics.At(2, (r.Page+50)*device.PageSize), ErrAddress},
		"inside":              {p, r.Address() + device.PageSize, ErrAddress},
		"not aligned":         {p, r.Address() + 8, ErrAddress},
		"another node":        {p, atomics.At(3, r.Address().Offset()), ErrAddress},
		"partition 0":         {p, atomics.Address(r.Address().Offset()), ErrAddress},
		"nobody's region":     {p, atomics.At(2, 100*atomics.RegionSize), ErrAddress},
		"the tree of another": {b.Protection, r.Address(), ErrProtection},
		"its directory":       {b.Protection, last, ErrProtection},
		"no tree":             {p + 5, r.Address(), ErrTree},
	} {
		if _, err := d.Free(f.p, f.at); !errors.Is(err, f.want) {
			t.Errorf("free, %s: %v, want %v", name, err, f.want)
		}
	}
	// The quota: 10 + 20 + 2 + 1 + 1 are used.
	for _, pages := range []uint64{0, 67, 101, areaPages, areaPages + 1, 1 << 63} {
		if _, err := d.Alloc(p, 2, pages, 0); !errors.Is(err, ErrRoom) {
			t.Errorf("%d pages: %v", pages, err)
		}
	}
	alloc(t, d, p, 1, 66, 0)
	if used := d.Used(); used[1000] != quota {
		t.Errorf("used %v", used)
	}
	d.SetQuota(2 * quota)
	alloc(t, d, p, 1, 1, 0)
}

// TestAreaIsFull: all pages of a region can be allocated, except those that need a hint; then allocation fails.
func TestAreaIsFull(t *testing.T) {
	d := newDirectory(1, 2*atomics.RegionSize)
	a := begin(t, d, 0, 1)
	first := alloc(t, d, a.Protection, 0, areaPages-5, 0)
	if _, err := d.Alloc(a.Protection, 0, 6, 0); !errors.Is(err, ErrRoom) {
		t.Errorf("six pages where five are left: %v", err)
	}
	alloc(t, d, a.Protection, 0, 5, 0)
	if _, err := d.Alloc(a.Protection, 0, 1, 0); !errors.Is(err, ErrRoom) {
		t.Errorf("a page of a full region: %v", err)
	}
	if dir := alloc(t, d, a.Protection, 0, 1, a.Protection.Directory()); dir.Offset() < areaPages*device.PageSize {
		t.Errorf("the directory is at %#x of the memory", dir.Offset())
	}
	if all := d.Ended(a.Protection); !covers(all, first) {
		t.Errorf("%v", all)
	}
}

// model is the random test's own record of threads and trees.
type model struct {
	threads map[atomics.Thread]*modelTree
	trees   map[atomics.Protection]*modelTree
}

type modelTree struct {
	id      atomics.Protection
	uid     uint32
	token   Token
	threads int
	runs    []Run
	freed   []Run // and not zero yet
	ended   bool
}

// TestRandom compares the directory with a model: ids are unique while their tree has anything, pages
// belong to one tree, and the quota counts all of them. Ids are used again 10^5 times.
func TestRandom(t *testing.T) {
	const steps, nodes, users, quota = 80_000, 4, 3, 300 * device.PageSize
	rnd := rand.New(rand.NewPCG(7, 7))
	d := newDirectory(7, quota)
	m := model{map[atomics.Thread]*modelTree{}, map[atomics.Protection]*modelTree{}}
	given := map[atomics.Protection]int{}
	again := 0
	pick := func(fit func(*modelTree) bool) *modelTree {
		var list []*modelTree
		for _, p := range slices.Sorted(maps.Keys(m.trees)) {
			if fit(m.trees[p]) {
				list = append(list, m.trees[p])
			}
		}
		if len(list) == 0 {
			return nil
		}
		return list[rnd.IntN(len(list))]
	}
	live := func(o *modelTree) bool { return !o.ended }
	for step := range steps {
		fail := func(format string, args ...any) {
			t.Helper()
			t.Fatalf("step %d: %s", step, fmt.Sprintf(format, args...))
		}
		n, uid := device.NodeID(rnd.IntN(nodes)), uint32(rnd.IntN(users))
		switch k := rnd.IntN(20); {
		case k < 5:
			th, err := d.Begin(n, uid)
			if err != nil {
				if !errors.Is(err, ErrThreads) {
					fail("%v", err)
				}
				break
			}
			if m.trees[th.Protection] != nil || m.threads[th.ID] != nil || th.ID != atomics.Thread(th.Protection) || th.ID.Node() != n {
				fail("root %+v: the id is in use", th)
			}
			if given[th.Protection]++; given[th.Protection] > 1 {
				again++
			}
			o := &modelTree{id: th.Protection, uid: uid, token: th.Token, threads: 1}
			m.trees[o.id], m.threads[th.ID] = o, o
		case k < 8:
			o := pick(live)
			if o == nil {
				break
			}
			th, err := d.Join(n, uid, o.token)
			switch {
			case o.uid != uid:
				if !errors.Is(err, ErrTree) {
					fail("uid %d joins the tree of %d: %v", uid, o.uid, err)
				}
			case err == nil:
				if m.threads[th.ID] != nil || th.Protection != o.id {
					fail("member %+v: the id is in use", th)
				}
				o.threads++
				m.threads[th.ID] = o
			case !errors.Is(err, ErrThreads):
				fail("%v", err)
			}
		case k < 13:
			ids := slices.Sorted(maps.Keys(m.threads))
			if len(ids) == 0 {
				break
			}
			id := ids[rnd.IntN(len(ids))]
			o := m.threads[id]
			delete(m.threads, id)
			o.threads--
			p, last, err := d.End(id)
			if err != nil || p != o.id || last != (o.threads == 0) {
				fail("end of %#x: %#x, %v, %v", id, p, last, err)
			}
			o.ended = last
		case k < 16:
			o := pick(live)
			if o == nil {
				break
			}
			hint := atomics.Address(0)
			if rnd.IntN(4) == 0 {
				hint = o.id.Directory()
				if rnd.IntN(4) == 0 {
					hint = pick(live).id.Directory()
				}
			}
			r, err := d.Alloc(o.id, n, uint64(rnd.IntN(20)+1)>>rnd.IntN(5)|1, hint)
			switch {
			case errors.Is(err, ErrRoom):
			case err != nil:
				fail("%v", err)
			default:
				for _, other := range m.trees {
					for _, q := range slices.Concat(other.runs, other.freed) {
						if q.Node == r.Node && q.Page < r.Page+r.Pages && r.Page < q.Page+q.Pages {
							fail("%+v of %#x overlaps %+v of %#x", r, o.id, q, other.id)
						}
						if other == o && q.Node == r.Node && q.Offset() < r.Offset()+r.Pages*device.PageSize && r.Offset() < q.Offset()+q.Pages*device.PageSize {
							fail("%+v overlaps %+v in the tree's memory", r, q)
						}
					}
				}
				o.runs = append(o.runs, r)
			}
		case k < 18:
			o := pick(func(o *modelTree) bool { return live(o) && len(o.runs) > 0 })
			if o == nil {
				break
			}
			i := rnd.IntN(len(o.runs))
			r, err := d.Free(o.id, o.runs[i].Address())
			if err != nil || r != o.runs[i] {
				fail("free %+v: %+v, %v", o.runs[i], r, err)
			}
			o.runs, o.freed = slices.Delete(o.runs, i, i+1), append(o.freed, r)
		case k < 19:
			o := pick(func(o *modelTree) bool { return len(o.freed) > 0 })
			if o == nil {
				break
			}
			d.Freed(o.id, o.freed[0])
			o.freed = slices.Delete(o.freed, 0, 1)
		default:
			o := pick(func(o *modelTree) bool { return o.ended })
			if o == nil {
				break
			}
			all := d.Ended(o.id)
			for _, r := range slices.Concat(o.runs, o.freed) {
				if !covers(all, r) {
					fail("%+v is not among the pages of a tree that has ended, %v", r, all)
				}
			}
			for _, other := range m.trees {
				for _, r := range slices.Concat(other.runs, other.freed) {
					if other != o && slices.ContainsFunc(all, func(q Run) bool { return q.Node == r.Node && q.Page < r.Page+r.Pages && r.Page < q.Page+q.Pages }) {
						fail("%+v of %#x is among the pages of %#x", r, other.id, o.id)
					}
				}
			}
			d.Remove(o.id)
			delete(m.trees, o.id)
		}
		if step%1000 == 0 {
			used := map[uint32]uint64{}
			for _, o := range m.trees {
				for _, r := range slices.Concat(o.runs, o.freed) {
					used[o.uid] += r.Pages * device.PageSize
				}
			}
			if got := d.Used(); !maps.Equal(got, used) {
				fail("used %v, want %v", got, used)
			}
			members := 0
			for _, info := range d.Trees() {
				members += len(info.Threads)
				if o := m.trees[info.Protection]; o == nil || o.uid != info.UID || o.threads != len(info.Threads) || o.ended != info.Ended {
					fail("tree %+v, want %+v", info, o)
				}
			}
			if members != len(m.threads) {
				fail("%d threads, want %d", members, len(m.threads))
			}
		}
	}
	// The rest of the 10^5 uses, one after another.
	for id, o := range m.threads {
		if p, _, err := d.End(id); err != nil || p != o.id {
			t.Fatal(p, err)
		}
	}
	for p := range m.trees {
		d.Remove(p)
	}
	for again < 100_000 {
		th := begin(t, d, device.NodeID(again%nodes), 1)
		r := alloc(t, d, th.Protection, 0, 1, 0)
		if given[th.Protection]++; given[th.Protection] > 1 {
			again++
		}
		if _, last, err := d.End(th.ID); !last || err != nil {
			t.Fatal(last, err)
		}
		if !covers(d.Ended(th.Protection), r) {
			t.Fatalf("%v", r)
		}
		d.Remove(th.Protection)
	}
	if len(d.Used())+len(d.Trees()) != 0 {
		t.Errorf("left: %v, %v", d.Used(), d.Trees())
	}
}
