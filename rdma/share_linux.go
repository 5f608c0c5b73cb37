package rdma

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/uffd"
)

// shareTimeout is how long pfd may take to answer (ours): to take memory back it
// waits for accesses in flight, and part of it may be in swap. Its end is known at once.
const shareTimeout = time.Minute

// SVA tells whether the node sees the process's own page tables, so that
// transfers reach any memory of it; else only what was shared.
func (i Info) SVA() bool { return i.Caps&device.CapsSVA != 0 }

// Share lets transfers reach memory of a node that does not see the process's
// page tables (Info.SVA; where it does they reach it sooner): size bytes of a memfd
// as MakeMemory makes it, from offset on, which the process has mapped at va.
// Whole pages (Info.Page); fd stays the caller's. Memory of Alloc is shared already. Errors
// match ErrGone or ErrClosed; pfd's refusal is an *attach.RefusedError.
//
// Until Unshare it is in no core dump, which would bring all of it in: see Options.Dump. And
// it has a userfaultfd, so that pfd learns of an munmap without Unshare, which waits for that (while
// pfd is stopped, until it goes on or ends), and where Info.SVA is true fills missing pages (method
// gup): the program can have no other there, see Options.NoUserfaultfd. With that option, and with
// method uffd where Info.SVA is false, transfers go on to reach the memory that was shared until
// Unshare. Of that, of shmat with SHM_REMAP over the memory and of remap_file_pages in it nobody
// tells pfd: call Unshare before.
func (e *Endpoint) Share(va device.VA, size uint64, fd int, offset uint64, writable bool) error {
	m := attach.Share{Product: attach.Product(), VA: va, Size: size, Offset: offset, Writable: writable}
	fds := []int{fd}
	// Method uffd registers memory of a node that sees shared memory alone, and the kernel takes one userfaultfd.
	if (e.Info().SVA() || e.welcome.Method != MethodUFFD) && !e.noUserfaultfd {
		// A kernel or a filter without userfaultfd, and memory that has another, are no error.
		// A child that is forked meanwhile executes a program at once, which closes its copy
		// (O_CLOEXEC); where C code forks pfd's end of the registration holds for its copy, too.
		if h, err := uffd.NewHoles(); err == nil {
			defer h.Close() // pfd has it now, or nobody: the memory is registered no more
			if h.Add(va, size) == nil {
				m.Watched, fds = true, append(fds, h.FD())
			}
		}
	}
	done := attach.Shared{VA: va, Size: size, Answered: attach.TypeShare}
	err := e.ask(m.Append(nil), done, fds...)
	var refused *attach.RefusedError
	if m.Watched && errors.As(err, &refused) && refused.Code == attach.CodeProtocol {
		// An older pfd does not read what a userfaultfd reports, and an munmap would wait for that.
		m.Watched = false
		err = e.ask(m.Append(nil), done, fd)
	}
	if err == nil && !e.dump {
		dump(va, size, false)
	}
	return err
}

// dump says whether memory of this process is part of a core dump.
func dump(va device.VA, size uint64, in bool) {
	advice := uintptr(unix.MADV_DONTDUMP)
	if in {
		advice = unix.MADV_DODUMP
	}
	// It fails where something else is mapped there by now.
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(va), uintptr(size), advice)
}

// Unshare takes back what one Share gave, with exactly its bounds. When it
// returns no transfer reaches the memory any more.
func (e *Endpoint) Unshare(va device.VA, size uint64) error {
	m := attach.Unshare{Product: attach.Product(), VA: va, Size: size}
	err := e.ask(m.Append(nil), attach.Shared{VA: va, Size: size, Answered: attach.TypeUnshare})
	if err == nil && !e.dump {
		dump(va, size, true)
	}
	return err
}

// Invalidate tells the device that pages of shared memory were taken away (MADV_REMOVE,
// or a hole punched into their file), after that was done: a device with tables of its own may
// have the pages that were there before, and where mapping pins them it writes those.
// When it returns the next transfer of each page faults. Where the node sees the process's
// page tables (Info.SVA) it does so anyway, and finds it out sooner. Size bytes at va, whole
// pages. Errors are those of Share.
func (e *Endpoint) Invalidate(va device.VA, size uint64) error {
	m := attach.Range{Product: attach.Product(), Type: attach.TypeInvalidate, VA: va, Size: size}
	return e.ask(m.Append(nil), attach.Shared{VA: va, Size: size, Answered: m.Type})
}

// ask sends a request about memory and waits for its answer.
func (e *Endpoint) ask(msg []byte, want attach.Shared, fds ...int) error {
	e.asking.Lock()
	defer e.asking.Unlock()
	return e.request(msg, want, fds...)
}

// request is ask where e.asking is held.
func (e *Endpoint) request(msg []byte, want attach.Shared, fds ...int) error {
	e.mu.Lock()
	err := e.goneLocked()
	e.mu.Unlock()
	if err == nil {
		err = e.conn.Send(msg, fds...)
		if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) { // before the end was received
			err = fmt.Errorf("%w: %w: attach again", ErrGone, err)
		}
	}
	if err != nil {
		return fmt.Errorf("sharing memory: %w", err)
	}
	timer := time.NewTimer(shareTimeout)
	defer timer.Stop()
	for {
		select {
		case a := <-e.answers:
			switch {
			case a.refused != nil && a.refused.Refused == want.Answered:
				return fmt.Errorf("sharing memory: %w", a.refused)
			case a.refused == nil && a.shared.VA == want.VA && a.shared.Size == want.Size && a.shared.Answered == want.Answered:
				e.noteShare(want)
				return nil
			}
			// The answer to a request that was given up.
		case <-e.over:
			return fmt.Errorf("sharing memory: %w", e.gone())
		case <-timer.C:
			return fmt.Errorf("sharing memory: pfd does not answer within %v: see its log", shareTimeout)
		}
	}
}

// noteShare keeps what is shared with a node that reaches nothing else: the error of a transfer
// says what was not.
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

// unsharedLocked says what memory of a transfer is not shared with a node that reaches no other:
// the cause, or, where that is not this process's, a detail.
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
		return fmt.Sprintf("%v of this process: the device reaches shared memory alone: take it from Alloc, or share a memfd (Endpoint.Share)", at), ""
	}
	return "", "the device reaches shared memory alone, and this process's is shared: look whether the target's is"
}

// answer is pfd's to a request about memory.
type answer struct {
	shared  attach.Shared
	refused *attach.RefusedError
}

// answered takes a message that is no end of the attachment.
func (e *Endpoint) answered(b []byte) {
	var a answer
	var err error
	if a.shared, err = attach.DecodeShared(b); err != nil {
		if a.refused, err = attach.DecodeRefused(b); err != nil {
			return // it answers nothing that this version asks for
		}
	}
	select {
	case e.answers <- a:
	default: // more answers than requests
	}
}
