package session

import (
	"context"
	"errors"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/domain"
	"github.com/exanet/pfd/device"
)

// windower opens and closes the memory windows of a session. The connection's reader calls it; ctx
// ends with the session.
type windower struct {
	s   *session
	ctx context.Context
}

// Window implements attach.Windower.
func (h windower) Window(w device.MemoryWindow) error {
	s := h.s
	readOnly := s.readOnly.Forbids
	if m := s.d.features.Sharing; m != nil {
		readOnly = func(va device.VA, size uint64) bool { return m.ReadOnly(s.n.index, s.joined.domain.Slot, va, size) }
	}
	if w.Rights&(device.RightWrite|device.RightAtomic) != 0 && readOnly(w.VA, w.Bytes) {
		return refusal(attach.CodeMemory, "rights %v on %d bytes at %v: the process shares some of them read-only: share them for writing, or give the right to read", w.Rights, w.Bytes, w.VA)
	}
	return h.own(func() error { return s.n.domains.Window(s.joined.domain.Slot, w) })
}

// CloseWindow implements attach.Windower.
func (h windower) CloseWindow(w device.MemoryWindow) error {
	over := make(chan struct{})
	err := h.own(func() error {
		return h.s.n.domains.CloseWindow(h.s.joined.domain.Slot, w, func() { close(over) })
	})
	if err != nil {
		return err
	}
	select {
	case <-over:
		return nil
	case <-h.ctx.Done():
		return refusal(attach.CodeBusy, "the attachment is ending, and the window with it")
	}
}

// own runs f on the goroutine that owns the session's node, and returns the refusal for its error.
func (h windower) own(f func() error) error {
	ctx, cancel := context.WithTimeout(h.ctx, ownerTime)
	defer cancel()
	err := h.s.d.Own(ctx, h.s.n, f)
	code := attach.CodeInternal
	switch {
	case err == nil:
		return nil
	case errors.Is(err, domain.ErrWindow):
		code = attach.CodeMemory
	case errors.Is(err, domain.ErrWindowLimit), errors.Is(err, domain.ErrNames):
		code = attach.CodeLimit
	case errors.Is(err, domain.ErrNoWindow):
		code = attach.CodeNotFound
	case errors.Is(err, domain.ErrNoWindows):
		code = attach.CodeUnsupported
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, errStopped):
		code = attach.CodeBusy
	}
	return refusal(code, "%v", err)
}
