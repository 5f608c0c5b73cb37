package proc

import (
	"bytes"
	"errors"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/proc/proctest"
)

// TestMove reads and writes across pages, present or not, with every number of
// buffers.
func TestMove(t *testing.T) {
	c := proctest.Start(t)
	p := openChild(t, c, true)
	va := c.Map(proctest.Anon, 80)
	for _, tt := range []struct{ buffers, size, offset int }{
		{1, 1, 0}, {1, 1, page - 1}, {1, page, 0}, {1, page, 1}, {2, page, 0}, {3, 1000, 4095},
		{64, page, 0}, {64, page, 4095}, {1, MaxBytes, 17}, {17, 241, 9},
	} {
		var src, dst [][]byte
		var want []byte
		for i := range tt.buffers {
			b := bytes.Repeat([]byte{byte(i + 1)}, tt.size)
			b[0], b[len(b)-1] = 0xf0, 0x0f
			src, dst = append(src, b), append(dst, make([]byte, tt.size))
			want = append(want, b...)
		}
		at := va + device.VA(tt.offset)
		if n, err := p.WriteV(src, at); n != len(want) || err != nil {
			t.Fatalf("%+v: write: %d, %v", tt, n, err)
		}
		if n, err := p.ReadV(dst, at); n != len(want) || err != nil {
			t.Fatalf("%+v: read: %d, %v", tt, n, err)
		}
		if got := bytes.Join(dst, nil); !bytes.Equal(got, want) {
			t.Errorf("%+v: other bytes than were written", tt)
		}
	}
	for _, bufs := range [][][]byte{nil, {nil}, make([][]byte, 65), {make([]byte, MaxBytes), {1}}} {
		if n, err := p.WriteV(bufs, va); n != 0 || !errors.Is(err, ErrRange) {
			t.Errorf("%d buffers: %d, %v, want ErrRange", len(bufs), n, err)
		}
	}
}

func TestMoveInaccessible(t *testing.T) {
	c := proctest.Start(t)
	p := openChild(t, c, true)
	va := c.Map(proctest.Anon, 4)
	short := c.Map(file(t, 1), 2) // its second page lies beyond the end of the file
	c.Unmap(va+2*page, 2)
	buf := make([]byte, 2*page)
	for _, tt := range []struct {
		name string
		va   device.VA
		want int
	}{
		{"unmapped", va + 2*page, 0},
		{"runs into a hole", va + page, page},
		{"beyond the end of the file", short, page},
	} {
		for _, bufs := range [][][]byte{{buf}, {buf[:page], buf[page:]}, {buf[:100], buf[100:]}} {
			for name, f := range map[string]func([][]byte, device.VA) (int, error){"read": p.ReadV, "write": p.WriteV} {
				n, err := f(bufs, tt.va)
				var e *Error
				if n != tt.want || !errors.Is(err, ErrInaccessible) || !errors.As(err, &e) || e.VA != tt.va+device.VA(n) {
					t.Errorf("%s %s: %d, %v, want %d, ErrInaccessible", name, tt.name, n, err, tt.want)
				}
			}
		}
	}
}

// gone checks that every way into p's address space is closed.
func gone(t *testing.T, p *Process, va device.VA) {
	t.Helper()
	buf := bytes.Repeat([]byte{0xee}, page)
	if w, err := p.Walk(va, 1, true); !errors.Is(err, ErrGone) {
		t.Errorf("walk: %+v, %v, want ErrGone", w, err)
	}
	if n, err := p.ReadV([][]byte{buf}, va); n != 0 || !errors.Is(err, ErrGone) {
		t.Errorf("read: %d, %v, want ErrGone", n, err)
	}
	if n, err := p.WriteV([][]byte{buf}, va); n != 0 || !errors.Is(err, ErrGone) {
		t.Errorf("write: %d, %v, want ErrGone", n, err)
	}
	if n, err := p.WriteV([][]byte{buf[:9], buf[9:]}, va); n != 0 || !errors.Is(err, ErrGone) {
		t.Errorf("write of two buffers: %d, %v, want ErrGone", n, err)
	}
	if m, err := p.Mapping(va); !errors.Is(err, ErrGone) {
		t.Errorf("mapping: %+v, %v, want ErrGone", m, err)
	}
	if n, err := p.Pagemap(va, make([]Entry, 1)); !errors.Is(err, ErrGone) {
		t.Errorf("pagemap: %d, %v, want ErrGone", n, err)
	}
	if err := p.Current(); !errors.Is(err, ErrGone) {
		t.Errorf("current: %v, want ErrGone", err)
	}
}

