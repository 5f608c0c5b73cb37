package rdma_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/leak"
	"github.com/exanet/pfd/rdma"
)

func vaOf(words []uint64) device.VA { return device.VA(uintptr(unsafe.Pointer(&words[0]))) }

func ring(t testing.TB, e *rdma.Endpoint, words []uint64) *rdma.Ring {
	t.Helper()
	r, err := e.Ring(words)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// until waits on a ring until check returns true.
func until(t testing.TB, r *rdma.Ring, check func() bool) {
	t.Helper()
	for !check() {
		if err := r.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// notify writes into r, and lets the words there become n.
func notify(t testing.TB, e *rdma.Endpoint, r rdma.Remote, n uint64) *rdma.Transfer {
	t.Helper()
	return notifyTwo(t, e, r, n, n)
}

func notifyTwo(t testing.TB, e *rdma.Endpoint, r rdma.Remote, first, n uint64) *rdma.Transfer {
	t.Helper()
	tr, err := e.Write(t.Context(), rdma.WriteRequest{Src: []byte{byte(n)}, Dst: r, Offset: 64, Notify: &rdma.Notification{First: first, Last: n}})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// Words wake the ring that watches them and no other one; all else wakes the rings of the mailbox.
func TestRing(t *testing.T) {
	for _, nodes := range [][]device.NodeID{{0, 1}, {0, 0}} {
		e, names := ends(t, nodes...)
		words := make([]uint64, 64)
		all, err := e[1].ExportVA(vaOf(words), 512)
		if err != nil {
			t.Fatal(err)
		}
		part := func(at int) rdma.Remote { r := all; r.VA += device.VA(at); r.Len -= uint64(at); return r }
		first, second, mail, other := ring(t, e[1], words[:4]), ring(t, e[1], words[4:8]), ring(t, e[1], nil), ring(t, e[1], nil)
		own := ring(t, e[0], nil)
		for n := uint64(1); n <= 3; n++ {
			for at, r := range map[int]*rdma.Ring{0: first, 2: first, 4: second, 6: second, 32: mail, 34: other} {
				tr := notify(t, e[0], part(8*at), n)
				until(t, r, func() bool { return atomic.LoadUint64(&words[at+1]) == n })
				until(t, own, func() bool { return tr.Poll() == rdma.Finished })
			}
			if _, err := e[0].Send(t.Context(), names[1], n<<32); err != nil {
				t.Fatal(err)
			}
			until(t, other, func() bool {
				m, err := e[1].Receive(polls)
				return err == nil && m.Words[0]>>32 == n
			})
		}
		// A transfer wakes one ring. The others may still be woken by transfers before.
		woken := 0
		for n := uint64(9); n < 29; n++ {
			notify(t, e[0], part(0), n)
			until(t, first, func() bool { return atomic.LoadUint64(&words[1]) == n })
			for _, r := range []*rdma.Ring{second, mail, other} {
				woken += wakes(t, r)
			}
		}
		if woken > 6 {
			t.Errorf("other rings were woken %d times by 20 transfers", woken)
		}
	}
}

// wakes returns how many waits on r end before one ends by its context.
func wakes(t *testing.T, r *rdma.Ring) (n int) {
	t.Helper()
	for {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		err := r.Wait(ctx)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
}

func TestBadRings(t *testing.T) {
	e, _ := ends(t, 0)
	words := make([]uint64, 8)
	first := ring(t, e[0], words[:2])
	refused := func(words []uint64, code attach.Code) {
		t.Helper()
		r, err := e[0].Ring(words)
		if a, ok := errors.AsType[*attach.RefusedError](err); !ok || a.Code != code {
			t.Errorf("%v, %v, want code %d", r, err, code)
		}
	}
	refused(words[1:3], attach.CodeMemory)
	refused(words[:1], attach.CodeMemory)
	var mail []*rdma.Ring
	for range attach.MaxMailRings {
		mail = append(mail, ring(t, e[0], nil))
	}
	if _, err := e[0].Ring(nil); !errors.Is(err, rdma.ErrBusy) {
		t.Errorf("more rings of the mailbox: %v", err)
	}
	done := make(chan error)
	go func() { done <- first.Wait(t.Context()) }()
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("a wait on a ring that is closed: %v", err)
	}
	if err := errors.Join(first.Close(), mail[3].Close()); err != nil {
		t.Errorf("closed again: %v", err)
	}
	ring(t, e[0], words[:2])
	mail[3] = ring(t, e[0], nil)
	go func() { done <- mail[3].Wait(t.Context()) }()
	if err := e[0].Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, rdma.ErrGone) {
		t.Errorf("a wait when the endpoint closes: %v", err)
	}
	if _, err := e[0].Ring(words[:2]); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("a ring of a closed endpoint: %v", err)
	}
}

// Two processes that only sleep on their rings answer each other: a wake-up that is lost hangs. Where each
// round takes long, they make fewer.
func TestRingPingPong(t *testing.T) {
	rounds := uint64(20_000)
	soak := os.Getenv("PFD_SOAK") != ""
	if soak {
		rounds = 1_000_000
	}
	const over = 1 << 63
	enough := 5 * time.Second
	if soak {
		enough = time.Hour
	}
	e, _ := ends(t, 0, 1)
	var words [2][]uint64
	var to [2]rdma.Remote
	var rings [2]*rdma.Ring
	for i := range e {
		words[i] = make([]uint64, 16)
		var err error
		if to[i], err = e[i].ExportVA(vaOf(words[i]), 128); err != nil {
			t.Fatal(err)
		}
		rings[i] = ring(t, e[i], words[i][:2])
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		for n := uint64(1); atomic.LoadUint64(&words[1][0]) != over; n++ {
			until(t, rings[1], func() bool { return atomic.LoadUint64(&words[1][1]) == n })
			notify(t, e[1], to[0], n)
		}
	}()
	longest, start := time.Duration(0), time.Now()
	for n, first := uint64(1), uint64(0); first != over; n++ {
		began := time.Now()
		if n == rounds || began.Sub(start) >= enough {
			first, rounds = over, n
		}
		notifyTwo(t, e[0], to[1], first, n)
		until(t, rings[0], func() bool { return atomic.LoadUint64(&words[0][1]) == n })
		longest = max(longest, time.Since(began))
	}
	<-answered
	runtime.KeepAlive(words)
	t.Logf("the longest of %d rounds: %v", rounds, longest)
	if soak && longest > 100*time.Millisecond { // on a quiet machine
		t.Error("a round took longer than 100 ms")
	}
}

// A process that ends while it is waited for, and a pfd that is stopped.
func TestRingOfTheDead(t *testing.T) {
	socket, stop, err := startPFD()
	if err != nil {
		t.Fatal(err)
	}
	e, err := rdma.Attach(t.Context(), rdma.Options{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	r, err := e.Ring(nil)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- r.Wait(t.Context()) }()
	stop()
	if err := <-done; !errors.Is(err, rdma.ErrGone) {
		t.Errorf("a wait when pfd ends: %v", err)
	}
	if err := errors.Join(r.Close(), e.Close()); err != nil {
		t.Error(err)
	}
}

// A process that can make no memory to share gets the kernel's error, and a ring once it can.
func TestRingWithoutSharedMemory(t *testing.T) {
	e, _ := ends(t, 0)
	var was unix.Rlimit
	none := unix.Rlimit{Cur: 0, Max: unix.RLIM_INFINITY}
	if err := unix.Prlimit(0, unix.RLIMIT_FSIZE, &none, &was); err != nil {
		t.Fatal(err)
	}
	_, err := e[0].Ring(nil)
	if err := unix.Prlimit(0, unix.RLIMIT_FSIZE, &was, nil); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, unix.EFBIG) {
		t.Errorf("%v", err)
	}
	ring(t, e[0], nil)
}

// An endpoint that is closed leaves no descriptor, no object and no memory of its rings behind, although
// the program has not closed them.
func TestRingsLeaveNothing(t *testing.T) {
	socket, stop, err := startPFD()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	words := make([]uint64, 8)
	leak.Rounds(t, 50, func(int) {
		e, err := rdma.Attach(t.Context(), rdma.Options{Socket: socket})
		if err != nil {
			t.Fatal(err)
		}
		rings := []*rdma.Ring{nil, nil, nil}
		for i, w := range [][]uint64{nil, nil, words} {
			if rings[i], err = e.Ring(w); err != nil {
				t.Fatal(err)
			}
		}
		done := make(chan error, 1)
		go func() { done <- rings[1].Wait(t.Context()) }()
		if err := errors.Join(rings[0].Close(), e.Close()); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, rdma.ErrGone) {
			t.Errorf("a wait when the endpoint closes: %v", err)
		}
		if err := rings[1].Close(); err != nil {
			t.Errorf("closed after the endpoint: %v", err)
		}
	})
	for deadline := time.Now().Add(10 * time.Second); ; runtime.GC() {
		maps, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		n := strings.Count(string(maps), "exanet-buffer")
		if n == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d buffers are mapped after the end of their endpoints", n)
		}
	}
}
