package sim

import (
	"errors"
	"fmt"
	"io"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/queue"
	"github.com/exanet/pfd/soc/r5"
	"github.com/exanet/pfd/soc/record"
	"github.com/exanet/pfd/soc/wire"
)

// ErrTruncated reports that a recording has no end: its pfd was killed, or its disk was full.
// The records before are valid.
var ErrTruncated = record.ErrTruncated

// ErrDiverged reports that the machines acted differently than in the recording: they have
// another version, or the recording is not theirs.
var ErrDiverged = errors.New("the machines act otherwise than in the recording")

// Replayed is the result of a replay.
type Replayed struct {
	Header  record.Header
	Records uint64 // replayed inputs
	Checked uint64 // of these, how many a digest of the recording confirms
	Digest  record.Digest
	Until   int64 // time of the recorded clock, ns
	Frames  uint64
	Kinds   map[record.Kind]uint64
	// Counters are the nodes' hardware counters at the end.
	Counters [][device.Counters]uint64
}

// Replay feeds machines the inputs of a recording (pfd --record) and checks that they act as
// recorded. It needs no driver, processes or memory, which were the sources of the inputs.
// Errors match ErrDiverged, record.ErrFormat, record.ErrVersion or record.ErrTruncated;
// Replayed is valid up to the error.
func Replay(in io.Reader) (r Replayed, err error) {
	return replay(in, func(*record.Header, int64, int, *soc.Node, []soc.Action) {})
}

func replay(in io.Reader, acted func(h *record.Header, at int64, node int, n *soc.Node, out []soc.Action)) (r Replayed, err error) {
	rd, err := record.NewReader(in)
	if err != nil {
		return r, err
	}
	r.Header, r.Kinds = rd.Header(), map[record.Kind]uint64{}
	h := &r.Header
	pool := new(wire.Pool)
	nodes, routes, others := make([]*soc.Node, h.Nodes), map[device.NodeID]bool{}, r5.Others{}
	for i := range nodes {
		nodes[i] = soc.New(soc.Config{
			ID: h.Base + device.NodeID(i), VABits: h.VABits, NoTXFIFO: h.NoTXFIFO, SVA: h.SVA, Stall: h.Stall, Queues: h.Queues, Windows: h.Windows, GSAS: h.GSAS, Epoch: h.Epoch, Firmware: h.Firmware, Pool: pool, Base: h.Base, Nodes: uint32(h.Nodes), Others: others,
			Route: func(id device.NodeID) bool { return uint64(id-h.Base) < uint64(h.Nodes) || routes[id] },
		})
	}
	defer func() {
		for _, n := range nodes {
			var c [device.Counters]uint64
			for i := range c {
				c[i] = n.Count(device.Counter(i))
			}
			r.Counters = append(r.Counters, c)
		}
	}()
	// Frames in flight, by their transmission time.
	frames := map[uint64]*wire.Frame{}
	// Outstanding reads of queues in memory.
	type read struct {
		node int
		id   uint32
	}
	reads := map[read]*queue.Access{}
	var rec record.Record
	var out []soc.Action
	for {
		if err := rd.Next(&rec); err != nil {
			if errors.Is(err, io.EOF) {
				return r, nil
			}
			return r, fmt.Errorf("after %d records: %w", r.Records, err)
		}
		if rec.Kind == record.Check || rec.Kind == record.End {
			if rec.Count != r.Records || rec.Digest != uint64(r.Digest) {
				return r, fmt.Errorf("%w: between records %d and %d (%d ns): digest %#x, recorded %#x",
					ErrDiverged, r.Checked, r.Records, r.Until, uint64(r.Digest), rec.Digest)
			}
			r.Checked = r.Records
			continue
		}
		r.Records++
		r.Kinds[rec.Kind]++
		r.Until = max(r.Until, rec.At)
		n := nodes[rec.Node]
		switch rec.Kind {
		case record.Route:
			routes[device.NodeID(rec.Event.Destination)] = rec.Event.OK
			continue
		case record.Admit:
			f := pool.Frame()
			*f = rec.Outside
			if rec.Payload > 0 {
				f.Payload = pool.Payload(rec.Payload)
			}
			rec.Event.Frame = f
			out = n.Step(rec.At, &rec.Event, out[:0])
		case record.Load:
			r.Digest.Loaded(n.Load(rec.Window, rec.Offset, rec.Width))
			continue
		case record.Store:
			out = n.Store(rec.At, rec.Window, rec.Offset, rec.Width, rec.Value, out[:0])
		case record.Take:
			source, words, ok := n.TakeMail(rec.Mailbox)
			r.Digest.Taken(source, &words, ok)
			continue
		case record.FrameArrived:
			f := frames[rec.Frame]
			if f == nil {
				return r, fmt.Errorf("%w: record %d: frame %d arrives, but no node has transmitted it", ErrDiverged, r.Records, rec.Frame)
			}
			delete(frames, rec.Frame)
			rec.Event.Frame = f
			out = n.Step(rec.At, &rec.Event, out[:0])
		case record.QueueAccessed:
			k := read{rec.Node, rec.Event.Access}
			if a := reads[k]; len(rec.Data) > 0 && (a == nil || len(a.Data) != len(rec.Data)) {
				return r, fmt.Errorf("%w: record %d: %d bytes arrive that node %d has not requested", ErrDiverged, r.Records, len(rec.Data), rec.Node)
			} else if a != nil {
				copy(a.Data, rec.Data)
			}
			delete(reads, k)
			out = n.Step(rec.At, &rec.Event, out[:0])
		default:
			out = n.Step(rec.At, &rec.Event, out[:0])
		}
		r.Digest.Actions(rec.Node, out)
		acted(h, rec.At, rec.Node, n, out)
		for i := range out {
			if f := out[i].Frame; f != nil {
				if uint64(f.DstNode-h.Base) < uint64(h.Nodes) {
					frames[r.Frames] = f
				} else {
					pool.Put(f) // to another host
				}
				r.Frames++
			}
			if q := out[i].Queue; q != nil && !q.Write {
				reads[read{rec.Node, q.ID}] = q
			}
		}
	}
}
