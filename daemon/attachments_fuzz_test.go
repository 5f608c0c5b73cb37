package daemon

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/internal/keeper"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/rdma"
)

// The addresses of a script lie in memory of this process, so that pfd can write into nothing
// else. Sizes have 32 bits: nothing else is mapped within that distance on either side.
const (
	scriptMemory = 1 << 20
	scriptGuard  = 8 << 30
)

// script is a byte string that controls up to four clients.
type script struct {
	keeper int // pidfd of this process's keeper
	b      []byte
	socket string
	memory device.VA
	guests [4]scriptGuest
}

type scriptGuest struct {
	conn  *attach.Conn
	fds   attach.Descriptors
	pages *attach.Pages
	pdid  device.PDID
}

func (s *script) byte() byte {
	if len(s.b) == 0 {
		return 0
	}
	v := s.b[0]
	s.b = s.b[1:]
	return v
}

func (s *script) uint32() uint32 {
	var w [4]byte
	n := copy(w[:], s.b)
	s.b = s.b[n:]
	return binary.LittleEndian.Uint32(w[:])
}

func (s *script) take(n int) []byte {
	n = min(n, len(s.b))
	v := s.b[:n]
	s.b = s.b[n:]
	return v
}

// address returns an address in the memory, or one that is never mapped.
func (s *script) address() device.VA {
	v := s.uint32()
	switch v >> 28 {
	case 0xf:
		return device.VA(v) << 40 // too wide, or the kernel's
	case 0xe:
		return device.VA(v & 0xfff)
	}
	return s.memory + device.VA(v%scriptMemory)
}

func (s *script) descriptor() device.Descriptor {
	return device.Descriptor{
		Src: s.address(), Dst: s.address(), Size: s.uint32() >> (s.byte() % 32),
		DstNode: device.NodeID(s.byte() % 3), DstPDID: device.PDID(s.byte()),
	}
}

func (s *script) hello() []byte {
	v := s.byte()
	h := attach.Hello{
		Node: device.NodeID(v % 3), Group: string('a' + rune(v>>2%4)), AcceptGroup: v&0x10 != 0,
		Method: pagein.Method(v >> 5), Policy: pagein.Policy(s.byte() % 5),
	}
	msg, err := h.Append(nil)
	if err != nil {
		return make([]byte, attach.HelloSize)
	}
	return msg
}

// descriptors opens some descriptors to be sent. The caller must close them.
func (s *script) descriptors() (list attach.Descriptors) {
	for range s.byte() % 6 {
		fd, err := -1, error(nil)
		switch s.byte() % 4 {
		case 0:
			if fd, err = unix.MemfdCreate("script", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING); err == nil {
				_ = unix.Ftruncate(fd, scriptMemory)
				_, _ = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
			}
		case 1:
			fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC)
		case 2:
			fd, err = unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
		case 3:
			fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		}
		if err == nil {
			list = append(list, fd)
		}
	}
	return list
}

// message returns a message that an attached process may send.
func (s *script) message() []byte {
	kind, va, size := s.byte(), s.address(), uint64(s.uint32()%scriptMemory)
	if kind&0x10 != 0 {
		va, size = va.Page(), size&^(device.PageSize-1)
	}
	switch kind % 4 {
	case 0:
		m := attach.Share{VA: va, Size: size, Offset: uint64(s.byte()) * device.PageSize, Writable: kind&0x20 != 0}
		return m.Append(nil)
	case 1:
		m := attach.Range{Type: attach.TypeUnshare, VA: va, Size: size}
		return m.Append(nil)
	case 2:
		m := attach.Range{Type: attach.TypeRegister, VA: va, Size: size}
		return m.Append(nil)
	}
	m := attach.Range{Type: attach.TypeUnregister, VA: va, Size: size}
	return m.Append(nil)
}

// words returns a message for the packetizer, and its mailbox.
func (s *script) words(own device.PDID) (uint8, []uint64) {
	v := s.byte()
	switch v % 4 {
	case 0:
		return device.MailboxRequest, []uint64{mailbox.RAPF{Transaction: device.TransactionID(s.uint32() % 2048), Sequence: device.Sequence(s.byte()), PDID: own, Claimed: own, Fail: v&0x80 != 0}.Encode()}
	case 1:
		return device.MailboxRequest, []uint64{mailbox.Doorbell{PDID: own, Channel: uint16(s.uint32() % 2048)}.Encode()}
	case 2:
		w := mailbox.ReadRequest{PDID: own, Tag: uint16(s.byte()), Size: s.uint32() % (2 * scriptMemory), Src: s.address(), Dst: s.address(), Notify: s.address() &^ 7, Target: device.PDID(s.byte())}.Encode()
		return device.MailboxRead, w[:]
	}
	var list []uint64
	for range v >> 2 % 9 {
		list = append(list, uint64(s.byte()))
	}
	return s.byte(), list
}

