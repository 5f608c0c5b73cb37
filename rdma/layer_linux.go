package rdma

import (
	"context"
	"fmt"

	"github.com/exanet/pfd/mailbox"
)

// Layer returns the protocol of the module's own that takes the endpoint's messages of some kinds,
// which create makes at the first call. Such a protocol calls Post, Take and Await; Handle refuses
// its kinds. Errors match ErrRequest, ErrClosed or ErrGone, or are create's.
func (e *Endpoint) Layer(create func() (any, error), kinds ...mailbox.Kind) (any, error) {
	e.layering.Lock()
	defer e.layering.Unlock()
	if l := e.layers[kinds[0]]; l != nil {
		return l, nil
	}
	for _, k := range kinds {
		if err := e.claimKind(k); err != nil {
			return nil, err
		}
	}
	l, err := create()
	if err != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, k := range kinds {
			delete(e.messages.handled, k)
		}
		return nil, err
	}
	if e.layers == nil {
		e.layers = map[mailbox.Kind]any{}
	}
	e.layers[kinds[0]] = l
	return l, nil
}

// claimKind notes that messages of a kind have a receiver.
func (e *Endpoint) claimKind(k mailbox.Kind) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	b := &e.messages
	switch err := e.goneLocked(); {
	case err != nil:
		return fmt.Errorf("handling messages: %w", err)
	case k == mailbox.KindProgram || !k.Valid():
		return fmt.Errorf("handling messages: %w: kind %d has no handler", ErrRequest, k)
	case b.handled[k]:
		return fmt.Errorf("handling messages: %w: kind %d has a handler already", ErrRequest, k)
	}
	if b.handled == nil {
		b.handled = map[mailbox.Kind]bool{}
	}
	b.handled[k] = true
	return nil
}

// Post is like Send but returns at once: with ErrBusy if no channel is free, and without knowing
// whether the node has refused the message. Every refusal arrives as a Message with Refused set.
// A Remote of generation 0 names the process that has the interface now.
func (e *Endpoint) Post(to Remote, words ...uint64) (number uint32, err error) {
	if err := e.checkMessage(&to, words); err != nil {
		return 0, fmt.Errorf("sending a message: %w: %w", ErrRequest, err)
	}
	c, number, err := e.publish(&to, words, true)
	if err == nil && c < 0 {
		err = ErrBusy
	}
	if err != nil {
		return 0, fmt.Errorf("sending a message: %w", err)
	}
	return number, nil
}

// Take returns the next message of kind k, if there is one. It does not wait.
func (e *Endpoint) Take(k mailbox.Kind) (Message, bool) { return e.nextMessage(k) }

// Await sleeps until check returns true, ctx ends, which is then the error, or the attachment ends.
// It calls check whenever a message or completion words have arrived or a transfer has ended, and
// every 8 ms at least.
func (e *Endpoint) Await(ctx context.Context, check func() bool) error {
	return e.waitUntil(ctx, notifyFirstPause, notifyLastPause, check)
}
