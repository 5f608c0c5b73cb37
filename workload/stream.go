package workload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
)

// Orders of a stream: one process that has attachments on every node keeps so
// many channels busy for a time.
const (
	opStreamOpen op = "stream-open"
	opStreamRun  op = "stream-run"
)

// stream is the order of either.
type stream struct {
	Socket  string   `json:"socket,omitempty"`
	Nodes   []uint32 `json:"node_ids,omitempty"`
	Domains int      `json:"domains,omitempty"` // on each node
	Group   string   `json:"group,omitempty"`   // beginning of the groups' names
	Size    uint64   `json:"size,omitempty"`    // of each transfer
	Memory  Memory   `json:"memory,omitempty"`

	Channels int           `json:"channels,omitempty"` // kept busy
	Time     time.Duration `json:"time_ns,omitempty"`
}

// streamed is what came of a run.
type streamed struct {
	Transfers int   `json:"transfers"`
	ElapsedNS int64 `json:"elapsed_ns"`
}

// lane is one attachment of a stream. Each of its write channels has a source of
// its own here and a destination of its own at a neighbour.
type lane struct {
	ep       *rdmaEndpoint
	src, dst []byte
	free     []func() error
	to       *lane // whose dst it writes to
	remote   string
}

func (l *lane) close() error {
	err := l.ep.close()
	for _, free := range l.free {
		err = errors.Join(err, free())
	}
	return err
}

// present makes present memory.
func (l *lane) present(m Memory, size uint64) ([]byte, error) {
	b, free, err := newMemory(l.ep.ep, m, size)
	if err != nil {
		return nil, err
	}
	l.free = append(l.free, free)
	clear(b)
	return b, nil
}

func (p *process) openStream(ctx context.Context, o stream) error {
	if len(p.lanes) > 0 {
		return errors.New("a stream is open already")
	}
	size := o.Size * device.WriteChannels
	for d := range o.Domains {
		row := make([]*lane, len(o.Nodes))
		for i, node := range o.Nodes {
			l := &lane{}
			ep, err := attachRDMA(ctx, attachment{Socket: o.Socket, Node: node, Group: fmt.Sprintf("%s-%d", o.Group, d), Method: "gup", Policy: "p1"})
			if err != nil {
				return err
			}
			l.ep = ep.(*rdmaEndpoint)
			p.lanes = append(p.lanes, l)
			row[i] = l
			if l.src, err = l.present(o.Memory, size); err != nil {
				return err
			}
			if l.dst, err = l.present(o.Memory, size); err != nil {
				return err
			}
			fill(l.src, word(uint64(node)<<32|uint64(d), 1), 0)
		}
		for i, l := range row {
			l.to = row[(i+1)%len(row)]
			var err error
			if l.remote, err = l.to.ep.export(rdma.VAOf(l.to.dst), size); err != nil {
				return err
			}
		}
	}
	return nil
}

// busy is a channel of a lane that is kept busy.
type busy struct {
	lane *lane
	at   uint64 // of its memory in src and dst
	t    transfer
}

// runStream keeps o.Channels channels busy for o.Time, waits for the last
// transfers and checks every byte.
func (p *process) runStream(ctx context.Context, o stream) (streamed, error) {
	var s streamed
	if o.Channels < 1 || o.Channels > len(p.lanes)*device.WriteChannels {
		return s, fmt.Errorf("%d channels of %d", o.Channels, len(p.lanes)*device.WriteChannels)
	}
	list := make([]busy, o.Channels)
	for i := range list {
		list[i] = busy{lane: p.lanes[i/device.WriteChannels], at: uint64(i%device.WriteChannels) * o.Size}
		clear(list[i].lane.to.dst[list[i].at:][:o.Size])
	}
	// Collections of what the transfers leave behind are no part of them.
	runtime.GC()
	start := time.Now()
	for inFlight := 1; inFlight > 0; {
		stop := time.Since(start) >= o.Time || ctx.Err() != nil
		inFlight = 0
		for i := range list {
			b := &list[i]
			if b.t != nil {
				over, err := b.t.poll()
				if err != nil {
					return s, err
				}
				if !over {
					inFlight++
					continue
				}
				b.t = nil
				s.Transfers++
			}
			if stop {
				continue
			}
			var err error
			if b.t, err = b.lane.ep.start(rdma.VAOf(b.lane.src)+device.VA(b.at), o.Size, b.lane.remote, b.at, false, false); err != nil {
				return s, err
			}
			inFlight++
		}
	}
	s.ElapsedNS = time.Since(start).Nanoseconds()
	for _, b := range list {
		if !bytes.Equal(b.lane.src[b.at:][:o.Size], b.lane.to.dst[b.at:][:o.Size]) {
			return s, fmt.Errorf("bytes %d to %d of a destination are not the source's", b.at, b.at+o.Size)
		}
	}
	return s, ctx.Err()
}

// Stream is a test process that keeps channels busy.
type Stream struct {
	p    *peer
	size uint64
}

// Streamed is what a Run came to.
type Streamed struct {
	Transfers int
	Elapsed   time.Duration
}

// OpenStream starts the process and has it attach domains times to every node:
// o's Socket and Command count. Each attachment writes to the one on the next
// node, size bytes a transfer.
func OpenStream(ctx context.Context, d Daemon, o Options, domains int, size uint64, memory Memory) (*Stream, error) {
	nodes, err := d.Nodes(ctx, control.AllNodes)
	if err != nil {
		return nil, err
	}
	group, err := groupName()
	if err != nil {
		return nil, err
	}
	p, err := start(ctx, "stream", o)
	if err != nil {
		return nil, err
	}
	s := &Stream{p: p, size: size}
	q := stream{Socket: o.Socket, Domains: domains, Group: group, Size: size, Memory: memory}
	for _, n := range nodes {
		q.Nodes = append(q.Nodes, n.ID)
	}
	if _, err := p.call(order{Op: opStreamOpen, Stream: q}); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Run keeps so many channels busy for a time. Every byte of the last transfers
// is checked.
func (s *Stream) Run(channels int, t time.Duration) (Streamed, error) {
	r, err := s.p.call(order{Op: opStreamRun, Stream: stream{Channels: channels, Time: t, Size: s.size}})
	if err != nil {
		return Streamed{}, err
	}
	return Streamed{r.Streamed.Transfers, time.Duration(r.Streamed.ElapsedNS)}, nil
}

// Close ends the process.
func (s *Stream) Close() error { return s.p.close() }
