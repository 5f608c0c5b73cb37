package hostile

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
)

// waits are an agent's rings and windows.
type waits struct {
	words, mail *rdma.Ring
	window      *rdma.Window
}

// shortly bounds one wait of an agent.
func shortly(f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience/4)
	defer cancel()
	return f(ctx)
}

// obey executes the orders on rings, messages and windows; ok is false for any other.
func (w *waits) obey(a *obedient, o order) (r reply, ok bool, err error) {
	switch o.Op {
	case "ring": // of the first two words of a buffer, and of the mailbox
		err = w.open(a, o)
	case "unring":
		err = errors.Join(w.words.Close(), w.mail.Close())
		w.words, w.mail = nil, nil
	case "notify": // writes the words, and sends a message
		err = shortly(func(ctx context.Context) error { return notify(ctx, a, o) })
	case "notified":
		err = shortly(func(ctx context.Context) error { return w.notified(ctx, a, o) })
	case "window", "unwindow": // of a buffer, to all
		err = w.admit(a, o)
	default:
		return r, false, nil
	}
	return r, true, err
}

func (w *waits) open(a *obedient, o order) error {
	b, err := a.buffer(o.ID)
	if err != nil {
		return err
	}
	if o.Kind == "full" { // this process may open no descriptor
		var was unix.Rlimit
		if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &was); err != nil {
			return err
		}
		none := unix.Rlimit{Cur: 0, Max: was.Max}
		if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &none, nil); err != nil {
			return err
		}
		defer func() { _ = unix.Prlimit(0, unix.RLIMIT_NOFILE, &was, nil) }()
	}
	if w.words, err = a.ep.Ring(words(b)); err != nil {
		return err
	}
	if w.mail, err = a.ep.Ring(nil); err != nil {
		return errors.Join(err, w.words.Close())
	}
	return nil
}

func words(b *area) []uint64 { return unsafe.Slice((*uint64)(unsafe.Pointer(&b.b[0])), 2) }

func notify(ctx context.Context, a *obedient, o order) error {
	to, err := rdma.ParseRemote(o.Remote)
	if err != nil {
		return err
	}
	src, err := a.buffer(o.Kind)
	if err != nil {
		return err
	}
	t, err := a.ep.Write(ctx, rdma.WriteRequest{
		SrcVA: src.va, Size: 1, Dst: to, Offset: 64, Notify: &rdma.Notification{First: o.Seed, Last: o.Seed}, Wait: true,
	})
	if err == nil {
		err = t.Wait(ctx)
	}
	if err == nil {
		_, err = a.ep.Send(ctx, to, 0, o.Seed)
	}
	return err
}

// notified waits for both by its rings.
func (w *waits) notified(ctx context.Context, a *obedient, o order) error {
	b, err := a.buffer(o.ID)
	if err != nil {
		return err
	}
	word := &words(b)[1]
	for atomic.LoadUint64(word) != o.Seed {
		if err := w.words.Wait(ctx); err != nil {
			return fmt.Errorf("the words are %d, want %d: %w", atomic.LoadUint64(word), o.Seed, err)
		}
	}
	over, cancel := context.WithCancel(ctx)
	cancel()
	for {
		m, err := a.ep.Receive(over)
		if err == nil && m.Words[1] == o.Seed {
			return nil
		}
		if err = w.mail.Wait(ctx); err != nil {
			return fmt.Errorf("a message: %w", err)
		}
	}
}

func (w *waits) admit(a *obedient, o order) error {
	if o.Op == "unwindow" {
		return w.window.Close()
	}
	b, err := a.buffer(o.ID)
	if err != nil {
		return err
	}
	r, err := a.ep.ExportVA(b.va, uint64(len(b.b)))
	if err == nil {
		w.window, err = a.ep.Window(r, 0, device.AllRights)
	}
	return err
}
