package attach

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/space/proc"
)

// openFDs returns the open descriptors, without the one that lists them.
func openFDs(t *testing.T) map[string]string {
	t.Helper()
	m := map[string]string{}
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if l, err := os.Readlink("/proc/self/fd/" + n.Name()); err == nil {
			m[n.Name()] = l
		}
	}
	return m
}

// noLeak fails the test if it leaves a descriptor open. The runtime opens its own (epoll, its
// eventfd) with the first socket: create one before.
func noLeak(t *testing.T) {
	t.Helper()
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "warm"), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	before := openFDs(t)
	t.Cleanup(func() {
		for fd, what := range openFDs(t) {
			if before[fd] == "" {
				t.Errorf("descriptor %s (%s) was left open", fd, what)
			}
		}
	})
}

// serve runs Serve with handle until the test ends and returns the socket's path.
func serve(t *testing.T, handle func(ctx context.Context, c *Conn)) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s"+SocketSuffix)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, handle) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return path
}

func dial(t *testing.T, path string) *Conn {
	t.Helper()
	c, err := Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

var testWelcome = Welcome{Grant: Grant{
	Slot: 2, Interface: 18, VABits: 48, PDID: 7, Generation: 1, Method: pagein.GUP, Policy: pagein.PIO, Node: 1,
}}

func TestHandshake(t *testing.T) {
	noLeak(t)
	type got struct {
		hello Hello
		peer  Peer
		proof [ProofSize]byte
		err   error
	}
	seen := make(chan got, 1)
	held := make(chan error, 1)
	path := serve(t, func(ctx context.Context, c *Conn) {
		h, err := c.AwaitHello(ctx)
		if c.Peer().Keeper != -1 {
			t.Errorf("keeper %d with the hello", c.Peer().Keeper)
		}
		g := got{hello: h, err: err}
		m, err := NewMemory()
		if err != nil {
			held <- err
			return
		}
		defer m.Close()
		err = c.Offer(ctx, m, m.WakeFD())
		g.peer = c.Peer()
		if err == nil {
			// Its keeper is another task that shares its memory.
			g.err = errors.Join(g.err, unix.PidfdSendSignal(g.peer.PIDFD, 0, nil, 0), unix.PidfdSendSignal(g.peer.Keeper, 0, nil, 0))
			var perr error
			g.proof, perr = proof(g.peer.Keeper, h.ProofVA)
			g.err = errors.Join(g.err, perr)
		}
		seen <- g
		if err == nil {
			err = c.TakeDescriptors()
		}
		if err == nil {
			err = c.Welcome(testWelcome)
		}
		if err != nil {
			held <- err
			return
		}
		err = c.Hold(ctx, Handlers{})
		m.End(ReasonClosed)
		held <- errors.Join(err, c.End(ReasonClosed, "done"))
	})
	c := dial(t, path)
	if p := c.Peer(); p.PID != os.Getpid() || p.PIDFD != -1 {
		t.Errorf("client sees peer %+v", p)
	}
	w, fds, err := c.Handshake(t.Context(), Hello{Node: 1, Group: "g", Method: pagein.Touch, Accept: []device.PDID{5}})
	if err != nil {
		t.Fatal(err)
	}
	defer fds.Close()
	g := <-seen
	if g.err != nil || g.hello.Group != "g" || g.hello.Node != 1 || g.hello.Product != Product() || g.peer.PID != os.Getpid() || int(g.peer.UID) != os.Getuid() || int(g.peer.GID) != os.Getgid() {
		t.Errorf("server saw %+v", g)
	}
	if g.proof != g.hello.Proof || g.proof == [ProofSize]byte{} {
		t.Errorf("proof %x, in memory %x", g.hello.Proof, g.proof)
	}
	want := testWelcome
	want.Product = Product()
	if w != want || len(fds) != MemoryFDs {
		t.Errorf("welcome %+v with %d descriptors", w, len(fds))
	}
	p := c.Pages()
	if p.Done(31) != device.DoneReset || p.Done(32) != device.DoneReadReset {
		t.Error("fresh memory without reset values")
	}
	if err := unix.Ftruncate(fds[0], 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("truncating the attachment's memory: %v, want EPERM: it would be a SIGBUS in pfd", err)
	}
	for _, page := range []int{DescriptorPage, WakePage} {
		if err := unix.Fallocate(fds[0], unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(page), device.PageSize); !errors.Is(err, unix.EPERM) {
			t.Errorf("punching a hole: %v, want EPERM: pfd would sleep in a load", err)
		}
	}
	if err := unix.Madvise(p.Bytes(), unix.MADV_REMOVE); !errors.Is(err, unix.EPERM) {
		t.Errorf("MADV_REMOVE: %v, want EPERM", err)
	}
	if _, err := MapMemory(fds[0]); !errors.Is(err, unix.EPERM) {
		t.Errorf("a second mapping: %v, want EPERM", err)
	}

	// A message of a later version, with a descriptor, is refused and not ignored, and the
	// attachment continues.
	_, later := begin(nil, 77, headerSize+8, "exanet 9.9")
	if err := c.Send(later, fds[0]); err != nil {
		t.Fatal(err)
	}
	var buf [MaxMessage]byte
	n, more, err := c.Receive(t.Context(), buf[:])
	if err != nil || len(more) != 0 {
		t.Fatalf("answer to an unknown type: %v", err)
	}
	if r, err := DecodeRefused(buf[:n]); err != nil || r.Code != CodeUnknownType || r.Refused != 77 {
		t.Errorf("answer to an unknown type: %v, %v", r, err)
	}

	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	n, _, err = c.Receive(t.Context(), buf[:])
	if err != nil {
		t.Fatal(err)
	}
	if e, err := DecodeEnded(buf[:n]); err != nil || e.Reason != ReasonClosed || e.Text != "done" {
		t.Errorf("end: %+v, %v", e, err)
	}
	if err := <-held; err != nil {
		t.Errorf("server: %v", err)
	}
	if r, over := p.Ended(); !over || r != ReasonClosed {
		t.Errorf("pages: ended %v, %v", over, r)
	}
	if _, _, err := c.Receive(t.Context(), buf[:]); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v, want EOF", err)
	}
}

