package emu_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/internal/memfd"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/packetizer"
	soc "github.com/exanet/pfd/soc/gsas"
	"github.com/exanet/pfd/space/view"
)

// tree is the protection ID of the threads of these tests: of interface 32 of node 0.
const tree = 0x800000

// fellow is a thread of a side of a rig.
type fellow struct {
	r       *rig
	node    int
	index   int
	port    *attach.Port
	numbers [device.PktzChannels][2]uint16 // by channel and node
}

// thread makes a thread with an index and an interface, as pfd does for THREAD.
func (r *rig) thread(node, index int, protection uint32) *fellow {
	r.t.Helper()
	s := r.sides[node]
	iface := uint32(device.MailboxThread + index)
	r.on(node, func() {
		set := func(at uint32, v uint64) {
			if err := r.engine.Bus(node).Window(device.PL).Write64(at, v); err != nil {
				r.t.Error(err)
			}
		}
		s.pages.ResetThread(index)
		if err := r.engine.AttachThread(node, s.domain.Slot, index, int(iface)); err != nil {
			r.t.Error(err)
		}
		set(device.PLPktzProt+8*iface, device.PktzProt(protection, s.domain.Slot))
		set(device.PLMboxCfg+8*iface, device.ThreadMboxCfg(s.domain.PDID, protection))
		set(device.PLPktzCfg+8*iface, packetizer.Config{PDID: s.domain.PDID, Node: device.NodeID(node), Interface: uint8(iface), GSAS: true, Enable: true}.Encode())
	})
	return &fellow{r: r, node: node, index: index, port: s.pages.Thread(index)}
}

// pages makes a run of a node's pages those of the tree, at a place of its memory.
func (r *rig) pages(node int, first uint64, pages int, back uint64, valid bool) {
	r.on(node, func() {
		w := r.engine.Bus(node).Window(device.PL)
		e := device.GSASEntry{Protection: tree, Present: true, Valid: true}
		if !valid {
			e = device.GSASEntry{}
		}
		if err := errors.Join(w.Write32(device.PLGSASCtrl, device.GSASEnable), w.Write64(device.PLGSASPage, device.GSASRun(first, pages)),
			w.Write64(device.PLGSASBack, back), w.Write64(device.PLGSASEntry, e.Encode())); err != nil {
			r.t.Error(err)
		}
	})
}

