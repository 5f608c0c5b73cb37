package workload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device"
)

// Orders of a stream: one process with attachments on every node keeps a number of channels
// busy for a time.
const (
	opStreamOpen op = "stream-open"
	opStreamRun  op = "stream-run"
)

// stream is the argument of both orders.
type stream struct {
	Socket  string   `json:"socket,omitempty"`
	Nodes   []uint32 `json:"node_ids,omitempty"`
	Domains int      `json:"domains,omitempty"` // on each node
	Group   string   `json:"group,omitempty"`   // prefix of the groups' names
	Size    uint64   `json:"size,omitempty"`    // of each transfer
	Memory  Memory   `json:"memory,omitempty"`

	Channels int           `json:"channels,omitempty"` // number of channels to keep busy
	Time     time.Duration `json:"time_ns,omitempty"`
}

// lane is one attachment of a stream. Each of its write channels has its own source in src
// and its own destination in the dst of the lane on the next node.
type lane struct {
	ep       endpoint
	src, dst area
	to       *lane // the lane on the next node
}

func (l *lane) close() error {
	return errors.Join(l.ep.close(), l.src.close(l.ep.rdma()), l.dst.close(l.ep.rdma()))
}

func (p *process) openStream(ctx context.Context, o stream) error {
	if len(p.lanes) > 0 {
		return errors.New("a stream is open already")
	}
	size := o.Size * device.WriteChannels
	for d := range o.Domains {
		row := make([]*lane, len(o.Nodes))
		for i, node := range o.Nodes {
			ep, err := attachRDMA(ctx, attachment{Socket: o.Socket, Node: node, Group: fmt.Sprintf("%s-%d", o.Group, d), Method: "gup", Policy: "p1"})
			if err != nil {
				return err
			}
			l := &lane{ep: ep}
			p.lanes = append(p.lanes, l)
			row[i] = l
			if l.src, err = newArea(ep.rdma(), memoryKind{Memory: o.Memory}, size); err == nil {
				l.dst, err = newArea(ep.rdma(), memoryKind{Memory: o.Memory}, size)
			}
			if err != nil {
				return err
			}
			clear(l.dst.b) // this and fill make both present
			fill(l.src.b, word(uint64(node)<<32|uint64(d), 1), 0)
		}
		for i, l := range row {
			l.to = row[(i+1)%len(row)]
		}
	}
	return nil
}

// runStream keeps o.Channels channels busy for o.Time, waits for the last
// transfers and checks every byte of them.
func (p *process) runStream(ctx context.Context, o stream) (s Streamed, err error) {
	if o.Channels < 1 || o.Channels > len(p.lanes)*device.WriteChannels {
		return s, fmt.Errorf("%d channels of %d", o.Channels, len(p.lanes)*device.WriteChannels)
	}
	// Each slot is a channel of a lane, with its own part of src and dst.
	lane := func(slot int) (l *lane, from, to uint64) {
		from = uint64(slot%device.WriteChannels) * o.Size
		return p.lanes[slot/device.WriteChannels], from, from + o.Size
	}
	for i := range o.Channels {
		l, from, to := lane(i)
		clear(l.to.dst.b[from:to])
	}
	runtime.GC() // so that no collection of older garbage runs during the transfers
	start, begun := time.Now(), make([]bool, o.Channels)
	f := flight{
		slots: o.Channels,
		// A channel makes at least one transfer, however late its turn comes: its bytes are checked.
		next: func(slot int) bool { return !begun[slot] || time.Since(start) < o.Time },
		begin: func(slot int) (transfer, error) {
			begun[slot] = true
			l, at, _ := lane(slot)
			return l.ep.start(l.src.name.VA+device.VA(at), o.Size, target{Remote: l.to.dst.name}, at, false)
		},
		ended: func(_ int, _ time.Time, _ time.Duration, err error) error {
			s.Transfers++
			return err
		},
	}
	err = f.run(ctx)
	s.Elapsed = time.Since(start)
	for i := 0; i < o.Channels && err == nil; i++ {
		if l, from, to := lane(i); !bytes.Equal(l.src.b[from:to], l.to.dst.b[from:to]) {
			err = fmt.Errorf("bytes %d to %d of a destination differ from the source", from, to)
		}
	}
	return s, err
}

// Stream is a test process that keeps channels busy.
type Stream struct {
	p    *peer
	size uint64
}

// Streamed is the result of a run of a stream.
type Streamed struct {
	Transfers int           `json:"transfers"`
	Elapsed   time.Duration `json:"elapsed_ns"`
}

// OpenStream starts the process and attaches it domains times to every node. It uses only
// Socket and Command of o. Each attachment writes transfers of size bytes to the one on the
// next node.
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

// Run keeps a number of channels busy for a time. It checks every byte of the last transfers.
func (s *Stream) Run(channels int, t time.Duration) (Streamed, error) {
	r, err := s.p.call(order{Op: opStreamRun, Stream: stream{Channels: channels, Time: t, Size: s.size}})
	return r.Streamed, err
}

// Close ends the process.
func (s *Stream) Close() error { return s.p.close() }
