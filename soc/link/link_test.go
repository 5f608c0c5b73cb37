package link

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc/wire"
)

const all = 1_000_000 // of a million

func newLink(inj Injection) (*Link, *wire.Pool) {
	pool := new(wire.Pool)
	return New(inj, rand.New(rand.NewPCG(1, 1)), pool), pool
}

func data(pool *wire.Pool, n int) *wire.Frame {
	f := pool.Frame()
	f.Header = wire.Header{Kind: wire.Data, DstNode: 2, Length: uint16(n)}
	f.Payload, f.Present = pool.Payload(n), wire.All(n)
	return f
}

func message(pool *wire.Pool, word uint64) *wire.Frame {
	f := pool.Frame()
	f.Header = wire.Header{Kind: wire.Message, DstNode: 2}
	f.Message[0], f.MessageLen = word, 1
	return f
}

func answer(pool *wire.Pool, code device.Code) *wire.Frame {
	f := pool.Frame()
	f.Header = wire.Header{Kind: wire.Ack, DstNode: 2, Code: code}
	return f
}

// A hop takes 150 ns and a byte 0.8 ns (spec/hardware.md 1); frames wait for the wire.
func TestTimes(t *testing.T) {
	l, pool := newLink(Injection{})
	for i, want := range []int64{
		// 16384 bytes and 64 of header: 13158.4 ns.
		1000 + 13158 + 150, 1000 + 2*13158 + 150, 1000 + 3*13158 + 150,
	} {
		if out := l.Carry(1000, data(pool, 16384), nil); len(out) != 1 || out[0].At != want {
			t.Errorf("frame %d: %+v, want at %d", i, out, want)
		}
	}
	// Once the wire is free, a frame does not wait.
	if out := l.Carry(1e6, answer(pool, 0), nil); out[0].At != 1e6+51+150 {
		t.Errorf("at %d", out[0].At)
	}
}

