package rdma

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
)

// keeps are the rings and windows that a fake pfd has made.
type keeps struct {
	gate chan struct{} // closed when pfd goes on

	busy atomic.Bool

	mu  sync.Mutex
	has map[string]bool
}

func (k *keeps) change(what string, add bool) error {
	<-k.gate
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.has[what] == add {
		return fmt.Errorf("%s: there already, or none", what)
	}
	k.has[what] = add
	return nil
}

// Ring implements attach.Ringer.
func (k *keeps) Ring(r attach.Ring) (int, error) {
	if err := k.change(fmt.Sprint(r.VA, r.Size), true); err != nil {
		return -1, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	return pair[1], unix.Close(pair[0])
}

// Unring implements attach.Ringer.
func (k *keeps) Unring(r attach.Range) error { return k.change(fmt.Sprint(r.VA, r.Size), false) }

// Window implements attach.Windower.
func (k *keeps) Window(w device.MemoryWindow) error { return k.change(fmt.Sprint(w), true) }

// CloseWindow implements attach.Windower.
func (k *keeps) CloseWindow(w device.MemoryWindow) error { return k.change(fmt.Sprint(w), false) }

// Thread implements attach.Threader.
func (k *keeps) Thread(attach.Thread) (answer attach.Threaded, memory int, err error) {
	<-k.gate
	k.mu.Lock()
	defer k.mu.Unlock()
	for answer.Index = 0; k.has[fmt.Sprint(answer.Index)]; answer.Index++ {
	}
	k.has[fmt.Sprint(answer.Index)] = true
	answer.Interface = device.MailboxThread + answer.Index
	answer.ID = uint32(atomics.ThreadOf(homeNode, int(answer.Interface)))
	answer.Protection, answer.Token = answer.ID, attach.Token{1}
	memory, err = unix.MemfdCreate("tree", unix.MFD_CLOEXEC)
	return answer, memory, err
}

// Unthread implements attach.Threader.
func (k *keeps) Unthread(index int) error {
	if k.busy.Load() {
		return &attach.RefusedError{Code: attach.CodeBusy, Text: "busy: try again"}
	}
	return k.change(fmt.Sprint(index), false)
}

func (k *keeps) list() (list []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for what, there := range k.has {
		if there {
			list = append(list, what)
		}
	}
	return list
}

// keeping attaches to a pfd that keeps rings and windows.
func keeping(t *testing.T) (*Endpoint, *keeps) {
	f, err := newFake()
	if err != nil {
		t.Fatal(err)
	}
	k := &keeps{gate: make(chan struct{}), has: map[string]bool{}}
	f.caps = device.CapsSVA | device.CapsWindows
	f.hold = func(ctx context.Context, c *attach.Conn) error {
		return c.Hold(ctx, attach.Handlers{Windower: k, Ringer: k, Threader: k})
	}
	e, err := Attach(t.Context(), Options{Socket: startFake(t, f), Node: homeNode, Threads: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e, k
}

// pfd is stopped, and performs the requests of a ring, of a window and of a thread after this process has
// given them up: none stays, and each later request gets its own answer.
func TestLateAnswers(t *testing.T) {
	e, k := keeping(t)
	r, err := e.ExportVA(0x1000, 10)
	if err != nil {
		t.Fatal(err)
	}
	e.patience = time.Millisecond
	for range 5 { // more than the answers that are kept
		if _, err := e.Ring(nil); !errors.Is(err, errNoAnswer) {
			t.Errorf("a ring: %v", err)
		}
		if _, err := e.Window(r, 7, RightRead); !errors.Is(err, errNoAnswer) {
			t.Errorf("a window: %v", err)
		}
		if _, err := e.NewThread([16]byte{}); !errors.Is(err, errNoAnswer) {
			t.Errorf("a thread: %v", err)
		}
	}
	e.patience = time.Minute
	close(k.gate)
	if w, err := e.Window(r, 7, RightWrite); err != nil { // answered last
		t.Error(err)
	} else if err := w.Close(); err != nil {
		t.Error(err)
	}
	for deadline := time.Now().Add(time.Minute); len(k.list()) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("pfd has %q", k.list())
		}
	}
	for range 3 {
		w, err := e.Window(r, 7, RightRead)
		if err != nil {
			t.Fatal(err)
		}
		if list := k.list(); len(list) != 1 {
			t.Errorf("pfd has %q", list)
		}
		if _, err := e.Window(r, 7, RightRead); err == nil {
			t.Error("the refusal of the same window is not told")
		}
		ring, err := e.Ring(nil)
		if err != nil {
			t.Fatal(err)
		}
		if list := k.list(); len(list) != 2 {
			t.Errorf("pfd has %q", list)
		}
		if err := errors.Join(ring.Close(), w.Close()); err != nil {
			t.Error(err)
		}
		if list := k.list(); len(list) != 0 {
			t.Errorf("pfd has %q", list)
		}
	}
}

// The end of a thread that pfd refuses is asked for again by the next Close.
func TestCloseOfAThreadIsRefused(t *testing.T) {
	e, k := keeping(t)
	close(k.gate)
	th, err := e.NewThread([16]byte{})
	if err != nil {
		t.Fatal(err)
	}
	k.busy.Store(true)
	var refused *attach.RefusedError
	if err := th.Close(); !errors.As(err, &refused) || len(k.list()) != 1 {
		t.Errorf("pfd has %q, %v", k.list(), err)
	}
	k.busy.Store(false)
	for range 2 {
		if err := th.Close(); err != nil || len(k.list()) != 0 {
			t.Errorf("pfd has %q, %v", k.list(), err)
		}
	}
}