// proof reads the proof of a process through its keeper, as pfd does.
func proof(keeper int, va device.VA) (b [ProofSize]byte, err error) {
	p, err := proc.Open(keeper, keeper)
	if err != nil {
		return b, err
	}
	defer p.Close()
	_, err = p.ReadV([][]byte{b[:]}, va)
	return b, err
}

// TestRefusedHello sends messages that no library sends. Each is refused, and its descriptors are
// closed.
func TestRefusedHello(t *testing.T) {
	noLeak(t)
	errs := make(chan error, 1)
	path := serve(t, func(ctx context.Context, c *Conn) {
		_, err := c.AwaitHello(ctx)
		errs <- err
	})
	good := golden(t)
	change := func(off int, v ...byte) []byte {
		b := bytes.Clone(good["hello"])
		copy(b[off:], v)
		return b
	}
	_, unknown := begin(nil, 99, headerSize, "x")
	for _, tt := range []struct {
		name string
		msg  []byte
		fds  int
		code Code
		want error
	}{
		{"one byte", []byte{1}, 0, CodeProtocol, ErrMessage},
		{"one byte and descriptors", []byte{1}, 3, CodeProtocol, ErrMessage},
		{"one descriptor", good["hello"], 1, CodeProtocol, ErrMessage},
		{"two descriptors", good["hello"], 2, CodeProtocol, ErrMessage},
		{"four descriptors", good["hello"], 4, CodeProtocol, ErrMessage},
		{"five descriptors", good["hello"], 5, CodeProtocol, ErrMessage},
		{"200 descriptors", good["hello"], 200, CodeProtocol, ErrMessage},
		{"huge", make([]byte, 100000), 0, CodeProtocol, ErrMessage},
		{"huge and descriptors", make([]byte, 100000), 2, CodeProtocol, ErrMessage},
		{"length", change(4, 0xff, 0xff, 0xff, 0xff), 0, CodeProtocol, ErrMessage},
		{"welcome", good["welcome"], 3, CodeProtocol, ErrMessage},
		{"mapped", good["mapped"], 1, CodeProtocol, ErrMessage},
		{"helper", good["helper"], 4, CodeProtocol, ErrMessage},
		{"unknown type", unknown, 1, CodeUnknownType, ErrMessage},
		{"older protocol", change(2, 0), 0, CodeVersion, ErrVersion},
		{"version 1", change(2, 1), 0, CodeVersion, ErrVersion},
		{"newer protocol", change(2, 3), 2, CodeVersion, ErrVersion},
		{"bad group", change(112, '/'), 0, CodeProtocol, ErrValue},
		{"bad count", change(78, 200), 0, CodeProtocol, ErrValue},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := dial(t, path)
			f, err := os.Open("/dev/null")
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			fds := make([]int, tt.fds)
			for i := range fds {
				fds[i] = int(f.Fd())
			}
			if err := c.Send(tt.msg, fds...); err != nil {
				t.Fatal(err)
			}
			if err := <-errs; !errors.Is(err, tt.want) {
				t.Errorf("server: %v, want %v", err, tt.want)
			}
			var buf [MaxMessage]byte
			n, _, err := c.Receive(t.Context(), buf[:])
			if err != nil {
				t.Fatal(err)
			}
			r, err := DecodeRefused(buf[:n])
			if err != nil || r.Code != tt.code || r.Text == "" {
				t.Errorf("refusal %+v, %v; want code %d", r, err, tt.code)
			}
			if tt.code == CodeVersion {
				for _, s := range []string{"exanet 1.0", Product(), "speaks 2"} {
					if !strings.Contains(r.Text, s) {
						t.Errorf("the refusal %q does not name %q", r.Text, s)
					}
				}
			}
			c.Close()
		})
	}
}