// Invalid options are refused, and valid ones apply to every frame.
func TestOptions(t *testing.T) {
	for _, o := range []Options{{Delay: -1}, {Delay: MaxDelay + 1}, {Loss: -0.1}, {Loss: 1e-7}, {Loss: 1}, {Loss: math.NaN()}} {
		if err := o.Check(); !errors.Is(err, ErrOption) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	o := Options{Delay: 10 * time.Microsecond, Loss: 0.25}
	if err := o.Check(); err != nil || !o.Some() || (&Options{Seed: 1}).Some() {
		t.Errorf("%+v: %v", o, err)
	}
	l, pool := newLink(o.Injection())
	const n = 10000
	lost := 0
	for i := range int64(n) {
		out := l.Carry(i*1e6, answer(pool, 0), nil)
		if len(out) == 0 {
			lost++
		} else if at := out[0].At - i*1e6; at != 51+150+10000 {
			t.Fatalf("arrives after %d ns", at)
		}
	}
	if lost < n/5 || lost > n/3 {
		t.Errorf("%d of %d lost, want a quarter", lost, n)
	}
}

// Each kind of loss affects only its own frames.
func TestLosses(t *testing.T) {
	kinds := []struct {
		name string
		make func(*wire.Pool) *wire.Frame
	}{
		{"data", func(p *wire.Pool) *wire.Frame { return data(p, 100) }},
		{"words", func(p *wire.Pool) *wire.Frame { f := data(p, 0); f.Kind = wire.Words; return f }},
		{"ACK", func(p *wire.Pool) *wire.Frame { return answer(p, device.CodeAck) }},
		{"NACK", func(p *wire.Pool) *wire.Frame { return answer(p, device.CodeSlaveError) }},
		{"RAPF", func(p *wire.Pool) *wire.Frame { return message(p, mailbox.RAPF{}.Encode()) }},
		{"read request", func(p *wire.Pool) *wire.Frame { return message(p, mailbox.ReadRequest{}.Encode()[0]) }},
		{"answer", func(p *wire.Pool) *wire.Frame { return message(p, mailbox.Ack{}.Encode()) }},
		{"doorbell", func(p *wire.Pool) *wire.Frame { return message(p, mailbox.Doorbell{}.Encode()) }},
	}
	for _, c := range []struct {
		inj  Injection
		lost string
	}{
		{Injection{}, ""},
		{Injection{LoseData: all}, "data words "},
		{Injection{LoseAck: all}, "ACK "},
		{Injection{LoseNack: all}, "NACK "},
		{Injection{LoseRAPF: all}, "RAPF "},
		{Injection{LoseRead: all}, "read request "},
		{Injection{LoseAnswer: all}, "answer "},
	} {
		l, pool := newLink(c.inj)
		lost, count := "", uint64(0)
		for _, k := range kinds {
			if out := l.Carry(0, k.make(pool), nil); len(out) == 0 {
				lost += k.name + " "
				count++
			}
		}
		if lost != c.lost {
			t.Errorf("%+v loses %q, want %q", c.inj, lost, c.lost)
		}
		sum := uint64(0)
		for _, n := range l.Lost {
			sum += n
		}
		if sum != count {
			t.Errorf("%d counted as lost, want %d", sum, count)
		}
	}
}

// A duplicate shares nothing with its original, a delay is within its bound, and torn or
// corrupted packets are marked in the frame's bits.
func TestInjections(t *testing.T) {
	l, pool := newLink(Injection{Duplicate: all, DelayMax: 5000})
	f := data(pool, 1000)
	copy(f.Payload, "bytes")
	out := l.Carry(0, f, nil)
	if len(out) != 2 || &out[0].Frame.Payload[0] == &out[1].Frame.Payload[0] || string(out[0].Frame.Payload[:5]) != "bytes" || string(out[1].Frame.Payload[:5]) != "bytes" {
		t.Errorf("doubled: %d frames", len(out))
	}
	l, pool = newLink(Injection{Delay: all, DelayMax: 5000})
	late := false
	for range 1000 {
		l.free = [maxRoutes]int64{}
		d := l.Carry(0, answer(pool, 0), nil)[0]
		if at := d.At - 51 - HopLatency; at < 1 || at > 5000 {
			t.Fatalf("held back for %d ns", at)
		} else if at > 4000 {
			late = true
		}
		pool.Put(d.Frame)
	}
	if !late {
		t.Error("never held back for long")
	}
	l, pool = newLink(Injection{Tear: all})
	torn, without := 0, 0
	for range 200 {
		f := data(pool, 16384)
		f.HasWords = true
		d := l.Carry(0, f, nil)[0]
		if d.Frame.Present != ^uint64(0) {
			torn++
		}
		if d.Frame.WordsMissing {
			without++
		}
	}
	if torn < 190 || without < 50 || without > 150 {
		t.Errorf("%d of 200 torn, %d without words", torn, without)
	}
	l, pool = newLink(Injection{Corrupt: all})
	spoiled := 0
	for range 200 {
		f := data(pool, 2560) // ten packets
		d := l.Carry(0, f, nil)[0]
		if d.Frame.Corrupt&^d.Frame.Present != 0 {
			t.Fatalf("packets spoiled that are not there: %b of %b", d.Frame.Corrupt, d.Frame.Present)
		}
		if d.Frame.Corrupt != 0 {
			spoiled++
		}
	}
	if spoiled < 150 {
		t.Errorf("%d of 200 spoiled", spoiled)
	}
	// Answers are never torn or corrupted.
	l, pool = newLink(Injection{Tear: all, Corrupt: all})
	if d := l.Carry(0, answer(pool, 0), nil)[0]; d.Frame.Corrupt != 0 {
		t.Error("an answer is spoiled")
	}
}

// Blocks are routed by their number and sequence number. Each route has its own wire and is
// longer than the one before, so later blocks may overtake (001 abstract).
func TestRoutes(t *testing.T) {
	l, pool := newLink(Injection{Routes: 3, RouteDelay: 100_000})
	var got string
	for block := range uint32(6) {
		f := data(pool, 256)
		f.Block, f.Seq = block, 2
		d := l.Carry(0, f, nil)[0]
		got += fmt.Sprintf("%d ", d.At)
	}
	// 320 bytes take 256 ns; routes 2, 0, 1, 2, 0, 1.
	if want := "200406 406 100406 200662 662 100662 "; got != want {
		t.Errorf("at %s, want %s", got, want)
	}
	// Answers take the first route.
	if d := l.Carry(0, answer(pool, 0), nil)[0]; d.At != 512+51+150 {
		t.Errorf("an answer at %d", d.At)
	}
	// Routes is limited to maxRoutes.
	l, pool = newLink(Injection{Routes: 100})
	for block := range uint32(100) {
		f := data(pool, 1)
		f.Block = block
		l.Carry(0, f, nil)
	}
}

// The same seed yields the same results.
func TestSameChance(t *testing.T) {
	run := func() (s string) {
		l, pool := newLink(Injection{LoseData: 300_000, Duplicate: 300_000, Delay: 300_000, DelayMax: 1e6, Tear: 300_000, Corrupt: 300_000})
		for range 100 {
			for _, d := range l.Carry(0, data(pool, 4096), nil) {
				s += fmt.Sprint(d.At, d.Frame.Present, d.Frame.Corrupt, " ")
			}
		}
		return s
	}
	if one, two := run(), run(); one != two {
		t.Error("two runs differ")
	}
}
