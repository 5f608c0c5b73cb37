package memport

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/space/proc"
	"github.com/exanet/pfd/space/proc/proctest"
)

// open opens a child's memory directly, for comparison.
func open(t testing.TB, c *proctest.Child) *proc.Process {
	t.Helper()
	p, err := proc.Open(c.PIDFDs())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func file(t testing.TB, pages int) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, bytes.Repeat([]byte{9}, pages*page), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestWalk: the answer equals that of proc.Process.Walk for the same pages.
func TestWalk(t *testing.T) {
	c := proctest.Start(t)
	p, direct := of(t, c), open(t, c)
	va := c.Map(proctest.Anon, 64)
	c.Fill(va+3*page, 2, 1)
	ro := c.Map(file(t, 4), 4)
	c.Read(ro, 4)
	for _, tt := range []struct {
		va    device.VA
		pages int
		write bool
	}{
		{va, 1, false}, {va, 64, true}, {va + 3*page, 2, true}, {va + 17, 5, false},
		{ro, 4, false}, {ro, 4, true}, {ro, 4, true}, {0x1000, 1, true}, {1 << 60, 3, false},
		{va, 0, false}, {va, 65, false}, {va, -1, true},
	} {
		want, wantErr := direct.Walk(tt.va, tt.pages, tt.write)
		var r Request
		r.AskWalk(tt.va, tt.pages, tt.write)
		finish(t, p.Port, &r)
		if r.Walk != want || (r.Err == nil) != (wantErr == nil) || wantErr != nil && !errors.Is(r.Err, proc.ErrRange) {
			t.Errorf("%+v: %+v, %v, want %+v, %v", tt, r.Walk, r.Err, want, wantErr)
		}
	}
}

func TestMove(t *testing.T) {
	c := proctest.Start(t)
	p := of(t, c)
	va := c.Map(proctest.Anon, 80)
	for _, tt := range []struct{ buffers, size, offset int }{
		{1, 1, 0}, {1, 1, page - 1}, {2, page, 1}, {64, page, 4095}, {1, proc.MaxBytes, 17}, {17, 241, 9},
	} {
		var src, dst [][]byte
		for i := range tt.buffers {
			src, dst = append(src, bytes.Repeat([]byte{byte(i + 1)}, tt.size)), append(dst, make([]byte, tt.size))
		}
		n := tt.buffers * tt.size
		var r Request
		r.AskMove(src, va+device.VA(tt.offset), true, false)
		finish(t, p.Port, &r)
		if r.Moved != n || r.Err != nil {
			t.Fatalf("%+v: write: %d, %v", tt, r.Moved, r.Err)
		}
		r.AskMove(dst, va+device.VA(tt.offset), false, false)
		finish(t, p.Port, &r)
		if r.Moved != n || r.Err != nil {
			t.Fatalf("%+v: read: %d, %v", tt, r.Moved, r.Err)
		}
		if !bytes.Equal(bytes.Join(src, nil), bytes.Join(dst, nil)) {
			t.Errorf("%+v: other bytes than were written", tt)
		}
	}
}

// TestMoveRefused: the kernel checks the right to each page, in the helper.
func TestMoveRefused(t *testing.T) {
	c := proctest.Start(t)
	p := of(t, c)
	va := c.Map(proctest.Anon, 2)
	c.Fill(va, 2, 1)
	c.Protect(va+page, 1, unix.PROT_READ)
	buf := make([]byte, 2*page)
	for _, tt := range []struct {
		name           string
		va             device.VA
		size           int
		write, ordered bool
		moved          int
		want           error
	}{
		{"read", va, 2 * page, false, false, 2 * page, nil},
		{"second page read-only", va, 2 * page, true, false, page, proc.ErrInaccessible},
		{"read-only", va + page, 8, true, false, 0, proc.ErrInaccessible},
		{"unmapped", 0x1000, 8, true, false, 0, proc.ErrInaccessible},
		{"nothing", va, 0, true, false, 0, proc.ErrRange},
		{"two words", va, 16, true, true, 16, nil},
		{"second word read-only", va + page - 8, 16, true, true, 8, proc.ErrInaccessible},
		{"first word unmapped", 0xff8, 16, true, true, 0, proc.ErrInaccessible},
		{"two words and more", va, 24, true, true, 0, proc.ErrRange},
		{"ordered read", va, 16, false, true, 0, proc.ErrRange},
	} {
		var r Request
		r.AskMove([][]byte{buf[:tt.size]}, tt.va, tt.write, tt.ordered)
		finish(t, p.Port, &r)
		if r.Moved != tt.moved || !errors.Is(r.Err, tt.want) || (r.Err == nil) != (tt.want == nil) {
			t.Errorf("%s: %d, %v, want %d, %v", tt.name, r.Moved, r.Err, tt.moved, tt.want)
		}
	}
	if n := c.Count(va+page, 1, 1); n != page {
		t.Errorf("%d bytes of the read-only page changed", page-n)
	}
	var r Request
	r.AskMove([][]byte{make([]byte, proc.MaxBytes), {1}}, va, true, false)
	if ok, ended := p.Submit(&r, 1); !ok || !ended || !errors.Is(r.Err, proc.ErrRange) {
		t.Errorf("more than a slot holds: %v, %v, %v, want ErrRange at once", ok, ended, r.Err)
	}
}

func TestPageIn(t *testing.T) {
	c := proctest.Start(t)
	p := of(t, c)
	va, ro := c.Map(proctest.Anon, 64), c.Map(proctest.ReadOnly, 1)
	short := c.Map(file(t, 1), 2)
	for _, tt := range []struct {
		name     string
		va       device.VA
		pages    int
		write    bool
		resident uint64
		before   uint64 // of these, ready before
		want     error
	}{
		{"one", va, 1, true, 1, 0, nil},
		{"all", va, 64, true, ^uint64(0), 1, nil},
		{"all again", va, 64, true, ^uint64(0), ^uint64(0), nil},
		{"to read", ro, 1, false, 1, 0, nil},
		{"read-only", ro, 1, true, 0, 0, gup.ErrDenied},
		{"unmapped", 0x1000, 4, true, 0, 0, gup.ErrUnmapped},
		{"behind the file's end", short + page, 1, false, 0, 0, gup.ErrPastEnd},
		{"65 pages", va, 65, true, 0, 0, proc.ErrRange},
	} {
		var r Request
		r.AskPageIn(tt.va, tt.pages, tt.write)
		finish(t, p.Port, &r)
		var e *gup.Error
		if got := r.PageIn; got.Resident != tt.resident || !errors.Is(got.Err, tt.want) || (got.Err == nil) != (tt.want == nil) {
			t.Errorf("%s: %#x, %v, want %#x, %v", tt.name, got.Resident, got.Err, tt.resident, tt.want)
		} else if got.New != tt.resident&^tt.before || got.There != (tt.before&1 != 0) {
			t.Errorf("%s: new %#x, there before %v, of %#x", tt.name, got.New, got.There, tt.before)
		} else if tt.want != nil && (!errors.As(got.Err, &e) || e.VA != tt.va || e.Write != tt.write) {
			t.Errorf("%s: %v is no *gup.Error of the access", tt.name, got.Err)
		}
	}
	shared := c.Map(proctest.Shared, 64)
	var r Request
	r.AskTouch(shared, 1<<63|1<<5, true)
	finish(t, p.Port, &r)
	var e [64]proc.Entry
	if _, err := p.Pagemap(shared, e[:]); err != nil || !e[5].Present() || e[6].Present() || !e[63].Present() {
		t.Errorf("after a touch of pages 5 and 63: %v, of pages 5, 6 and 63 are present: %v %v %v", err, e[5].Present(), e[6].Present(), e[63].Present())
	}
	if n := c.Count(va, 64, 0); n != 64*page {
		t.Errorf("%d bytes of pages that were brought in are not zero", 64*page-n)
	}
}

// TestLook: Mapping, Pagemap and InFile return what proc.Process returns.
func TestLook(t *testing.T) {
	c := proctest.Start(t)
	p, direct := of(t, c), open(t, c)
	anon, shared, short := c.Map(proctest.Anon, 3), c.Map(proctest.Shared, 1), c.Map(file(t, 1), 2)
	c.Fill(anon, 1, 1)
	for _, va := range []device.VA{anon, anon + 5, shared, short, short + page, 0x1000} {
		m, err := p.Mapping(va)
		want, wantErr := direct.Mapping(va)
		if m != want || errors.Is(err, proc.ErrUnmapped) != errors.Is(wantErr, proc.ErrUnmapped) || (err == nil) != (wantErr == nil) {
			t.Errorf("mapping at %v: %+v, %v, want %+v, %v", va, m, err, want, wantErr)
		}
		var got, wanted [3]proc.Entry
		n, err := p.Pagemap(va, got[:])
		wantN, wantErr := direct.Pagemap(va, wanted[:])
		if n != wantN || got != wanted || err != nil || wantErr != nil {
			t.Errorf("pagemap at %v: %d, %v, %v, want %d, %v, %v", va, n, got, err, wantN, wanted, wantErr)
		}
		if err, want := p.InFile(va), direct.InFile(va); errors.Is(err, proc.ErrPastEnd) != errors.Is(want, proc.ErrPastEnd) || (err == nil) != (want == nil) {
			t.Errorf("file behind %v: %v, want %v", va, err, want)
		}
	}
	for _, n := range []int{0, 65} {
		if _, err := p.Pagemap(anon, make([]proc.Entry, n)); !errors.Is(err, proc.ErrRange) {
			t.Errorf("%d entries: %v, want ErrRange", n, err)
		}
	}
	p.PagedIn(anon, 0)
}

// TestRegister: a helper serves the userfaultfds that pfd sends it.
func TestRegister(t *testing.T) {
	p := own(t)
	fd, va, b := missing(t, 8)
	if err := p.Register(va, uint64(len(b)), fd); err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	if b[5*page] != 0 { // a fault of this thread, served by the kernel or the helper
		t.Error("not zero")
	}
	var r Request
	r.AskPageIn(va, 4, true)
	finish(t, p.Port, &r)
	if r.PageIn.Resident != 0xf || r.PageIn.Err != nil {
		t.Errorf("page-in: %#x, %v", r.PageIn.Resident, r.PageIn.Err)
	}
	if err := p.Unregister(va, uint64(len(b))); err != nil {
		t.Error(err)
	}
	if b[7*page] != 0 { // by the kernel
		t.Error("not zero")
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for name, err := range map[string]error{
		"unregistered twice": p.Unregister(va, uint64(len(b))),
		"other bounds":       p.Unregister(va, page),
		"no userfaultfd":     p.Register(va, page, int(null.Fd())),
		"half a page":        p.Register(va, page/2, int(null.Fd())),
		"no bytes":           p.Register(va, 0, int(null.Fd())),
		"passes the end":     p.Register(^device.VA(page-1), 2*page, int(null.Fd())),
	} {
		if !errors.Is(err, ErrHelper) {
			t.Errorf("%s: %v, want ErrHelper", name, err)
		}
	}
}

// A helper without free descriptors reports that.
func TestHelperOutOfDescriptors(t *testing.T) {
	p := own(t)
	fd, va, b := missing(t, 1)
	defer unix.Close(fd)
	if err := unix.Prlimit(p.cmd.Process.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: 3}, nil); err != nil {
		t.Fatal(err)
	}
	if err := p.Register(va, uint64(len(b)), fd); !errors.Is(err, ErrHelper) || !strings.Contains(err.Error(), "ulimit -n") {
		t.Errorf("%v", err)
	}
}

// TestRead reads another process's memory through its keeper.
func TestRead(t *testing.T) {
	p := own(t)
	c := proctest.Start(t)
	va := c.Map(proctest.Anon, 1)
	c.Fill(va, 1, 7)
	_, keeper := c.PIDFDs()
	for _, n := range []int{1, 16, 64} {
		if b, err := p.Read(keeper, va+3, n); err != nil || !bytes.Equal(b, bytes.Repeat([]byte{7}, n)) {
			t.Errorf("%d bytes: %x, %v", n, b, err)
		}
	}
	for name, f := range map[string]func() ([]byte, error){
		"no bytes":   func() ([]byte, error) { return p.Read(keeper, va, 0) },
		"65 bytes":   func() ([]byte, error) { return p.Read(keeper, va, 65) },
		"unmapped":   func() ([]byte, error) { return p.Read(keeper, 0x1000, 2) },
		"no pidfd":   func() ([]byte, error) { return p.Read(p.FD(), va, 1) },
		"and others": func() ([]byte, error) { _, err := p.tell(messageRead, va, 1); return nil, err },
		"unknown":    func() ([]byte, error) { return p.tell(4, va, 1) },
		"kind 0":     func() ([]byte, error) { return p.tell(0, va, 1) },
	} {
		if b, err := f(); !errors.Is(err, ErrHelper) || len(b) != 0 {
			t.Errorf("%s: %x, %v, want ErrHelper", name, b, err)
		}
	}
	c.Kill()
	if b, err := p.Read(keeper, va, 16); !errors.Is(err, ErrHelper) || len(b) != 0 {
		t.Errorf("of a dead process: %x, %v, want ErrHelper", b, err)
	}
	if _, err := p.Mapping(address(make([]byte, 1))); err != nil {
		t.Errorf("the port after all that: %v", err)
	}
}

// TestProcessEnds: the helper reports the end and continues.
func TestProcessEnds(t *testing.T) {
	c := proctest.Start(t)
	p := of(t, c)
	va := c.Map(proctest.Anon, 1)
	c.Kill()
	buf := [][]byte{make([]byte, 8)}
	var r Request
	r.AskMove(buf, va, true, false)
	finish(t, p.Port, &r)
	if r.Moved != 0 || !errors.Is(r.Err, proc.ErrGone) {
		t.Errorf("move: %d, %v, want ErrGone", r.Moved, r.Err)
	}
	r.AskPageIn(va, 1, true)
	finish(t, p.Port, &r)
	if r.PageIn.Resident != 0 || !errors.Is(r.PageIn.Err, proc.ErrGone) {
		t.Errorf("page-in: %+v, want ErrGone", r.PageIn)
	}
}

// TestSleeperIsWoken: the eventfd wakes an engine that sleeps, and is not written for one that
// does not.
func TestSleeperIsWoken(t *testing.T) {
	c := proctest.Start(t)
	p := of(t, c)
	va := c.Map(proctest.Anon, 1)
	var count [8]byte
	var r Request
	r.AskWalk(va, 1, true)
	finish(t, p.Port, &r)
	if _, err := unix.Read(p.event, count[:]); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("awake: the eventfd was written (%v)", err)
	}
	p.SetAsleep(true)
	done := submit(t, p.Port, &r)
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.event), Events: unix.POLLIN}}, int(patience.Milliseconds()))
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(p.event), Events: unix.POLLIN}}, int(patience.Milliseconds()))
	}
	if n != 1 || err != nil {
		t.Fatalf("nobody wakes the engine (%v)", err)
	}
	if !p.Pending() || !p.Poll() || !*done {
		t.Error("woken, and there is no answer")
	}
	if p.Pending() {
		t.Error("an answer with nothing under way")
	}
	p.SetAsleep(false)
}

