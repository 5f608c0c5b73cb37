package rdma

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
)

// keeps are the rings and windows that a fake pfd has made.
type keeps struct {
	gate chan struct{} // closed when pfd goes on

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
		return c.Hold(ctx, attach.Handlers{Windower: k, Ringer: k})
	}
	return attachTo(t, startFake(t, f)), k
}

// pfd is stopped, and performs the requests of a ring and of a window after this process has given them
// up: neither stays, and each later request gets its own answer.
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
	}
	e.patience = time.Minute
	close(k.gate)
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
