package memport

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/keeper"
	"github.com/exanet/pfd/space/proc/proctest"
	"github.com/exanet/pfd/space/uffd"
)

// patience bounds every wait: only a hang reaches it.
const patience = 2 * time.Minute

const page = device.PageSize

// helperWord makes the test's program a helper.
const helperWord = "memory-helper"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == helperWord {
		if err := Serve(Descriptors{Port: 3, Socket: 4, Wake: 5, PIDFD: 6, Keeper: 7}); err != nil {
			os.Exit(1) // Serve has reported why
		}
		os.Exit(0)
	}
	os.Exit(proctest.Main(m))
}

// rig is a port with a helper in a separate process.
type rig struct {
	*Port
	t      testing.TB
	cmd    *exec.Cmd
	event  int           // the helper writes it when pfd sleeps
	ended  chan struct{} // closed by the port's wake
	waited chan error
}

// start creates a port, and a helper with these descriptors and others from 8 on. It does not
// wait until the helper is ready.
func start(t testing.TB, pidfd, keeperfd int, others ...*os.File) *rig {
	t.Helper()
	p, socket, err := New()
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{Port: p, t: t, ended: make(chan struct{}), waited: make(chan error, 1)}
	if r.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	r.cmd = exec.Command("/proc/self/exe", helperWord)
	r.cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	for _, fd := range []int{p.FD(), int(socket.Fd()), r.event, pidfd, keeperfd} {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(dup), "helper's")
		defer f.Close()
		r.cmd.ExtraFiles = append(r.cmd.ExtraFiles, f)
	}
	r.cmd.ExtraFiles = append(r.cmd.ExtraFiles, others...)
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := socket.Close(); err != nil {
		t.Fatal(err)
	}
	go func() { r.waited <- r.cmd.Wait() }()
	return r
}

// serving returns a helper that is ready. It ends with the test, without an error.
func serving(t testing.TB, pidfd, keeperfd int, others ...*os.File) *rig {
	t.Helper()
	r := start(t, pidfd, keeperfd, others...)
	if err := r.Ready(time.Now().Add(patience), func() { close(r.ended) }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.close()
		if err := <-r.waited; err != nil {
			t.Errorf("helper: %v", err)
		}
		<-r.ended
	})
	return r
}

func (r *rig) close() {
	if err := errors.Join(r.Close(), unix.Close(r.event)); err != nil {
		r.t.Error(err)
	}
}

// of is serving for a child.
func of(t testing.TB, c *proctest.Child) *rig {
	t.Helper()
	pidfd, keeperfd := c.PIDFDs()
	return serving(t, pidfd, keeperfd)
}

// own is serving for the test's own process.
func own(t testing.TB) *rig {
	t.Helper()
	k, err := keeper.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	return serving(t, proctest.PIDFD(t, os.Getpid()), k.PIDFD())
}

// submit submits a request and returns a flag that is set when the request is done.
func submit(t testing.TB, p *Port, r *Request) (done *bool) {
	t.Helper()
	done = new(bool)
	r.Done = func() { *done = true }
	if ok, ended := p.Submit(r, time.Now().UnixNano()); !ok || ended {
		t.Fatalf("submitting: %v, ended %v", ok, ended)
	}
	return done
}

// await polls, as the engine does, until all are done.
func await(t testing.TB, p *Port, done ...*bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		left := 0
		for _, d := range done {
			if !*d {
				left++
			}
		}
		if left == 0 {
			return
		}
		now := time.Now()
		if now.After(deadline) {
			t.Fatalf("%d of %d requests are not answered", left, len(done))
		}
		p.Nudge(now.UnixNano())
		if !p.Poll() {
			runtime.Gosched()
		}
	}
}

// finish submits one request and waits until it is done.
func finish(t testing.TB, p *Port, r *Request) {
	t.Helper()
	await(t, p, submit(t, p, r))
}

// fake is a port with the test as its helper.
type fake struct {
	*Port
	socket *os.File
	ended  chan struct{}
}

func newFake(t testing.TB) *fake {
	t.Helper()
	p, socket, err := New()
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{p, socket, make(chan struct{})}
	f.say(t, messageOK)
	if err := f.Ready(time.Now().Add(patience), func() { close(f.ended) }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(f.Close(), socket.Close()); err != nil {
			t.Error(err)
		}
		<-f.ended
	})
	return f
}

func (f *fake) say(t testing.TB, b ...byte) {
	t.Helper()
	if _, err := f.socket.Write(b); err != nil {
		t.Error(err)
	}
}

// answer answers slot i with any values.
func (f *fake) answer(i int, code, count, first, second uint64) {
	f.m.store(i, slotCode, code)
	f.m.store(i, slotCount, count)
	f.m.store(i, slotFirst, first)
	f.m.store(i, slotSecond, second)
	atomic.StoreUint32(f.m.state(i), stateDone)
	atomic.AddUint32(f.m.w32(offCompleted), 1)
}

// missing returns memory of this process without any page, registered with a userfaultfd that
// nobody serves. Closing the descriptor lets every waiting thread continue with zeros.
func missing(t testing.TB, pages int) (fd int, va device.VA, b []byte) {
	t.Helper()
	fd, full, err := uffd.Open(false)
	if errors.Is(err, uffd.ErrForbidden) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !full {
		unix.Close(fd)
		t.Skip("a userfaultfd of this user does not serve other processes' accesses")
	}
	if b, err = unix.Mmap(-1, 0, pages*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	va = address(b)
	if err := uffd.Intercept(fd, va, uint64(len(b))); err != nil {
		t.Fatal(err)
	}
	return fd, va, b
}
