package gsas

import (
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
)

// The trees and the node of these tests.
const (
	own   = atomics.Protection(0x800001)
	other = atomics.Protection(0x840002)
	node  = device.NodeID(3)
)

// rig is a unit whose host keeps what it gets.
type rig struct {
	t        testing.TB
	u        *Unit
	now      int64
	performs []*Access
	answers  []answer
}

type answer struct {
	to Source
	atomics.Answer
}

func (r *rig) Perform(a *Access) { r.performs = append(r.performs, a) }

func (r *rig) Answer(to *Source, words []uint64) {
	a, err := atomics.DecodeAnswer(words)
	if err != nil {
		r.t.Errorf("answer %x: %v", words, err)
	}
	r.answers = append(r.answers, answer{*to, a})
}

func newRig(t testing.TB) *rig {
	r := &rig{t: t, now: 5}
	r.u = New(r)
	r.u.SetNode(node)
	r.u.Store(r.now, device.PLGSASCtrl, device.GSASEnable)
	return r
}

// enter sets the entries of pages.
func (r *rig) enter(first uint64, pages int, back uint64, e device.GSASEntry) {
	r.u.Store(r.now, device.PLGSASPage, device.GSASRun(first, pages))
	r.u.Store(r.now, device.PLGSASBack, back)
	r.u.Store(r.now, device.PLGSASEntry, e.Encode())
}

// page makes pages those of a tree.
func (r *rig) page(first uint64, pages int, back uint64, p atomics.Protection) {
	r.enter(first, pages, back, device.GSASEntry{Protection: uint32(p), Present: true, Valid: true})
}

func (r *rig) busy(first uint64, pages int) bool {
	r.u.Store(r.now, device.PLGSASPage, device.GSASRun(first, pages))
	return r.u.Load(device.PLGSASEntry)&device.GSASBusy != 0
}

// thread is the interface of a thread of node 7; its root decides on its tree.
func thread(iface int, number uint16) Source {
	return Source{Node: 7, Interface: uint8(iface), Generation: 1, Number: number}
}

// ask sends a request of a thread by a channel.
func (r *rig) ask(from Source, channel int, p atomics.Protection, op atomics.Op, a atomics.Address, args ...uint64) {
	r.t.Helper()
	req := atomics.Request{
		Thread: atomics.ThreadOf(from.Node, int(from.Interface)), Protection: p, Tag: atomics.TagOf(channel, from.Number),
		Op: op, Address: a,
	}
	copy(req.Args[:], args)
	var words [device.PktzMaxWords]uint64
	if !r.u.Request(r.now, &from, words[:req.Encode(words[:])]) {
		r.t.Fatal("the unit is off")
	}
}

// begun returns the only access that was begun since the last call, or nil.
func (r *rig) begun() *Access {
	r.t.Helper()
	if len(r.performs) > 1 {
		r.t.Fatalf("%d accesses", len(r.performs))
	}
	if len(r.performs) == 0 {
		return nil
	}
	a := r.performs[0]
	r.performs = nil
	return a
}

// said returns the only answer since the last call. A nil answer is none.
func (r *rig) said() *answer {
	r.t.Helper()
	if len(r.answers) > 1 {
		r.t.Fatalf("%d answers", len(r.answers))
	}
	if len(r.answers) == 0 {
		return nil
	}
	a := r.answers[0]
	r.answers = nil
	return &a
}

// wants fails the test unless there is one answer of a status and no access.
func (r *rig) wants(what string, s atomics.Status) {
	r.t.Helper()
	if a, b := r.said(), r.begun(); a == nil || a.Status != s || b != nil {
		r.t.Errorf("%s: answer %+v, access %+v, want status %d", what, a, b, s)
	}
}

