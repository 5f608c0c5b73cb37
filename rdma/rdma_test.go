package rdma

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
)

func attachTo(t *testing.T, socket string) *Endpoint {
	t.Helper()
	e, err := Attach(t.Context(), Options{Socket: socket, Node: homeNode})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// remote names this process's memory as behind one of the fake's nodes.
func remote(e *Endpoint, t *testing.T, b []byte, node device.NodeID) Remote {
	t.Helper()
	r, err := e.Export(b)
	if err != nil {
		t.Fatal(err)
	}
	r.Node = node
	return r
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

func mustWrite(t *testing.T, e *Endpoint, r WriteRequest) *Transfer {
	t.Helper()
	tr, err := e.Write(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestWrite(t *testing.T) {
	e := attachTo(t, startFake(t, nil))
	if i := e.Info(); i.Node != homeNode || i.PDID != fakePDID || i.Slot != fakeSlot || i.Interface != 16+fakeSlot || i.VABits != 48 || i.Method != MethodTouch || i.Daemon != attach.Product() {
		t.Errorf("info %+v", i)
	}
	for _, size := range []int{1, 15, 4096, 16385, 1 << 20} {
		src, dst := pattern(size), make([]byte, size+32)
		words, err := e.Alloc(4096)
		if err != nil {
			t.Fatal(err)
		}
		last, err := Word(words.Bytes(), 24)
		if err != nil {
			t.Fatal(err)
		}
		tr := mustWrite(t, e, WriteRequest{
			Src: src, Dst: remote(e, t, dst, toCopy), Offset: 17,
			Notify: &Notification{VA: words.VA() + 16, First: 0x1111, Last: 0x2222222222222222},
		})
		if err := e.WaitNotification(t.Context(), last, 0x2222222222222222); err != nil {
			t.Fatal(err)
		}
		if err := tr.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if tr.Poll() != Finished || tr.Err() != nil {
			t.Errorf("%v, %v", tr.Poll(), tr.Err())
		}
		want := append(append(make([]byte, 17), src...), make([]byte, 15)...)
		if !bytes.Equal(dst, want) {
			t.Errorf("%d bytes: not what was written", size)
		}
		if err := words.Free(); err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(e.Close(), e.Close()); err != nil {
		t.Errorf("closing: %v", err)
	}
	if _, err := e.Write(t.Context(), WriteRequest{Src: []byte{1}, Dst: Remote{VA: 1, Len: 1}}); !errors.Is(err, ErrClosed) {
		t.Errorf("write after close: %v", err)
	}
	if _, err := e.Export([]byte{1}); !errors.Is(err, ErrClosed) {
		t.Errorf("export after close: %v", err)
	}
}

// TestProcesses uses a pfd in another process that sleeps between any two transfers: each is a
// chance to lose a wake-up on either side.
func TestProcesses(t *testing.T) {
	_, socket := startProcess(t)
	e := attachTo(t, socket)
	src, dst := make([]byte, 64), make([]byte, 64)
	r := remote(e, t, dst, toCopy)
	for i := range 2000 {
		src[0], src[63] = byte(i), byte(i>>8)
		tr := mustWrite(t, e, WriteRequest{Src: src, Dst: r})
		if err := tr.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(src, dst) {
			t.Fatalf("transfer %d: not what was written", i)
		}
	}
	// Many at once, more than there are channels.
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			src, dst := pattern(100), make([]byte, 100)
			r, err := e.Export(dst)
			if err != nil {
				t.Error(err)
				return
			}
			r.Node = toCopy
			for range 200 {
				var all []*Transfer
				for range 6 {
					tr, err := e.Write(t.Context(), WriteRequest{Src: src, Dst: r, Wait: true})
					if err != nil {
						t.Error(err)
						return
					}
					all = append(all, tr)
				}
				for _, tr := range all {
					if err := tr.Wait(t.Context()); err != nil {
						t.Error(err)
					}
				}
			}
			if !bytes.Equal(src, dst) {
				t.Error("not what was written")
			}
		})
	}
	wg.Wait()
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// TestDaemonDies: pfd is killed during transfers; all transfers fail and all waiters wake.
func TestDaemonDies(t *testing.T) {
	cmd, socket := startProcess(t)
	e := attachTo(t, socket)
	dst := make([]byte, 64)
	r := remote(e, t, dst, toHold)
	first := mustWrite(t, e, WriteRequest{Src: pattern(64), Dst: remote(e, t, make([]byte, 64), toCopy)})
	if err := first.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	var word uint64
	waits := make(chan error)
	go func() { waits <- e.WaitNotification(context.Background(), &word, 1) }()
	var held []*Transfer
	for range 5 {
		tr := mustWrite(t, e, WriteRequest{Src: pattern(64), Dst: r})
		held = append(held, tr)
		go func() { waits <- tr.Wait(context.Background()) }()
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for range 1 + len(held) {
		if err := <-waits; !errors.Is(err, ErrGone) {
			t.Errorf("%v, want ErrGone", err)
		}
	}
	for _, tr := range held {
		var te *TransferError
		if !errors.As(tr.Err(), &te) || te.Code != device.StatusGone || tr.Poll() != Failed || !strings.Contains(te.Error(), "connection to pfd broke") {
			t.Errorf("%v: %v", tr.Poll(), tr.Err())
		}
	}
	if first.Poll() != Finished {
		t.Errorf("a transfer that was complete: %v", first.Poll())
	}
	if _, err := e.Write(t.Context(), WriteRequest{Src: []byte{1}, Dst: r}); !errors.Is(err, ErrGone) || !strings.Contains(err.Error(), "attach again") {
		t.Errorf("write after the end: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
}

func TestEndedByDaemon(t *testing.T) {
	e := attachTo(t, startFake(t, nil))
	dst := make([]byte, 64)
	held := mustWrite(t, e, WriteRequest{Src: pattern(64), Dst: remote(e, t, dst, toHold)})
	waits := make(chan error)
	go func() { waits <- held.Wait(context.Background()) }()
	many := mustWrite(t, e, WriteRequest{Gather: [][]byte{pattern(32), pattern(32)}, Dst: remote(e, t, dst, toHold)})
	ends := mustWrite(t, e, WriteRequest{Src: pattern(64), Dst: remote(e, t, dst, toEnd)})
	for _, err := range []error{<-waits, many.Wait(t.Context()), ends.Wait(t.Context())} {
		if !errors.Is(err, ErrGone) || !strings.Contains(err.Error(), "ended by an operator") || !strings.Contains(err.Error(), "attach again") {
			t.Errorf("%v", err)
		}
	}
	if err := ends.Abort(); err != nil {
		t.Errorf("abort after the end: %v", err)
	}
}

func TestAllChannelsBusy(t *testing.T) {
	e := attachTo(t, startFake(t, nil))
	dst := make([]byte, 64)
	hold := WriteRequest{Src: pattern(64), Dst: remote(e, t, dst, toHold)}
	var held []*Transfer
	seen := map[int]bool{}
	for range device.WriteChannels - 1 {
		tr := mustWrite(t, e, hold)
		held = append(held, tr)
		seen[tr.Channel()] = true
	}
	pause := hold
	pause.Dst.Node = toPause
	paused := mustWrite(t, e, pause)
	seen[paused.Channel()] = true
	if len(seen) != device.WriteChannels {
		t.Errorf("32 transfers on %d channels", len(seen))
	}
	for paused.Poll() != Paused { // until the fake has read it
	}
	if n := paused.PausedBlocks(); n != 3 || held[0].PausedBlocks() != 0 {
		t.Errorf("%d and %d blocks paused, want 3 and 0", n, held[0].PausedBlocks())
	}
	if _, err := e.Write(t.Context(), hold); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "32") {
		t.Errorf("33rd write: %v, want ErrBusy", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	wait := hold
	wait.Wait = true
	if _, err := e.Write(ctx, wait); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("33rd write with a time: %v", err)
	}
	started := make(chan error)
	go func() {
		tr, err := e.Write(context.Background(), wait)
		if err == nil && tr.Channel() != held[7].Channel() {
			err = fmt.Errorf("on channel %d, want %d", tr.Channel(), held[7].Channel())
		}
		started <- err
	}()
	if err := held[7].Abort(); err != nil {
		t.Error(err)
	}
	if err := <-started; err != nil {
		t.Errorf("a write that waits for a channel: %v", err)
	}
	if err := held[7].Wait(t.Context()); !errors.Is(err, ErrAborted) {
		t.Errorf("the one that made room: %v", err)
	}
	if held[7].Poll() != Failed || held[6].Poll() != Ongoing {
		t.Error("a reused channel changed another transfer's state")
	}
	if err := e.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
	for i, tr := range held {
		if !errors.Is(tr.Err(), ErrAborted) {
			t.Errorf("held transfer %d after close: %v", i, tr.Err())
		}
	}
}

func TestAbort(t *testing.T) {
	e := attachTo(t, startFake(t, nil))
	dst := make([]byte, 64)
	tr := mustWrite(t, e, WriteRequest{Src: pattern(64), Dst: remote(e, t, dst, toHold)})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tr.Wait(ctx); !errors.Is(err, context.Canceled) || tr.Poll() != Ongoing {
		t.Errorf("a wait that was cancelled: %v, %v", err, tr.Poll())
	}
	if err := errors.Join(tr.Abort(), tr.Abort()); err != nil {
		t.Fatal(err)
	}
	if err := tr.Wait(t.Context()); !errors.Is(err, ErrAborted) {
		t.Errorf("%v, want ErrAborted", err)
	}
	// The same channel, without the abort bit.
	again := mustWrite(t, e, WriteRequest{Src: pattern(64), Dst: remote(e, t, dst, toCopy)})
	if err := again.Wait(t.Context()); err != nil || again.Channel() != tr.Channel() {
		t.Errorf("the next on channel %d of %d: %v", again.Channel(), tr.Channel(), err)
	}
	if err := again.Abort(); err != nil || again.Poll() != Finished {
		t.Errorf("abort of a complete transfer: %v, %v", err, again.Poll())
	}
}

// TestDoorbellTaken: pfd reads nothing for a while; no write waits for it, and none is lost.
func TestDoorbellTaken(t *testing.T) {
	f, err := newFake()
	if err != nil {
		t.Fatal(err)
	}
	e := attachTo(t, startFake(t, f))
	f.deaf.Store(true)
	src := pattern(64)
	var all []*Transfer
	var dsts [][]byte
	for range 20 { // one doorbell word and three packetizer channels
		dst := make([]byte, 64)
		dsts = append(dsts, dst)
		all = append(all, mustWrite(t, e, WriteRequest{Src: src, Dst: remote(e, t, dst, toCopy)}))
	}
	for _, tr := range all {
		if tr.Poll() != Ongoing {
			t.Fatal("a deaf pfd took a transfer")
		}
	}
	aborted := mustWrite(t, e, WriteRequest{Src: src, Dst: remote(e, t, make([]byte, 64), toCopy)})
	if err := aborted.Abort(); err != nil {
		t.Fatal(err)
	}
	f.deaf.Store(false)
	for i, tr := range all {
		if err := tr.Wait(t.Context()); err != nil || !bytes.Equal(src, dsts[i]) {
			t.Errorf("transfer %d: %v", i, err)
		}
	}
	if err := aborted.Wait(t.Context()); !errors.Is(err, ErrAborted) {
		t.Errorf("aborted before it was taken: %v", err)
	}
}

func TestTransferErrors(t *testing.T) {
	e := attachTo(t, startFake(t, nil))
	dst := make([]byte, 64)
	for _, tt := range []struct {
		status device.PDID
		want   error
		says   string // part of the reason, part of what to do
		remedy string
	}{
		{1, ErrSlaveError, "does not answer", "fault show"},
		{2, ErrAddress, "not shared with the device", "take it from Alloc"}, // the fake node sees no page tables
		{3, ErrNoContext, "receive context", "fewer transfers"},
		{4, ErrCorrupt, "corrupted", "crc"},
		{5, ErrDomain, "does not admit", "domain grant"},
		{6, ErrReserved, "reserved", "report"},
		{7, ErrBufferFull, "buffer is full", "write again"},
		{8, ErrRetransmissions, "retransmission limit", "write again"},
		{9, ErrAborted, "aborted", "nothing to do"},
		{10, ErrGone, "gone", "attach again"},
		{0, errUnknown, "unknown", "one release"},
		{11, ErrMemory, "page in memory", "fault show"},
		{12, errUnknown, "unknown", "one release"},
		{255, errUnknown, "unknown", "one release"},
	} {
		r := remote(e, t, dst, toFail)
		r.PDID = tt.status
		tr := mustWrite(t, e, WriteRequest{Src: pattern(60), Dst: r, Offset: 4})
		err := tr.Wait(t.Context())
		var te *TransferError
		if !errors.As(err, &te) || !errors.Is(err, tt.want) {
			t.Errorf("status %d: %v, want %v", tt.status, err, tt.want)
			continue
		}
		for _, s := range []string{tt.says, tt.remedy, "60 bytes", fmt.Sprint(r.VA + 4)} {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("status %d: %q does not say %q", tt.status, err, s)
			}
		}
		if tr.Poll().String() != "DMA_FINISHED_WITH_ERROR" {
			t.Errorf("status %d: %v", tt.status, tr.Poll())
		}
	}
}

func TestBadRequests(t *testing.T) {
	e := attachTo(t, startFake(t, nil))
	b := make([]byte, 64)
	r := remote(e, t, b, toCopy)
	for _, tt := range []struct {
		name string
		req  WriteRequest
	}{
		{"empty", WriteRequest{Dst: r}},
		{"no byte", WriteRequest{Src: []byte{}, Dst: r}},
		{"two sources", WriteRequest{Src: b, SrcVA: 4096, Dst: r}},
		{"a list and a source", WriteRequest{Gather: [][]byte{b}, Src: b, Dst: r}},
		{"an empty list", WriteRequest{Gather: [][]byte{}, Dst: r}},
		{"a list with nothing in it", WriteRequest{Gather: [][]byte{b[:1], nil}, Dst: r}},
		{"a list past the end", WriteRequest{Gather: [][]byte{b, b[:1]}, Dst: r}},
		{"two sizes", WriteRequest{Src: b, Size: 63, Dst: r}},
		{"4 GiB", WriteRequest{SrcVA: 4096, Size: math.MaxUint32 + 1, Dst: Remote{VA: 4096, Len: 1 << 40}}},
		{"past the end", WriteRequest{Src: b, Dst: r, Offset: 1}},
		{"offset past the end", WriteRequest{Src: b[:1], Dst: r, Offset: 65}},
		{"offset that wraps", WriteRequest{Src: b, Dst: r, Offset: math.MaxUint64}},
		{"no destination", WriteRequest{Src: b}},
		{"destination that wraps", WriteRequest{Src: b, Dst: Remote{VA: math.MaxUint64 - 8, Len: 64}}},
		{"node", WriteRequest{Src: b, Dst: Remote{Node: 1 << 22, VA: 4096, Len: 64}}},
		{"misaligned notification", WriteRequest{Src: b, Dst: r, Notify: &Notification{VA: 4104}}},
		{"notification at 0", WriteRequest{Src: b, Dst: Remote{Len: 64}, Notify: &Notification{}}},
	} {
		if tr, err := e.Write(t.Context(), tt.req); !errors.Is(err, ErrRequest) || tr != nil {
			t.Errorf("%s: %v, want ErrRequest", tt.name, err)
		}
	}
	if _, err := e.Export(nil); !errors.Is(err, ErrRequest) {
		t.Errorf("exporting nothing: %v", err)
	}
	if _, err := e.Alloc(0); !errors.Is(err, ErrRequest) {
		t.Errorf("no bytes: %v", err)
	}
	for _, off := range []uint64{57, 65, 1, math.MaxUint64} {
		if _, err := Word(b, off); !errors.Is(err, ErrRequest) {
			t.Errorf("word at %d of 64 bytes: %v", off, err)
		}
	}
	for _, size := range []uint64{0, 50, math.MaxUint64} {
		if err := e.Prefetch(t.Context(), math.MaxUint64-100, size, false); !errors.Is(err, ErrRequest) {
			t.Errorf("prefetch of %d bytes at the end of the address space: %v", size, err)
		}
	}
	if err := e.WaitNotification(t.Context(), nil, 1); !errors.Is(err, ErrRequest) {
		t.Errorf("no word: %v", err)
	}
}

func TestNoDaemon(t *testing.T) {
	_, err := Attach(t.Context(), Options{Socket: filepath.Join(t.TempDir(), "none.sock")})
	if !errors.Is(err, ErrNoDaemon) || !strings.Contains(err.Error(), "start one with") || !strings.Contains(err.Error(), "none.sock") {
		t.Errorf("%v", err)
	}
}

func TestRefused(t *testing.T) {
	socket := startFake(t, nil)
	_, err := Attach(t.Context(), Options{Socket: socket, Node: 7})
	var r *attach.RefusedError
	if !errors.As(err, &r) || r.Code != attach.CodeNoNode || !strings.Contains(err.Error(), "exanetctl node show") {
		t.Errorf("%v", err)
	}
	if _, err := Attach(t.Context(), Options{Socket: socket, Group: "not a name"}); !errors.Is(err, attach.ErrValue) {
		t.Errorf("%v", err)
	}
}

// TestVersions: a daemon of another version is refused, whichever side notices first, and both
// versions are named.
func TestVersions(t *testing.T) {
	w := attach.Welcome{Product: "exanet 99", Grant: attach.Grant{Interface: 16, VABits: 48, PDID: 1, Generation: 1, Method: 1, Policy: 1}}
	welcome, err := w.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	welcome[2] = 99
	refused := (&attach.RefusedError{Product: "exanet 99", Code: attach.CodeVersion, Text: "x"}).Append(nil)
	refused[2] = 99
	for name, msg := range map[string][]byte{"the library notices": welcome, "pfd notices": refused} {
		socket := filepath.Join(t.TempDir(), "s")
		l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket + attach.SocketSuffix, Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error)
		go func() {
			served <- attach.Serve(ctx, l, func(ctx context.Context, c *attach.Conn) {
				var buf [attach.MaxMessage]byte
				if _, _, err := c.Receive(ctx, buf[:]); err != nil {
					t.Error(err)
				}
				if err := c.Send(msg); err != nil {
					t.Error(err)
				}
			})
		}()
		_, err = Attach(t.Context(), Options{Socket: socket})
		if !errors.Is(err, ErrVersion) {
			t.Errorf("%s: %v, want ErrVersion", name, err)
		}
		for _, s := range []string{"exanet 99", "speaks 99", attach.Product(), fmt.Sprintf("speaks %d", attach.Protocol)} {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s: %q does not name %q", name, err, s)
			}
		}
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}

// TestNoDescriptorLeaks: attaching and closing, and failing to attach, leave no descriptor open.
func TestNoDescriptorLeaks(t *testing.T) {
	socket := startFake(t, nil)
	count := func() int {
		names, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	round := func() {
		e, err := Attach(t.Context(), Options{Socket: socket, Node: homeNode})
		if err != nil {
			t.Fatal(err)
		}
		tr := mustWrite(t, e, WriteRequest{Src: pattern(8), Dst: remote(e, t, make([]byte, 8), toHold)})
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(tr.Err(), ErrAborted) {
			t.Errorf("%v", tr.Err())
		}
		if _, err := Attach(t.Context(), Options{Socket: socket, Node: 7}); err == nil {
			t.Fatal("attached to a node that is not")
		}
	}
	round()
	before := count()
	for range 20 {
		round()
	}
	// The fake closes its side after the answer: wait for that until the test's own deadline.
	for count() > before {
		time.Sleep(time.Millisecond)
	}
}

func TestRemote(t *testing.T) {
	r := Remote{Node: 0x3abcde, PDID: 0xbeef, Generation: 0xa1b2c3d4, VA: 0x7f0012345678, Len: 0x1001}
	const text = "exanet2:3abcde:beef:a1b2c3d4:00007f0012345678:0000000000001001"
	b, err := r.MarshalText()
	if err != nil || string(b) != text {
		t.Errorf("%s, %v", b, err)
	}
	var got Remote
	if err := got.UnmarshalText([]byte(text)); err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, s := range []string{
		"", "exanet2", text + ":", text[:len(text)-1], strings.Replace(text, "exanet2", "exanet1", 1),
		strings.ToUpper(text), strings.Replace(text, "beef", "bee-", 1), strings.Replace(text, "beef", "+bee", 1), strings.Replace(text, "a1b2c3d4", "1b2c3d4", 1),
		strings.Replace(text, "3abcde", "400000", 1), strings.Replace(text, "1001", "0000", 1),
		"exanet2:000001:0001:00000001:ffffffffffffffff:0000000000000002",
	} {
		if _, err := ParseRemote(s); !errors.Is(err, ErrRemote) {
			t.Errorf("%q: %v", s, err)
		}
	}
	if _, err := (Remote{}).MarshalText(); !errors.Is(err, ErrRemote) {
		t.Errorf("empty: %v", err)
	}
}

// The interface is the last field, and may be absent.
func TestRemoteInterface(t *testing.T) {
	const text = "exanet2:000001:0002:0000000a:00007f0012340000:0000000000001000"
	for s, want := range map[string]uint8{text: 0, text + ":10": 16, text + ":1f": 31} {
		r, err := ParseRemote(s)
		if err != nil || r.Interface != want || r.String() != s {
			t.Errorf("%s: %+v, %v", s, r, err)
		}
	}
	for _, end := range []string{":00", ":0f", ":20", ":1F", ":1", ":010", ":10:", ":10:10"} {
		if _, err := ParseRemote(text + end); !errors.Is(err, ErrRemote) {
			t.Errorf("%s: %v", end, err)
		}
	}
}

func FuzzParseRemote(f *testing.F) {
	f.Add("exanet2:3abcde:beef:a1b2c3d4:00007f0012345678:0000000000001001:1f")
	f.Add("exanet2:3abcde:beef:a1b2c3d4:00007f0012345678:0000000000001001")
	f.Add("exanet2:000000:0000:00000000:0000000000000000:ffffffffffffffff")
	f.Add("exanet2::::::")
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRemote(s)
		if err == nil && r.String() != s {
			t.Errorf("%q becomes %q", s, r)
		}
		var same Remote
		if terr := same.UnmarshalText([]byte(s)); (terr == nil) != (err == nil) || err == nil && !reflect.DeepEqual(same, r) {
			t.Errorf("%q: %+v, %v as text and %+v, %v as a string", s, same, terr, r, err)
		}
	})
}