// TestClientRefuses: a library checks as much as a daemon does.
func TestClientRefuses(t *testing.T) {
	noLeak(t)
	good := golden(t)
	other := func(name string) []byte {
		b := bytes.Clone(good[name])
		binary.LittleEndian.PutUint16(b[offProtocol:], 7)
		return b
	}
	for _, tt := range []struct {
		name string
		msg  []byte
		fds  int
		want error
	}{
		{"memory of another version", other("memory"), 3, ErrVersion},
		{"refusal of another version", other("refused"), 0, ErrVersion},
		{"refusal for the version", (&RefusedError{Code: CodeVersion, Text: "no"}).Append(nil), 0, ErrVersion},
		{"no descriptor", good["memory"], 0, ErrMessage},
		{"two descriptors", good["memory"], 2, ErrMessage},
		{"four descriptors", good["memory"], 4, ErrMessage},
		{"seven descriptors", good["memory"], 7, ErrMessage},
		{"not memory", good["memory"], 3, ErrMemory},
		{"short", good["memory"][:70], 3, ErrMessage},
		{"welcome at once", good["welcome"], 3, ErrMessage},
		{"helper at once", good["helper"], 4, ErrMessage},
		{"ended", good["ended"], 1, ErrMessage},
		{"ended at once", good["ended"], 0, io.ErrUnexpectedEOF},
		{"nothing", nil, 0, io.ErrUnexpectedEOF},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := serve(t, func(ctx context.Context, c *Conn) {
				if _, err := c.AwaitHello(ctx); err != nil {
					t.Errorf("server: %v", err)
				}
				fds := make([]int, tt.fds)
				for i := range fds {
					fds[i] = c.Peer().PIDFD
				}
				if tt.msg != nil {
					if err := c.Send(tt.msg, fds...); err != nil {
						t.Errorf("server: %v", err)
					}
				}
			})
			c := dial(t, path)
			_, fds, err := c.Handshake(t.Context(), Hello{Group: "g"})
			if !errors.Is(err, tt.want) || fds != nil {
				t.Errorf("%v with %d descriptors, want %v", err, len(fds), tt.want)
			}
			var v *VersionError
			if errors.As(err, &v) {
				for _, s := range []string{Product(), "exanet 1.0", "speaks 2", "speaks 7"} {
					if !strings.Contains(err.Error(), s) {
						t.Errorf("%q does not name %q", err, s)
					}
				}
			}
			c.Close()
		})
	}
	t.Run("refusal", func(t *testing.T) {
		path := serve(t, func(ctx context.Context, c *Conn) {
			_, err := c.AwaitHello(ctx)
			if err == nil {
				err = c.Refuse(CodeQuota, TypeHello, "end one of your 8 domains first")
			}
			if err != nil {
				t.Errorf("server: %v", err)
			}
		})
		c := dial(t, path)
		_, _, err := c.Handshake(t.Context(), Hello{Group: "g"})
		var r *RefusedError
		if !errors.As(err, &r) || r.Code != CodeQuota || !strings.Contains(err.Error(), "end one of your 8 domains") {
			t.Errorf("%v", err)
		}
		c.Close()
	})
}