// Each operation at the limits of a page and of the partition, and addresses that are not valid for it.
func TestAddresses(t *testing.T) {
	r := newRig(t)
	const last = uint64(atomics.Pages - 1)
	r.page(0, 1, 0x10000, own)
	r.page(last, 1, 0x20000, own)
	number := uint16(0)
	for op := range atomics.Op(255) {
		if !op.Memory() {
			continue
		}
		size := uint64(op.Bytes())
		ok := map[uint64]uint64{0: 0x10000, size: 0x10000 + size, 4096 - size: 0x11000 - size, 1<<48 - 4096: 0x20000, 1<<48 - size: 0x21000 - size}
		for offset, back := range ok {
			number++
			r.ask(thread(32, number), 0, own, op, atomics.At(node, offset), 1, 2, 3, 4, 5)
			a := r.begun()
			if a == nil || a.Back != back || a.Tree != own || a.Op != op {
				t.Fatalf("%v at 0x%x: %+v, want it at 0x%x", op, offset, a, back)
			}
			r.u.Done(r.now, a.ID, atomics.OK, []uint64{7, 8, 9, 10})
			if a := r.said(); a == nil || a.Status != atomics.OK || a.Number != number || a.Protection != own || a.N != op.Values() || a.N == 4 && a.Values[3] != 10 {
				t.Fatalf("%v: answer %+v", op, a)
			}
		}
		for what, a := range map[string]atomics.Address{
			"partition 0": 8, "the partition before": atomics.At(node-1, 0), "the one after": atomics.At(node+1, 0),
			"half": atomics.At(node, size/2), "a byte further": atomics.At(node, 1), "no page": atomics.At(node, 4096), "the one before the last": atomics.At(node, 1<<48-8192),
		} {
			number++
			r.ask(thread(32, number), 0, own, op, a, 1, 2, 3, 4, 5)
			r.wants(op.String()+" "+what, atomics.BadAddress)
		}
		number++
		r.ask(thread(32, number), 0, other, op, atomics.At(node, 0), 1, 2, 3, 4, 5)
		r.wants(op.String()+" of another tree", atomics.Denied)
	}
}

func TestBadRequests(t *testing.T) {
	r := newRig(t)
	r.page(0, 1, 0, own)
	from := thread(32, 0)
	first := atomics.Wired(atomics.ThreadOf(7, 32), own, 0)
	for _, words := range [][]uint64{
		{first}, {first, 1 << 48}, {first | 0xff<<56, 1 << 48}, // no operation
		{first | 0x10<<56, 1 << 48}, {first | 0x10<<56, 1 << 48, 1, 2}, {first | 0x01<<56}, {first | 0x1b<<56, 1 << 48, 1, 2, 3, 4, 5, 6},
	} {
		from.Number++
		if !r.u.Request(r.now, &from, words) {
			t.Fatal("the unit is off")
		}
		r.wants("bad request", atomics.BadRequest)
	}
	r.u.Request(r.now, &from, nil)
	other := from
	other.Interface++
	other.Number++
	r.u.Request(r.now, &other, []uint64{first | 0x01<<56, 1 << 48})
	if a, b := r.said(), r.begun(); a != nil || b != nil {
		t.Errorf("a forged request has the answer %+v, access %+v", a, b)
	}
	if got := r.u.Stats().Forged; got != 2 {
		t.Errorf("%d forged", got)
	}
	r.u.Store(r.now, device.PLGSASCtrl, 0)
	if from.Number++; r.u.Request(r.now, &from, []uint64{first | 0x01<<56, 1 << 48}) {
		t.Error("a unit that is off takes a request")
	}
}

// The operations that each right of a grant admits.
func TestGrants(t *testing.T) {
	r := newRig(t)
	r.enter(0, 1, 0, device.GSASEntry{Protection: uint32(own), Grant: 127, Present: true, Valid: true})
	number := uint16(0)
	for _, g := range []device.GSASGrant{
		{}, {Read: true}, {Write: true}, {Read: true, Write: true},
	} {
		for _, to := range []atomics.Protection{other, own + 5} {
			for _, valid := range []bool{false, true} {
				g.Number, g.Protection, g.Valid = 127, uint32(to), valid
				r.u.Store(r.now, device.PLGSASGrant, g.Encode())
				for op, may := range map[atomics.Op]bool{
					atomics.Read64: g.Read, atomics.Read256: g.Read, atomics.Write128: g.Write, atomics.FetchAdd: g.Read && g.Write, atomics.CWrite256: g.Read && g.Write,
				} {
					number++
					r.ask(thread(33, number), 0, other, op, atomics.At(node, 0))
					if a := r.begun(); (a != nil) != (may && valid && to == other) {
						t.Errorf("%v under %+v: %+v", op, g, a)
					} else if a != nil {
						if a.Tree != own {
							t.Errorf("in the memory of tree %x", a.Tree)
						}
						r.u.Done(r.now, a.ID, atomics.OK, nil)
						r.answers = nil
					} else {
						r.wants("refused", atomics.Denied)
					}
				}
			}
		}
	}
}

