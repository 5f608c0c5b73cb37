package workload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"

	"golang.org/x/sys/unix"
)

// endpoint is what a test process needs of an attachment: a few calls of
// package rdma.
type endpoint interface {
	// slot gives the slot that the process has on its node.
	slot() int
	// pages counts the pages that the process itself was asked to bring in.
	pages() uint64
	// know prepares for transfers to a buffer that another process has named.
	know(name string) error
	// export names a buffer in words that another process can use.
	export(va device.VA, size uint64) (string, error)
	// write starts a transfer to what a target's export named.
	write(va device.VA, size uint64, remote string) (transfer, error)
	close() error
	// sharer gives what takes buffers that the device is to reach, nil where it
	// reaches any memory.
	sharer() sharer
}

// sharer is an endpoint of a device that reaches only memory which was shared.
type sharer interface {
	// page gives the size of the pages that are shared.
	page() uint64
	// memory makes a file for size bytes.
	memory(size, page uint64) (fd int, err error)
	share(va device.VA, size uint64, fd int, offset uint64, writable bool) error
	unshare(va device.VA, size uint64) error
}

// registrar is an endpoint that has missing pages of buffers filled by a
// userfaultfd. It gives how to take a buffer back; nil: there is nothing to do.
type registrar interface {
	register(area []byte) (unregister func() error, err error)
}

// transfer is one transfer underway.
type transfer interface {
	// poll tells whether the transfer is over, and why it failed.
	poll() (over bool, err error)
	// wait waits for the end: nil where all bytes arrived. An error that matches
	// ctx.Err() means that the transfer is not over.
	wait(ctx context.Context) error
	abort() error
}

// attachFunc makes an endpoint.
type attachFunc func(ctx context.Context, a attachment) (endpoint, error)

// Process is the test process: it obeys the orders that come by r, answers by
// w, and ends when r ends.
func Process(ctx context.Context, r io.Reader, w io.Writer) error {
	return serve(ctx, r, w, attachRDMA)
}

func serve(ctx context.Context, r io.Reader, w io.Writer, attach attachFunc) error {
	// An interrupt from the terminal is the parent's to handle.
	signal.Ignore(syscall.SIGINT)
	return serveProcess(ctx, r, w, &process{attach: attach})
}

func serveProcess(ctx context.Context, r io.Reader, w io.Writer, p *process) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l := newLines(r, w)
	orders := make(chan order)
	var readErr error
	go func() {
		// The end of the orders ends a transfer that is underway too.
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
	buffer   *buffer
	many     []*buffer
	warm     *buffer // small and present, for transfers that are not measured
	lanes    []*lane // of a stream
	perf     *perfEnd
}

func (p *process) close() error {
	err := errors.Join(p.drop(), p.dropMany())
	if p.warm != nil {
		err = errors.Join(err, p.warm.close())
	}
	if p.perf != nil {
		err = errors.Join(err, p.perf.close())
	}
	for _, l := range p.lanes {
		err = errors.Join(err, l.close())
	}
	if p.endpoint != nil {
		err = errors.Join(err, p.endpoint.close())
	}
	if p.pages != nil {
		err = errors.Join(err, p.pages.close())
	}
	return err
}

func (p *process) drop() error {
	if p.buffer == nil {
		return nil
	}
	err := p.buffer.close()
	p.buffer = nil
	return err
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
	case o.Op == opPrepare:
		r.Remote, err = p.prepare(o.Prepare)
	case o.Op == opStats:
		r.Pages = p.endpoint.pages()
	case o.Op == opWarm:
		r.Remote, err = p.makeWarm()
	case o.Op == opPrepareMany:
		r.Many, err = p.prepareMany(o.Many)
	case o.Op == opRunMany:
		r.Many, err = p.runMany(ctx, o)
	case o.Op == opVerifyMany:
		r.Many, err = p.verifyMany(o.Many)
	case p.buffer == nil:
		err = fmt.Errorf("%s before %s", o.Op, opPrepare)
	case o.Op == opWrite:
		r.Outcome = p.write(ctx, o.Write)
	case o.Op == opVerify:
		r.Verdict, err = p.buffer.check(o.Verify, p.pages)
	default:
		err = fmt.Errorf("no such order: %q", o.Op)
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
	ctx, cancel := context.WithTimeout(ctx, DefaultTimeout) // whatever else the machine does
	defer cancel()
	if p.endpoint, err = p.attach(ctx, a); err != nil {
		return attached{}, err
	}
	return attached{PID: os.Getpid(), Slot: p.endpoint.slot()}, nil
}

// prepareTries bounds the attempts of prepare.
const prepareTries = 8

