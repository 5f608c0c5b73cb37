package workload

import (
	"context"
	"fmt"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
)

// opPerfEcho makes the target send Parts messages of Size bytes back to Words.
const opPerfEcho op = "perf-echo"

// MessageRun describes a measurement of messages, one after the other, in rows. Every word is
// checked.
type MessageRun struct {
	Words int           // of a message, 1 to 8
	Count int           // smallest number of samples; 0 means as many as fit into Time
	Time  time.Duration // sum of the rows' times
}

// Check returns an error that matches ErrRequest if the measurement is not possible.
func (q *MessageRun) Check() error {
	return refuse(
		refusal{q.Words < 1 || q.Words > device.PktzMaxWords, fmt.Sprintf("%d words: want 1 to %d", q.Words, device.PktzMaxWords)},
		refusal{q.Count < 1 && q.Time <= 0, "give a count (-n) or a duration (-D)"},
	)
}

// messageRow is the number of messages that a row sends.
const messageRow = 256

// Messages measures messages. If the target is another process a latency is half the time of a round
// trip. Else one goroutine has both ends, and it is the time from the call that sends the message
// until the call that receives it returns.
func (p *Perf) Messages(ctx context.Context, q MessageRun) (r PerfResult, err error) {
	if err := q.Check(); err != nil {
		return r, err
	}
	defer func() { err = p.ended(ctx, err, fmt.Sprintf("messages of %d bytes were measured", 8*q.Words)) }()
	if err := p.reserve(memoryKind{Memory: Shared}, 8*uint64(q.Words), 1, false); err != nil {
		return r, err
	}
	r.Memory = p.end.Memory
	row := p.roundTrips
	if p.Target() == p.pids[1] { // pfd's, after which only another process would follow
		if row, err = p.oneWay(ctx); err != nil {
			return r, err
		}
	}
	for spent := time.Duration(0); q.Count > 0 && len(r.Latencies) < q.Count || q.Count == 0 && spent < q.Time; {
		if err := p.warm(ctx); err != nil {
			return r, err
		}
		p.seed++
		began := time.Now()
		if err := row(ctx, q.Words, &r); err != nil {
			return r, err
		}
		elapsed := time.Since(began)
		r.Rows = append(r.Rows, PerfRow{messageRow, 8 * messageRow * uint64(q.Words), elapsed, p.end.clock.of(began)})
		spent += elapsed
		p.pinned(&r)
	}
	return r, nil
}

// oneWay attaches the other end, and returns what makes a row.
func (p *Perf) oneWay(ctx context.Context) (func(context.Context, int, *PerfResult) error, error) {
	if p.other == nil {
		ep, err := attachRDMA(ctx, p.to)
		if err != nil {
			return nil, err
		}
		p.other = ep.rdma()
	}
	to, err := p.other.ExportVA(p.end.words.name.VA, 1) // only its interface matters
	return func(ctx context.Context, words int, r *PerfResult) error {
		ctx, cancel := context.WithTimeout(ctx, DefaultTimeout)
		defer cancel()
		for i := range messageRow {
			start := time.Now()
			if err := say(ctx, p.end.ep, to, p.seed, i, words); err != nil {
				return err
			}
			if err := expect(ctx, p.other, p.seed, i, words); err != nil {
				return err
			}
			p.sample(r, i, start, time.Since(start))
		}
		return nil
	}, err
}

// roundTrips makes a row with a target that sends each message back.
func (p *Perf) roundTrips(ctx context.Context, words int, r *PerfResult) error {
	o := perfOrder{Size: 8 * uint64(words), Parts: messageRow, Last: p.seed, Words: p.end.words.name}
	if err := p.target.send(order{Op: opPerfEcho, Perf: o}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, DefaultTimeout)
	defer cancel()
	answer := make(chan error, 1)
	go func() {
		_, err := p.target.receive()
		if err != nil {
			cancel() // no message comes back
		}
		answer <- err
	}()
	var err error
	for i := 0; i < messageRow && err == nil; i++ {
		start := time.Now()
		if err = say(ctx, p.end.ep, p.end.toWords, p.seed, i, words); err == nil {
			err = expect(ctx, p.end.ep, p.seed, i, words)
		}
		p.sample(r, i, start, time.Since(start)/2)
	}
	if e := <-answer; e != nil {
		return e
	}
	return err
}

// sample records message i of a row, unless it is one of the first.
func (p *Perf) sample(r *PerfResult, i int, start time.Time, took time.Duration) {
	if i >= cold(messageRow) {
		r.Latencies, r.Starts = append(r.Latencies, took.Nanoseconds()), append(r.Starts, p.end.clock.of(start))
	}
}

// echo receives messages and sends each back to the process that measures.
func (e *perfEnd) echo(ctx context.Context, o perfOrder) error {
	ctx, cancel := context.WithTimeout(ctx, DefaultTimeout)
	defer cancel()
	words := int(min(o.Size/8, device.PktzMaxWords))
	for i := range o.Parts {
		if err := expect(ctx, e.ep, o.Last, i, words); err != nil {
			return err
		}
		if err := say(ctx, e.ep, o.Words, o.Last, i, words); err != nil {
			return err
		}
	}
	return nil
}

// say sends message i of a row.
func say(ctx context.Context, ep *rdma.Endpoint, to rdma.Remote, seed uint64, i, words int) error {
	if _, err := ep.Send(ctx, to, messageOf(seed, i, words)...); err != nil {
		return fmt.Errorf("message %d of %d: %w", i+1, messageRow, err)
	}
	return nil
}

// messageOf returns the words of message i of a row. The lowest bits of the first word are its
// kind and its source.
func messageOf(seed uint64, i, words int) []uint64 {
	list := make([]uint64, words, device.PktzMaxWords)
	for j := range list {
		list[j] = word(seed, uint64(i*device.PktzMaxWords+j))
	}
	list[0] &^= 1<<24 - 1
	return list
}

// expect receives message i of a row.
func expect(ctx context.Context, ep *rdma.Endpoint, seed uint64, i, words int) error {
	m, err := ep.Receive(ctx)
	if err != nil {
		return fmt.Errorf("message %d of %d: %w", i+1, messageRow, err)
	}
	want := messageOf(seed, i, words)
	for j, w := range want {
		if m.N != words || m.Words[j] != w {
			return fmt.Errorf("%w: message %d of %d has %x, want %x", errBytes, i+1, messageRow, m.Words[:m.N], want)
		}
	}
	return nil
}