// A request that arrives again is not performed again.
func TestRepeated(t *testing.T) {
	r := newRig(t)
	r.page(0, 1, 0, own)
	add := func(from Source) { r.ask(from, 0, own, atomics.FetchAdd, atomics.At(node, 0), 1) }
	from := thread(40, 0xfffe)
	add(from)
	first := r.begun()
	for range 3 {
		add(from)
		r.wants("asked again while it is in flight", atomics.Waiting)
	}
	r.u.Done(r.now, first.ID, atomics.OK, []uint64{41})
	if a := r.said(); a == nil || a.to != from || a.Number != 0xfffe || a.Values[0] != 41 {
		t.Fatalf("%+v", a)
	}
	r.u.Done(r.now, first.ID, atomics.OK, []uint64{99}) // no second time
	r.now += Keep
	add(from)
	if a := r.said(); a == nil || a.Values[0] != 41 || r.begun() != nil {
		t.Fatalf("asked again after 1 s: %+v", a)
	}
	// Numbers go on over the end; older ones are dropped.
	for _, number := range []uint16{0xffff, 0, 5} {
		from.Number = number
		add(from)
		r.u.Done(r.now, r.begun().ID, atomics.OK, []uint64{1})
		r.answers = nil
	}
	for _, number := range []uint16{4, 0, 0xffff, 0x8005} {
		from.Number = number
		add(from)
		if a, b := r.said(), r.begun(); a != nil || b != nil {
			t.Errorf("number %x after 5: %+v, %+v", number, a, b)
		}
	}
	// Another channel, thread and generation have numbers of their own.
	r.ask(Source{7, 40, 1, 4}, 1, own, atomics.FetchAdd, atomics.At(node, 0), 1)
	r.u.Done(r.now, r.begun().ID, atomics.OK, nil)
	r.ask(Source{7, 41, 1, 4}, 0, own, atomics.FetchAdd, atomics.At(node, 0), 1)
	r.u.Done(r.now, r.begun().ID, atomics.OK, nil)
	r.ask(Source{7, 40, 2, 5}, 0, own, atomics.FetchAdd, atomics.At(node, 0), 1)
	r.u.Done(r.now, r.begun().ID, atomics.OK, nil)
	// A late request of the former domain is dropped.
	r.ask(Source{7, 40, 1, 6}, 0, own, atomics.FetchAdd, atomics.At(node, 0), 1)
	if a := r.begun(); a != nil {
		t.Errorf("of a former domain: %+v", a)
	}
	// The next life of a node begins with any generation.
	for _, generation := range []device.Generation{lifeSpan + 9, 8} {
		r.ask(Source{7, 42, generation, 1}, 0, own, atomics.FetchAdd, atomics.At(node, 0), 1)
		a := r.begun()
		if a == nil {
			t.Fatalf("generation %d is of a former domain", generation)
		}
		r.u.Done(r.now, a.ID, atomics.OK, nil)
	}
	r.answers = nil
	// A unit that was stopped for long still knows what it has performed; after two sweeps an old record
	// counts no more.
	r.now += 100 * Keep
	r.ask(Source{7, 40, 2, 5}, 0, own, atomics.FetchAdd, atomics.At(node, 0), 1)
	if a := r.begun(); a != nil {
		t.Errorf("performed again after a long stop: %+v", a)
	}
	for range 3 {
		r.now += Keep + 1
		r.ask(Source{7, 42, 1, 4}, 0, own, atomics.Read64, atomics.At(node, 4), 1)
	}
	r.ask(Source{7, 40, 2, 4}, 0, own, atomics.FetchAdd, atomics.At(node, 0), 1)
	if r.begun() == nil {
		t.Error("a number is refused after two sweeps")
	}
	if s := r.u.Stats(); s.Repeated != 7 || s.Stale != 5 || s.InFlight != 1 || s.Pages != 1 || len(r.u.records) != 2 {
		t.Errorf("%+v, %d records", s, len(r.u.records))
	}
}

// A thread that has given a request up gets no answer to it, and its channel is busy meanwhile.
func TestGivenUp(t *testing.T) {
	r := newRig(t)
	r.page(0, 1, 0, own)
	r.ask(thread(40, 1), 2, own, atomics.Read64, atomics.At(node, 0))
	first := r.begun()
	r.ask(thread(40, 2), 2, own, atomics.Read64, atomics.At(node, 0))
	r.wants("the next one of the channel", atomics.Busy)
	r.ask(thread(40, 2), 2, own, atomics.Read64, atomics.At(node, 0))
	r.wants("asked again", atomics.Busy)
	r.u.Done(r.now, first.ID, atomics.OK, []uint64{1})
	if a := r.said(); a != nil {
		t.Errorf("late answer %+v", a)
	}
	r.ask(thread(40, 2), 2, own, atomics.Read64, atomics.At(node, 0))
	r.wants("asked again after the end", atomics.Busy)
	r.ask(thread(40, 3), 2, own, atomics.Read64, atomics.At(node, 0))
	if r.begun() == nil {
		t.Error("the channel stays busy")
	}
}