// forest is the memory of the tree on a node, of so many pages, and its file.
func (r *rig) forest(node, pages int) (fd int) {
	r.t.Helper()
	fd, err := memfd.New("tree", int64(pages*device.PageSize), 0, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	a, err := view.NewAtomic(fd, uint64(pages*device.PageSize))
	if err != nil {
		_ = unix.Close(fd)
		r.t.Skipf("this kernel has no userfaultfd for atomics, as Linux 5.14 has: %v", err)
	}
	r.closes = append(r.closes, func() { _, _ = a.Close(), unix.Close(fd) })
	r.on(node, func() { r.engine.SetTree(node, tree, &emu.Tree{Memory: a, UID: uint32(os.Getuid())}) })
	r.pages(node, 0, pages, 0, true)
	return fd
}

// send publishes a request with the next number of the channel and the node.
func (f *fellow) send(channel int, op atomics.Op, a atomics.Address, args ...uint64) (node device.NodeID, number uint16) {
	req := atomics.Request{Op: op, Address: a}
	copy(req.Args[:], args)
	node, _ = a.Node()
	n := &f.numbers[channel][node]
	*n++
	f.again(channel, node, *n, &req)
	return node, *n
}

func (f *fellow) again(channel int, node device.NodeID, number uint16, req *atomics.Request) {
	var words [device.PktzMaxWords]uint64
	for !f.port.SendTo(channel, packetizer.Destination(node, device.MailboxGSAS, 0), number, words[:req.Encode(words[:])]) {
		runtime.Gosched()
	}
	s := f.r.sides[f.node]
	s.pages.RingThread(f.index)
	if s.pages.Kick() {
		_, _ = unix.Write(s.mem.WakeFD(), []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

// next waits for the next answer: it polls for a moment, then sleeps.
func (f *fellow) next() (mailbox.Source, atomics.Answer) {
	var m attach.Mail
	began := time.Now()
	for {
		event := f.port.Event()
		if ok, _ := f.port.TakeMail(&m); ok {
			break
		}
		switch waited := time.Since(began); {
		case waited > 2*time.Minute:
			f.r.t.Error("no answer")
			runtime.Goexit()
		case waited > 20*time.Microsecond:
			f.port.AddWaiters(1)
			if f.port.Event() == event {
				_ = f.port.WaitEvent(event, time.Second)
			}
			f.port.AddWaiters(-1)
		}
	}
	source := mailbox.DecodeSource(m.Source)
	a, err := atomics.DecodeAnswer(m.Words[:source.Words])
	if err != nil {
		f.r.t.Error(err)
	}
	return source, a
}

// do performs an operation.
func (f *fellow) do(channel int, op atomics.Op, at atomics.Address, args ...uint64) atomics.Answer {
	node, number := f.send(channel, op, at, args...)
	source, a := f.next()
	if source.PDID != 0 || source.Node != node || a.Number != number || a.Tag != atomics.TagOf(channel, number) || a.Protection != tree {
		f.r.t.Errorf("%v at %v: answer %+v of %+v", op, at, a, source)
	}
	return a
}

// swapOut swaps out the pages of a file that the engine has mapped, as far as there is swap.
func swapOut(t *testing.T, fd int) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for line := range strings.Lines(string(maps)) {
		var from, to uintptr
		if f := strings.Fields(line); len(f) > 4 && f[4] == strconv.FormatUint(st.Ino, 10) && strings.Contains(line, "memfd:tree") {
			if _, err := fmt.Sscanf(f[0], "%x-%x", &from, &to); err != nil {
				t.Fatal(err)
			}
			found = true
			if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_PAGEOUT); errno != 0 {
				t.Fatal(errno)
			}
		}
	}
	if !found {
		t.Fatal("the tree's memory is not mapped")
	}
}

// Threads on two nodes change words of both, of all widths, on pages that are absent, punched out,
// swapped out and present. PFD_OPERATIONS is the number of operations.
func TestOperations(t *testing.T) {
	operations := 1500
	if n, err := strconv.Atoi(os.Getenv("PFD_OPERATIONS")); err == nil {
		operations = n
	}
	r := newRig(t, fault.PIO)
	files := []int{r.forest(0, 4), r.forest(1, 4)}
	threads := []*fellow{r.thread(0, 0, tree), r.thread(1, 1, tree)}
	var model [2][4 * device.PageSize / 8]uint64
	rng := rand.New(rand.NewPCG(3, 4))
	var ops []atomics.Op
	for op := range atomics.Op(255) {
		if op.Memory() {
			ops = append(ops, op)
		}
	}
	for i := range operations {
		node := rng.IntN(2)
		op := ops[rng.IntN(len(ops))]
		n := op.Bytes() / 8
		at := rng.IntN(len(model[node])/n/64) * n * 64 // a few words of each page
		var args [atomics.MaxArgs]uint64
		for k := range args {
			args[k] = rng.Uint64N(3)
		}
		switch {
		case i%20 == 0:
			page := rng.IntN(4)
			if err := unix.Fallocate(files[node], unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(page*device.PageSize), device.PageSize); err != nil {
				t.Fatal(err)
			}
			clear(model[node][page*512 : (page+1)*512])
		case i%50 == 5:
			swapOut(t, files[node])
		}
		var m [atomics.MaxValues]uint64
		copy(m[:n], model[node][at:])
		want := op.Apply(&m, &args)
		copy(model[node][at:at+n], m[:])
		a := threads[rng.IntN(2)].do(rng.IntN(device.PktzChannels), op, atomics.At(device.NodeID(node), uint64(8*at)), args[:op.Args()]...)
		if a.Status != atomics.OK || a.Values != want {
			t.Fatalf("%d: %v at word %d of node %d: %v %d, want %d", i, op, at, node, a.Status, a.Values, want)
		}
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); (f[0] == "VmLck:" || f[0] == "VmPin:") && f[1] != "0" {
			t.Error(line)
		}
	}
	for node := range 2 {
		r.on(node, func() {
			if s := r.engine.Node(node).GSAS(); s.InFlight != 0 || s.Pages != 4 || s.Begun == 0 || s.Repeated+s.Stale+s.Forged+s.Refused != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// The statuses of operations that are refused, and of one asked twice.
func TestRefusals(t *testing.T) {
	r := newRig(t, fault.PIO)
	r.forest(0, 2)
	f := r.thread(0, 0, tree)
	alien := r.thread(0, 1, tree+1)
	if a := f.do(0, atomics.FetchAdd, atomics.At(0, 8), 5); a.Status != atomics.OK {
		t.Fatal(a)
	}
	f.again(0, 0, f.numbers[0][0], &atomics.Request{Op: atomics.FetchAdd, Address: atomics.At(0, 8), Args: [atomics.MaxArgs]uint64{5}})
	if _, a := f.next(); a.Status != atomics.OK || a.Values[0] != 0 {
		t.Errorf("asked again: %+v", a)
	}
	if a := f.do(0, atomics.Read64, atomics.At(0, 8)); a.Values[0] != 5 {
		t.Errorf("after two requests with one number: %d", a.Values[0])
	}
	for _, c := range []struct {
		what string
		op   atomics.Op
		at   atomics.Address
		want atomics.Status
	}{
		{"beyond the pages", atomics.Read64, atomics.At(0, 2*device.PageSize), atomics.BadAddress},
		{"alignment", atomics.Read256, atomics.At(0, 16), atomics.BadAddress},
		{"no operation", 0x7f, atomics.At(0, 0), atomics.BadRequest},
		{"no driver", atomics.Alloc, atomics.At(0, 0), atomics.BadRequest},
	} {
		if a := f.do(1, c.op, c.at, make([]uint64, c.op.Args())...); a.Status != c.want {
			t.Errorf("%s: %v, want %v", c.what, a.Status, c.want)
		}
	}
	alien.send(0, atomics.Read64, atomics.At(0, 8))
	if _, a := alien.next(); a.Status != atomics.Denied {
		t.Errorf("of another tree: %+v", a)
	}
	r.on(0, func() { r.engine.SetTree(0, tree, nil) })
	if a := f.do(0, atomics.Read64, atomics.At(0, 8)); a.Status != atomics.NoMemory {
		t.Errorf("without memory: %+v", a)
	}
}

// The driver answers its operations at once or later.
func TestCallsOfTheDriver(t *testing.T) {
	r := newRig(t, fault.PIO)
	r.pages(0, 0, 1, 0, true)
	f := r.thread(0, 0, tree)
	later := make(chan atomics.Call, 1)
	r.on(0, func() {
		r.engine.OnCall(func(node int, c atomics.Call) {
			if c.Op == atomics.Free {
				later <- c
				return
			}
			r.engine.AnswerCall(node, c.ID, atomics.OK, c.Args[0]+c.Args[1], 7, 7, 7, 7, 7)
		})
	})
	if a := f.do(0, atomics.Alloc, atomics.At(0, 0), 2, 3); a.Status != atomics.OK || a.N != 1 || a.Values[0] != 5 {
		t.Errorf("%+v", a)
	}
	f.send(0, atomics.Free, atomics.At(0, 4096), 0)
	c := <-later
	if c.Thread != tree || c.Protection != tree || c.Address != atomics.At(0, 4096) {
		t.Errorf("%+v", c)
	}
	r.on(0, func() {
		r.engine.AnswerCall(0, c.ID+1, atomics.OK)
		r.engine.AnswerCall(0, c.ID, atomics.NoRoom)
	})
	if _, a := f.next(); a.Status != atomics.NoRoom || a.N != 0 {
		t.Errorf("%+v", a)
	}
}

// Four threads on two nodes add to one counter, whose page is punched out by nobody and swapped out
// at will: each addition counts once.
func TestCounter(t *testing.T) {
	r := newRig(t, fault.PIO)
	r.forest(1, 1)
	const rounds = 200
	var wg sync.WaitGroup
	for i := range 4 {
		f := r.thread(i%2, i/2+2*(i%2), tree)
		wg.Go(func() {
			last := uint64(0)
			for k := range rounds {
				a := f.do(k%device.PktzChannels, atomics.FetchAdd, atomics.At(1, 64), 1)
				if a.Status != atomics.OK || k > 0 && a.Values[0] <= last {
					t.Errorf("%+v after %d", a, last)
				}
				last = a.Values[0]
			}
		})
	}
	wg.Wait()
	if a := r.thread(0, 7, tree).do(0, atomics.Read64, atomics.At(1, 64)); a.Values[0] != 4*rounds {
		t.Errorf("%d of %d additions", a.Values[0], 4*rounds)
	}
}

// hanging is memory of which a touch or a page-in hangs.
type hanging struct {
	word        uint64
	touch, page atomic.Bool
	in          chan struct{}
	released    *gate
	touched     *gate // releases touches, if it is there
	touches     atomic.Int32
}

// gate is where memory hangs: in the kernel, since a thread that waits for a channel of Go waits for Go's
// scheduler, and not for memory.
type gate [2]int

func newGate(t testing.TB) *gate {
	g := new(gate)
	if err := unix.Pipe2(g[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(g[0]) })
	return g
}

// wait returns when the gate is open. It may be called by many.
func (g *gate) wait() {
	for {
		if _, err := unix.Read(g[0], make([]byte, 1)); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// open must be called once.
func (g *gate) open() { _ = unix.Close(g[1]) }

func (h *hanging) Do(op atomics.Op, _ uint64, args *[atomics.MaxArgs]uint64) ([atomics.MaxValues]uint64, bool) {
	h.touches.Add(1)
	if h.touch.Load() {
		h.in <- struct{}{}
		if h.touched != nil {
			h.touched.wait()
		} else {
			h.released.wait()
		}
	}
	m := [atomics.MaxValues]uint64{h.word}
	values := op.Apply(&m, args)
	h.word = m[0]
	return values, true
}

func (h *hanging) PageIn(uint64) error {
	if h.page.Load() {
		h.in <- struct{}{}
		h.released.wait()
	}
	return nil
}

// A tree whose memory hangs delays no other tree, and its memory is not touched afterwards; the late
// operation has its result.
func TestMemoryOfATreeThatHangs(t *testing.T) {
	for _, touch := range []bool{true, false} {
		t.Run(fmt.Sprintf("touch=%v", touch), func(t *testing.T) {
			r := newRig(t, fault.PIO)
			r.pages(0, 0, 2, 0, true)
			bad := &hanging{in: make(chan struct{}, 8), released: newGate(t)}
			good := &hanging{}
			const other = tree + 1
			r.on(0, func() {
				r.engine.SetTree(0, tree, &emu.Tree{Memory: bad, UID: 1})
				r.engine.SetTree(0, other, &emu.Tree{Memory: good, UID: 2})
				w := r.engine.Bus(0).Window(device.PL)
				if err := errors.Join(w.Write64(device.PLGSASPage, device.GSASRun(9, 1)), w.Write64(device.PLGSASEntry, device.GSASEntry{Protection: other, Present: true, Valid: true}.Encode())); err != nil {
					t.Error(err)
				}
			})
			f, g := r.thread(0, 0, tree), r.thread(0, 1, other)
			add := func() atomics.Answer {
				g.send(0, atomics.FetchAdd, atomics.At(0, 9*device.PageSize), 1)
				_, a := g.next()
				return a
			}
			add()
			bad.touch.Store(touch)
			bad.page.Store(!touch)
			f.send(0, atomics.FetchAdd, atomics.At(0, 0), 3)
			<-bad.in
			for i := range uint64(5) {
				if a := add(); a.Status != atomics.OK || a.Values[0] != 1+i {
					t.Errorf("the other tree: %+v", a)
				}
			}
			touches := bad.touches.Load()
			if touch {
				if a := f.do(1, atomics.FetchAdd, atomics.At(0, 8), 3); a.Status != atomics.NoMemory || bad.touches.Load() != touches {
					t.Errorf("while a touch hangs: %+v, %d touches", a, bad.touches.Load()-touches)
				}
			} else {
				// The next page-in hangs apart, and the engine does not wait for it.
				f.send(1, atomics.FetchAdd, atomics.At(0, device.PageSize), 4)
				<-bad.in
				add()
			}
			bad.touch.Store(false)
			bad.page.Store(false)
			bad.released.open()
			var got []uint64
			if touch {
				_, a := f.next()
				got = append(got, a.Values[0])
			} else {
				for range 2 {
					_, a := f.next()
					if a.Status != atomics.OK {
						t.Errorf("%+v", a)
					}
					got = append(got, a.Values[0])
				}
				slices.Sort(got)
			}
			if got[0] != 0 || len(got) == 2 && got[1] != 3 && got[1] != 4 {
				t.Errorf("late operations found %d", got)
			}
			r.on(0, func() {
				if n := r.engine.Accesses(0).LeasesLost; n == 0 { // others may sleep for long on a busy machine
					t.Errorf("%d leases were lost", n)
				}
			})
		})
	}
}

// plant makes trees on a node. Tree i has page i, in a memory of a user.
func (r *rig) plant(node int, memories []*hanging, uids ...uint32) {
	r.on(node, func() {
		w := r.engine.Bus(node).Window(device.PL)
		err := w.Write32(device.PLGSASCtrl, device.GSASEnable)
		for i, uid := range uids {
			id := uint32(tree + i)
			r.engine.SetTree(node, atomics.Protection(id), &emu.Tree{Memory: memories[i], UID: uid})
			err = errors.Join(err, w.Write64(device.PLGSASPage, device.GSASRun(uint64(i), 1)),
				w.Write64(device.PLGSASEntry, device.GSASEntry{Protection: id, Present: true, Valid: true}.Encode()))
		}
		if err != nil {
			r.t.Error(err)
		}
	})
}

func hangs(t testing.TB, n int) (list []*hanging) {
	in, released := make(chan struct{}, 128), newGate(t)
	for range n {
		list = append(list, &hanging{in: in, released: released})
	}
	return list
}

// The trees of a user have one lease: after one has lost it, the pages of all are brought in apart. And
// a user's operations that hang leave room in the unit for those of another, even on trees of his own that
// have no page yet.
func TestOperationsOfOneUserThatHang(t *testing.T) {
	r := newRig(t, fault.PIO)
	m := hangs(t, 3)
	r.plant(0, m, 1, 1, 2)
	m[0].page.Store(true)
	m[1].page.Store(true)
	g := r.thread(1, 7, tree+2)
	var stuck []*fellow
	for i := range 15 { // 60 operations, by two trees in turns
		f := r.thread(i/7%2, i%7+i/14*7, uint32(tree+i%2))
		stuck = append(stuck, f)
		for c := range device.PktzChannels {
			f.send(c, atomics.FetchAdd, atomics.At(0, uint64(i%2)*device.PageSize), 1)
			if i == 0 && c == 0 {
				<-m[0].in // the lease is lost
			}
		}
	}
	g.send(0, atomics.FetchAdd, atomics.At(0, 2*device.PageSize), 1)
	if _, a := g.next(); a.Status != atomics.OK {
		t.Errorf("another user: %+v", a)
	}
	// Before one can end, each has been refused or hangs.
	const refused = 60 - soc.InFlight/2 - 1
	answers := 0
	var mail attach.Mail
	for deadline := time.Now().Add(2 * time.Minute); answers < refused; runtime.Gosched() {
		for _, f := range stuck {
			for ok, _ := f.port.TakeMail(&mail); ok; ok, _ = f.port.TakeMail(&mail) {
				answers++
				if a, err := atomics.DecodeAnswer(mail.Words[:mailbox.DecodeSource(mail.Source).Words]); err != nil || a.Status != atomics.Busy {
					t.Errorf("while all hang: %+v, %v", a, err)
				}
			}
		}
		if time.Now().After(deadline) {
			t.Errorf("%d operations of a user with 60 that hang were refused", answers)
			break
		}
	}
	m[0].page.Store(false)
	m[1].page.Store(false)
	m[0].released.open()
	for ; answers < 60; runtime.Gosched() {
		for _, f := range stuck {
			for f.port.HasMail() {
				answers++
				if _, a := f.next(); a.Status != atomics.Busy && a.Status != atomics.OK {
					t.Errorf("%+v", a)
				}
			}
		}
	}
	r.on(0, func() {
		if n := r.engine.Accesses(0).LeasesLost; n == 0 || n > 3 { // others may sleep for long on a busy machine
			t.Errorf("%d leases were lost", n)
		}
	})
}

// Of touches that are ready together, none is made after one of them has slept.
func TestTouchesThatAreReadyTogether(t *testing.T) {
	r := newRig(t, fault.PIO)
	m := hangs(t, 1)
	m[0].touched = newGate(t)
	r.plant(0, m, 1)
	f := r.thread(0, 0, tree)
	m[0].page.Store(true)
	for c := range device.PktzChannels {
		f.send(c, atomics.FetchAdd, atomics.At(0, 0), 1)
		<-m[0].in // the first loses the lease, the others hang apart
	}
	m[0].touch.Store(true)
	m[0].page.Store(false)
	touches := m[0].touches.Load()
	r.on(0, func() { // the engine takes the page-ins that end meanwhile together
		m[0].released.open()
		ts := unix.NsecToTimespec(int64(20 * time.Millisecond))
		_ = unix.Nanosleep(&ts, nil) // on the thread that the supervisor looks at
	})
	answers := 0
	hang := func() int { return int(m[0].touches.Load() - touches) }
	for deadline := time.Now().Add(2 * time.Minute); answers+hang() < device.PktzChannels; runtime.Gosched() {
		for f.port.HasMail() {
			answers++
			if _, a := f.next(); a.Status != atomics.NoMemory {
				t.Errorf("%+v", a)
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d answers, %d touches", answers, hang())
		}
	}
	if n := hang(); n != 1 && n != 2 { // a second one if the machine is so busy that the first loses its lease before it sleeps
		t.Errorf("%d touches, want the one that sleeps", n)
	}
	m[0].touched.open()
	for ; answers < device.PktzChannels; answers++ {
		if _, a := f.next(); a.Status != atomics.OK {
			t.Errorf("a late operation: %+v", a)
		}
	}
}

// BenchmarkFetchAdd times one operation after the other, from the request to the answer seen by a
// polling thread.
func BenchmarkFetchAdd(b *testing.B) {
	for _, absent := range []bool{false, true} {
		for node, name := range []string{"own", "other"} {
			b.Run(fmt.Sprintf("%s/absent=%v", name, absent), func(b *testing.B) {
				const pages = 4096
				r := newRig(b, fault.PIO)
				fd := r.forest(node, pages)
				f := r.thread(0, 0, tree)
				times := make([]time.Duration, 0, b.N)
				for i := uint64(0); b.Loop(); i++ {
					offset := uint64(64)
					if absent {
						offset += i % pages * device.PageSize
						if i > 0 && i%pages == 0 {
							if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, pages*device.PageSize); err != nil {
								b.Fatal(err)
							}
						}
					}
					start := time.Now()
					if a := f.do(0, atomics.FetchAdd, atomics.At(device.NodeID(node), offset), 1); a.Status != atomics.OK {
						b.Fatal(a)
					}
					times = append(times, time.Since(start))
				}
				slices.Sort(times)
				b.ReportMetric(float64(times[len(times)/2].Nanoseconds())/1000, "p50-us")
				b.ReportMetric(float64(times[len(times)*99/100].Nanoseconds())/1000, "p99-us")
			})
		}
	}
}