// prepare makes the buffer anew and proves its state: no test is worth much
// whose absent pages are there. Where buffers are shared, a page-in that was
// asked for the buffer before may come late and find this one at its address:
// then another is made, at another.
func (p *process) prepare(order prepare) (string, error) {
	if err := p.drop(); err != nil {
		return "", err
	}
	s := p.endpoint.sharer()
	var late []*buffer
	var err error
	for range prepareTries {
		if p.buffer, err = newBufferOf(order, s); err != nil {
			break
		}
		if err = p.prove(); err == nil || s == nil {
			break
		}
		late = append(late, p.buffer)
		p.buffer = nil
	}
	for _, b := range late {
		err = errors.Join(err, b.close())
	}
	if err != nil {
		return "", err
	}
	if r, ok := p.endpoint.(registrar); ok && order.State != Unmapped {
		if p.buffer.unregister, err = r.register(p.buffer.area); err != nil {
			return "", err
		}
	}
	return p.endpoint.export(p.buffer.addr(), order.Size)
}

// prove says where the buffer is not in its state.
func (p *process) prove() error {
	b := p.buffer
	state := b.request.State
	if b.request.Size == 0 || state == Unmapped || b.request.Unproven {
		return nil
	}
	resident, total, err := b.resident(p.pages)
	if err != nil {
		return err
	}
	want := 0
	for i := range total {
		if state.written(int(b.data/pageSize) + i) {
			want++
		}
	}
	if resident != want {
		return fmt.Errorf("%s buffer: %d of its %d pages are there, want %d", state, resident, total, want)
	}
	return nil
}

// pollsBetweenLooks is how often a polling initiator looks at the descriptor
// before it looks whether it should give up, or offer its processor.
const pollsBetweenLooks = 64

// napAfter is for how long a polling initiator offers its processor before it sleeps.
const napAfter = 2 * time.Millisecond

// offer lets others run where a transfer has been polled since then for as long as
// rdma.Transfer.Wait would. A transfer that is not over soon has pfd page in on another
// processor, which may be this one. sched_yield does not give it to pfd where this thread is
// a real-time one or of another session, so what takes longer is polled with sleeps between,
// each of a small part of the time that has passed.
func offer(since int64) {
	switch waited := time.Duration(monotonic() - since); {
	case waited >= napAfter:
		time.Sleep(min(waited/64, time.Millisecond))
	case waited >= rdma.SpinTime:
		_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
}

// warmSize is the size of a transfer that wakes everybody up.
const warmSize = 16

func (p *process) makeWarm() (string, error) {
	if p.warm == nil {
		b, err := newBufferOf(prepare{State: Present, Size: warmSize}, p.endpoint.sharer())
		if err != nil {
			return "", err
		}
		p.warm = b
	}
	return p.endpoint.export(p.warm.addr(), warmSize)
}

// warmUp makes small transfers for a time, one at least.
func (p *process) warmUp(ctx context.Context, remote string, d time.Duration) error {
	if p.warm == nil {
		return fmt.Errorf("%s before %s", opWrite, opWarm)
	}
	for start := time.Now(); ; {
		t, err := p.endpoint.write(p.warm.addr(), warmSize, remote)
		if err != nil {
			return err
		}
		if err := pollUntil(ctx, t); err != nil || time.Since(start) >= d {
			return err
		}
	}
}

// write makes one transfer, or one of each part.
func (p *process) write(ctx context.Context, o writeOrder) outcome {
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	if o.Warm != "" {
		if err := p.warmUp(ctx, o.Warm, o.WarmTime); err != nil {
			return outcome{Error: fmt.Sprintf("warming up: %v", err), Stuck: true}
		}
	}
	if err := p.endpoint.know(o.Remote); err != nil {
		return outcome{Error: err.Error()}
	}
	if o.Parts == 0 {
		return p.writePart(ctx, &o, 0, p.buffer.request.Size)
	}
	var out outcome
	size := p.buffer.request.Size / uint64(o.Parts)
	for i := range uint64(o.Parts) {
		part := p.writePart(ctx, &o, i*size, size)
		part.LatencyNS += out.LatencyNS
		part.PartNS = append(out.PartNS, part.LatencyNS-out.LatencyNS)
		if out = part; !out.Done {
			break
		}
	}
	return out
}

// writePart makes one transfer. Its latency is the time from before the call of
// the library to when the initiator sees the end.
func (p *process) writePart(ctx context.Context, o *writeOrder, offset, size uint64) outcome {
	start := time.Now()
	t, err := p.beginPart(p.buffer, o, offset, size)
	if err != nil {
		return outcome{Error: err.Error(), LatencyNS: time.Since(start).Nanoseconds()}
	}
	if o.Waiting == Poll {
		err = pollUntil(ctx, t)
	} else {
		err = t.wait(ctx)
	}
	out := outcome{Done: err == nil, LatencyNS: time.Since(start).Nanoseconds()}
	if err != nil {
		out.Error = err.Error()
		if ctx.Err() != nil {
			out.Stuck = true
			out.Error = fmt.Sprintf("the transfer did not end within %v (%v)", o.Timeout, err)
			if err := t.abort(); err != nil {
				out.Error += "; abort: " + err.Error()
			}
		}
	}
	return out
}

// pollUntil polls.
func pollUntil(ctx context.Context, t transfer) error {
	for since := monotonic(); ; offer(since) {
		for range pollsBetweenLooks {
			if over, err := t.poll(); over {
				return err
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}
