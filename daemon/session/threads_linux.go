package session

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/domain"
	"github.com/exanet/pfd/daemon/tree"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/limits"
)

// threader makes and ends the GSAS threads of a session. The connection's reader calls it; ctx ends with
// the session.
type threader struct {
	s   *session
	ctx context.Context
}

// threader returns nil if the session has no threads.
func (s *session) threader(ctx context.Context) attach.Threader {
	if s.d.trees == nil || s.n.caps.Load()&device.CapsGSAS == 0 || !s.pages.HasThreads() {
		return nil
	}
	return threader{s, ctx}
}

// Thread implements attach.Threader.
func (h threader) Thread(q attach.Thread) (answer attach.Threaded, fd int, err error) {
	s := h.s
	var th tree.Thread
	if q.Token == (attach.Token{}) {
		th, err = s.d.trees.dir.Begin(s.n.ID(), s.uid)
	} else if err = s.d.trees.find(h.ctx, tree.Token(q.Token).Tree(), joinAnswers); err == nil || errors.Is(err, tree.ErrTree) {
		th, err = s.d.trees.dir.Join(s.n.ID(), s.uid, tree.Token(q.Token))
	}
	if err != nil {
		return answer, -1, threadRefusal(err)
	}
	l := s.d.trees.enter(th, s.uid)
	index := -1
	m, err := s.d.trees.memoryOf(l, s.n)
	if err == nil {
		fd, err = unix.FcntlInt(uintptr(m.fd), unix.F_DUPFD_CLOEXEC, 0)
		err = os.NewSyscallError("fcntl", err)
	}
	if err == nil {
		err = h.own(func() (err error) {
			index, err = s.addThread(th)
			return err
		})
		if err != nil {
			attach.Descriptors{fd}.Close()
		}
	}
	if err != nil {
		s.d.trees.end(th.ID)
		return answer, -1, threadRefusal(err)
	}
	if err := s.d.trees.confirm(h.ctx, th); err != nil {
		attach.Descriptors{fd}.Close()
		_ = h.own(func() error { // fails if the session has ended, and its threads with it
			if s.lost[index] = false; s.threads[index] == th.ID { // else its tree is lost
				s.endThread(index)
			}
			return nil
		})
		return answer, -1, threadRefusal(err)
	}
	s.log.Info("thread", "thread", fmt.Sprintf("%#x", uint32(th.ID)), "tree", fmt.Sprintf("%#x", uint32(th.Protection)))
	return attach.Threaded{
		Interface: uint8(th.ID.Interface()), Index: uint8(index), ID: uint32(th.ID), Protection: uint32(th.Protection),
		Region: uint16(th.Region), Token: attach.Token(th.Token),
	}, fd, nil
}

// addThread makes a thread one of the session's, and returns its index. On the owning goroutine.
func (s *session) addThread(th tree.Thread) (index int, err error) {
	for index = range s.threads {
		if s.threads[index] != 0 || s.lost[index] {
			continue
		}
		slot, iface := s.joined.domain.Slot, th.ID.Interface()
		s.pages.ResetThread(index)
		if err := s.d.trees.m.AttachThread(s.n.index, slot, index, iface); err != nil {
			return -1, err
		}
		if err := s.n.domains.AddThread(slot, iface, th.Protection); err != nil {
			s.d.trees.m.DetachThread(s.n.index, slot, index)
			return -1, err
		}
		s.threads[index] = th.ID
		return index, nil
	}
	return -1, refusal(attach.CodeLimit, "the attachment has %d threads, the maximum: end one, or attach once more", attach.MaxThreads)
}

// Unthread implements attach.Threader.
func (h threader) Unthread(index int) error {
	return h.own(func() error {
		if h.s.lost[index] {
			h.s.lost[index] = false
			return nil
		}
		if h.s.threads[index] == 0 {
			return refusal(attach.CodeNotFound, "the attachment has no thread %d", index)
		}
		h.s.endThread(index)
		return nil
	})
}

// endThread ends a thread of the session. On the owning goroutine.
func (s *session) endThread(index int) {
	id := s.threads[index]
	if id == 0 {
		return
	}
	s.threads[index] = 0
	s.n.fail(s.n.domains.RemoveThread(id.Interface()))
	s.d.trees.m.DetachThread(s.n.index, s.joined.domain.Slot, index)
	s.d.trees.end(id)
}

// endThreads ends all threads of the session. On the owning goroutine.
func (s *session) endThreads() {
	for i := range s.threads {
		s.endThread(i)
	}
}

// own runs f on the goroutine that owns the session's node.
func (h threader) own(f func() error) error {
	ctx, cancel := context.WithTimeout(h.ctx, ownerTime)
	defer cancel()
	return h.s.d.Own(ctx, h.s.n, f)
}

// threadRefusal adds a code to the error of a thread.
func threadRefusal(err error) error {
	code := attach.CodeInternal
	var r *attach.RefusedError
	switch {
	case errors.As(err, &r):
		return r
	case errors.Is(err, tree.ErrTree):
		code = attach.CodeNotFound
	case errors.Is(err, tree.ErrThreads), errors.Is(err, tree.ErrRoom):
		code = attach.CodeLimit
	case errors.Is(err, errOwner):
		code = attach.CodeBusy
	case errors.Is(err, domain.ErrNoThreads):
		code = attach.CodeUnsupported
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.Is(err, errStopped), errors.Is(err, domain.ErrNoDomain):
		code = attach.CodeBusy
	default:
		return refusal(code, "pfd: %v: see its log", limits.Explain(err))
	}
	return refusal(code, "%v", err)
}