// TestExec has a process execute another program that maps memory at the very
// address that was being written: none of it changes.
func TestExec(t *testing.T) {
	both(t, func(t *testing.T, query bool) {
		c := proctest.Start(t)
		p := openChild(t, c, query)
		va := c.Map(proctest.Anon, 1)
		c.Fill(va, 1, 1)
		if w := walk(t, p, va, 1, true); w != (Walk{}) {
			t.Fatalf("before exec: %+v", w)
		}
		if err := p.Current(); err != nil {
			t.Fatal(err)
		}
		c.Exec()
		if err := c.MapAt(proctest.Anon, va, 1); err != nil {
			t.Fatalf("the new image has something of its own there: %v", err)
		}
		c.Fill(va, 1, 0x5a)
		gone(t, p, va)
		if n := c.Count(va, 1, 0x5a); n != page {
			t.Errorf("%d bytes of the new image are its own, want %d", n, page)
		}
		// The pidfd says alive, and a new Process is the new image.
		q := openChild(t, c, query)
		if w := walk(t, q, va, 1, true); w != (Walk{}) {
			t.Errorf("new image: %+v", w)
		}
	})
}

func TestExit(t *testing.T) {
	both(t, func(t *testing.T, query bool) {
		c := proctest.Start(t)
		va := c.Map(proctest.Anon, 1)
		c.Fill(va, 1, 1)
		pid := c.Fork()
		p, err := OpenPID(pid)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		p.query = query
		if w := walk(t, p, va, 1, false); w != (Walk{}) {
			t.Fatalf("forked process: %+v", w)
		}
		c.Reap(pid)
		gone(t, p, va)
		if _, err := p.Locked(); !errors.Is(err, ErrGone) {
			t.Errorf("locked: %v, want ErrGone", err)
		}
		if _, err := p.UID(); !errors.Is(err, ErrGone) {
			t.Errorf("uid: %v, want ErrGone", err)
		}
		if _, err := Open(p.PIDFD()); !errors.Is(err, ErrGone) {
			t.Errorf("open by the pidfd of a process that is gone: %v, want ErrGone", err)
		}
		if _, err := OpenPID(pid); !errors.Is(err, ErrGone) {
			t.Errorf("open by number: %v, want ErrGone", err)
		}
	})
}

// TestZombie has a process that is dead and not yet waited for.
func TestZombie(t *testing.T) {
	c := proctest.Start(t)
	va := c.Map(proctest.Anon, 1)
	p := openChild(t, c, true)
	if err := unix.PidfdSendSignal(p.PIDFD(), unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	pfd := []unix.PollFd{{Fd: int32(p.PIDFD()), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(pfd, -1); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	gone(t, p, va)
	if _, err := p.Locked(); !errors.Is(err, ErrGone) {
		t.Errorf("locked: %v, want ErrGone", err)
	}
	if q, err := Open(p.PIDFD()); !errors.Is(err, ErrGone) {
		t.Errorf("open: %v, %v, want ErrGone", q, err)
	}
}

// TestExecCloneVM has the old address space live on after the exec: the
// descriptors go on reaching the old one, and nothing reaches the new image.
func TestExecCloneVM(t *testing.T) {
	c := proctest.StartCloneVM(t)
	p, err := OpenPID(c.PID)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Current(); err != nil {
		t.Fatal(err)
	}
	c.Exec()
	if err := p.Current(); !errors.Is(err, ErrGone) {
		t.Errorf("current: %v, want ErrGone", err)
	}
	if w := walk(t, p, c.VA, 2, true); w != (Walk{Absent: 2}) {
		t.Errorf("old address space: %+v", w)
	}
	buf := bytes.Repeat([]byte{0xee}, page)
	if n, err := p.WriteV([][]byte{buf}, c.VA); n != page || err != nil {
		t.Errorf("write into the old address space: %d, %v", n, err)
	}
	if n := c.Own(); n != page {
		t.Errorf("%d bytes of the new image are its own, want %d", n, page)
	}
}

func TestOpenNotAProcess(t *testing.T) {
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, fd := range []int{int(f.Fd()), -1} {
		if _, err := Open(fd); err == nil {
			t.Errorf("opened descriptor %d as a process", fd)
		}
	}
	if _, err := OpenPID(2); err == nil { // kthreadd, or nothing in a container
		t.Error("opened a process without an address space")
	}
}

func TestStatus(t *testing.T) {
	c := proctest.Start(t)
	p := openChild(t, c, true)
	if uid, err := p.UID(); err != nil || uid != uint32(os.Getuid()) {
		t.Errorf("uid %d, %v, want %d", uid, err, os.Getuid())
	}
	if n, err := p.Locked(); n != 0 || err != nil {
		t.Errorf("locked %d, %v, want 0", n, err)
	}
	va := c.Map(proctest.Anon, 4)
	if err := c.Lock(va, 3); err != nil {
		t.Skip("this process may not lock memory: ", err)
	}
	if n, err := p.Locked(); n != 3*page || err != nil {
		t.Errorf("locked %d, %v, want %d", n, err, 3*page)
	}
}

// TestClose closes while calls are under way: each of them either succeeds or
// says ErrClosed, and the descriptors go when the last one is out.
func TestClose(t *testing.T) {
	c := proctest.Start(t)
	va := c.Map(proctest.Anon, 1)
	c.Fill(va, 1, 1)
	p := openChild(t, c, true)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			buf := make([]byte, page)
			for {
				_, err := p.Walk(va, 1, true)
				if err == nil {
					_, err = p.WriteV([][]byte{buf}, va)
				}
				if err != nil {
					if !errors.Is(err, ErrClosed) {
						t.Errorf("%v, want ErrClosed", err)
					}
					return
				}
			}
		})
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	for name, err := range map[string]error{
		"pagemap": second(p.Pagemap(va, make([]Entry, 1))),
		"mapping": second(p.Mapping(va)),
		"read":    second(p.ReadV([][]byte{{0}}, va)),
		"locked":  second(p.Locked()),
		"uid":     second(p.UID()),
		"current": p.Current(),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s after Close: %v, want ErrClosed", name, err)
		}
	}
	if n := p.users.Load(); n != closedBit {
		t.Errorf("users %x, want closed and none", n)
	}
}