// The next owner of an interface does not wait for an operation of the former one, which is answered to
// nobody.
func TestNextOwner(t *testing.T) {
	r := newRig(t)
	r.page(1, 1, 0, own)
	r.ask(thread(32, 1), 0, own, atomics.FetchAdd, atomics.At(node, device.PageSize), 1)
	former := r.begun()
	next := thread(32, 9)
	next.Generation = 2
	r.ask(next, 0, own, atomics.FetchAdd, atomics.At(node, device.PageSize), 1)
	second := r.begun()
	if second == nil {
		t.Fatalf("%+v", r.said())
	}
	r.u.Done(r.now, former.ID, atomics.OK, []uint64{7})
	if a := r.said(); a != nil {
		t.Errorf("the former owner is answered: %+v", a)
	}
	r.ask(thread(32, 1), 0, own, atomics.FetchAdd, atomics.At(node, device.PageSize), 1)
	if a := r.begun(); a != nil {
		t.Error("a request of the former owner is performed again")
	}
	r.u.Done(r.now, second.ID, atomics.OK, []uint64{8})
	if a := r.said(); a == nil || a.to != next || a.Values[0] != 8 {
		t.Errorf("%+v", a)
	}
}

// A driver that takes over turns the unit off: no page, request or operation of its predecessor is left, and
// the generations of its domains may be older than those before.
func TestNextDriver(t *testing.T) {
	r := newRig(t)
	r.page(1, 2, 0, own)
	former := thread(32, 900)
	former.Generation = 1 << 20
	r.ask(former, 0, own, atomics.FetchAdd, atomics.At(node, device.PageSize), 1)
	flying := r.begun()
	r.u.Store(r.now, device.PLGSASCtrl, 0)
	r.u.Store(r.now, device.PLGSASCtrl, device.GSASEnable)
	r.u.Done(r.now, flying.ID, atomics.OK, []uint64{7})
	r.ask(thread(32, 1), 0, own, atomics.FetchAdd, atomics.At(node, device.PageSize), 1)
	r.wants("a page of the predecessor", atomics.BadAddress)
	r.page(1, 1, 0, own)
	r.ask(thread(32, 2), 0, own, atomics.FetchAdd, atomics.At(node, device.PageSize), 1)
	if r.begun() == nil {
		t.Fatalf("%+v", r.said())
	}
	if s := r.u.Stats(); s.Pages != 1 || s.InFlight != 1 || s.Stale != 0 {
		t.Errorf("%+v", s)
	}
}

func TestInFlight(t *testing.T) {
	r := newRig(t)
	r.page(0, 1, 0, own)
	for i := range InFlight {
		r.ask(thread(32+i%32, 1), i/32, own, atomics.Read64, atomics.At(node, 0))
	}
	if len(r.performs) != InFlight {
		t.Fatalf("%d begun", len(r.performs))
	}
	list := r.performs
	r.performs = nil
	r.ask(thread(32, 1), 3, own, atomics.Read64, atomics.At(node, 0))
	r.wants("one more", atomics.Busy)
	seen := map[uint32]bool{}
	for _, a := range list {
		if seen[a.ID] {
			t.Errorf("two accesses of ID %d", a.ID)
		}
		seen[a.ID] = true
	}
	r.u.Done(r.now, list[17].ID, atomics.OK, []uint64{1})
	if r.said() == nil {
		t.Error("no answer")
	}
	r.ask(thread(32, 2), 3, own, atomics.Read64, atomics.At(node, 0))
	if a := r.begun(); a == nil || seen[a.ID] {
		t.Errorf("%+v", a)
	}
	r.u.Reset()
	r.u.Done(r.now, list[18].ID, atomics.OK, []uint64{1})
	if a := r.said(); a != nil || r.u.Stats().InFlight != 0 {
		t.Errorf("after a reset: %+v", a)
	}
	if list[18].Op != atomics.Read64 {
		t.Error("a reset has changed an access that its host has")
	}
}

// The driver's operations pass through, whatever their address.
func TestCalls(t *testing.T) {
	r := newRig(t)
	for i, op := range []atomics.Op{atomics.Alloc, atomics.Free, atomics.Spawn, atomics.Join, atomics.Alive} {
		r.ask(thread(32, uint16(i)), 0, own, op, 0x1234, 3, 4)
		a := r.begun()
		if a == nil || a.Op != op || a.Args[0] != 3 || a.Protection != own || a.Address != 0x1234 || a.Op == atomics.Alloc && a.Args[1] != 4 {
			t.Fatalf("%v: %+v", op, a)
		}
		if r.busy(0, 1) {
			t.Errorf("%v makes a page busy", op)
		}
		r.u.Done(r.now, a.ID, atomics.NoRoom, []uint64{77})
		if a := r.said(); a.Status != atomics.NoRoom || a.N != 0 {
			t.Errorf("%v: answer %+v", op, a)
		}
	}
}
