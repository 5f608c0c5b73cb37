package rdma

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/space/uffd"
)

// shareTimeout is how long pfd may take to answer. Defined by this project: to unshare memory, pfd
// waits for accesses in flight, and part of it may be in swap. The caller learns of pfd's end at
// once.
const shareTimeout = time.Minute

// SVA reports whether the node sees the process's own page tables, so that transfers reach all its
// memory. Otherwise they reach only shared memory.
func (i Info) SVA() bool { return i.Caps&device.CapsSVA != 0 }

// Share shares size bytes of a memfd as MakeMemory makes it, from offset on, which the process has
// mapped at va. A node that does not see the process's page tables (Info.SVA) can access only
// shared memory; the others access it faster. The range must be whole pages (Info.Page), and the
// caller still closes fd. Memory of Alloc is shared already. Errors match ErrGone or ErrClosed;
// pfd's refusal is an *attach.RefusedError.
//
// Until Unshare the memory is excluded from core dumps, which would page in all of it: see
// Options.Dump. It is registered with a userfaultfd, through which pfd learns of an munmap without
// Unshare; the munmap waits for pfd (while pfd is stopped, until it continues or ends). With
// Info.SVA the userfaultfd also fills missing pages (method gup). The program can register no
// other there: see Options.NoUserfaultfd. With that option, and with method uffd without Info.SVA,
// transfers access the shared memory until Unshare. pfd never learns of shmat with SHM_REMAP over
// the memory or of remap_file_pages in it: call Unshare before.
func (e *Endpoint) Share(va device.VA, size uint64, fd int, offset uint64, writable bool) error {
	_, err := e.share(va, size, fd, offset, writable, 1)
	return err
}

// share implements Share. folio is how many pages come in together; an older pfd refuses the hint,
// and the memory is shared without it.
func (e *Endpoint) share(va device.VA, size uint64, fd int, offset uint64, writable bool, folio int) (hint *attach.RefusedError, err error) {
	m := attach.Share{Product: attach.Product(), VA: va, Size: size, Offset: offset, Writable: writable}
	if folio > 1 {
		m.Folio = uint16(folio)
	}
	fds := []int{fd}
	// Without Info.SVA method uffd registers the memory itself, and the kernel accepts one
	// userfaultfd.
	if (e.Info().SVA() || e.welcome.Method != MethodUFFD) && !e.noUserfaultfd {
		// No userfaultfd, or memory registered with another, is not an error. A child forked
		// meanwhile by Go executes a program at once, which closes its copy (O_CLOEXEC); if C code
		// forks, pfd's unregistration also covers the child's copy.
		if h, err := uffd.NewHoles(); err == nil {
			defer h.Close() // pfd has it now, or the memory is not registered any more
			if h.Add(va, size) == nil {
				m.Watched, fds = true, append(fds, h.FD())
			}
		}
	}
	done := attach.Shared{VA: va, Size: size, Answered: attach.TypeShare}
	err = e.ask(m.Append(nil), done, fds...)
	var refused *attach.RefusedError
	if m.Folio > 0 && errors.As(err, &refused) && refused.Code == attach.CodeProtocol {
		m.Folio, hint = 0, refused
		err = e.ask(m.Append(nil), done, fds...)
	}
	if m.Watched && errors.As(err, &refused) && refused.Code == attach.CodeProtocol {
		// An older pfd does not read a userfaultfd's events, and an munmap would wait for that.
		m.Watched = false
		err = e.ask(m.Append(nil), done, fd)
	}
	if err == nil && !e.dump {
		dump(va, size, false)
	}
	return hint, err
}

// dump includes memory of this process in core dumps or excludes it.
func dump(va device.VA, size uint64, in bool) {
	advice := uintptr(unix.MADV_DONTDUMP)
	if in {
		advice = unix.MADV_DODUMP
	}
	// It fails if something else is mapped there by now.
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(va), uintptr(size), advice)
}

// Unshare undoes one Share, with exactly its bounds. After it returns, no transfer accesses the
// memory.
func (e *Endpoint) Unshare(va device.VA, size uint64) error {
	m := attach.Range{Product: attach.Product(), Type: attach.TypeUnshare, VA: va, Size: size}
	err := e.ask(m.Append(nil), attach.Shared{VA: va, Size: size, Answered: attach.TypeUnshare})
	if err == nil && !e.dump {
		dump(va, size, true)
	}
	return err
}

// Invalidate tells the device that pages of shared memory were discarded (MADV_REMOVE, or a hole
// punched into their file). Call it afterwards: a device with its own tables may still map the old
// pages, and if mapping pins them it would write to those. When it returns, the next transfer of
// each page faults. A node that sees the process's page tables (Info.SVA) faults anyway, and then
// notices sooner. The range is size bytes at va, whole pages. Errors are those of Share.
func (e *Endpoint) Invalidate(va device.VA, size uint64) error {
	m := attach.Range{Product: attach.Product(), Type: attach.TypeInvalidate, VA: va, Size: size}
	return e.ask(m.Append(nil), attach.Shared{VA: va, Size: size, Answered: m.Type})
}

