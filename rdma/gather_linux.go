package rdma

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/exanet/pfd/device"
)

// gathered are the transfers of one write with a gather list. One goroutine starts them and ends
// when all are final.
type gathered struct {
	parts    []*Transfer
	descs    []*device.Descriptor
	started  atomic.Int32 // how many of parts have been started
	aborting atomic.Bool
	failed   *Transfer // the first that failed: written before the handle's final
}

// gather starts a write of several sources.
func (e *Endpoint) gather(r *WriteRequest) (*Transfer, error) {
	if r.Src != nil || r.SrcVA != 0 || r.Size != 0 {
		return nil, fmt.Errorf("%w: both Gather and Src, SrcVA or Size are set: set only one", ErrRequest)
	}
	if len(r.Gather) == 0 {
		return nil, fmt.Errorf("%w: a write of 0 bytes: the least is 1", ErrRequest)
	}
	g := &gathered{}
	t := &Transfer{ep: e, id: r.ID, ch: -1, q: r.Queue, many: g, node: r.Dst.Node, pdid: r.Dst.PDID, dst: r.Dst.VA + device.VA(r.Offset)}
	for i, src := range r.Gather {
		one := WriteRequest{Src: src, Dst: r.Dst, Offset: r.Offset + t.size, Urgent: r.Urgent}
		if i == len(r.Gather)-1 {
			one.Notify = r.Notify
		}
		part, d, err := e.describe(&one)
		if err != nil {
			return nil, fmt.Errorf("source %d of %d: %w", i+1, len(r.Gather), err)
		}
		g.parts, g.descs = append(g.parts, part), append(g.descs, d)
		t.size += part.size
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.goneLocked(); err != nil {
		return nil, fmt.Errorf("writing: %w", err)
	}
	t.q.start()
	e.gathers[t] = struct{}{}
	e.workers.Go(func() { e.runGather(t) })
	return t, nil
}

// runGather starts the transfers and settles the handle when all are final.
func (e *Endpoint) runGather(t *Transfer) {
	g := t.many
	last := len(g.parts) - 1
	final := uint32(0) // the result if nothing fails
	for i, part := range g.parts {
		if i == last && g.descs[i].Notify != 0 {
			g.wait() // transfers are not ordered: the last one carries the words
		}
		if final = e.startPart(g, part, g.descs[i]); final != 0 {
			break
		}
		g.started.Store(int32(i + 1))
		if g.aborting.Load() {
			_ = part.Abort() // aborting a write returns no error
		}
	}
	g.wait()
	e.mu.Lock()
	if _, open := e.gathers[t]; open {
		if g.failed = g.firstFailed(); g.failed != nil {
			final = failed | g.failed.final.Load()&^settled
		}
		e.settleGatherLocked(t, final, "")
	}
	e.mu.Unlock()
	e.pages.WakeSelf()
}

func (e *Endpoint) settleGatherLocked(t *Transfer, final uint32, detail string) {
	delete(e.gathers, t)
	t.settle(final, detail)
}

// startPart waits for a free channel, starts a transfer and returns 0. If the write has failed,
// was aborted or has lost its endpoint, it starts nothing and returns that result.
func (e *Endpoint) startPart(g *gathered, part *Transfer, d *device.Descriptor) (final uint32) {
	for {
		if bad := g.firstFailed(); bad != nil {
			return bad.final.Load()
		}
		if g.aborting.Load() {
			return failed | device.StatusAborted
		}
		started, err := e.start(part, d)
		if started {
			return 0
		}
		if err == nil {
			err = e.waitUntil(context.Background(), sleepCap, sleepCap, func() bool {
				return g.aborting.Load() || e.hasFree()
			})
		}
		if err != nil {
			return failed | device.StatusGone
		}
	}
}

// wait waits until every started transfer is final. The end of the attachment makes it final.
func (g *gathered) wait() {
	for _, part := range g.parts[:g.started.Load()] {
		_ = part.Wait(context.Background()) // firstFailed checks the results
	}
}

// firstFailed returns the first transfer whose handle is final and failed, or nil.
func (g *gathered) firstFailed() *Transfer {
	for _, part := range g.parts[:g.started.Load()] {
		if part.final.Load()&failed != 0 {
			return part
		}
	}
	return nil
}

func (g *gathered) paused() (blocks int) {
	for _, part := range g.parts[:g.started.Load()] {
		blocks += part.PausedBlocks()
	}
	return blocks
}

// abort aborts the started transfers and prevents others from starting.
func (g *gathered) abort(e *Endpoint) error {
	g.aborting.Store(true)
	for _, part := range g.parts[:g.started.Load()] {
		if err := part.Abort(); err != nil {
			return err
		}
	}
	e.pages.WakeSelf() // the goroutine may wait for a channel
	return nil
}
