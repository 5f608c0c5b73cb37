package attach

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// word is memory with one word ARM.
type word struct {
	arm  bool
	seen []device.VA
}

func (w *word) Disarm(va device.VA) bool {
	w.seen = append(w.seen, va)
	old := w.arm
	w.arm = false
	return old
}

var laters []func()

func bell(t *testing.T, r Ring, memory Armed) (*Bell, int) {
	t.Helper()
	b, fd, err := NewBell(&r, memory, func(f func()) { laters = append(laters, f) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = b.Close()
		_ = unix.Close(fd)
	})
	return b, fd
}

// count reads all that has come.
func count(t *testing.T, fd int) (n int, open bool) {
	t.Helper()
	for {
		var b [8]byte
		switch k, err := unix.Read(fd, b[:]); {
		case err == unix.EAGAIN:
			return n, true
		case err != nil:
			t.Fatal(err)
		case k == 0:
			return n, false
		}
		n++
	}
}

func TestBell(t *testing.T) {
	w := &word{}
	b, fd := bell(t, Ring{VA: 16, Size: 8, Arm: 0x1004}, w)
	b.Strike()
	if n, _ := count(t, fd); n != 0 {
		t.Errorf("a ring that is not armed: %d messages", n)
	}
	w.arm = true
	b.Strike()
	b.Strike()
	if n, _ := count(t, fd); n != 1 || !slices.Equal(w.seen, []device.VA{0x1004, 0x1004, 0x1004}) {
		t.Errorf("armed once, %d messages, %v", n, w.seen)
	}
	// A socket that is never read costs pfd little memory, and stays readable.
	for range 1000 {
		b.Wake()
	}
	if n, _ := count(t, fd); n < 1 || n > 16 {
		t.Errorf("%d messages in a socket that is not read", n)
	}
	if err := unix.Send(fd, []byte{1}, unix.MSG_NOSIGNAL); err != unix.EPIPE {
		t.Errorf("the process can send: %v", err)
	}
	if err := unix.SetNonblock(fd, false); err != nil { // the same for both ends only if they were one file
		t.Fatal(err)
	}
	for range 1000 {
		b.Wake()
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	b.Wake()
	if _, open := count(t, fd); open {
		t.Error("the process does not see that pfd has closed its end")
	}
	elsewhere, fd := bell(t, Ring{Arm: 4}, nil)
	elsewhere.Strike()
	if n, _ := count(t, fd); n != 1 {
		t.Errorf("memory that pfd does not reach: %d messages", n)
	}
	_ = unix.Close(fd)
	elsewhere.Wake() // nobody is there: no signal
}

// A process whose wake-ups take pfd long is woken elsewhere, and not less reliably.
func TestBellApart(t *testing.T) {
	laters = nil
	b, fd := bell(t, Ring{Arm: 4}, nil)
	b.load.apart = time.Now().Add(time.Hour)
	for range 3 {
		b.Strike()
	}
	if n, _ := count(t, fd); n != 0 || len(laters) != 1 {
		t.Fatalf("%d messages, and %d to be sent later, want one", n, len(laters))
	}
	laters[0]()
	b.Strike() // it came after that one had begun
	if n, _ := count(t, fd); n != 1 || len(laters) != 2 {
		t.Fatalf("%d messages, and %d in all later", n, len(laters))
	}
	b.load.apart = time.Now().Add(-1)
	laters[1]()
	b.Strike()
	if n, _ := count(t, fd); n != 2 || len(laters) != 2 {
		t.Fatalf("after its time: %d messages, and %d in all later", n, len(laters))
	}
	b.load.apart = time.Now().Add(time.Hour)
	b.Strike()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	laters[2]() // nobody is there any more
}

// With so many waiters a send takes long, whatever else the machine does.
func TestBellOfManyWaiters(t *testing.T) {
	laters = nil
	b, fd := bell(t, Ring{Arm: 4}, nil)
	for i := 0; b.load.apart.IsZero(); i++ {
		if i == 15000 {
			t.Fatal("a send to 15,000 waiters never counts as long")
		}
		ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
		if err != nil {
			t.Skip("too few descriptors for waiters: ", err)
		}
		t.Cleanup(func() { _ = unix.Close(ep) })
		if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
			t.Fatal(err)
		}
		if i%1000 == 999 {
			for range 3 {
				b.Wake()
				count(t, fd)
			}
		}
	}
}

func TestBells(t *testing.T) {
	var s Bells
	add := func(va device.VA, size uint64) bool { return s.Add(&Bell{va: va, size: size, fd: -1}) }
	for _, c := range []struct {
		va   device.VA
		size uint64
		want bool
	}{
		{0x100, 32, true}, {0x120, 8, true}, {0x200, 0x100, true}, {0, 0, true}, {0, 7, true},
		{0x100, 32, false}, {0xf8, 16, false}, {0x110, 8, false}, {0x118, 16, false}, {0x80, 0x1000, false},
		{0x120, 16, false}, {0, 7, false}, {0x2f8, 8, false}, {0x300, 8, true}, {0xf8, 8, true},
	} {
		if got := add(c.va, c.size); got != c.want {
			t.Errorf("%d bytes at %v: %v", c.size, c.va, got)
		}
	}
	for va, want := range map[device.VA][]device.VA{
		0x100: {0x100}, 0x110: {0x100}, 0x120: {0x120}, 0xf0: {0xf8}, 0xe0: {0, 0}, 0x130: {0, 0},
		0x2f0: {0x200}, 0x300: {0x300}, 0x310: {0, 0}, 0x118: {0x100, 0x120}, 1 << 47: {0, 0},
	} {
		var got []device.VA
		for _, b := range s.Words(va) {
			got = append(got, b.va)
		}
		if !slices.Equal(got, want) {
			t.Errorf("words at %v: %v, want %v", va, got, want)
		}
	}
	for _, c := range []struct {
		va   device.VA
		size uint64
		want bool
	}{{0x100, 16, false}, {0x100, 32, true}, {0x100, 32, false}, {0, 1, false}, {0, 7, true}, {0, 7, false}} {
		if got := s.Remove(c.va, c.size) != nil; got != c.want {
			t.Errorf("removing %d bytes at %v: %v", c.size, c.va, got)
		}
	}
	if n := s.Close(); n != 5 || s.Len() != 0 {
		t.Errorf("%d were left, and are %d", n, s.Len())
	}
}
