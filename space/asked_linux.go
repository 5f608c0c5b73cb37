package space

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/netlink"
	"github.com/exanet/pfd/space/proc"
)

// Times of asked page-ins. Defined by this project.
const (
	askedLook    = time.Millisecond       // between two checks of the pages, without an answer
	askedPatient = 100 * time.Millisecond // until the first page must be present
	// askedPolled is how long the owner polls for an answer beside its other work. After that a
	// thread waits for it: the process has not answered, or not kicked.
	askedPolled = int64(time.Millisecond)
)

// Process is a process that can be asked to page in.
type Process struct {
	// Looks reads the state of its memory; *proc.Process and *memport.Port implement it.
	Looks interface {
		Mapping(va device.VA) (proc.Mapping, error)
		Pagemap(va device.VA, dst []proc.Entry) (int, error)
		InFile(va device.VA) error
		PagedIn(va device.VA, e proc.Entry)
	}
	// Slow means that calls of Looks wait for another process.
	Slow bool
	// Ask sends the process a message and returns its number. Any goroutine may call it.
	Ask func(netlink.Fault) (number uint32, err error)
	// Answers are its words SERVED (docs/attach.md 3); *attach.Pages implements it.
	Answers interface {
		Served() uint32
		ServedError() uint32
		WaitServed(old uint32, most time.Duration)
	}
}

// asked makes the process page in by itself, and waits for its answer. The answer is only a hint to
// check the pages: asked reads the process's pagemap to find out which are resident. If no answer
// comes, it checks them each millisecond.
type asked struct {
	Space   // for all but page-ins
	process Process
	polled  bool
	waiting []*Op
}

// NewAsked returns a Space that asks the process to page in, and leaves the other operations to
// other. polled means that the owner calls Poll; otherwise Run waits for the answer.
func NewAsked(p Process, other Space, polled bool) Space {
	return &asked{Space: other, process: p, polled: polled && !p.Slow}
}

// Start implements Space.
func (a *asked) Start(op *Op, now int64, mapped bool) Step {
	switch {
	case !op.PagesIn():
		return a.Space.Start(op, now, mapped)
	case a.polled:
		return Brief
	}
	return Apart
}

// Run implements Space.
func (a *asked) Run(op *Op) {
	if !op.PagesIn() {
		a.Space.Run(op)
		return
	}
	q, _ := op.asked.(*question)
	if q == nil {
		q = &question{Process: &a.process, va: op.VA.Page(), write: op.Write}
		q.err = q.ask(op.Pages)
		if op.asked = q; q.err == nil && a.polled {
			return
		}
	}
	op.Paged, q.over = q.wait(), true
}

// Next implements Space.
func (a *asked) Next(op *Op, now int64) Step {
	if !op.PagesIn() {
		return a.Space.Next(op, now)
	}
	if q, _ := op.asked.(*question); !q.over {
		q.since = now
		a.waiting = append(a.waiting, op)
		return Wait
	}
	return Over
}

// Poll implements Space.
func (a *asked) Poll(now int64, next func(*Op, Step)) bool {
	any := a.Space.Poll(now, next)
	for i := 0; i < len(a.waiting); {
		op := a.waiting[i]
		step := Brief
		if q, _ := op.asked.(*question); !q.answered() {
			if now-q.since <= askedPolled {
				i++
				continue
			}
			step = Apart
		}
		a.waiting = slices.Delete(a.waiting, i, i+1)
		next(op, step)
		any = true
	}
	return any
}

// Pending implements Space.
func (a *asked) Pending() bool {
	return a.Space.Pending() || slices.ContainsFunc(a.waiting, func(op *Op) bool {
		q, _ := op.asked.(*question)
		return q.answered()
	})
}

// Due implements Space.
func (a *asked) Due(now int64) int64 {
	due := a.Space.Due(now)
	if len(a.waiting) > 0 {
		q, _ := a.waiting[0].asked.(*question)
		if at := q.since + askedPolled + 1; due == 0 || at < due {
			due = at
		}
	}
	return due
}

// Asks implements Space.
func (a *asked) Asks() bool { return len(a.waiting) > 0 }