func second[T any](_ T, err error) error { return err }

// TestFork writes to a process whose memory is shared with a forked one.
func TestFork(t *testing.T) {
	c := proctest.Start(t)
	va := c.Map(proctest.Anon, 1)
	c.Fill(va, 1, 1)
	fork, err := OpenPID(c.Fork())
	if err != nil {
		t.Fatal(err)
	}
	defer fork.Close()
	p := openChild(t, c, true)
	if _, err := p.WriteV([][]byte{bytes.Repeat([]byte{2}, page)}, va); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, page)
	if _, err := fork.ReadV([][]byte{buf}, va); err != nil {
		t.Fatal(err)
	}
	if bytes.Count(buf, []byte{1}) != page || c.Count(va, 1, 2) != page {
		t.Error("the parent has not the new bytes, or the child not its own")
	}
}

// TestOpenDuringExec opens a process while it executes itself: what comes out
// is one address space or an error, never the descriptors of two.
func TestOpenDuringExec(t *testing.T) {
	c := proctest.Start(t)
	for range 30 {
		opened := make(chan *Process)
		go func() {
			p, err := OpenPID(c.PID())
			if err != nil && !errors.Is(err, ErrChanged) && !errors.Is(err, ErrGone) {
				t.Errorf("open: %v, want ErrChanged or ErrGone", err)
			}
			opened <- p
		}()
		c.Exec()
		p := <-opened
		if p == nil {
			continue
		}
		va := c.Map(proctest.Anon, 1)
		c.Fill(va, 1, 1)
		current := p.Current()
		var m Mapping
		var e [1]Entry
		n, errno := preadEntries(p.pagemap, e[:], uint64(va)/page)
		if (current == nil) != (n == 1) {
			t.Errorf("mem: %v, pagemap: %d, %v: of two address spaces", current, n, errno)
		}
		if errno := p.lookup(va, &m); (current == nil) != (errno == 0) {
			t.Errorf("mem: %v, maps: %v: of two address spaces", current, errno)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestIdentity has each thing differ that tells one address space from another.
func TestIdentity(t *testing.T) {
	c := proctest.Start(t)
	p := openChild(t, c, true)
	id, err := p.identity()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.same(id); err != nil {
		t.Fatal(err)
	}
	other := id
	other.uids[2]++
	if err := p.same(other); !errors.Is(err, ErrChanged) {
		t.Errorf("another saved user: %v, want ErrChanged", err)
	}
	other = id
	other.auxv[8]++
	if err := p.same(other); !errors.Is(err, ErrChanged) {
		t.Errorf("another auxiliary vector: %v, want ErrChanged", err)
	}
	// A forked process has the same users, vector and random bytes, in another
	// address space.
	q, err := OpenPID(c.Fork())
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	va := atRandom(&id.auxv)
	if va == 0 {
		t.Fatal("no AT_RANDOM in the auxiliary vector")
	}
	if _, err := p.WriteV([][]byte{{0x77}}, va); err != nil {
		t.Fatal(err)
	}
	p.mem, q.mem = q.mem, p.mem
	err = p.same(id)
	p.mem, q.mem = q.mem, p.mem
	if !errors.Is(err, ErrChanged) {
		t.Errorf("mem of another address space: %v, want ErrChanged", err)
	}
	var e [1]Entry
	if _, err := p.Pagemap(va, e[:]); err != nil {
		t.Fatal(err)
	}
	if e[0]&(1<<55-1) == 0 {
		return // without CAP_SYS_ADMIN pagemap hides the page's number
	}
	p.pagemap, q.pagemap = q.pagemap, p.pagemap
	err = p.same(id)
	p.pagemap, q.pagemap = q.pagemap, p.pagemap
	if !errors.Is(err, ErrChanged) {
		t.Errorf("pagemap of another address space: %v, want ErrChanged", err)
	}
}

func TestPermission(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may open every process")
	}
	if p, err := OpenPID(1); !errors.Is(err, ErrPermission) {
		t.Errorf("open of pid 1: %v, %v, want ErrPermission", p, err)
	}
}