// step performs the script's next step.
func (s *script) step(ctx context.Context) {
	op := s.byte()
	g := &s.guests[op>>6]
	if g.conn == nil {
		c, err := attach.Dial(ctx, s.socket)
		if err != nil {
			return
		}
		g.conn = c
	}
	send := func(msg []byte, fds attach.Descriptors) {
		defer fds.Close()
		_ = g.conn.Send(msg, fds...)
	}
	switch op & 0x3f % 16 {
	case 0, 1:
		send(s.hello(), nil)
		g.receive(ctx, s.keeper)
	case 2: // a hello with some bytes changed
		msg := s.hello()
		at := int(s.byte()) % len(msg)
		for i, v := range s.take(int(s.byte() % 16)) {
			msg[(at+i)%len(msg)] ^= v
		}
		send(msg, s.descriptors())
	case 3:
		send(s.take(int(s.uint32()%600)), s.descriptors())
	case 4, 5:
		send(s.message(), s.descriptors())
	case 6:
		g.receive(ctx, s.keeper)
	case 7:
		g.close()
	case 8:
		_ = g.conn.CloseWrite()
	case 9:
		time.Sleep(time.Duration(s.byte()) * 10 * time.Microsecond)
	case 10, 11, 12:
		if g.pages != nil {
			d, ch := s.descriptor(), int(s.byte()%device.ChannelsPerSlot)
			g.pages.Publish(ch, &d)
			g.pages.Ring(ch)
			g.kick()
		}
	case 13:
		if g.pages != nil {
			box, words := s.words(g.pdid)
			g.pages.Send(int(s.byte()%device.PktzChannels), device.NodeID(s.byte()%3), box, words...)
			g.kick()
		}
	case 14: // any word but an address; those of the wake page among them
		if g.pages != nil {
			at := attach.DoorbellPage + s.uint32()%(attach.MemorySize-attach.DoorbellPage)&^7
			binary.NativeEndian.PutUint16(g.pages.Bytes()[at:], uint16(s.uint32()))
			g.kick()
		}
	case 15:
		if len(g.fds) > 0 {
			fd := g.fds[0]
			_ = unix.Ftruncate(fd, int64(s.byte()))
			_ = unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(s.byte()%4)*device.PageSize, device.PageSize)
			if s.byte() > 200 {
				g.fds.Close()
				g.fds = nil
			}
		}
	}
}

// receive receives a message if one comes soon, and keeps a welcome's descriptors.
func (g *scriptGuest) receive(ctx context.Context, keeper int) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
	defer cancel()
	var buf [attach.MaxMessage]byte
	n, fds, err := g.conn.Receive(ctx, buf[:])
	if err != nil {
		return
	}
	if w, err := attach.DecodeWelcome(buf[:n]); err == nil {
		g.pdid = w.PDID
	}
	h, err := attach.DecodeHeader(buf[:n])
	if err != nil || h.Type != attach.TypeMemory || len(fds) != attach.MemoryFDs || g.pages != nil {
		fds.Close()
		return
	}
	g.fds = fds
	if g.pages, err = attach.MapMemory(fds[0]); err != nil {
		g.pages = nil
		return
	}
	// Its answer names a keeper; the script sends other answers.
	mapped := binary.LittleEndian.AppendUint16(nil, uint16(attach.TypeMapped))
	mapped = binary.LittleEndian.AppendUint16(mapped, attach.Protocol)
	mapped = binary.LittleEndian.AppendUint32(mapped, uint32(n))
	_ = g.conn.Send(append(mapped, make([]byte, n-len(mapped))...), keeper)
}

func (g *scriptGuest) kick() {
	g.pages.Kick()
	if len(g.fds) > 1 {
		_, _ = unix.Write(g.fds[1], binary.NativeEndian.AppendUint64(nil, 1))
	}
}