// ask sends a memory request and waits for its answer.
func (e *Endpoint) ask(msg []byte, want attach.Shared, fds ...int) error {
	e.asking.Lock()
	defer e.asking.Unlock()
	return e.request(msg, want, fds...)
}

// request is ask with e.asking held.
func (e *Endpoint) request(msg []byte, want attach.Shared, fds ...int) error {
	_, err := e.exchange(msg, want, fds...)
	if err != nil {
		return fmt.Errorf("share memory: %w", err)
	}
	e.noteShare(want)
	return nil
}

// exchange sends a request and waits for its answer, with e.asking held. It returns the descriptor
// that came with the answer, -1 if none.
func (e *Endpoint) exchange(msg []byte, want attach.Shared, fds ...int) (fd int, err error) {
	a, err := e.exchangeFor(msg, want.Answered, func(a *answer) bool {
		return a.thread == nil && a.shared.VA == want.VA && a.shared.Size == want.Size && a.shared.Answered == want.Answered
	}, fds...)
	if err != nil {
		return -1, err
	}
	return a.fds.Take(0), nil
}

// exchangeFor is exchange for a request of type t whose answer fits.
func (e *Endpoint) exchangeFor(msg []byte, t attach.Type, fits func(*answer) bool, fds ...int) (a answer, err error) {
	e.mu.Lock()
	err = e.goneLocked()
	e.mu.Unlock()
	if err == nil {
		err = e.conn.Send(msg, fds...)
		if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) { // before the end was received
			err = fmt.Errorf("%w: %w: attach again", ErrGone, err)
		}
	}
	if err != nil {
		return a, err
	}
	timer := time.NewTimer(e.patience)
	defer timer.Stop()
	for {
		select {
		case a := <-e.answers:
			switch {
			case a.refused != nil && a.refused.Refused == t:
				return a, a.refused
			case a.refused == nil && fits(&a):
				return a, nil
			}
			a.fds.Close() // the answer to no request
		case <-e.over:
			return a, e.gone()
		case <-timer.C:
			if e.abandon() {
				return a, fmt.Errorf("%w within %v: see its log", errNoAnswer, e.patience)
			}
			timer.Reset(e.patience)
		}
	}
}

var errNoAnswer = errors.New("pfd does not answer")

// abandon stops the wait for the answer to exchange's request. If that comes later it is dropped. abandon
// returns false if it has come.
func (e *Endpoint) abandon() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.answers) > 0 {
		return false
	}
	e.owed++
	return true
}

// undo sends a request that undoes the last one, which pfd may have performed, or will, although the
// endpoint does not know. pfd performs requests in their order. e.asking is held.
func (e *Endpoint) undo(msg []byte) {
	owe := func(n int) { // nothing waits for the answer
		e.mu.Lock()
		defer e.mu.Unlock()
		e.owed += n
	}
	owe(1)
	if e.conn.Send(msg) != nil { // the attachment has ended, and with it all that was requested
		owe(-1)
	}
}

// noteShare records memory shared with a node that can access no other, so that a transfer's error
// can say which memory was not shared.
func (e *Endpoint) noteShare(a attach.Shared) {
	if e.Info().SVA() {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch a.Answered {
	case attach.TypeShare:
		if e.shares == nil {
			e.shares = map[device.VA]uint64{}
		}
		e.shares[a.VA] = a.Size
	case attach.TypeUnshare:
		delete(e.shares, a.VA)
	}
}

// unsharedLocked names the memory of a transfer that is not shared with a node that can access no
// other: as the cause, or as a detail if it is not this process's.
func (e *Endpoint) unsharedLocked(t *Transfer) (cause, detail string) {
	if e.Info().SVA() || t.many != nil {
		return "", ""
	}
	at, end := t.own, t.own+device.VA(t.size)
next:
	for at < end {
		for va, size := range e.shares {
			if at >= va && at-va < device.VA(size) {
				at = va + device.VA(size)
				continue next
			}
		}
		return fmt.Sprintf("%v of this process: the device accesses shared memory only: take it from Alloc, or share a memfd (Endpoint.Share)", at), ""
	}
	return "", "the device accesses shared memory only, and this process's is shared: check the target's"
}

// answer is pfd's answer to a memory request.
type answer struct {
	shared  attach.Shared
	thread  *attach.Threaded
	refused *attach.RefusedError
	fds     attach.Descriptors // that came with it
}

// answered handles a message other than the end of the attachment. It owns fds.
func (e *Endpoint) answered(b []byte, fds attach.Descriptors) {
	a := answer{fds: fds}
	var err error
	if a.shared, err = attach.DecodeShared(b); err != nil {
		if a.refused, err = attach.DecodeRefused(b); err != nil {
			thread, err := attach.DecodeThreaded(b)
			if err != nil {
				fds.Close()
				return // it answers no request of this version
			}
			a.thread = &thread
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.owed > 0 { // pfd answers each request, in their order
		e.owed--
		fds.Close()
		if a.thread != nil { // nobody has it
			go func() {
				e.asking.Lock()
				defer e.asking.Unlock()
				e.undo((&attach.Unthread{Product: attach.Product(), Index: a.thread.Index}).Append(nil))
			}()
		}
		return
	}
	select {
	case e.answers <- a:
	default: // more answers than requests
		fds.Close()
	}
}
