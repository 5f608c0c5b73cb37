package hostile

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device"
)

// rung is an attachment with shared memory, of which each page is a share, and a ring of two words.
type rung struct {
	*raw
	memfd int
	mem   []byte
	fd    int // the ring
	n     uint64
}

// The pages of a rung's memory.
const (
	wordsPage = iota // completion words, and the bytes of transfers
	armPage
	spare
	rungPages
)

func (r *rung) va(page int) device.VA {
	return device.VA(uintptr(unsafe.Pointer(&r.mem[page*device.PageSize])))
}

// ask sends a request and returns the code of its refusal, 0 if there is none.
func (r *rung) ask(msg []byte, fds ...int) (code attach.Code, got attach.Descriptors) {
	r.t.Helper()
	if err := r.Conn.Send(msg, fds...); err != nil {
		r.t.Fatal(err)
	}
	var b [attach.MaxMessage]byte
	n, got, err := r.Receive(r.w.ctx(), b[:])
	if err != nil {
		r.t.Fatal(err)
	}
	if e, err := attach.DecodeRefused(b[:n]); err == nil {
		return e.Code, got
	}
	if _, err := attach.DecodeShared(b[:n]); err != nil {
		r.t.Fatal(err)
	}
	return 0, got
}

func (r *rung) share(page int, writable bool) attach.Code {
	s := attach.Share{VA: r.va(page), Size: device.PageSize, Offset: uint64(page * device.PageSize), Writable: writable}
	code, _ := r.ask(s.Append(nil), r.memfd)
	return code
}

func (r *rung) make(m attach.Ring) (attach.Code, int) {
	code, fds := r.ask(m.Append(nil))
	if fd := fds.Take(0); fd >= 0 {
		r.t.Cleanup(func() { _ = unix.Close(fd) })
		return code, fd
	}
	return code, -1
}

// fill makes rings until the process has as many as it may have. It sends many requests before it reads
// their answers, as the library never does.
func (r *rung) fill(arm device.VA) {
	r.t.Helper()
	const batch = 32
	made := 1
	for refused := false; !refused; {
		for i := range batch {
			m := attach.Ring{VA: 1<<40 + device.VA(16*(made+i)), Size: 8, Arm: arm}
			if err := r.Conn.Send(m.Append(nil)); err != nil {
				r.t.Fatal(err)
			}
		}
		for range batch {
			var b [attach.MaxMessage]byte
			n, fds, err := r.Receive(r.w.ctx(), b[:])
			if err != nil {
				r.t.Fatal(err)
			}
			fds.Close()
			if e, err := attach.DecodeRefused(b[:n]); err != nil {
				made++
			} else if refused = true; e.Code != attach.CodeLimit {
				r.t.Errorf("ring %d: %v", made+1, e)
			}
		}
	}
	if made != attach.MaxRings {
		r.t.Errorf("%d rings", made)
	}
}

func (r *rung) unring(va device.VA, size uint64) attach.Code {
	m := attach.Range{Type: attach.TypeUnring, VA: va, Size: size}
	code, _ := r.ask(m.Append(nil))
	return code
}

// rung attaches. Before it touches the memory it calls fill, if not nil, with its file.
func (w *world) rung(t *testing.T, fill func(memfd int)) *rung {
	t.Helper()
	w.during(t)
	r := &rung{raw: w.raw(attach.Hello{Group: "rung"})}
	var err error
	if r.memfd, err = unix.MemfdCreate("rung", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(r.memfd) })
	if err := unix.Ftruncate(r.memfd, rungPages*device.PageSize); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(r.memfd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		t.Fatal(err)
	}
	if fill != nil {
		fill(r.memfd)
	}
	if r.mem, err = unix.Mmap(r.memfd, 0, rungPages*device.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(r.mem) })
	for page := range spare {
		if code := r.share(page, true); code != 0 {
			t.Fatalf("page %d is not shared: code %d", page, code)
		}
	}
	code, fd := r.make(attach.Ring{VA: r.va(wordsPage), Size: 16, Arm: r.va(armPage)})
	if code != 0 {
		t.Fatalf("no ring: code %d", code)
	}
	r.fd = fd
	return r
}

func (r *rung) arm(v uint32) {
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&r.mem[armPage*device.PageSize])), v)
}

// write makes a transfer into the words, and waits for its end.
func (r *rung) write() {
	r.t.Helper()
	r.n++
	r.ring(0, device.Descriptor{
		Src: r.va(wordsPage) + 512, Dst: r.va(wordsPage) + 1024, Size: 64,
		Notify: r.va(wordsPage), First: r.n, Last: r.n, DstNode: r.Node, DstPDID: r.PDID, DstGeneration: r.Generation,
	})
	if done, status := r.end(0); done != device.DoneCompleted {
		r.t.Fatalf("transfer %d: done %d, status %d", r.n, done, status)
	}
}