func (g *scriptGuest) close() {
	if g.conn != nil {
		_ = g.conn.Close()
	}
	g.fds.Close()
	*g = scriptGuest{}
}

// Up to four clients send messages and descriptors, write into their pages and close, in any
// order. pfd survives, ends each attachment, leaks nothing, and the next client's transfer
// arrives.
func FuzzAttachments(f *testing.F) {
	_, client, _ := startEngine(f)
	k, err := keeper.Start()
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = k.Close() })
	whole, err := unix.Mmap(-1, 0, scriptMemory+2*scriptGuard, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = unix.Munmap(whole) })
	memory := whole[scriptGuard : scriptGuard+scriptMemory]
	if err := unix.Mprotect(memory, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		f.Fatal(err)
	}
	va := device.VA(uintptr(unsafe.Pointer(unsafe.SliceData(memory))))

	f.Add([]byte{})
	f.Add([]byte{0x00, 0x10, 1, 0x40, 0x11, 1})                   // two attach
	f.Add(slices.Concat([]byte{0x00, 0x10, 1, 0x40, 0x11, 1, 10}, // and one writes a page
		[]byte{0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0x10, 0, 0, 0, 1, 0, 0}, []byte{9, 200}))
	f.Add([]byte{0x00, 0x50, 1, 13, 2, 1, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 1, 0, 0}) // a read
	f.Add([]byte{0x00, 0x10, 1, 4, 0x30, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 1, 0, 6, 15, 1, 2, 250, 7})   // shares, punches, closes
	f.Add([]byte{0x02, 0x10, 1, 112, 3, 27, 27, 27, 2, 0, 3, 0x43, 9, 0, 0, 0, 1, 2, 3, 4})          // hellos that are none
	f.Add([]byte{0x00, 0x70, 1, 14, 8, 0, 0, 0, 65, 0, 0, 0, 14, 0, 32, 0, 0, 255, 255, 0, 0, 8, 6}) // words
	base := -1
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 4096 {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if base < 0 { // what pfd opens once is open
			transferAfter(ctx, t, client.Socket())
			_ = settled(ctx, t, client, 0)
			base = openFiles(t)
		}
		s := &script{b: b, keeper: k.PIDFD(), socket: control.AttachSocket(client.Socket()), memory: va}
		for len(s.b) > 0 {
			s.step(ctx)
		}
		for i := range s.guests {
			s.guests[i].close()
		}
		transferAfter(ctx, t, client.Socket())
		if n := settled(ctx, t, client, base); n > base {
			t.Errorf("%d descriptors are open, %d before", n, base)
		}
	})
}

// transferAfter attaches at both nodes, and transfers a page.
func transferAfter(ctx context.Context, t *testing.T, socket string) {
	t.Helper()
	var ends [2]*rdma.Endpoint
	for i := range ends {
		var err error
		for { // the script's attachments may still hold the user's slots
			ends[i], err = rdma.Attach(ctx, rdma.Options{Socket: socket, Node: device.NodeID(i), Group: "after"})
			var r *attach.RefusedError
			if !errors.As(err, &r) || r.Code != attach.CodeQuota && r.Code != attach.CodeNoSlot {
				break
			}
		}
		if err != nil {
			t.Fatalf("attaching after the script: %v", err)
		}
		defer ends[i].Close()
	}
	src, dst := pattern()[:device.PageSize], make([]byte, device.PageSize)
	remote, err := ends[1].Export(dst)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := ends[0].Write(ctx, rdma.WriteRequest{Src: src, Dst: remote})
	if err == nil {
		err = tr.Wait(ctx)
	}
	if err != nil || !slices.Equal(src, dst) {
		t.Fatalf("a transfer after the script: %v", err)
	}
}

// settled waits until no attachment is left and at most base descriptors are open, and returns
// how many are open.
func settled(ctx context.Context, t *testing.T, c *control.Client, base int) int {
	t.Helper()
	for {
		list, err := c.Domains(ctx, control.AllNodes)
		if err != nil {
			t.Fatalf("pfd does not answer, or %d attachments do not end: %v", len(list), err)
		}
		n := openFiles(t)
		if len(list) == 0 && (base == 0 || n <= base) {
			return n
		}
		if deadline, _ := ctx.Deadline(); len(list) == 0 && time.Until(deadline) < patience/2 {
			return n
		}
		time.Sleep(time.Millisecond)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
