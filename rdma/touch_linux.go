package rdma

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/netlink"
)

const (
	// maxFaultPages bounds the pages of one fault message: 16 MiB (faultpath.md "Policies").
	maxFaultPages = 16 << 20 / device.PageSize
	// populateTries bounds the retries of a madvise that signals interrupt.
	populateTries = 1000
)

// populateWorks returns an error if the kernel lacks MADV_POPULATE_*: it rejects an unknown advice
// with EINVAL, also on mapped memory.
func populateWorks() error {
	b, err := unix.Mmap(-1, 0, device.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	err = populate(VAOf(b), 1, true)
	if errors.Is(err, unix.EINVAL) {
		err = fmt.Errorf("%w: MADV_POPULATE_WRITE needs Linux 5.14 or later: use method gup", errors.ErrUnsupported)
	}
	return errors.Join(err, unix.Munmap(b))
}

// populate makes pages from va on present, and writable or readable. Only the first page decides
// the result; the others are best effort. It changes no byte, and a problem with the memory is an
// errno and not a signal (faultpath.md "touch").
func populate(va device.VA, pages int, write bool) error {
	advice := unix.MADV_POPULATE_READ
	if write {
		advice = unix.MADV_POPULATE_WRITE
	}
	err := madvise(va, pages, advice)
	if err != nil && pages > 1 {
		// Did it stop at the first page or later?
		err = madvise(va, 1, advice)
	}
	return err
}

func madvise(va device.VA, pages, advice int) error {
	for range populateTries {
		_, _, errno := unix.Syscall(unix.SYS_MADVISE, uintptr(va), uintptr(pages)*device.PageSize, uintptr(advice))
		switch errno {
		case 0:
			return nil
		case unix.EINTR, unix.EAGAIN: // signals of the Go runtime, a page under migration
			continue
		}
		return fmt.Errorf("page in %d pages at %v: %w", pages, va, os.NewSyscallError("madvise", errno))
	}
	return fmt.Errorf("page in %d pages at %v: %w", pages, va, unix.EINTR)
}

// Page-fault goroutines that sleep in a page. Defined here.
const (
	sleepsAfter  = 100 * time.Millisecond // after which another one takes over
	mostSleeping = 8                      // at a time, of one attachment
	mostNear     = 2                      // of one mapping, within near pages of each other: one server usually serves them all
	near         = 256 * device.PageSize
)

// sleepers are the pages in which page-fault goroutines sleep.
type sleepers struct {
	mu    sync.Mutex
	pages []device.VA
}

// add records one more; it returns false at the bound.
func (s *sleepers) add(va device.VA) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pages) >= mostSleeping {
		return false
	}
	s.pages = append(s.pages, va)
	return true
}

func (s *sleepers) remove(va device.VA) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.pages, va)
	s.pages = slices.Delete(s.pages, i, i+1)
}

// has reports whether a goroutine sleeps in a page, or mostNear do near by in its mapping.
func (s *sleepers) has(va device.VA) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.near(va, va-near, va+near) && s.near(mappingOf(va-near, va, va+near))
}

// near reports whether a goroutine sleeps in a page, or mostNear do within first and last.
func (s *sleepers) near(va, first, last device.VA) bool {
	n := 0
	for _, p := range s.pages {
		if first <= p && p <= last {
			n++
		}
		if p == va || n == mostNear {
			return true
		}
	}
	return false
}

// turn is one page-fault goroutine's: it serves messages until another takes over.
type turn struct {
	page  atomic.Uint64 // the page that it serves; 0: none; overtaken: it must end
	timer *time.Timer
}

// overtaken is not a page's address.
const overtaken = 1

// serveFaults is the page-fault goroutine: it pages in the pages that pfd asks for, and then asks
// the sender to retransmit the block (method touch; 000 Touch-A-Page) or answers pfd (method
// populate). If it sleeps in a page, another goroutine takes over.
func (e *Endpoint) serveFaults() {
	r := openResidence()
	defer r.close()
	var t turn
	t.timer = time.AfterFunc(math.MaxInt64, func() { e.takeOver(&t) })
	defer t.timer.Stop()
	for {
		f, err := e.faults.Receive()
		if err != nil {
			// Closed, or the socket has failed: without this goroutine blocks are retried at the
			// guard time-out and fail in the end.
			return
		}
		number, page := e.faults.Last(), f.VA.Page() // read now: once another goroutine takes over, it uses the receiver
		if e.sleeping.has(page) {
			continue // a goroutine sleeps in it already; pfd asks again
		}
		t.page.Store(uint64(page))
		t.timer.Reset(sleepsAfter)
		e.serveFault(&f, number, &t, r)
		t.timer.Stop()
		if !t.page.CompareAndSwap(uint64(page), 0) {
			e.sleeping.remove(page)
			return
		}
	}
}

// takeOver replaces a goroutine that sleeps in a page.
func (e *Endpoint) takeOver(t *turn) {
	page := t.page.Load()
	if page == 0 {
		return
	}
	if !e.sleeping.add(device.VA(page)) {
		t.timer.Reset(sleepsAfter)
		return
	}
	if !t.page.CompareAndSwap(page, overtaken) {
		e.sleeping.remove(device.VA(page))
		return
	}
	e.workers.Go(e.serveFaults)
}

// serveFault serves one fault message; number is its nlmsg_seq.
func (e *Endpoint) serveFault(f *netlink.Fault, number uint32, t *turn, r *residence) {
	pages := min(int(f.Pages), maxFaultPages)
	e.faultsServed.Add(1)
	before := r.read(f.VA, pages)
	var errno unix.Errno
	err := populate(f.VA.Page(), pages, f.Write)
	e.faultPages.Add(r.since(before, f.VA, pages, f.Write))
	absent := err != nil
	errors.As(err, &errno)
	if absent {
		e.faultsFailed.Add(1)
	}
	if f.PDID == 0 {
		// No block to retransmit: a source fault without a FIFO entry (messages.md 3), or method
		// populate, where pfd waits for the answer.
		if t.page.Load() != overtaken { // pfd waits for the answer to a later fault
			e.pages.SetServed(number, uint32(errno))
		}
		e.kick()
		return
	}
	e.sendRAPF(f.Source, mailbox.RAPF{
		PDID: e.welcome.PDID, Transaction: f.Transaction, Sequence: f.Sequence,
		Claimed: e.welcome.PDID, Fail: absent,
	}.Encode())
}

// sendRAPF sends word on the packetizer channel of the page-fault goroutines. It waits until pfd
// has read an earlier one or the attachment ends.
func (e *Endpoint) sendRAPF(dst device.NodeID, word uint64) {
	e.sending.Lock()
	defer e.sending.Unlock()
	if e.pages.SendStatus(faultSend) == device.PktzRefused {
		e.rapfRefused.Add(1) // the one before
	}
	sent := func() bool { return e.pages.Send(faultSend, dst, device.MailboxRequest, word) }
	if !spin(sent) {
		for p := (pauses{}); !sent(); {
			select {
			case <-e.over:
				return
			case <-time.After(p.next()):
			}
		}
	}
	e.kick()
}

func (e *Endpoint) kick() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.kickLocked()
}
