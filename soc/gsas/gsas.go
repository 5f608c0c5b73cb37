// Package gsas is the unit of a node that performs the operations of threads on the node's
// partition of the global address space (docs/spec/gsas.md 4; 003 §2.1: the atomic service). It is
// a pure state machine: requests go in, accesses to memory and answers come out.
//
// A request is performed at most once, however often it arrives: the unit keeps the last answer of
// each channel of each thread for a while.
//
// docs/papers.md lists the papers that comments cite by number.
package gsas

import (
	"math/bits"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
)

// Values below are defined by this project.
const (
	// InFlight is the number of operations that have begun and have not ended.
	InFlight = atomics.InFlight
	// Keep is how long an answer is kept, at least: until there was no request of its channel from one
	// sweep to the next but one. So a unit that was stopped for long does not forget what it has performed
	// before it has seen what arrived meanwhile.
	Keep = int64(30 * time.Second)
)

// Source is the wired source of a request, with the number that the thread wrote to SEND.
type Source struct {
	Node       device.NodeID
	Interface  uint8
	Generation device.Generation // of the thread's domain
	Number     uint16
}

// Access is an operation that the unit asks for: on memory, or (Op.Memory is false) by the driver.
type Access struct {
	ID uint32
	atomics.Request
	Tree atomics.Protection // the tree of the page
	Back uint64             // where the first byte is: from the page's GSAS_BACK on
}

// Host is the node of a unit. Its methods must not call the unit.
type Host interface {
	// Perform performs an access, which does not change any more; Done brings its result.
	Perform(a *Access)
	// Answer sends an answer to the thread that has sent a request.
	Answer(to *Source, words []uint64)
}

// Unit is the unit of one node.
type Unit struct {
	host Host
	node device.NodeID

	on     bool
	run    uint64 // GSAS_PAGE
	back   uint64 // GSAS_BACK
	grant  uint64 // GSAS_GRANT
	grants []device.GSASGrant
	pages  table
	wants  []uint64 // GSAS_WANT

	ops     *[InFlight]op // made with the first operation, so that a unit that has none is small
	used    uint64        // a bit for each op in flight
	count   uint32        // operations begun, for their IDs; a reset does not clear it
	records map[uint32]*record
	swept   int64  // when old records were last removed
	sweeps  uint64 // how often
	stats   Stats
}

// op is an operation in flight.
type op struct {
	access Access
	from   Source
	record *record
	waits  bool // for its page to become present
}

// record is the last request of a channel of a thread.
type record struct {
	number     uint16
	generation device.Generation
	sweeps     uint64 // of the unit at its last request or end
	flying     int    // op in flight of this or an earlier request of the channel, -1 none
	words      [atomics.MaxAnswer]uint64
	n          int // words of the answer, 0 none yet
}

// Stats are a unit's counts.
type Stats struct {
	Requests uint64 // that have arrived
	Begun    uint64 // operations begun
	Repeated uint64 // requests of which the unit had begun or answered the operation
	Stale    uint64 // requests older than the last one of their channel, or of a former thread
	Forged   uint64 // requests whose thread is not their source
	Refused  uint64 // operations that were not begun
	InFlight int
	Pages    int
}

// New returns the unit of a node in its reset state.
func New(host Host) *Unit { return &Unit{host: host} }

// SetNode sets the ID of the node, which owns the partition of that ID.
func (u *Unit) SetNode(id device.NodeID) { u.node = id }

// Reset returns the unit to its reset state. Accesses in flight are forgotten: Done ignores them.
func (u *Unit) Reset() {
	// The accesses in flight stay as they are, since their host still has them.
	*u = Unit{host: u.host, node: u.node, count: u.count, stats: u.stats}
}

// Stats returns the unit's counts.
func (u *Unit) Stats() Stats {
	s := u.stats
	s.InFlight, s.Pages = bits.OnesCount64(u.used), u.pages.count
	return s
}

// lifeSpan is how far generations of one life of a node may be apart. Another life of the node begins with
// a random one, which may be older or newer (defined by this project).
const lifeSpan = 1 << 16

// Request takes a request from the unit's mailbox. It returns false if the unit is off.
func (u *Unit) Request(now int64, from *Source, words []uint64) bool {
	if !u.on {
		return false
	}
	u.stats.Requests++
	r, err := atomics.DecodeRequest(words)
	if r.Thread != atomics.ThreadOf(from.Node, int(from.Interface)) {
		u.stats.Forged++
		return true
	}
	u.sweep(now)
	key := uint32(r.Thread)<<2 | uint32(r.Tag.Channel())
	rec := u.records[key]
	switch {
	case rec == nil:
		if u.records == nil {
			u.records = map[uint32]*record{}
		}
		rec = &record{flying: -1}
		u.records[key] = rec
	case rec.generation != from.Generation:
		if rec.generation-from.Generation < lifeSpan { // of a former domain: generations grow
			u.stats.Stale++
			return true
		}
		rec.generation = from.Generation // nobody is answered if an operation of the former one ends
		rec = &record{flying: -1}
		u.records[key] = rec
	case from.Number == rec.number:
		u.stats.Repeated++
		rec.sweeps = u.sweeps
		if rec.n == 0 {
			u.say(from, &r, atomics.Waiting)
		} else {
			u.host.Answer(from, rec.words[:rec.n])
		}
		return true
	case !atomics.Newer(from.Number, rec.number):
		u.stats.Stale++
		return true
	}
	rec.number, rec.generation, rec.sweeps, rec.n = from.Number, from.Generation, u.sweeps, 0
	status := u.begin(from, &r, rec, err)
	if status != atomics.OK {
		u.stats.Refused++
		rec.n = u.answer(from, &r, status, nil, &rec.words)
	}
	return true
}

