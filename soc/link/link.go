// Package link is the wire between nodes as a pure state machine: it computes the arrival time of
// each frame, and loses, duplicates, delays, tears and corrupts frames as its Injection says,
// using a seeded random source.
package link

import (
	"math/rand/v2"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc/wire"
)

// Timing of the link (spec/hardware.md 1): a hop takes 150 ns (002 V); a blade's links run at 10
// Gb/s, 0.8 ns a byte.
const (
	HopLatency  = 150
	nsPerByte10 = 8 // in tenths of a nanosecond
)

// Injection describes what happens to frames; probabilities are per million frames.
type Injection struct {
	// Latency is added to every frame's latency, in ns.
	Latency                               int64
	LoseData, LoseAck, LoseNack, LoseRAPF int
	// LoseRead loses read requests and those of threads, LoseAnswer the firmware's answers to reads and
	// the messages to threads.
	LoseRead, LoseAnswer int
	Duplicate            int
	// Delay holds a frame back for up to DelayMax ns, so that later ones overtake it.
	Delay    int
	DelayMax int64
	// Tear loses some packets of a data frame, Corrupt corrupts some.
	Tear, Corrupt int
	// Routes is the number of routes to each node, 0 means 1. A block's route is chosen by its
	// number and sequence number; each route is RouteDelay ns longer than the one before (001
	// abstract: multi-pathing by block).
	Routes     int
	RouteDelay int64
}

// maxRoutes limits Injection.Routes.
const maxRoutes = 8

// Delivery is a frame and its arrival time.
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
	// Lost counts lost frames by kind.
	Lost [6]uint64
}

// New returns a link that takes random numbers from rng and frames from pool.
func New(inj Injection, rng *rand.Rand, pool *wire.Pool) *Link {
	return &Link{inj: inj, rng: rng, pool: pool}
}

// Inject changes the injection for later frames.
func (l *Link) Inject(inj Injection) { l.inj = inj }

func (l *Link) chance(perMillion int) bool {
	return perMillion > 0 && l.rng.IntN(1e6) < perMillion
}

// Carry sends a frame at time now and appends the resulting deliveries to out. The link owns the
// frame from then on.
func (l *Link) Carry(now int64, f *wire.Frame, out []Delivery) []Delivery {
	bytes := int64(len(f.Payload)) + 64
	route := 0
	if n := min(l.inj.Routes, maxRoutes); n > 1 && (f.Kind == wire.Data || f.Kind == wire.Words) {
		route = int((uint32(f.ID) + f.Block + uint32(f.Seq)) % uint32(n))
	}
	start := max(now, l.free[route])
	l.free[route] = start + bytes*nsPerByte10/10
	return l.Disturb(l.free[route]+HopLatency+l.inj.Latency+int64(route)*l.inj.RouteDelay, f, out)
}

// Disturb is Carry for a frame that another network carries: it would arrive there at time at, and the
// link only loses, doubles, delays and tears it.
func (l *Link) Disturb(at int64, f *wire.Frame, out []Delivery) []Delivery {
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
		switch {
		case f.MessageLen == 0:
			return false
		case f.DstMailbox == device.MailboxGSAS:
			return l.chance(l.inj.LoseRead)
		case f.DstMailbox >= device.MailboxThread:
			return l.chance(l.inj.LoseAnswer)
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
