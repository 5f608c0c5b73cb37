package hostile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/tabwriter"
	"time"
)

// raceUser is the user who attaches where pfd has no rights of its own.
const raceUser = 3101

// raced are the races, each with a kind of memory.
var raced = []struct{ how, memory string }{
	{raceProtect, "anonymous"}, {raceNone, "anonymous"},
	{raceProtect, "private file"}, {raceNone, "private file"},
	{raceProtect, "shared"}, {raceNone, "shared"},
	{raceRemap, "anonymous"}, {raceFile, "anonymous"}, {raceShared, "anonymous"},
	{raceFork, "anonymous"}, {raceExec, "anonymous"},
}

// leftover is how many of a hundred thousand rounds may change memory after mprotect has
// removed the right: process_vm_writev(2) pins pages before it copies, and a copy in progress
// when mprotect returns may still complete (docs/security.md).
const leftover = 500

// No byte reaches memory without the right to write it, whatever a process does to its memory
// during transfers. A new mapping at the address, a child's copy and another image stay
// unchanged. After mprotect removes the right, only copies that the kernel has started
// complete. This holds for every method, with a pfd that accesses the memory itself and with a
// helper. PFD_RACE is the total duration.
func TestNoByteWhereItMayNot(t *testing.T) {
	needRoot(t, "being another user")
	d := 10 * time.Second
	if testing.Short() {
		d = 5 * time.Second
	}
	if v := os.Getenv("PFD_RACE"); v != "" {
		var err error
		if d, err = time.ParseDuration(v); err != nil {
			t.Fatal("PFD_RACE: ", err)
		}
	}
	w := start(t)
	files := filepath.Join(w.dir, "files")
	if err := os.Mkdir(files, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(files, 0o777); err != nil {
		t.Fatal(err)
	}
	ways := []struct {
		name string
		uid  uint32
	}{{"direct", 0}, {"helper", raceUser}}
	share := d / time.Duration(len(ways)*len(methods)*len(raced))
	var table strings.Builder
	tab := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "way\tmethod\tdone\tmemory\trounds\tlanded\tchanged")
	sums := make([]score, len(raced))
	for _, way := range ways {
		for _, method := range methods {
			t.Run(way.name+"/"+method, func(t *testing.T) {
				w.during(t)
				for i, c := range raced {
					s, ok := w.race(attachOrder{UID: way.uid, Method: method}, files, c.how, c.memory, share)
					if !ok {
						continue
					}
					sums[i].add(s)
					fmt.Fprintf(tab, "%s\t%s\t%s\t%s\t%d\t%d\t%d\n", way.name, method, c.how, c.memory, s.Rounds, s.Landed, s.Changed)
				}
			})
		}
	}
	for i, c := range raced {
		s := sums[i]
		fmt.Fprintf(tab, "all\t\t%s\t%s\t%d\t%d\t%d\n", c.how, c.memory, s.Rounds, s.Landed, s.Changed)
		switch most := leftover * s.Rounds / 100_000; {
		case s.Rounds == 0 || s.Landed == 0:
			t.Errorf("%s of %s memory: %d rounds, bytes arrived in %d: too few for a conclusion", c.how, c.memory, s.Rounds, s.Landed)
		case c.how == raceProtect || c.how == raceNone:
			if s.Changed > max(most, 2) {
				t.Errorf("%s of %s memory: bytes changed in %d of %d rounds, want %d at most", c.how, c.memory, s.Changed, s.Rounds, most)
			}
		case s.Changed != 0:
			t.Errorf("%s of %s memory: bytes changed in %d of %d rounds", c.how, c.memory, s.Changed, s.Rounds)
		}
	}
	_ = tab.Flush() // into memory
	t.Logf("\n%s", &table)
}

// race races for d; it returns false if the method is not available.
func (w *world) race(a attachOrder, files, how, memory string, d time.Duration) (score, bool) {
	w.t.Helper()
	a.Group = fmt.Sprintf("race%d", time.Now().UnixNano())
	from := w.attach("initiator", a)
	defer from.kill()
	a.Node = 1
	to := w.attach("target", a)
	defer to.kill()
	if a.Method == "uffd" {
		if r, err := to.do(order{Op: "buffer", ID: "probe", Size: 4096}); err != nil || r.Err != "" {
			w.t.Logf("%s: %v", r.Err, err)
			return score{}, false // no userfaultfd for this user
		}
	}
	from.must(order{Op: "buffer", ID: "src", Kind: "shared", Size: 8 * raceSize, Seed: 11})
	m := to.must(order{Op: "buffer", ID: "b", Kind: "fixed", Off: raceAt, Size: raceSize})
	from.must(order{Op: "storm", ID: "src", Remote: m.Remote})
	var s score
	if how == raceExec {
		s = w.raceExec(to, a, d)
	} else {
		s = to.must(order{Op: "race", Kind: how, ID: memory, Path: files, Size: uint64(d)}).Score
	}
	from.must(order{Op: "calm"})
	return s, true
}

// raceExec makes the target execute another image, which attaches with correct memory at the
// old address.
func (w *world) raceExec(to *proxy, a attachOrder, d time.Duration) (s score) {
	image, err := self()
	if err != nil {
		w.t.Fatal(err)
	}
	a.Socket = w.socket()
	for end := time.Now().Add(d); time.Now().Before(end) || s.Rounds == 0; s.Rounds++ {
		if to.must(order{Op: "watch", ID: "b", Size: uint64(time.Millisecond)}).Wrong != 0 {
			s.Landed++
		}
		to.must(order{Op: "exec", Path: image})
		to.must(order{Op: "buffer", ID: "b", Kind: "fixed", Off: raceAt, Size: raceSize})
		if to.must(order{Op: "watch", ID: "b", Size: uint64(2 * time.Millisecond)}).Wrong != 0 {
			s.Changed++
		}
		to.must(order{Op: "attach", Attach: a})
	}
	return s
}

// A process that executes another program loses its attachment, though its sockets stay open
// and no other process writes to it: its memory is gone, and its slot becomes free.
func TestExecEndsTheAttachment(t *testing.T) {
	needRoot(t, "being another user")
	everywhere(t, execEndsTheAttachment)
}

func execEndsTheAttachment(t *testing.T, on place) {
	image, err := self()
	if err != nil {
		t.Fatal(err)
	}
	for _, uid := range []uint32{0, raceUser} {
		w := on.start(t)
		p := w.attach("leaver", attachOrder{UID: uid})
		p.must(order{Op: "exec", Path: image})
		w.until("the slot is free", func() bool { return w.domains() == 0 })
		p.kill()
	}
}
