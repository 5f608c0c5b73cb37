package session

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/netlink"
	"github.com/exanet/pfd/pagein"
	"github.com/exanet/pfd/proc"
	"github.com/exanet/pfd/uffd"
)

// regionsPerUID bounds the userfaultfds that one uid may have pfd serve: each
// has a goroutine, which a process can make block for good (ours). Those that a memory
// helper serves cost its own process, and pfd keeps nothing of them: they do not count.
const (
	regionsPerUID = 64
	allRegions    = 1024
)

// registrar takes the session's userfaultfds.
type registrar struct{ s *session }

func (s *session) registrar() []attach.Registrar {
	if s.method != pagein.UFFD {
		return nil
	}
	return []attach.Registrar{registrar{s}}
}

// Register implements attach.Registrar.
func (r registrar) Register(m attach.Range, fd int) error {
	d, uid := r.s.d, r.s.uid
	if r.s.memport != nil {
		return r.s.memport.Register(m.VA, m.Size, fd)
	}
	if err := r.s.regions.Fits(m.VA, m.VA+device.VA(m.Size)); err != nil {
		return err
	}
	if !d.regions.Take(uid) {
		return fmt.Errorf("uid %d has %d registered ranges: free some", uid, regionsPerUID)
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		d.regions.Give(uid)
		return os.NewSyscallError("fcntl F_DUPFD_CLOEXEC", err)
	}
	region, err := uffd.Serve(own, m.VA, m.Size, func() { d.regions.Give(uid) })
	if err != nil {
		d.regions.Give(uid)
		return errors.Join(err, unix.Close(own))
	}
	return r.s.regions.Add(region)
}

// Unregister implements attach.Registrar.
func (r registrar) Unregister(m attach.Range) error {
	if r.s.memport != nil {
		return r.s.memport.Unregister(m.VA, m.Size)
	}
	return r.s.regions.Remove(m.VA, m.VA+device.VA(m.Size))
}

// Times of the populate method (defined by this project).
const (
	populateLook    = time.Millisecond       // between two looks at a process that says nothing
	populatePatient = 100 * time.Millisecond // for the first page
)

// populatePager makes the process page in by itself, and waits until the process says that it has
// (word SERVED, docs/attach.md 3). The word says only when to look: residency is read from the
// process's pagemap. The pages of a process that does not answer are checked each millisecond.
// The goroutine that waits for the answer sleeps: it is a domain's own worker.
type populatePager struct {
	p      gup.Looker
	to     delegate
	served *attach.Pages
}

// PageIn implements fault.Pager.
func (g populatePager) PageIn(va device.VA, pages int, write bool) gup.Result {
	return g.Ask(va, pages, write).Wait()
}

// question is a range of pages that the process was asked for.
type question struct {
	populatePager
	va       device.VA
	pages    int
	write    bool
	shared   bool // the mapping
	kind     gup.Kind
	was, all uint64
	number   uint32
	e        [gup.MaxPages]proc.Entry
	err      error // why nothing was asked
	told     bool  // the answer was there: the process can take its word back
}

// Answered implements gup.Question.
func (q *question) Answered() bool {
	q.told = q.told || q.err != nil || q.served.Served() == q.number
	return q.told
}

// Ask implements fault.Asker.
func (g populatePager) Ask(va device.VA, pages int, write bool) gup.Question {
	q := &question{populatePager: g, va: va.Page(), write: write}
	q.err = q.ask(pages)
	return q
}

func (q *question) ask(pages int) error {
	m, err := q.p.Mapping(q.va)
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
	if _, err := q.p.Pagemap(q.va, q.e[:q.pages]); err != nil {
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
	if q.number, err = q.to.numbered(netlink.Fault{VA: q.va, Write: q.write, Pages: uint16(q.pages)}); err != nil {
		return fmt.Errorf("%w: %w", gup.ErrUnanswered, err)
	}
	return nil
}

// Wait implements gup.Question.
func (q *question) Wait() gup.Result {
	fail := func(err error) gup.Result {
		return gup.Result{Kind: q.kind, Err: &gup.Error{VA: q.va, Write: q.write, Err: err}}
	}
	if q.err != nil {
		return fail(q.err)
	}
	e := &q.e
	for began, early := time.Now(), true; ; early = false {
		switch old := q.served.Served(); {
		case q.Answered():
		case early:
			q.served.WaitServed(old, populateLook)
		default: // a process that writes other words keeps no thread busy
			time.Sleep(populateLook)
		}
		over := q.Answered() || time.Since(began) > populatePatient
		n, err := q.p.Pagemap(q.va, e[:q.pages])
		if err != nil {
			return fail(err)
		}
		there := gup.Ready(e[:n], q.write, q.shared)
		switch {
		case over && there&1 == 0 && e[0].Present() && !e[0].File():
			// It may stay shared for reasons of the kernel's own: the walk reports
			// it once (spec/faultpath.md, the walk).
			there |= 1
			fallthrough
		case there == q.all, over && there&1 != 0:
			for i := range q.pages {
				if q.write && !q.shared && there>>i&1 != 0 {
					q.p.PagedIn(q.va+device.VA(i)<<device.PageShift, e[i])
				}
			}
			r := gup.Result{Resident: there, Kind: q.kind}
			r.Since(q.was)
			return r
		case over:
			if _, err := q.p.Mapping(q.va); err != nil {
				return fail(err)
			}
			if !q.told {
				return fail(gup.ErrUnanswered)
			}
			err, errno := gup.Missing(q.p, q.va), unix.Errno(q.served.ServedError())
			switch {
			case errno != 0:
				err = fmt.Errorf("%w: the process: %w", err, errno)
			case !errors.Is(err, gup.ErrPastEnd):
				// It was brought in, and the process has taken it away again.
				return gup.Result{Resident: 1, New: 1, Kind: q.kind}
			}
			return fail(err)
		}
	}
}