// wakes reports whether the ring becomes readable, and empties it.
func (r *rung) wakes() bool {
	r.t.Helper()
	p := []unix.PollFd{{Fd: int32(r.fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(p, int(patience.Milliseconds())); err != nil || n != 1 {
		return false
	}
	var b [8]byte
	for {
		if n, err := unix.Read(r.fd, b[:]); err != nil || n == 0 {
			return err == unix.EAGAIN
		}
	}
}

// However a process treats the word ARM of its ring, what arrives wakes it; and others are not held up.
func TestArmAbused(t *testing.T) { onEach(t, armAbused) }

func armAbused(t *testing.T, w *world) {
	b := w.bystander(attachOrder{})
	quiet := b.p99()
	punch := func(r *rung) {
		if err := unix.Fallocate(r.memfd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, armPage*device.PageSize, device.PageSize); err != nil {
			t.Error(err)
		}
	}
	unshare := func(r *rung) {
		m := attach.Range{Type: attach.TypeUnshare, VA: r.va(armPage), Size: device.PageSize}
		if code, _ := r.ask(m.Append(nil)); code != 0 {
			t.Errorf("not unshared: code %d", code)
		}
	}
	for _, c := range []struct {
		name       string
		once, each func(r *rung)
	}{
		{"armed", nil, func(r *rung) { r.arm(1) }},
		{"scribbled over", nil, func(r *rung) { r.arm(0xdeadbeef) }},
		{"punched out", nil, punch},
		{"punched out and armed", nil, func(r *rung) { punch(r); r.arm(1) }},
		{"unshared", unshare, func(r *rung) { r.arm(0) }}, // pfd must not look there
		{"shared again, read-only", func(r *rung) {
			unshare(r)
			if code := r.share(armPage, false); code != 0 {
				t.Errorf("not shared: code %d", code)
			}
		}, func(r *rung) { r.arm(0) }},
	} {
		r := w.rung(t, nil)
		if c.once != nil {
			c.once(r)
		}
		for range 20 {
			c.each(r)
			r.write()
			if !r.wakes() {
				t.Fatalf("%s: transfer %d wakes nobody", c.name, r.n)
			}
		}
		// Whatever else the process does meanwhile.
		var stop atomic.Bool
		var all sync.WaitGroup
		all.Go(func() {
			for i := uint32(0); !stop.Load(); i++ {
				r.arm(i)
				punch(r)
			}
		})
		for range 50 {
			r.write()
		}
		undisturbed(t, b, quiet)
		stop.Store(true)
		all.Wait()
		_ = r.Close()
	}
	b.fine()
}

// The page of ARM is swapped out while the ring is armed: what arrives wakes it.
func TestArmSwappedOut(t *testing.T) {
	zramSwap(t, "64M")
	onEach(t, armSwappedOut)
}

func armSwappedOut(t *testing.T, w *world) {
	g := newMemoryGroup(t)
	r := w.rung(t, func(memfd int) { // the group is charged for its pages
		fd, err := unix.FcntlInt(uintptr(memfd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		file := os.NewFile(uintptr(fd), "memfd")
		defer file.Close()
		c := exec.Command("sh", "-ec", `echo $$ >"$0/cgroup.procs"; head -c "$1" /dev/zero`, g.dir, strconv.Itoa(rungPages*device.PageSize))
		c.Stdout, c.Stderr = file, os.Stderr
		if err := c.Run(); err != nil {
			t.Fatal(err)
		}
	})
	for range 5 {
		r.arm(1)
		r.write()
		if !r.wakes() {
			t.Fatal("armed: it wakes nobody")
		}
		r.arm(1)
		w.until("the page of ARM is swapped out", func() bool {
			var in [1]byte
			if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&r.mem[armPage*device.PageSize])), device.PageSize, uintptr(unsafe.Pointer(&in[0]))); errno != 0 {
				t.Fatal(errno)
			}
			if in[0]&1 != 0 {
				if err := g.push(); err != nil {
					t.Fatal(err)
				}
			}
			return in[0]&1 == 0
		})
		if r.write(); !r.wakes() {
			t.Fatal("swapped out: it wakes nobody")
		}
	}
	_ = r.Close()
}

// However a process treats the socket of its ring, pfd goes on.
func TestRingSocketAbused(t *testing.T) { onEach(t, ringSocketAbused) }

func ringSocketAbused(t *testing.T, w *world) {
	b := w.bystander(attachOrder{})
	quiet := b.p99()
	for _, c := range []struct {
		name  string
		abuse func(fd int) error
		gone  bool // the process can wait no more
	}{
		{"never read", func(int) error { return nil }, false},
		{"made blocking", func(fd int) error { return unix.SetNonblock(fd, false) }, false},
		{"without a buffer", func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 0) }, false},
		{"asks for a signal", func(fd int) error {
			_, err := unix.FcntlInt(uintptr(fd), unix.F_SETOWN, unix.Getpid())
			return err
		}, false},
		{"shut", func(fd int) error { return unix.Shutdown(fd, unix.SHUT_RDWR) }, true},
	} {
		r := w.rung(t, nil)
		if err := c.abuse(r.fd); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		for range 100 {
			r.arm(1)
			r.write()
		}
		undisturbed(t, b, quiet)
		if err := unix.SetNonblock(r.fd, true); err != nil {
			t.Fatal(err)
		}
		if !c.gone && !r.wakes() {
			t.Errorf("%s: not readable after 100 transfers", c.name)
		}
		if code := r.unring(r.va(wordsPage), 16); code != 0 {
			t.Errorf("%s: not closed: code %d", c.name, code)
		}
		_ = r.Close()
	}
	b.fine()
}

