package workload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/rdma"
)

// endpoint is the part of an attachment (package rdma) that a test process uses.
type endpoint interface {
	// slot returns the process's slot on its node.
	slot() int
	// pages returns the number of pages that the process itself was asked to bring in.
	pages() uint64
	export(va device.VA, size uint64) (rdma.Remote, error)
	// start starts a transfer between memory at va and memory that another process has
	// exported, at an offset in it.
	start(va device.VA, size uint64, t target, offset uint64, read bool) (transfer, error)
	close() error
	// rdma returns the attachment, or nil in tests that replace it.
	rdma() *rdma.Endpoint
}

type attachFunc func(ctx context.Context, a attachment) (endpoint, error)

// Process runs a test process. It reads orders from r, carries them out, writes the
// replies to w, and returns at the end of r.
func Process(ctx context.Context, r io.Reader, w io.Writer) error {
	// The parent handles an interrupt from the terminal.
	signal.Ignore(syscall.SIGINT)
	return serve(ctx, r, w, attachRDMA)
}

// serve is like Process, but calls attach to attach.
func serve(ctx context.Context, r io.Reader, w io.Writer, attach attachFunc) error {
	p := &process{attach: attach}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l := newLines(r, w)
	orders := make(chan order)
	var readErr error
	go func() {
		// The end of the orders also ends a transfer that is in flight.
		defer cancel()
		defer close(orders)
		for {
			var o order
			if readErr = l.receive(&o); readErr != nil {
				return
			}
			select {
			case orders <- o:
			case <-ctx.Done():
				return
			}
		}
	}()
	var err error
	for o := range orders {
		if err = l.send(p.obey(ctx, o)); err != nil {
			break
		}
	}
	if err == nil && !errors.Is(readErr, io.EOF) {
		err = readErr
	}
	return errors.Join(err, p.close())
}

// process is the state of a test process.
type process struct {
	attach   attachFunc
	endpoint endpoint
	pages    *pagemap
	buffers  [MaxParallel + 1]*buffer // the last one is warmBuffer
	lanes    []*lane                  // of a stream
	perf     *perfEnd
}

func (p *process) close() error {
	var errs []error
	for _, b := range p.buffers {
		errs = append(errs, b.close())
	}
	if p.perf != nil {
		errs = append(errs, p.perf.close())
	}
	for _, l := range p.lanes {
		errs = append(errs, l.close())
	}
	if p.endpoint != nil {
		errs = append(errs, p.endpoint.close())
	}
	if p.pages != nil {
		errs = append(errs, p.pages.close())
	}
	return errors.Join(errs...)
}

func (p *process) obey(ctx context.Context, o order) reply {
	var r reply
	var err error
	switch {
	case o.Op == opAttach:
		r.Attached, err = p.attachTo(ctx, o.Attach)
	case o.Op == opStreamOpen:
		err = p.openStream(ctx, o.Stream)
	case o.Op == opStreamRun:
		r.Streamed, err = p.runStream(ctx, o.Stream)
	case p.endpoint == nil:
		err = fmt.Errorf("%s before %s", o.Op, opAttach)
	case strings.HasPrefix(string(o.Op), "perf-"):
		r.Perf, err = p.obeyPerf(ctx, o.Op, o.Perf)
	case o.Op == opStats:
		r.Pages = p.endpoint.pages()
	case o.Op == opWrite:
		r.Outcomes, err = p.write(ctx, o.Write)
	case o.Buffer < 0 || o.Buffer >= len(p.buffers):
		err = fmt.Errorf("%s: buffer %d of %d", o.Op, o.Buffer, len(p.buffers))
	case o.Op == opPrepare:
		if r.Remote, err = p.prepare(o.Buffer, o.Prepare); err == nil {
			r.Folio = p.buffers[o.Buffer].folio()
		}
	case o.Op == opVerify && p.buffers[o.Buffer] != nil:
		r.Verdict, err = p.buffers[o.Buffer].check(o.Verify, p.pages)
	default:
		err = fmt.Errorf("%q before %s, or no order", o.Op, opPrepare)
	}
	if err != nil {
		r.Error, r.Skipped = err.Error(), errors.Is(err, ErrSkipped)
	}
	return r
}