// Close implements Space.
func (a *asked) Close() {
	a.Space.Close()
	a.waiting = nil
}

// question is one request to the process.
type question struct {
	*Process
	va     device.VA
	pages  int
	write  bool
	shared bool // the mapping is shared
	kind   gup.Kind
	was    uint64 // pages that were ready before the request, one bit each
	all    uint64 // all pages
	number uint32 // of the message
	since  int64  // when the owner began to poll
	e      [gup.MaxPages]proc.Entry
	err    error // why no request was sent
	told   bool  // an answer was seen; the process can overwrite the word again
	over   bool
}

func (q *question) answered() bool {
	q.told = q.told || q.err != nil || q.Answers.Served() == q.number
	return q.told
}

func (q *question) ask(pages int) error {
	m, err := q.Looks.Mapping(q.va)
	if err != nil {
		return err
	}
	if !m.Permits(q.write) {
		q.kind = gup.Permission
		return gup.ErrDenied
	}
	q.shared = m.Shared
	q.pages = m.Clip(q.va, min(pages, len(q.e)))
	q.all = ^uint64(0) >> (64 - uint(q.pages))
	if _, err := q.Looks.Pagemap(q.va, q.e[:q.pages]); err != nil {
		return err
	}
	if q.e[0].Guard() {
		return fmt.Errorf("%w: a guard page", gup.ErrUnmapped)
	}
	q.was = gup.Ready(q.e[:q.pages], q.write, q.shared)
	switch {
	case q.e[0].Present():
		q.kind = gup.Permission
	case q.e[0].Swapped():
		q.kind = gup.Major
	}
	// Without a PDID the library pages in and sends nothing (spec/messages.md 3).
	if q.number, err = q.Ask(netlink.Fault{VA: q.va, Write: q.write, Pages: uint16(q.pages)}); err != nil {
		return fmt.Errorf("%w: %w", gup.ErrUnanswered, err)
	}
	return nil
}

// wait waits for the answer, askedPatient at most.
func (q *question) wait() gup.Result {
	fail := func(err error) gup.Result {
		return gup.Result{Kind: q.kind, Err: &gup.Error{VA: q.va, Write: q.write, Err: err}}
	}
	if q.err != nil {
		return fail(q.err)
	}
	e := &q.e
	for began, early := time.Now(), true; ; early = false {
		switch old := q.Answers.Served(); {
		case q.answered():
		case early:
			q.Answers.WaitServed(old, askedLook)
		default: // a process that keeps writing other words must not keep the thread busy
			time.Sleep(askedLook)
		}
		over := q.answered() || time.Since(began) > askedPatient
		n, err := q.Looks.Pagemap(q.va, e[:q.pages])
		if err != nil {
			return fail(err)
		}
		there := gup.Ready(e[:n], q.write, q.shared)
		switch {
		case over && there&1 == 0 && e[0].Present() && !e[0].File():
			// The page may stay shared for reasons of the kernel: the walk reports
			// that once (spec/faultpath.md, the walk).
			there |= 1
			fallthrough
		case there == q.all, over && there&1 != 0:
			for i := range q.pages {
				if q.write && !q.shared && there>>i&1 != 0 {
					q.Looks.PagedIn(q.va+device.VA(i)<<device.PageShift, e[i])
				}
			}
			r := gup.Result{Resident: there, Kind: q.kind}
			r.Since(q.was)
			return r
		case over:
			return q.missing(fail)
		}
	}
}

// missing returns the result if the first page is absent after the answer or the time-out.
func (q *question) missing(fail func(error) gup.Result) gup.Result {
	if _, err := q.Looks.Mapping(q.va); err != nil {
		return fail(err)
	}
	if !q.told {
		return fail(gup.ErrUnanswered)
	}
	err, errno := gup.Missing(q.Looks.InFile, q.va), unix.Errno(q.Answers.ServedError())
	switch {
	case errno != 0:
		err = fmt.Errorf("%w: the process: %w", err, errno)
	case !errors.Is(err, gup.ErrPastEnd):
		// The process has paged it in and discarded it again.
		return gup.Result{Resident: 1, New: 1, Kind: q.kind}
	}
	return fail(err)
}
