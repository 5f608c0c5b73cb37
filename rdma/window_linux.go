package rdma

import (
	"errors"
	"fmt"
	"sync"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
)

// Rights are the accesses that a Window permits.
type Rights = device.Rights

// The rights. A window with RightMessages admits messages, whatever its range.
const (
	RightRead     = device.RightRead
	RightWrite    = device.RightWrite
	RightAtomic   = device.RightAtomic
	RightMessages = device.RightMessages
)

// Window is a range of the process's memory that is open to a peer.
type Window struct {
	e  *Endpoint
	m  device.MemoryWindow
	mu sync.Mutex
	// closed: Close has succeeded.
	closed bool
}

// Window opens memory of this process, which r names (Export), to the domains with PDID peer, on any
// node, or to all domains if peer is 0, until Close or the end of the attachment. It matters for
// domains that this process has not admitted (Options.AcceptGroup, Options.Accept): they reach
// exactly the memory of its windows, with their rights. Windows that overlap or touch add up. A
// transfer needs the right for its whole memory here and for its completion words. A transfer
// without it fails, and matches ErrDomain there; blocks of it that lie in a window may be written. Memory
// that is mapped at the address later is open, too: close the window before its memory is freed.
//
// A domain has 64 windows. Errors match ErrRequest, ErrGone or ErrClosed; pfd's refusal is an
// *attach.RefusedError: with code attach.CodeLimit for one window too many.
func (e *Endpoint) Window(r Remote, peer device.PDID, rights Rights) (*Window, error) {
	w := &Window{e: e, m: device.MemoryWindow{VA: r.VA, Bytes: r.Len, Peer: peer, Rights: rights}}
	err := r.check()
	switch limit := uint64(1) << e.welcome.VABits; {
	case err != nil:
		err = fmt.Errorf("%w: %w", ErrRequest, err)
	case r.Node != e.welcome.Node || r.PDID != e.welcome.PDID || r.Generation != e.welcome.Generation:
		err = fmt.Errorf("%w: the memory is not this process's: take its name from Export", ErrRequest)
	case uint64(r.VA) >= limit || r.Len > limit-uint64(r.VA):
		err = fmt.Errorf("%w: %d bytes at %v pass the end of the node's address space of %d bits", ErrRequest, r.Len, r.VA, e.welcome.VABits)
	case rights == 0 || rights&^device.AllRights != 0:
		err = fmt.Errorf("%w: rights %#x: give one or more of RightRead, RightWrite, RightAtomic and RightMessages", ErrRequest, uint8(rights))
	case peer == device.PDIDDriver:
		err = fmt.Errorf("%w: no domain has PDID %d: give the PDID of a domain, or 0 for all", ErrRequest, peer)
	case e.welcome.Caps&device.CapsWindows == 0:
		err = fmt.Errorf("%w: node %d has no memory windows (Info.Caps, bit 30): admit the peer to all memory (Options.Accept)", ErrRequest, e.welcome.Node)
	default:
		err = w.request(attach.TypeWindow)
	}
	if err != nil {
		return nil, fmt.Errorf("open a memory window: %w", err)
	}
	return w, nil
}

// Close withdraws the window, and waits until no transfer that only this window admitted accesses
// the memory: nothing is written to it or read from it after Close has returned. Those transfers
// fail. A window can be closed once; a second Close matches ErrRequest. After an error that matches
// neither ErrRequest nor ErrGone nor ErrClosed the window may be closed again.
func (w *Window) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var err error
	if w.closed {
		err = fmt.Errorf("%w: it is closed already", ErrRequest)
	} else if err = w.request(attach.TypeUnwindow); err == nil {
		w.closed = true
	}
	if err != nil {
		return fmt.Errorf("close the memory window of %d bytes at %v: %w", w.m.Bytes, w.m.VA, err)
	}
	return nil
}

func (w *Window) request(t attach.Type) error {
	m := attach.Window{Product: attach.Product(), Type: t, MemoryWindow: w.m}
	w.e.asking.Lock()
	defer w.e.asking.Unlock()
	_, err := w.e.exchange(m.Append(nil), attach.Shared{VA: w.m.VA, Size: w.m.Bytes, Answered: t})
	if t == attach.TypeWindow && errors.Is(err, errNoAnswer) {
		m.Type = attach.TypeUnwindow // it must not open later
		w.e.undo(m.Append(nil))
	}
	return err
}
