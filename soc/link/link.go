// Package link is the wire between nodes as a pure machine: it gives each frame
// the time at which it arrives, and loses, doubles, delays, tears and corrupts
// frames as its Injection says, from a seeded source of chance.
package link

import (
	"math/rand/v2"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc/wire"
)

// Times of the link (spec/hardware.md 1): a hop takes 150 ns (002 V), a blade's
// links carry 10 Gb/s, 0.8 ns a byte.
const (
	HopLatency  = 150
	nsPerByte10 = 8 // a tenth of a nanosecond
)

// Injection says how often, of a million, something happens to a frame.
type Injection struct {
	// Latency is what every frame takes longer, ns.
	Latency                               int64
	LoseData, LoseAck, LoseNack, LoseRAPF int
	// LoseRead loses read requests, LoseAnswer the firmware's answers to them.
	LoseRead, LoseAnswer int
	Duplicate            int
	// Delay holds a frame back for up to DelayMax ns, behind later ones.
	Delay    int
	DelayMax int64
	// Tear loses some packets of a data frame, Corrupt spoils some.
	Tear, Corrupt int
	// Routes is the number of ways to each node, 0 is 1; a block takes one by
	// its number and sequence number, and each is RouteDelay ns longer than the
	// one before (001 abstract: multi-pathing by block).
	Routes     int
	RouteDelay int64
}

// maxRoutes bounds Injection.Routes.
const maxRoutes = 8

// Delivery is a frame and when it arrives.
type Delivery struct {
	At    int64
	Frame *wire.Frame
}

// Link carries frames from one node to all others. It belongs to one goroutine.
type Link struct {
	inj  Injection
	rng  *rand.Rand
	pool *wire.Pool
	free [maxRoutes]int64 // when a route's wire is free again
	// Lost counts what was lost, by kind of frame.
	Lost [6]uint64
}

// New gives a link that takes its chances from rng and its frames from pool.
func New(inj Injection, rng *rand.Rand, pool *wire.Pool) *Link {
	return &Link{inj: inj, rng: rng, pool: pool}
}

// Inject changes what happens to frames from now on.
func (l *Link) Inject(inj Injection) { l.inj = inj }

func (l *Link) chance(perMillion int) bool {
	return perMillion > 0 && l.rng.IntN(1e6) < perMillion
}

// Carry takes a frame at time now and appends what arrives of it to out; the
// frame is the link's.
func (l *Link) Carry(now int64, f *wire.Frame, out []Delivery) []Delivery {
	bytes := int64(len(f.Payload)) + 64
	route := 0
	if n := min(l.inj.Routes, maxRoutes); n > 1 && (f.Kind == wire.Data || f.Kind == wire.Words) {
		route = int((uint32(f.ID) + f.Block + uint32(f.Seq)) % uint32(n))
	}
	start := max(now, l.free[route])
	l.free[route] = start + bytes*nsPerByte10/10
	at := l.free[route] + HopLatency + l.inj.Latency + int64(route)*l.inj.RouteDelay
	if l.lose(f) {
		l.Lost[f.Kind%6]++
		l.pool.Put(f)
		return out
	}
	if l.chance(l.inj.Duplicate) {
		d := l.pool.Clone(f)
		out = append(out, Delivery{At: at + l.delay(), Frame: d})
	}
	if f.Kind == wire.Data {
		if l.chance(l.inj.Tear) {
			f.Present &= l.rng.Uint64() | l.rng.Uint64()
			f.WordsMissing = f.HasWords && l.rng.IntN(2) == 0
		}
		if l.chance(l.inj.Corrupt) {
			f.Corrupt = f.Present & l.rng.Uint64() & l.rng.Uint64()
		}
	}
	if l.chance(l.inj.Delay) {
		at += l.delay()
	}
	return append(out, Delivery{At: at, Frame: f})
}

func (l *Link) delay() int64 {
	if l.inj.DelayMax <= 0 {
		return HopLatency
	}
	return 1 + l.rng.Int64N(l.inj.DelayMax)
}

func (l *Link) lose(f *wire.Frame) bool {
	switch f.Kind {
	case wire.Data, wire.Words:
		return l.chance(l.inj.LoseData)
	case wire.Link:
		return l.chance(l.inj.LoseNack)
	case wire.Ack:
		if f.Code == device.CodeAck {
			return l.chance(l.inj.LoseAck)
		}
		return l.chance(l.inj.LoseNack)
	case wire.Message:
		if f.MessageLen == 0 {
			return false
		}
		switch mailbox.OpcodeOf(f.Message[0]) {
		case mailbox.OpRAPF:
			return l.chance(l.inj.LoseRAPF)
		case mailbox.OpRead:
			return l.chance(l.inj.LoseRead)
		case mailbox.OpAck:
			return l.chance(l.inj.LoseAnswer)
		}
	}
	return false
}
