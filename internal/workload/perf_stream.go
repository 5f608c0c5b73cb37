package workload

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"time"

	exstream "github.com/exanet/pfd/stream"
)

// opPerfStream makes the target listen, and answer its address (Parts is 0), or read Parts times
// Size bytes from the stream, say so by one byte, and compare them with the pattern of Last.
const opPerfStream op = "perf-stream"

// StreamRun describes a measurement of writes into a stream, one after the other, in rows. The
// target reads all bytes of a row and then checks them.
type StreamRun struct {
	Size  uint64        // of a write
	Count int           // smallest number of writes; 0 means as many as fit into Time
	Time  time.Duration // sum of the rows' times
}

// streamRow is the most bytes of a row of more than one write.
const streamRow = 16 << 20

// Check returns an error that matches ErrRequest if the measurement is not possible.
func (q *StreamRun) Check() error {
	return refuse(
		refusal{q.Size < 1 || q.Size > perfLimit/16, fmt.Sprintf("writes of %d bytes: want 1 to %d", q.Size, perfLimit/16)},
		refusal{q.Count < 1 && q.Time <= 0, "give a count (-n) or a duration (-D)"},
	)
}

// Streams measures writes into a stream. A row's time ends when the target has read its last byte;
// a latency is the time that a write took.
func (p *Perf) Streams(ctx context.Context, q StreamRun) (r PerfResult, err error) {
	if err := q.Check(); err != nil {
		return r, err
	}
	defer func() { err = p.ended(ctx, err, fmt.Sprintf("writes of %d bytes into a stream were measured", q.Size)) }()
	if err := p.reserve(memoryKind{Memory: Shared}, 8, 1, false); err != nil {
		return r, err
	}
	r.Memory = p.end.Memory
	if p.stream == nil {
		a, err := p.perf(opPerfStream, perfOrder{})
		if err != nil {
			return r, err
		}
		if p.stream, err = exstream.Dial(ctx, p.end.ep, a.Address); err != nil {
			return r, err
		}
	}
	parts := int(min(max(streamRow/q.Size, 1), 4096))
	row := make([]byte, q.Size*uint64(parts))
	for spent := time.Duration(0); q.Count > 0 && r.Transfers() < q.Count || q.Count == 0 && spent < q.Time; {
		if err := p.warm(ctx); err != nil {
			return r, err
		}
		p.seed++
		fillWords(row, p.seed)
		elapsed, err := p.streamRow(ctx, row, int(q.Size), parts, &r)
		if err != nil {
			return r, err
		}
		spent += elapsed
		p.pinned(&r)
	}
	return r, nil
}

func (p *Perf) streamRow(ctx context.Context, row []byte, size, parts int, r *PerfResult) (elapsed time.Duration, err error) {
	defer context.AfterFunc(ctx, func() { _ = p.stream.SetDeadline(time.Unix(1, 0)) })()
	if err := p.stream.SetDeadline(time.Now().Add(DefaultTimeout)); err != nil {
		return 0, err
	}
	if err := p.target.send(order{Op: opPerfStream, Perf: perfOrder{Size: uint64(size), Parts: parts, Last: p.seed}}); err != nil {
		return 0, err
	}
	began := time.Now()
	for i := 0; i < parts && err == nil; i++ {
		start := time.Now()
		if _, err = p.stream.Write(row[i*size:][:size]); i >= cold(parts) {
			r.Latencies, r.Starts = append(r.Latencies, time.Since(start).Nanoseconds()), append(r.Starts, p.end.clock.of(start))
		}
	}
	if err == nil {
		_, err = io.ReadFull(p.stream, make([]byte, 1))
	}
	elapsed = time.Since(began)
	r.Rows = append(r.Rows, PerfRow{parts, uint64(len(row)), elapsed, p.end.clock.of(began)})
	if err != nil {
		_ = p.stream.Close() // the target's read ends
		p.stream = nil
	}
	if _, e := p.target.receive(); e != nil {
		return 0, e
	}
	return elapsed, err
}

// fillWords fills memory with the pattern of a seed.
func fillWords(b []byte, seed uint64) {
	for i := 0; i < len(b); i += 8 {
		copy(b[i:], wordBytes(seed, i))
	}
}

// wordBytes are the bytes of the pattern from i on, a multiple of 8.
func wordBytes(seed uint64, i int) []byte {
	return binary.LittleEndian.AppendUint64(make([]byte, 0, 8), word(seed, uint64(i)/8))
}

// streamed is the target's end of a stream.
type streamed struct {
	listener *exstream.Listener
	conn     io.ReadWriteCloser
	row      []byte
}

func (s *streamed) close() {
	if s.conn != nil {
		_ = s.conn.Close() // the measurement is over
	}
	if s.listener != nil {
		_ = s.listener.Close()
	}
}

// streams listens, or reads a row.
func (e *perfEnd) streams(o perfOrder) (r perfOrder, err error) {
	s := &e.streamed
	if o.Parts == 0 {
		s.close()
		if s.listener, err = exstream.Listen(e.ep, ":0"); err == nil {
			s.conn, r.Address = nil, s.listener.Addr().String()
		}
		return r, err
	}
	if s.listener == nil || o.Size > perfLimit/16 || o.Parts > 4096 || o.Size*uint64(o.Parts) > perfLimit {
		return r, fmt.Errorf("%d writes of %d bytes without a stream", o.Parts, o.Size)
	}
	if s.conn == nil {
		if s.conn, err = s.listener.Accept(); err != nil {
			return r, err
		}
	}
	if n := int(o.Size) * o.Parts; cap(s.row) < n {
		s.row = make([]byte, n)
	}
	row := s.row[:int(o.Size)*o.Parts]
	if _, err := io.ReadFull(s.conn, row); err != nil {
		return r, err
	}
	if _, err := s.conn.Write([]byte{1}); err != nil {
		return r, err
	}
	for i := 0; i < len(row); i += 8 {
		got := row[i:min(i+8, len(row))]
		if want := wordBytes(o.Last, i)[:len(got)]; !bytes.Equal(got, want) {
			return r, fmt.Errorf("%w: byte %d of a row and the next are %x, want %x", errBytes, i, got, want)
		}
	}
	return r, nil
}
