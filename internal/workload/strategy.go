package workload

import (
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
)

// ask is a request of an initiator to the target by RDMA: places in the target's memory, in
// 64 bytes, followed by the number of the request as the completion word.
type ask [4]place

// Actions on the places of a request. Values are defined by this project.
const (
	doLock = iota
	doUnlock
	doTouch
	doCopy // from the ring
)

// Flags in the length of the place to lock. Values are defined by this project.
const (
	stopBit = 1 << 63 // this is the last request
	ringBit = 1 << 62 // lock the ring, too
)

// place is a part of memory; length 0 means none.
type place struct{ at, n uint64 }

// serve carries out requests until one has stopBit.
func (e *perfEnd) serve(ctx context.Context, back rdma.Remote) error {
	word, err := rdma.Word(e.words.b, askPlace+askSize+8)
	if err != nil {
		return err
	}
	for n := uint64(1); ; n++ {
		if err := e.ep.WaitNotification(ctx, word, n); err != nil {
			return err
		}
		var a ask
		for i, m := 0, e.words.b[askPlace:]; i < len(a); i, m = i+1, m[16:] {
			a[i] = place{binary.LittleEndian.Uint64(m), binary.LittleEndian.Uint64(m[8:])}
		}
		failed := e.obey(a)
		if err := errors.Join(failed, e.say(ctx, back, n, failed != nil, nil)); err != nil || a[doLock].n&stopBit != 0 {
			return err
		}
	}
}

// obey carries out a request on this end's memory.
func (e *perfEnd) obey(a ask) error {
	b, ring := e.data.b, a[doLock].n&ringBit != 0
	a[doLock].n &^= stopBit | ringBit
	for _, p := range a {
		if p.at > uint64(len(b)) || p.n > uint64(len(b))-p.at || a[doCopy].n > pageSize {
			return fmt.Errorf("%w: %d bytes at %d of %d", ErrRequest, p.n, p.at, len(b))
		}
	}
	if ring {
		if err := lockMemory(e.words.b[ringPlace:]); err != nil {
			return err
		}
	}
	if p := a[doUnlock]; p.n > 0 {
		if err := unix.Munlock(b[p.at:][:p.n]); err != nil {
			return fmt.Errorf("munlock: %w", err)
		}
	}
	if p := a[doLock]; p.n > 0 {
		if err := lockMemory(b[p.at:][:p.n]); err != nil {
			return err
		}
	}
	for i, p := uint64(0), a[doTouch]; i < p.n; i += pageSize {
		b[p.at+i] = 0
	}
	p := a[doCopy]
	copy(b[p.at:][:p.n], e.words.b[ringPlace:])
	return nil
}

func lockMemory(b []byte) error {
	if err := unix.Mlock(b); errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("%w: locking %d bytes: %w: raise RLIMIT_MEMLOCK (ulimit -l)", ErrSkipped, len(b), err)
	} else if err != nil {
		return fmt.Errorf("mlock: %w", err)
	}
	return nil
}

// say sends request or answer n and waits until it has arrived. An answer with failed is the
// last one.
func (e *perfEnd) say(ctx context.Context, to rdma.Remote, n uint64, failed bool, text []byte) error {
	var first uint64
	if failed {
		first = 1
	}
	copy(e.words.b[wakePlace:], text)
	t, err := e.ep.Write(ctx, rdma.WriteRequest{
		SrcVA: e.words.name.VA + wakePlace, Size: askSize, Dst: to, Offset: askPlace, Urgent: true,
		Notify: &rdma.Notification{Offset: askPlace + askSize, First: first, Last: n},
	})
	return await(ctx, t, err)
}

// Putter is an initiator that puts small pieces of data into a working set of the target by
// a strategy.
type Putter struct {
	p      *Perf
	ctx    context.Context
	q      StrategyRun
	asked  uint64
	answer *uint64
	pins   []place      // pages of the cache, the least recently used first
	put    map[int]bool // pages that were written
	victim []place      // Firehose: pages that were released and are still pinned
}

// StrategyRun describes the measurement of a strategy: puts of Size bytes, each at a random
// page of a working set of Pages pages, which are absent at first. The strategy may pin Limit
// pages at each end.
type StrategyRun struct {
	Size  uint64
	Pages int
	Puts  int
	Limit int
}

// Strategy is a way to put bytes into memory that may be absent.
type Strategy struct {
	Name  string
	About string
	put   func(*Putter, place) error
	setup func(*Putter) error
	lines []string // functions that a user of the strategy must write
}