// TestKilledHelper: requests in flight when the helper dies fail with ErrGone at the next Poll,
// and nothing waits for the helper.
func TestKilledHelper(t *testing.T) {
	k := proctest.Start(t)
	pidfd, keeperfd := k.PIDFDs()
	p := start(t, pidfd, keeperfd)
	if err := p.Ready(time.Now().Add(patience), func() { close(p.ended) }); err != nil {
		t.Fatal(err)
	}
	defer p.close()
	// A stopped helper takes no request.
	if err := p.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for !stopped(t, p.cmd.Process.Pid) {
	}
	va := k.Map(proctest.Anon, 16)
	var requests [Slots]Request
	var done []*bool
	buf := make([]byte, 16)
	for i := range requests {
		r := &requests[i]
		switch i % 3 {
		case 0:
			r.AskWalk(va, 16, true)
		case 1:
			r.AskMove([][]byte{buf}, va, i%2 == 0, false)
		case 2:
			r.AskPageIn(va, 16, true)
		}
		done = append(done, submit(t, p.Port, r))
	}
	var one Request
	one.AskWalk(va, 1, true)
	if ok, ended := p.Submit(&one, 1); ok || ended {
		t.Errorf("a request more than there are slots: %v, %v", ok, ended)
	}
	waits := make(chan error, 2)
	go func() { _, err := p.Mapping(va); waits <- err }()
	go func() { waits <- p.Unregister(va, page) }()
	if p.Poll() {
		t.Error("a stopped helper answers")
	}
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-p.ended
	<-p.waited
	if !p.Pending() || !p.Poll() || p.Poll() || p.Pending() {
		t.Error("Poll: want all of it at once")
	}
	for i := range requests {
		r := &requests[i]
		err := r.Err
		if i%3 == 2 {
			err = r.PageIn.Err
		}
		if !*done[i] || !errors.Is(err, proc.ErrGone) || r.Moved != 0 || r.Walk != (proc.Walk{}) || r.PageIn.Resident != 0 {
			t.Errorf("request %d: done %v, %v, %v, want ErrGone", i, *done[i], r.Err, r.PageIn.Err)
		}
	}
	for range 2 {
		if err := <-waits; !errors.Is(err, proc.ErrGone) && !errors.Is(err, ErrHelper) {
			t.Errorf("waiting: %v", err)
		}
	}
	if ok, ended := p.Submit(&one, 1); !ok || !ended || !errors.Is(one.Err, proc.ErrGone) {
		t.Errorf("after its end: %v, %v, %v, want ErrGone at once", ok, ended, one.Err)
	}
	if _, err := p.Mapping(va); !errors.Is(err, proc.ErrGone) {
		t.Errorf("a look after its end: %v, want ErrGone", err)
	}
	if err := p.Register(va, page, keeperfd); !errors.Is(err, ErrHelper) {
		t.Errorf("a message after its end: %v, want ErrHelper", err)
	}
}

