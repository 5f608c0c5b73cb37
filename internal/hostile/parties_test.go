package hostile

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// partiesKilled kills each of those who take part in a write or read between hosts, at random times.
func partiesKilled(t *testing.T, w *world) {
	needRoot(t, "all methods")
	const rounds = 10
	seed := uint64(time.Now().UnixNano())
	t.Log("seed ", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for _, party := range []string{"initiator", "target", "near pfd", "far pfd", "near exanet-hostd", "far exanet-hostd"} {
		for _, verb := range []string{"write", "read"} {
			t.Run(party+"/"+verb, func(t *testing.T) {
				w.during(t)
				w.far.during(t)
				arrived := 0
				for range rounds {
					method, after := []string{"gup", "touch", "populate"}[r.IntN(3)], time.Duration(r.Int64N(int64(50*time.Millisecond)))
					if w.partyKilled(party, verb, method, after) {
						arrived++
					}
					if t.Failed() {
						t.Fatalf("the %s is killed %v after a %s, method %s", party, after, verb, method)
					}
				}
				t.Logf("%d of %d arrived", arrived, rounds)
			})
		}
	}
}

// partyKilled kills a party of a transfer. A killed pfd comes back under the same numbers, and its process
// attaches again in the same slot. The transfer arrives or has a reason, and each byte of its destination
// is old or new. In the next life of its source, and of its destination, no byte of it is written.
func (w *world) partyKilled(party, verb, method string, after time.Duration) (arrived bool) {
	t := w.t
	const size, fresh = dyingSize, 1 << 20
	p := w.pair(method, "p4")
	defer func() {
		p.kill()
		w.until("all slots are free", func() bool { return w.domains() == 0 })
	}()
	// transfer begins a transfer of a pattern into untouched memory.
	transfer := func(id string, size, seed uint64) {
		seeds := [2]uint64{seed, 0}
		if verb == "read" {
			seeds = [2]uint64{0, seed}
		}
		p.from.buffer(id, "anonymous", size, seeds[0])
		p.from.must(order{Op: verb, ID: id, Kind: id, Remote: p.to.buffer(id, "anonymous", size, seeds[1]).Remote, Size: size})
	}
	host, own, dst := w, p.from, p.to
	if strings.HasPrefix(party, "far") {
		host, own = w.far, p.to
	}
	if verb == "read" {
		dst = p.from
	}
	forget := func() { dst.must(order{Op: "advise", ID: "b", Advice: unix.MADV_DONTNEED}) }
	transfer("b", size, 7)
	time.Sleep(after)
	switch party {
	case "initiator":
		p.from.kill()
	case "target":
		p.to.kill()
	case "near exanet-hostd", "far exanet-hostd":
		host.hostd.end()
	default:
		host.kill()
		if own == dst {
			if p.from.must(order{Op: "poll", ID: "b"}).Done && p.from.wait("b").Done {
				dst.holds("b", 7, 0, size)
			}
			forget()
		}
		if err := host.run(); err != nil {
			t.Fatal(err)
		}
		if _, err := own.do(order{Op: "close"}); err != nil { // whose pfd is gone
			t.Fatal(err)
		}
		o := attachOrder{Socket: w.socket(), Group: "pair", Method: method, Policy: "p4"}
		if own == p.to {
			o.Node = 1
		}
		own.must(order{Op: "attach", Attach: o})
	}
	if !p.from.over {
		r := p.from.wait("b")
		if arrived = r.Done; !arrived && (r.Code == 0 || r.Text == "" || strings.HasSuffix(party, "hostd")) {
			t.Errorf("%+v", r)
		}
	}
	switch {
	case dst.over:
	case own == dst && strings.HasSuffix(party, "pfd"):
		dst.holds("b", 0, 0, size)
	case arrived:
		dst.holds("b", 7, 0, size)
	default:
		dst.must(order{Op: "either", ID: "b", Seed: 7})
	}
	if p.from.over || p.to.over {
		return arrived
	}
	if strings.HasSuffix(party, "hostd") {
		host.hostd.start()
	}
	w.linked()
	transfer("fresh", fresh, 9)
	p.from.arrives("fresh")
	dst.holds("fresh", 9, 0, fresh)
	forget()
	transfer("last", fresh, 11)
	p.from.arrives("last")
	dst.holds("last", 11, 0, fresh)
	dst.holds("b", 0, 0, size)
	return arrived
}

// limitedMemory has the destination of a write, and of a read, between hosts in a control group that has less
// memory than the transfer needs. Where there is no swap the kernel kills it. Nobody else is affected.
func limitedMemory(t *testing.T, w *world) {
	b := w.bystander(attachOrder{})
	const size, limit = 64 << 20, 32 << 20
	for _, verb := range []string{"write", "read"} {
		for _, method := range methods {
			t.Run(verb+"/"+method, func(t *testing.T) {
				g := newMemoryGroup(t)
				w.during(t)
				p := w.pair(method, "p4")
				defer p.kill()
				limited, other, seeds := p.to, p.from, [2]uint64{7, 0}
				if verb == "read" {
					limited, other, seeds = other, limited, [2]uint64{0, 7}
				}
				g.add(limited.pid())
				g.limit(limit)
				p.from.buffer("b", "anonymous", size, seeds[0])
				m := p.to.buffer("b", "anonymous", size, seeds[1])
				p.from.must(order{Op: verb, ID: "x", Kind: "b", Remote: m.Remote, Size: size})
				r, err := p.from.do(order{Op: "wait", ID: "x"})
				switch {
				case err != nil && limited == p.to:
					t.Error(err)
				case err == nil && !r.Done && (r.Code == 0 || r.Text == ""):
					t.Errorf("no reason: %+v", r)
				case r.Done:
					limited.holds("b", 7, 0, size)
				}
				t.Logf("done %v, code %d, %v", r.Done, r.Code, err)
				other.holds("b", 7, 0, size)
			})
		}
	}
	b.fine()
}