// begin begins an operation, or returns the status with which it is refused.
func (u *Unit) begin(from *Source, r *atomics.Request, rec *record, err error) atomics.Status {
	switch {
	case err != nil:
		return atomics.BadRequest
	case rec.flying >= 0, u.used == ^uint64(0):
		return atomics.Busy
	}
	e, status := u.admit(r)
	if status != atomics.OK {
		return status
	}
	if u.ops == nil {
		u.ops = new([InFlight]op)
	}
	i := bits.TrailingZeros64(^u.used)
	u.used |= 1 << i
	u.count++
	u.stats.Begun++
	rec.flying = i
	o := &u.ops[i]
	*o = op{access: Access{ID: u.count*InFlight | uint32(i), Request: *r}, from: *from, record: rec}
	u.start(o, e)
	return atomics.OK
}

// admit returns the entry of a request's page, if the thread may access it.
func (u *Unit) admit(r *atomics.Request) (e entry, s atomics.Status) {
	if !r.Op.Memory() {
		return entry{back: 0, bits: device.GSASPresent}, atomics.OK
	}
	if node, ok := r.Address.Node(); !ok || node != u.node || r.Address.Offset()%uint64(r.Op.Bytes()) != 0 {
		return e, atomics.BadAddress
	}
	e = u.pages.get(r.Address.Page())
	if e.bits&device.CfgEnable == 0 {
		return e, atomics.BadAddress
	}
	if uint64(r.Protection) != e.bits&device.ProtectionMask && !u.granted(r, e) {
		return e, atomics.Denied
	}
	return e, atomics.OK
}

// granted reports whether a grant lets a thread of another tree access a page.
func (u *Unit) granted(r *atomics.Request, e entry) bool {
	i := device.SplitGSASEntry(e.bits).Grant
	if i == 0 || u.grants == nil {
		return false
	}
	g := &u.grants[i]
	return g.Valid && g.Protection == uint32(r.Protection) && (g.Read || !r.Op.Reads()) && (g.Write || !r.Op.Writes())
}

// start asks for an operation that is admitted, or lets it wait for its page.
func (u *Unit) start(o *op, e entry) {
	a := &o.access
	a.Tree, a.Back = a.Protection, 0
	if a.Op.Memory() {
		a.Tree, a.Back = atomics.Protection(e.bits&device.ProtectionMask), e.back+a.Address.Offset()%device.PageSize
	}
	if o.waits = e.bits&device.GSASPresent == 0; !o.waits {
		u.host.Perform(a)
		return
	}
	page := a.Address.Page()
	for i := range u.flying() {
		if w := &u.ops[i]; w != o && w.waits && w.access.Address.Page() == page {
			return // its driver knows
		}
	}
	u.wants = append(u.wants, page)
}

// Done takes the result of an access. The answer of an access that the unit does not know is
// dropped.
func (u *Unit) Done(now int64, id uint32, status atomics.Status, values []uint64) {
	i := id % InFlight
	if u.used>>i&1 == 0 || u.ops[i].access.ID != id || u.ops[i].waits {
		return
	}
	u.end(now, int(i), status, values)
}

// Called takes the result of an operation that the driver has performed. That of another one is dropped.
func (u *Unit) Called(now int64, id uint32, status atomics.Status, value uint64) {
	if i := id % InFlight; u.used>>i&1 != 0 && !u.ops[i].access.Op.Memory() {
		u.Done(now, id, status, []uint64{value})
	}
}

// end ends an operation in flight.
func (u *Unit) end(now int64, i int, status atomics.Status, values []uint64) {
	o := &u.ops[i]
	u.used &^= 1 << i
	rec := o.record
	rec.flying = -1
	if o.from.Number != rec.number || o.from.Generation != rec.generation || rec.n != 0 {
		return // the thread has given it up
	}
	rec.sweeps = u.sweeps
	rec.n = u.answer(&o.from, &o.access.Request, status, values, &rec.words)
}

// answer sends a final answer, and returns its length.
func (u *Unit) answer(to *Source, r *atomics.Request, s atomics.Status, values []uint64, words *[atomics.MaxAnswer]uint64) int {
	a := atomics.Answer{Number: to.Number, Protection: r.Protection, Tag: r.Tag, Status: s}
	if s == atomics.OK {
		a.N = r.Op.Values()
		copy(a.Values[:a.N], values)
	}
	n := a.Encode(words[:])
	u.host.Answer(to, words[:n])
	return n
}

// say sends an answer that is not kept.
func (u *Unit) say(to *Source, r *atomics.Request, s atomics.Status) {
	var words [atomics.MaxAnswer]uint64
	u.answer(to, r, s, nil, &words)
}

// flying iterates over the operations in flight.
func (u *Unit) flying() func(yield func(int) bool) {
	return func(yield func(int) bool) {
		for left := u.used; left != 0; left &= left - 1 {
			if !yield(bits.TrailingZeros64(left)) {
				return
			}
		}
	}
}

// sweep removes old records.
func (u *Unit) sweep(now int64) {
	if now-u.swept <= Keep {
		return
	}
	u.swept = now
	u.sweeps++
	for key, r := range u.records {
		if r.flying < 0 && r.sweeps+1 < u.sweeps {
			delete(u.records, key)
		}
	}
}