// Requests that name wrong memory, and more than a process may have, are refused with their code.
func TestRingsRefused(t *testing.T) { onEach(t, ringsRefused) }

func ringsRefused(t *testing.T, w *world) {
	r := w.rung(t, nil)
	words, arm, none := r.va(wordsPage), r.va(armPage), r.va(spare)
	good := attach.Ring{VA: words + 32, Size: 16, Arm: arm + 8}
	change := func(f func(*attach.Ring)) attach.Ring { m := good; f(&m); return m }
	for _, c := range []struct {
		name string
		ring attach.Ring
		code attach.Code
	}{
		{"ARM is not shared", change(func(m *attach.Ring) { m.Arm = none }), attach.CodeMemory},
		{"ARM is not mapped", change(func(m *attach.Ring) { m.Arm = 8 << 12 }), attach.CodeMemory},
		{"ARM behind the address space", change(func(m *attach.Ring) { m.Arm = 1 << 48 }), attach.CodeProtocol},
		{"ARM not aligned", change(func(m *attach.Ring) { m.Arm++ }), attach.CodeProtocol},
		{"words past the address space", change(func(m *attach.Ring) { m.VA, m.Size = 1<<48-8, 16 }), attach.CodeProtocol},
		{"words that wrap", change(func(m *attach.Ring) { m.Size = ^uint64(7) }), attach.CodeProtocol},
		{"half a word", change(func(m *attach.Ring) { m.Size = 12 }), attach.CodeProtocol},
		{"the same again", attach.Ring{VA: words, Size: 16, Arm: arm}, attach.CodeMemory},
		{"a part of another", attach.Ring{VA: words + 8, Size: 8, Arm: arm}, attach.CodeMemory},
		{"a ninth of the mailbox", attach.Ring{Size: 8, Arm: arm}, attach.CodeProtocol},
	} {
		if code, fd := r.make(c.ring); code != c.code || fd >= 0 {
			t.Errorf("%s: code %d, descriptor %d, want code %d", c.name, code, fd, c.code)
		}
	}
	if code := r.unring(words+32, 16); code != attach.CodeMemory {
		t.Errorf("a ring that is none: code %d", code)
	}
	if code := r.unring(words, 8); code != attach.CodeMemory {
		t.Errorf("a part of a ring: code %d", code)
	}
	if code, _ := r.ask(good.Append(nil), r.memfd); code != attach.CodeProtocol {
		t.Errorf("a ring with a descriptor: code %d", code)
	}
	r.fill(arm)
	list, err := w.Domains(w.ctx(), control.AllNodes)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range list {
		if d.Group == "rung" && d.Rings != attach.MaxRings {
			t.Errorf("domain %d/%d is said to have %d rings", d.Node, d.Slot, d.Rings)
		}
	}
	r.arm(1)
	if r.write(); !r.wakes() {
		t.Error("the first ring wakes nobody")
	}
}

// A process without room for a ring's descriptor gets no ring, and no ring is left at pfd; its attachment
// goes on.
func TestRingsWithoutDescriptors(t *testing.T) { onEach(t, ringsWithoutDescriptors) }

func ringsWithoutDescriptors(t *testing.T, w *world) {
	w.during(t)
	p := w.pair("gup", "p4")
	p.from.buffer("src", "", device.PageSize, 1)
	m := p.to.buffer("words", "", device.PageSize, 1).Remote
	for n := uint64(1); n < 2*attach.MaxMailRings; n++ {
		r, err := p.to.do(order{Op: "ring", ID: "words", Kind: "full"})
		if err != nil || !strings.Contains(r.Err, "ulimit -n") {
			t.Fatalf("%v, %+v", err, r)
		}
		p.to.must(order{Op: "ring", ID: "words"})
		p.from.must(order{Op: "notify", Kind: "src", Remote: m, Seed: n})
		p.to.must(order{Op: "notified", ID: "words", Seed: n})
		p.to.must(order{Op: "unring"})
	}
	p.kill()
}

// Users that make and close rings as fast as they can, and are woken by them, do not hold others up and
// leave nothing behind.
func TestRingFlood(t *testing.T) { onEach(t, floodRings) }

func floodRings(t *testing.T, w *world) {
	needRoot(t, "attackers of several users need their processes")
	var reap sync.WaitGroup
	t.Cleanup(reap.Wait)
	v := w.victim(victimUID)
	if v == nil {
		return
	}
	quiet := v.p99()
	before := w.holds()
	end := w.assault(&reap, []aggressor{{"rings", 1}, {"rings", 1}, {"rings", 1}})
	undisturbed(t, v, quiet)
	v.some()
	t.Logf("the attackers did: %s", end())
	reap.Wait()
	w.settled(before)
	v.fine()
}