// stopped reports whether a process is stopped.
func stopped(t *testing.T, pid int) bool {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, state, _ := strings.Cut(string(b), ") ")
	return state[0] == 'T'
}

// TestStuckRequests: a request for a page that is never filled occupies one thread of the helper
// and delays no other request. After Abandon it ends.
func TestStuckRequests(t *testing.T) {
	p := own(t)
	fd, va, b := missing(t, threads)
	open := true
	defer func() {
		if open {
			unix.Close(fd)
		}
	}()
	there, err := unix.Mmap(-1, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(there)
	var stuck [threads]Request
	var done []*bool
	bufs := make([]byte, threads)
	for i := range stuck {
		if i == 0 { // also with the first thread, which polls for requests
			stuck[i].AskPageIn(va, 1, true)
		} else {
			stuck[i].AskMove([][]byte{bufs[i : i+1]}, va+device.VA(i*page), false, false)
		}
		if i < threads-1 {
			done = append(done, submit(t, p.Port, &stuck[i]))
		}
		for range 10 {
			var r Request
			r.AskMove([][]byte{{byte(i), 1}}, address(there), true, false)
			finish(t, p.Port, &r)
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		if _, err := p.Mapping(va); err != nil {
			t.Fatal(err)
		}
	}
	for i, d := range done {
		if *d {
			t.Errorf("request %d was answered", i)
		}
	}
	// Closing the descriptor lets them continue.
	unix.Close(fd)
	open = false
	await(t, p.Port, done...)
	for i := range done {
		if stuck[i].Err != nil || stuck[i].PageIn.Err != nil {
			t.Errorf("request %d: %v, %v", i, stuck[i].Err, stuck[i].PageIn.Err)
		}
	}
	if b[0] != 0 {
		t.Error("not zero")
	}
}

// TestAbandon abandons a helper with all threads stuck.
func TestAbandon(t *testing.T) {
	p := own(t)
	fd, va, _ := missing(t, Slots)
	defer unix.Close(fd)
	var requests [Slots]Request
	var done []*bool
	for i := range requests {
		requests[i].AskPageIn(va+device.VA(i*page), 1, true)
		done = append(done, submit(t, p.Port, &requests[i]))
	}
	now := time.Now().UnixNano()
	if next := p.Nudge(now); next == 0 {
		t.Error("nothing submitted is looked after")
	}
	if p.Poll() {
		t.Error("answered")
	}
	p.Abandon()
	await(t, p.Port, done...)
	for i := range requests {
		if err := requests[i].PageIn.Err; !errors.Is(err, proc.ErrGone) {
			t.Errorf("request %d: %v, want ErrGone", i, err)
		}
	}
	if next := p.Nudge(now + int64(time.Hour)); next != 0 {
		t.Error("Nudge wants to be called with nothing under way")
	}
}

// TestSeals: once the helper is ready, nobody can remove a page from the memory, map it again for
// writing, or change its size.
func TestSeals(t *testing.T) {
	p, socket, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	defer socket.Close()
	early, err := unix.Mmap(p.FD(), 0, Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(early)
	if _, err := socket.Write([]byte{messageOK}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	if err := p.Ready(time.Now().Add(patience), func() { close(ended) }); err != nil {
		t.Fatal(err)
	}
	const punch = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	_, mapErr := unix.Mmap(p.FD(), 0, Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	_, writeErr := unix.Pwrite(p.FD(), []byte{1}, 0)
	_, sealErr := unix.FcntlInt(uintptr(p.FD()), unix.F_ADD_SEALS, unix.F_SEAL_WRITE)
	for name, err := range map[string]error{
		"punching a hole":       unix.Fallocate(p.FD(), punch, 0, Size),
		"MADV_REMOVE":           unix.Madvise(early, unix.MADV_REMOVE),
		"shrinking":             unix.Ftruncate(p.FD(), 0),
		"growing":               unix.Ftruncate(p.FD(), 2*Size),
		"mapping to write":      mapErr,
		"writing":               writeErr,
		"another seal":          sealErr,
		"zeroing a range":       unix.Fallocate(p.FD(), unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, 0, page),
		"collapsing a range":    unix.Fallocate(p.FD(), unix.FALLOC_FL_COLLAPSE_RANGE, 0, page),
		"MADV_REMOVE of a page": unix.Madvise(early[page:2*page], unix.MADV_REMOVE),
	} {
		if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EOPNOTSUPP) {
			t.Errorf("%s: %v, want EPERM", name, err)
		}
	}
	socket.Close()
	<-ended
}

// TestServeRefuses: a helper that cannot serve says why, and pfd receives the reason.
func TestServeRefuses(t *testing.T) {
	c, other := proctest.Start(t), proctest.Start(t)
	pidfd, keeperfd := c.PIDFDs()
	otherfd, _ := other.PIDFDs()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, tt := range []struct {
		name          string
		pidfd, keeper int
		want          string
	}{
		{"another's keeper", otherfd, keeperfd, "shares no address space"},
		{"no pidfd", int(null.Fd()), keeperfd, "no pidfd"},
		{"no keeper", pidfd, int(null.Fd()), "no pidfd"},
	} {
		r := start(t, tt.pidfd, tt.keeper)
		err := r.Ready(time.Now().Add(patience), func() { t.Error("woken without having been ready") })
		if !errors.Is(err, ErrHelper) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
		r.close()
		if err := <-r.waited; err == nil {
			t.Errorf("%s: the helper ends without an error", tt.name)
		}
	}
}

// TestReadyGivesUp: a helper that sends nothing, nonsense, or too much.
func TestReadyGivesUp(t *testing.T) {
	for name, say := range map[string][]byte{
		"nothing":  nil,
		"refusal":  append([]byte{messageFailed}, "no\x1b[2J"...),
		"nonsense": {7, 7, 7},
		"long":     bytes.Repeat([]byte{0xff}, 4*messageSize),
	} {
		p, socket, err := New()
		if err != nil {
			t.Fatal(err)
		}
		wait := patience
		if say == nil {
			wait = 10 * time.Millisecond
		} else if _, err := socket.Write(say); err != nil {
			t.Fatal(err)
		}
		err = p.Ready(time.Now().Add(wait), func() { t.Error("woken") })
		switch {
		case say == nil:
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: %v", name, err)
			}
		case !errors.Is(err, ErrHelper) || strings.Contains(err.Error(), "\x1b"):
			t.Errorf("%s: %q", name, err)
		}
		if err := errors.Join(socket.Close(), p.Close(), p.Close()); err != nil {
			t.Error(err)
		}
	}
	// A helper that ends.
	p, socket, err := New()
	if err != nil {
		t.Fatal(err)
	}
	socket.Close()
	if err := p.Ready(time.Now().Add(patience), func() { t.Error("woken") }); !errors.Is(err, ErrHelper) {
		t.Errorf("no helper: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// TestHelperClosesWhatItFinds: a descriptor that the process left open for programs that it
// executes is closed in its helper.
func TestHelperClosesWhatItFinds(t *testing.T) {
	c := proctest.Start(t)
	pidfd, keeperfd := c.PIDFDs()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	serving(t, pidfd, keeperfd, w)
	w.Close()
	if err := r.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the pipe: %v, want its end while the helper lives", err)
	}
}

func TestErrorsKeepTheirNames(t *testing.T) {
	for _, want := range append(sentinels(), ErrHelper) {
		e := decodeError(encodeError(&proc.Error{Op: "x", Err: want}))
		if !errors.Is(e, want) {
			t.Errorf("%v became %v", want, e)
		}
	}
	e := decodeError(encodeError(&proc.Error{Op: "x", Err: unix.ENOMEM}))
	if !errors.Is(e, ErrHelper) || !errors.Is(e, unix.ENOMEM) || !strings.Contains(e.Error(), "cannot allocate memory") {
		t.Errorf("ENOMEM became %v", e)
	}
	if encodeError(nil) != 0 || decodeError(0) != nil {
		t.Error("no error is one")
	}
	if !reflect.DeepEqual(decodeError(uint64(len(sentinels())+1)), decodeError(0xfffe)) {
		t.Error("codes that nobody has differ")
	}
}