// TestClientRefusesAfterMapped: the memory's descriptors are closed if the welcome is invalid.
func TestClientRefusesAfterMapped(t *testing.T) {
	noLeak(t)
	good := golden(t)
	other := bytes.Clone(good["welcome"])
	binary.LittleEndian.PutUint16(other[offProtocol:], 7)
	for _, tt := range []struct {
		name string
		msg  []byte
		fds  int
		want error
	}{
		{"welcome with a descriptor", good["welcome"], 1, ErrMessage},
		{"welcome with three descriptors", good["welcome"], 3, ErrMessage},
		{"welcome with five descriptors", good["welcome"], 5, ErrMessage},
		{"welcome of another version", other, 0, ErrVersion},
		{"memory again", good["memory"], 3, ErrMessage},
		{"memory without descriptors", good["memory"], 0, ErrMessage},
		{"short", good["welcome"][:100], 0, ErrMessage},
		{"ended", good["ended"], 1, ErrMessage},
		{"ended at once", good["ended"], 0, io.ErrUnexpectedEOF},
		{"nothing", nil, 0, io.ErrUnexpectedEOF},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := serve(t, func(ctx context.Context, c *Conn) {
				m := offer(t, ctx, c)
				if m == nil {
					return
				}
				defer m.Close()
				fds := make([]int, tt.fds)
				for i := range fds {
					fds[i] = m.FD()
				}
				if tt.msg != nil {
					if err := c.Send(tt.msg, fds...); err != nil {
						t.Errorf("server: %v", err)
					}
				}
			})
			c := dial(t, path)
			if _, fds, err := c.Handshake(t.Context(), Hello{Group: "g"}); !errors.Is(err, tt.want) || fds != nil {
				t.Errorf("%v with %d descriptors, want %v", err, len(fds), tt.want)
			}
			c.Close()
		})
	}
}