// Strategies lists all strategies that are measured.
var Strategies = []Strategy{
	{"no pinning (ours)", "the transfer faults", (*Putter).plain, nil, []string{"plain"}},
	{"pin everything", "mlock of the working set at both ends before the first put", (*Putter).plain, (*Putter).pinAll, []string{"plain", "pinAll"}},
	{"pin and unpin", "mlock and munlock at both ends around each put", (*Putter).pinOnce, nil, []string{"plain", "pinOnce", "question", "obey", "serve"}},
	{"pin-down cache", "pages stay pinned, the least recently used one is evicted", (*Putter).cached, nil, []string{"plain", "cached", "question", "obey", "serve"}},
	{"Firehose", "as the cache, but evicted pages stay pinned in a FIFO of MAXVICTIM = M/8 pages", (*Putter).firehose, nil, []string{"plain", "firehose", "question", "obey", "serve"}},
	{"rendezvous", "the target pins, answers, and never unpins", (*Putter).rendezvous, nil, []string{"plain", "rendezvous", "question", "obey", "serve"}},
	{"touch before", "the target touches, answers, and does not pin", (*Putter).touched, nil, []string{"plain", "touched", "question", "obey", "serve"}},
	{"pre-touch", "the working set is touched once, at both ends", (*Putter).plain, (*Putter).touchAll, []string{"plain", "touchAll", "question", "obey", "serve"}},
	{"bounce buffers", "copied into and out of pinned buffers at both ends", (*Putter).bounced, (*Putter).pinRing, []string{"bounced", "pinRing", "question", "obey", "serve"}},
	{"backup ring", "into a pinned ring of the target, which copies", (*Putter).ringed, (*Putter).pinRing, []string{"ringed", "pinRing", "question", "obey", "serve"}},
}

//go:embed strategy.go
var strategySource string

// Lines returns the number of lines of this file that a user of the strategy must write.
func (s *Strategy) Lines() (n int) {
	for _, name := range s.lines {
		_, f, _ := strings.Cut(strategySource, ") "+name+"(")
		f, _, _ = strings.Cut(f, "\n}\n")
		if line, _, _ := strings.Cut(f, "\n"); strings.HasSuffix(line, "}") { // all of it
			f = line
		} else {
			n++
		}
		n += 1 + strings.Count(f, "\n")
	}
	return n
}

// StrategyResult is the result of measuring a strategy.
type StrategyResult struct {
	Latencies []int64 // of each put, ns
	Setup     time.Duration
	Elapsed   time.Duration // time of the puts and of Setup
	Resident  int64         // resident bytes of the target's working set at the end
	Pinned    int64         // bytes that all processes have pinned at the end
}

// Puts measures a strategy. It checks every byte that was put.
func (p *Perf) Puts(ctx context.Context, s *Strategy, q StrategyRun) (r StrategyResult, err error) {
	if q.Size < 1 || q.Size > pageSize || q.Pages < 1 || q.Puts < 1 || q.Limit < 1 {
		return r, fmt.Errorf("%w: puts of %d bytes into %d pages", ErrRequest, q.Size, q.Pages)
	}
	if err := p.reserve(memoryKind{Memory: Shared}, q.Size, q.Pages, true); err != nil {
		return r, err
	}
	p.end.size = 0 // a later measurement must not use this memory
	p.seed++
	src, err := p.fill(&PerfRun{Dst: 1})
	if err != nil {
		return r, err
	}
	before, err := pinned(p.pids...)
	if err != nil {
		return r, err
	}
	u := &Putter{p: p, ctx: ctx, q: q, put: make(map[int]bool)}
	if u.answer, err = rdma.Word(p.end.words.b, askPlace+askSize+8); err != nil {
		return r, err
	}
	if err := p.warm(ctx); err != nil {
		return r, err
	}
	if err := p.target.send(order{Op: opPerfServe, Perf: perfOrder{Words: p.end.words.name}}); err != nil {
		return r, err
	}
	if err := u.run(s, &r); err != nil {
		return r, err
	}
	if err := u.question(ask{doLock: {n: stopBit}}); err != nil {
		return r, err
	}
	served, err := p.target.receive()
	if err != nil {
		return r, err
	}
	r.Resident = int64(served.Perf.Resident) * pageSize
	after, err := pinned(p.pids...)
	if err != nil {
		return r, err
	}
	r.Pinned = after - before
	_, err = p.perf(opPerfCheck, perfOrder{Size: q.Size, Order: slices.Sorted(maps.Keys(u.put)), Fill: src})
	return r, err
}

func (u *Putter) run(s *Strategy, r *StrategyResult) error {
	random := rand.New(rand.NewPCG(1, 2)) // the same for all strategies
	start := time.Now()
	if s.setup != nil {
		if err := s.setup(u); err != nil {
			return err
		}
	}
	r.Setup = time.Since(start)
	for range u.q.Puts {
		at := uint64(random.IntN(u.q.Pages)) * pageSize
		start := time.Now()
		if err := s.put(u, place{at, u.q.Size}); err != nil {
			return err
		}
		r.Latencies = append(r.Latencies, time.Since(start).Nanoseconds())
		u.put[int(at/pageSize)] = true
	}
	r.Elapsed = time.Since(start)
	return nil
}