func (p *process) attachTo(ctx context.Context, a attachment) (attached, error) {
	if p.endpoint != nil {
		return attached{}, errors.New("attached already")
	}
	var err error
	if p.pages, err = openPagemap(); err != nil {
		return attached{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, DefaultTimeout) // also on a busy machine
	defer cancel()
	if p.endpoint, err = p.attach(ctx, a); err != nil {
		return attached{}, err
	}
	return attached{PID: os.Getpid(), Slot: p.endpoint.slot()}, nil
}

const prepareTries = 8

// prepare makes buffer i anew and verifies its state: a test whose absent pages are resident
// is worth nothing. If buffers are shared, a late page-in for the previous buffer may hit this
// one at the same address. prepare then makes another buffer at another address.
func (p *process) prepare(i int, order prepare) (rdma.Remote, error) {
	err := p.buffers[i].close()
	p.buffers[i] = nil
	var late []*buffer
	for try := 0; err == nil; try++ {
		var b *buffer
		if b, err = newBuffer(order, p.endpoint.rdma()); err != nil {
			break
		}
		if err = b.prove(p.pages); err == nil {
			p.buffers[i], err = b, b.register()
			break
		}
		if late = append(late, b); b.shares && try < prepareTries-1 {
			err = nil
		}
	}
	for _, b := range late {
		err = errors.Join(err, b.close())
	}
	if err != nil {
		return rdma.Remote{}, err
	}
	return p.endpoint.export(p.buffers[i].addr(), order.Size)
}

// Warm-up writes come from the last buffer and have warmSize bytes.
const (
	warmBuffer = MaxParallel
	warmSize   = 16
)

// write makes the transfers of all buffers at once. The parts of one buffer follow one
// another until one fails.
func (p *process) write(ctx context.Context, o writeOrder) ([]outcome, error) {
	n := len(o.Targets)
	if n < 1 || n > MaxParallel || slices.Contains(p.buffers[:n], nil) {
		return nil, fmt.Errorf("%d targets: not a buffer for each", n)
	}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	if warm := p.buffers[warmBuffer]; warm != nil && o.Warm != (rdma.Remote{}) {
		if err := warmUp(ctx, o.WarmTime, func() (transfer, error) {
			return p.endpoint.start(warm.addr(), warmSize, target{Remote: o.Warm}, 0, false)
		}); err != nil {
			return []outcome{{Error: err.Error(), Stuck: true}}, nil
		}
	}
	parts := max(o.Parts, 1)
	lists, place := make([][]outcome, n), 0
	for i := range lists {
		lists[i] = make([]outcome, 0, parts)
	}
	f := flight{
		slots: n, sleep: o.Waiting == Wait,
		next: func(i int) bool {
			made := len(lists[i])
			if made == parts || made > 0 && !lists[i][made-1].Done {
				return false
			}
			lists[i] = append(lists[i], outcome{Stuck: true})
			return true
		},
		begin: func(i int) (transfer, error) {
			b := p.buffers[i]
			size := b.request.Size / uint64(parts)
			offset := uint64(len(lists[i])-1) * size
			return p.endpoint.start(b.addr()+device.VA(offset), size, o.Targets[i], offset, o.Read)
		},
		ended: func(i int, _ time.Time, took time.Duration, err error) error {
			place++
			out := outcome{Done: err == nil, LatencyNS: took.Nanoseconds(), Place: place}
			if err != nil {
				out.Error = err.Error()
			}
			lists[i][len(lists[i])-1] = out
			return nil
		},
	}
	err := f.run(ctx)
	var all []outcome
	for _, list := range lists {
		for _, out := range list {
			if out.Stuck {
				out.Error = fmt.Sprintf("the transfer did not end within %v (%v)", o.Timeout, err)
			}
			all = append(all, out)
		}
	}
	return all, nil
}

// rdmaEndpoint implements endpoint with package rdma.
type rdmaEndpoint struct{ ep *rdma.Endpoint }

func attachRDMA(ctx context.Context, a attachment) (endpoint, error) {
	method, err := pagein.ParseMethod(a.Method)
	if err != nil {
		return nil, err
	}
	policy, err := pagein.ParsePolicy(a.Policy)
	if err != nil {
		return nil, err
	}
	ep, err := rdma.Attach(ctx, rdma.Options{
		Socket: a.Socket, Node: device.NodeID(a.Node), Group: a.Group, Method: method, Policy: policy,
		Trust:       a.Trust,
		AcceptGroup: true, // both test processes may be on one node
	})
	if err != nil {
		return nil, err
	}
	return rdmaEndpoint{ep}, nil
}

func (e rdmaEndpoint) rdma() *rdma.Endpoint { return e.ep }
func (e rdmaEndpoint) slot() int            { return e.ep.Info().Slot }
func (e rdmaEndpoint) close() error         { return e.ep.Close() }

// pages returns the pages that pfd does not count: under method touch the process sends the
// requests for retransmission.
func (e rdmaEndpoint) pages() uint64 {
	if e.ep.Info().Method != rdma.MethodTouch {
		return 0
	}
	return e.ep.Stats().NumPageFaultPages
}

func (e rdmaEndpoint) export(va device.VA, size uint64) (rdma.Remote, error) {
	// A transfer of 0 bytes is an error of the initiator, where it is refused.
	return e.ep.ExportVA(va, max(size, 1))
}

func (e rdmaEndpoint) start(va device.VA, size uint64, t target, offset uint64, read bool) (transfer, error) {
	if read {
		return e.ep.Read(context.Background(), rdma.ReadRequest{DstVA: va, Size: size, Src: t.Remote, Offset: offset})
	}
	return e.ep.Write(context.Background(), rdma.WriteRequest{SrcVA: va, Size: size, Dst: t.Remote, Offset: offset, Urgent: t.Urgent})
}