func TestDialNoDaemon(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: stale, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	for _, path := range []string{filepath.Join(dir, "none"), stale} {
		_, err := Dial(t.Context(), path)
		if !errors.Is(err, ErrNoDaemon) || !strings.Contains(err.Error(), "pfd --nodes") || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestReceiveEndsWithContext: the wait for a silent peer ends with its context, and the connection
// stays usable.
func TestReceiveEndsWithContext(t *testing.T) {
	noLeak(t)
	speak := make(chan struct{})
	path := serve(t, func(ctx context.Context, c *Conn) {
		<-speak
		if err := c.Refuse(CodeBusy, 0, "late"); err != nil {
			t.Errorf("server: %v", err)
		}
	})
	c := dial(t, path)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	var buf [MaxMessage]byte
	go func() {
		_, _, err := c.Receive(ctx, buf[:])
		ended <- err
	}()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want Canceled", err)
	}
	close(speak)
	if n, _, err := c.Receive(t.Context(), buf[:]); err != nil || n != RefusedSize {
		t.Errorf("after a cancelled wait: %d bytes, %v", n, err)
	}
	c.Close()
	if _, _, err := c.Receive(t.Context(), buf[:]); !errors.Is(err, net.ErrClosed) {
		t.Errorf("on a closed connection: %v", err)
	}
}

// TestServeBoundsAUser: one user's connections are bounded, and closing one makes room.
func TestServeBoundsAUser(t *testing.T) {
	noLeak(t)
	in := make(chan struct{}, MaxConnsPerUID)
	out := make(chan struct{}, MaxConnsPerUID)
	path := serve(t, func(ctx context.Context, c *Conn) {
		in <- struct{}{}
		_ = c.Hold(ctx, Handlers{})
		out <- struct{}{}
	})
	var conns []*Conn
	for range MaxConnsPerUID {
		conns = append(conns, dial(t, path))
		<-in
	}
	c := dial(t, path)
	var buf [MaxMessage]byte
	n, _, err := c.Receive(t.Context(), buf[:])
	if err != nil {
		t.Fatal(err)
	}
	if r, err := DecodeRefused(buf[:n]); err != nil || r.Code != CodeBusy {
		t.Errorf("%v, %v", r, err)
	}
	c.Close()
	for _, c := range conns {
		c.Close()
		<-out
	}
}

func TestMapMemoryRefuses(t *testing.T) {
	noLeak(t)
	make := func(size int64, seals int) int {
		fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		if err := unix.Ftruncate(fd, size); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			t.Fatal(err)
		}
		return fd
	}
	for _, tt := range []struct {
		name string
		fd   int
	}{
		{"too small", make(MemorySize-4096, memorySeals)},
		{"too large", make(MemorySize+4096, memorySeals)},
		{"may shrink", make(MemorySize, unix.F_SEAL_GROW|unix.F_SEAL_SEAL)},
	} {
		if _, err := MapMemory(tt.fd); !errors.Is(err, ErrMemory) {
			t.Errorf("%s: %v, want ErrMemory", tt.name, err)
		}
	}
	if _, err := MapMemory(-1); !errors.Is(err, syscall.EBADF) {
		t.Errorf("no descriptor: %v", err)
	}
	m, err := NewMemory()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(m.Close(), m.Close()); err != nil {
		t.Errorf("closing twice: %v", err)
	}
}

// TestNotifyWakes wakes a thread that waits on the event word through another mapping of the same
// memory.
func TestNotifyWakes(t *testing.T) {
	noLeak(t)
	m, err := NewMemory()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	lib, err := MapMemory(m.FD())
	if err != nil {
		t.Fatal(err)
	}
	const forever = time.Hour
	for _, wake := range []func(){m.Notify, lib.WakeSelf, func() { m.End(ReasonKicked) }} {
		tid, woken := make(chan int), make(chan error)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			lib.AddWaiters(1)
			defer lib.AddWaiters(-1)
			old := lib.Event()
			tid <- unix.Gettid()
			err := lib.WaitEvent(old, forever)
			for err == nil && lib.Event() == old { // a signal of the runtime
				err = lib.WaitEvent(old, forever)
			}
			woken <- err
		}()
		// Once it sleeps, one wake-up must be enough.
		for name := fmt.Sprintf("/proc/self/task/%d/syscall", <-tid); ; runtime.Gosched() {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(string(b), fmt.Sprintf("%d %#x ", unix.SYS_FUTEX, lib.eventAddress())) {
				break
			}
		}
		wake()
		if err := <-woken; err != nil {
			t.Fatal(err)
		}
	}
	if err := lib.WaitEvent(lib.Event()-1, forever); err != nil {
		t.Errorf("a word that has changed: %v", err)
	}
	if err := lib.WaitEvent(lib.Event(), 0); err != nil {
		t.Errorf("no time to wait: %v", err)
	}
}

// eventAddress returns the address of the event word.
func (p *Pages) eventAddress() uintptr { return uintptr(p.words.base) + WakeEvent }

// TestMappingGoesWithItsPages: a library's mapping is unmapped once nothing refers to it, and not
// before.
func TestMappingGoesWithItsPages(t *testing.T) {
	m, err := NewMemory()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	mappings := func() int {
		b, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(b), "pfd-attachment")
	}
	runtime.GC() // of earlier tests
	p, err := MapMemory(m.FD())
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		runtime.GC()
	}
	m.SetDone(3, device.DoneCompleted, 0, 0)
	if p.Done(3) != device.DoneCompleted {
		t.Error("not the same memory")
	}
	for p = nil; mappings() > 1; {
		runtime.GC()
	}
}
