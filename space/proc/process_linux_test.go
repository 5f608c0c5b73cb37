package proc

import (
	"bytes"
	"errors"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/space/proc/proctest"
)

// TestMove reads and writes across pages, present or not, with each number of buffers.
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

// gone checks that no method reaches p's address space.
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
	if pid, err := p.Keeper(); !errors.Is(err, ErrGone) {
		t.Errorf("keeper: %d, %v, want ErrGone", pid, err)
	}
}

// TestExec makes a process execute another program that maps memory at the address that was being
// written: none of that memory changes.
func TestExec(t *testing.T) {
	both(t, func(t *testing.T, query bool) {
		c := proctest.Start(t)
		p := openChild(t, c, query)
		va := c.Map(proctest.Anon, 1)
		c.Fill(va, 1, 1)
		if w := walk(t, p, va, 1, true); w != (Walk{}) {
			t.Fatalf("before exec: %+v", w)
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
		// The pidfd is still alive, and a new Process reaches the new image.
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
		if _, err := Open(p.PIDFD(), p.PIDFD()); !errors.Is(err, ErrGone) {
			t.Errorf("open by the pidfd of a process that is gone: %v, want ErrGone", err)
		}
		if _, err := OpenPID(pid); !errors.Is(err, ErrGone) {
			t.Errorf("open by number: %v, want ErrGone", err)
		}
	})
}

// TestZombie opens a process that has ended and is not yet reaped.
func TestZombie(t *testing.T) {
	c := proctest.Start(t)
	va := c.Map(proctest.Anon, 1)
	p := openChild(t, c, true)
	if err := unix.PidfdSendSignal(p.PIDFD(), unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	proctest.AwaitEnd(t, p.PIDFD())
	proctest.AwaitEnd(t, p.keeperFD)
	gone(t, p, va)
	if _, err := p.Locked(); !errors.Is(err, ErrGone) {
		t.Errorf("locked: %v, want ErrGone", err)
	}
	_, other := proctest.Start(t).PIDFDs()
	for name, keeper := range map[string]int{"its own": p.keeperFD, "itself": p.PIDFD(), "another's": other} {
		if _, err := Open(p.PIDFD(), keeper); !errors.Is(err, ErrGone) {
			t.Errorf("open, keeper %s: %v, want ErrGone", name, err)
		}
	}
}

// TestExecCloneVM has a keeper that outlives the exec: moves go on reaching the old address space
// and never reach the new image.
func TestExecCloneVM(t *testing.T) {
	both(t, func(t *testing.T, query bool) {
		c := proctest.StartCloneVM(t)
		pidfd, keeperfd := proctest.PIDFD(t, c.PID), proctest.PIDFD(t, c.Helper)
		p, err := Open(pidfd, keeperfd)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		p.query = query
		c.Exec()
		if pid, err := p.Keeper(); pid != c.Helper || err != nil {
			t.Errorf("keeper %d, %v, want %d", pid, err, c.Helper)
		}
		if w := walk(t, p, c.VA, 2, true); w != (Walk{Absent: 2}) {
			t.Errorf("old address space: %+v", w)
		}
		src, dst := bytes.Repeat([]byte{0xee}, page), make([]byte, page)
		if _, err := p.ReadV([][]byte{dst}, c.VA); err != nil || bytes.Count(dst, []byte{1}) != page {
			t.Errorf("read of the old address space: %v, %x, want ones", err, dst[:8])
		}
		if n, err := p.WriteV([][]byte{src}, c.VA); n != page || err != nil {
			t.Errorf("write into the old address space: %d, %v", n, err)
		}
		if _, err := p.ReadV([][]byte{dst}, c.VA); err != nil || !bytes.Equal(src, dst) {
			t.Errorf("read of what was written: %v, %x, want %x", err, dst[:8], src[:8])
		}
		if _, err := Open(pidfd, keeperfd); !errors.Is(err, ErrKeeper) {
			t.Errorf("open after the exec: %v, want ErrKeeper", err)
		}
		if err := unix.PidfdSendSignal(keeperfd, unix.SIGKILL, nil, 0); err != nil {
			t.Fatal(err)
		}
		proctest.AwaitEnd(t, keeperfd)
		gone(t, p, c.VA)
		if n := c.Own(); n != page {
			t.Errorf("%d bytes of the new image are its own, want %d", n, page)
		}
	})
}

func TestOpenNotAProcess(t *testing.T) {
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	self := proctest.PIDFD(t, os.Getpid())
	for _, fd := range []int{int(f.Fd()), -1} {
		if _, err := Open(fd, self); err == nil {
			t.Errorf("opened descriptor %d as a process", fd)
		}
		if _, err := Open(self, fd); err == nil {
			t.Errorf("took descriptor %d for a keeper", fd)
		}
	}
	if _, err := OpenPID(2); err == nil { // kthreadd, or nothing in a container
		t.Error("opened a process without an address space")
	}
}

func TestStatus(t *testing.T) {
	c := proctest.Start(t)
	p := openChild(t, c, true)
	if p.PID() != c.PID() {
		t.Errorf("pid %d, want %d", p.PID(), c.PID())
	}
	if pid, err := p.Keeper(); pid != c.Keeper() || err != nil {
		t.Errorf("keeper %d, %v, want %d", pid, err, c.Keeper())
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

// TestClose closes during calls. Each call succeeds or returns ErrClosed, and the last one closes
// the descriptors.
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
		"keeper":  second(p.Keeper()),
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

// TestFork writes to a process that shares its pages with a forked process.
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

// TestOpenDuringExec opens a process while it executes itself. Open returns the old address space
// or an error, and never the new image with the old keeper.
func TestOpenDuringExec(t *testing.T) {
	c := proctest.Start(t)
	var opened int
	for range 30 {
		pidfd, keeperfd := c.PIDFDs()
		result := make(chan *Process)
		go func() {
			p, err := Open(pidfd, keeperfd)
			if err != nil && !errors.Is(err, ErrKeeper) && !errors.Is(err, ErrGone) {
				t.Errorf("open: %v, want ErrKeeper or ErrGone", err)
			}
			result <- p
		}()
		c.Exec()
		p := <-result
		if p == nil {
			continue
		}
		opened++
		va := c.Map(proctest.Anon, 1)
		c.Fill(va, 1, 1)
		gone(t, p, va)
		if n := c.Count(va, 1, 1); n != page {
			t.Errorf("%d bytes of the new image are its own, want %d", n, page)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Logf("opened %d of 30 times", opened)
}

// TestOpenKeeper has a row for each task that is not the process's keeper, or no longer is.
func TestOpenKeeper(t *testing.T) {
	c, other := proctest.Start(t), proctest.Start(t)
	pidfd, keeperfd := c.PIDFDs()
	otherfd, othersKeeper := other.PIDFDs()
	refused := func(name string, keeperfd int, want error) {
		t.Helper()
		_, err := Open(pidfd, keeperfd)
		var e *Error
		if !errors.Is(err, want) || !errors.As(err, &e) || e.PID != c.PID() {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	refused("another process", otherfd, ErrKeeper)
	refused("another process's keeper", othersKeeper, ErrKeeper)
	refused("a copy of the memory", proctest.PIDFD(t, c.Fork()), ErrKeeper)
	other.Kill()
	refused("a process that has ended", otherfd, ErrGone)
	refused("a keeper that has ended with its process", othersKeeper, ErrGone)
	if p, err := Open(pidfd, keeperfd); err != nil {
		t.Error(err)
	} else if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := unix.PidfdSendSignal(keeperfd, unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	proctest.AwaitEnd(t, keeperfd)
	refused("a keeper that was killed", keeperfd, ErrGone)
	c.EndKeeper()
	refused("a keeper that was killed and reaped", keeperfd, ErrGone)
}

// TestOpenAfterExec opens a process that has executed another program since its keeper was made.
func TestOpenAfterExec(t *testing.T) {
	c := proctest.Start(t)
	pidfd, old := c.PIDFDs()
	c.Exec()
	if _, err := Open(pidfd, old); !errors.Is(err, ErrGone) {
		t.Errorf("keeper of the old address space: %v, want ErrGone", err)
	}
	openChild(t, c, true)
}

// leaderless starts a child whose first thread has ended.
func leaderless(t *testing.T) *proctest.Child {
	t.Helper()
	for {
		if c := proctest.Start(t); c.EndLeader() {
			return c
		}
	}
}

// TestFirstThreadEnded opens a process whose pid is a zombie's while its other threads run and
// its memory exists.
func TestFirstThreadEnded(t *testing.T) {
	both(t, func(t *testing.T, query bool) {
		c := leaderless(t)
		p := openChild(t, c, query)
		va := c.Map(proctest.Anon, 2)
		c.Fill(va, 1, 1)
		if w := walk(t, p, va, 2, true); w != (Walk{Absent: 2}) {
			t.Errorf("walk: %+v", w)
		}
		if n, err := p.WriteV([][]byte{bytes.Repeat([]byte{2}, 2*page)}, va); n != 2*page || err != nil {
			t.Errorf("write: %d, %v", n, err)
		}
		if n := c.Count(va, 2, 2); n != 2*page {
			t.Errorf("%d bytes written, want %d", n, 2*page)
		}
		if m, err := p.Mapping(va); err != nil || !m.Contains(va) || !m.Write {
			t.Errorf("mapping: %+v, %v", m, err)
		}
		if n, err := p.Locked(); n != 0 || err != nil {
			t.Errorf("locked %d, %v, want 0", n, err)
		}
		_, other := proctest.Start(t).PIDFDs()
		if _, err := Open(p.PIDFD(), other); !errors.Is(err, ErrKeeper) {
			t.Errorf("another's keeper: %v, want ErrKeeper", err)
		}
		// Neither process's first thread has memory: that must not count as the same memory.
		if _, err := Open(p.PIDFD(), proctest.PIDFD(t, leaderless(t).PID())); err == nil {
			t.Error("took a process without its first thread for a keeper")
		}
		c.Kill()
		gone(t, p, va)
	})
}

// TestKeeperEnds ends the keeper while the process goes on. A copy of the process, with memory at
// the same addresses, then gets the keeper's pid.
func TestKeeperEnds(t *testing.T) {
	c := proctest.Start(t)
	va := c.Map(proctest.Anon, 1)
	c.Fill(va, 1, 1)
	p := openChild(t, c, true)
	buf := bytes.Repeat([]byte{0xee}, page)
	refused := func() {
		t.Helper()
		if n, err := p.WriteV([][]byte{buf}, va); n != 0 || !errors.Is(err, ErrGone) {
			t.Errorf("write: %d, %v, want ErrGone", n, err)
		}
		if n, err := p.ReadV([][]byte{buf}, va); n != 0 || !errors.Is(err, ErrGone) {
			t.Errorf("read: %d, %v, want ErrGone", n, err)
		}
		// The process's page tables still exist and may be read.
		if w := walk(t, p, va, 1, false); w != (Walk{}) {
			t.Errorf("walk: %+v", w)
		}
		if w, err := p.Walk(maxVA-page, 1, true); !errors.Is(err, ErrGone) {
			t.Errorf("walk behind the end of the address space: %+v, %v, want ErrGone", w, err)
		}
		if pid, err := p.Keeper(); !errors.Is(err, ErrGone) {
			t.Errorf("keeper: %d, %v, want ErrGone", pid, err)
		}
	}
	if err := unix.PidfdSendSignal(p.keeperFD, unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	proctest.AwaitEnd(t, p.keeperFD)
	refused()
	c.EndKeeper()
	refused()
	if n := c.Count(va, 1, 1); n != page {
		t.Errorf("%d bytes as they were, want %d", n, page)
	}
	if err := c.ForkAs(c.Keeper()); err != nil {
		t.Skip("this process may not choose the number of another: ", err)
	}
	refused()
	fork, err := OpenPID(c.Keeper())
	if err != nil {
		t.Fatal(err)
	}
	defer fork.Close()
	if n, err := fork.ReadV([][]byte{buf}, va); err != nil || bytes.Count(buf, []byte{1}) != page {
		t.Errorf("the process that has the number now: %d bytes, %v, %x, want ones", n, err, buf[:8])
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