// question sends a request to the target and waits for its answer.
func (u *Putter) question(a ask) error {
	text := make([]byte, 0, askSize)
	for _, p := range a {
		text = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(text, p.at), p.n)
	}
	u.asked++
	end := u.p.end
	if err := end.say(u.ctx, u.p.end.toWords, u.asked, false, text); err != nil {
		return err
	}
	if err := end.ep.WaitNotification(u.ctx, u.answer, u.asked); err != nil {
		return err
	}
	if end.words.b[askPlace+askSize] != 0 {
		if _, err := u.p.target.receive(); err != nil {
			return err
		}
	}
	return nil
}

// write writes bytes of this process's memory into the target's and waits for the end.
func (u *Putter) write(from device.VA, n uint64, to rdma.Remote, at uint64) error {
	t, err := u.p.end.ep.Write(u.ctx, rdma.WriteRequest{SrcVA: from, Size: n, Dst: to, Offset: at})
	return await(u.ctx, t, err)
}

// page returns the page that contains a place.
func page(p place) place { return place{p.at / pageSize * pageSize, pageSize} }

func (u *Putter) whole() place { return place{0, uint64(u.q.Pages) * pageSize} }

// both carries out a request at both ends.
func (u *Putter) both(a ask) error {
	if err := u.p.end.obey(a); err != nil {
		return err
	}
	return u.question(a)
}

func (u *Putter) plain(d place) error {
	return u.write(u.p.end.data.name.VA+device.VA(d.at), d.n, u.p.end.toData, d.at)
}

func (u *Putter) pinAll() error { return u.both(ask{doLock: u.whole()}) }

func (u *Putter) touchAll() error { return u.question(ask{doTouch: u.whole()}) }

func (u *Putter) pinOnce(d place) error {
	if err := u.both(ask{doLock: page(d)}); err != nil {
		return err
	}
	if err := u.plain(d); err != nil {
		return err
	}
	return u.both(ask{doUnlock: page(d)})
}

func (u *Putter) touched(d place) error {
	if err := u.question(ask{doTouch: page(d)}); err != nil {
		return err
	}
	return u.plain(d)
}

func (u *Putter) rendezvous(d place) error {
	if err := u.both(ask{doLock: page(d)}); err != nil {
		return err
	}
	return u.plain(d)
}

func (u *Putter) cached(d place) error {
	want := page(d)
	if i := slices.Index(u.pins, want); i >= 0 {
		u.pins = append(slices.Delete(u.pins, i, i+1), want)
		return u.plain(d)
	}
	a := ask{doLock: want}
	if len(u.pins) >= u.q.Limit {
		a[doUnlock], u.pins = u.pins[0], u.pins[1:]
	}
	u.pins = append(u.pins, want)
	if err := u.both(a); err != nil {
		return err
	}
	return u.plain(d)
}

func (u *Putter) firehose(d place) error {
	want := page(d)
	if i := slices.Index(u.pins, want); i >= 0 {
		u.pins = append(slices.Delete(u.pins, i, i+1), want)
		return u.plain(d)
	}
	var a ask
	if len(u.pins) >= u.q.Limit {
		u.victim, u.pins = append(u.victim, u.pins[0]), u.pins[1:]
	}
	if i := slices.Index(u.victim, want); i >= 0 {
		u.victim = slices.Delete(u.victim, i, i+1) // it is still pinned
	} else {
		a[doLock] = want
	}
	if len(u.victim) > u.q.Limit/8 {
		a[doUnlock], u.victim = u.victim[0], u.victim[1:]
	}
	u.pins = append(u.pins, want)
	if err := u.both(a); err != nil {
		return err
	}
	return u.plain(d)
}

func (u *Putter) pinRing() error { return u.both(ask{doLock: {n: ringBit}}) }

func (u *Putter) bounced(d place) error {
	end := u.p.end
	copy(end.words.b[ringPlace:], end.data.b[d.at:][:d.n])
	if err := u.write(end.words.name.VA+ringPlace, d.n, u.p.end.toWords, ringPlace); err != nil {
		return err
	}
	return u.question(ask{doCopy: d})
}

func (u *Putter) ringed(d place) error {
	if err := u.write(u.p.end.data.name.VA+device.VA(d.at), d.n, u.p.end.toWords, ringPlace); err != nil {
		return err
	}
	return u.question(ask{doCopy: d})
}
