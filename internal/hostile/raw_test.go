package hostile

import (
	"context"
	"encoding/binary"
	"os"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
)

// raw is an attachment of this test's process without the library: it can write values that the
// library never would.
type raw struct {
	w *world
	t *testing.T
	*attach.Conn
	attach.Welcome
	*attach.Pages
	fds attach.Descriptors
}

func (w *world) greet(h attach.Hello) (*raw, error) {
	c, err := attach.Dial(w.ctx(), control.AttachSocket(w.socketOf(h.Node)))
	if err != nil {
		return nil, err
	}
	w.t.Cleanup(func() { _ = c.Close() })
	if h.Group == "" {
		h.Group = "raw"
	}
	r := &raw{w: w, t: w.t, Conn: c}
	if r.Welcome, r.fds, err = c.Handshake(w.ctx(), h); err != nil {
		return nil, err
	}
	w.t.Cleanup(r.fds.Close)
	r.Pages = c.Pages()
	return r, nil
}

func (w *world) raw(h attach.Hello) *raw {
	w.t.Helper()
	r, err := w.greet(h)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// kick notifies pfd of a publication.
func (r *raw) kick() {
	if r.Kick() {
		one := binary.NativeEndian.AppendUint64(nil, 1)
		_, _ = unix.Write(r.fds[1], one)
	}
}

// ring publishes a descriptor and rings the doorbell, like the library.
func (r *raw) ring(ch int, d device.Descriptor) {
	r.t.Helper()
	if d.DstGeneration == 0 {
		d.DstGeneration = r.generation(d.DstNode, d.DstPDID)
	}
	r.Publish(ch, &d)
	for deadline := time.Now().Add(patience); !r.Ring(ch); {
		if time.Now().After(deadline) {
			r.t.Fatal("the doorbell is not taken")
		}
	}
	r.kick()
}

// generation returns the generation of a domain; PDID 0 is the attachment's own.
func (r *raw) generation(node device.NodeID, pdid device.PDID) device.Generation {
	r.t.Helper()
	if pdid == 0 {
		pdid = r.PDID
	}
	list, err := r.w.Domains(r.w.ctx(), control.AllNodes)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, d := range list {
		if d.Node == int(node) && d.PDID == uint16(pdid) && d.State == control.DomainLive {
			return device.Generation(d.Generation)
		}
	}
	return 0
}

// end waits until a channel's transfer ends.
func (r *raw) end(ch int) (done uint32, status uint8) {
	r.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Microsecond) {
		if v := r.Done(ch); v == device.DoneCompleted || v == device.DoneFailed {
			status, _ = r.Pages.Status(ch)
			return v, status
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("the transfer on channel %d does not end", ch)
		}
	}
}

// send sends a message by the packetizer and returns its result.
func (r *raw) send(dst device.NodeID, mailbox uint8, words ...uint64) uint64 {
	r.t.Helper()
	if !r.Pages.Send(0, dst, mailbox, words...) {
		r.t.Fatal("the packetizer is busy")
	}
	r.kick()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Microsecond) {
		if s := r.SendStatus(0); s != device.PktzBusy {
			return s
		}
		if time.Now().After(deadline) {
			r.t.Fatal("the message is not taken")
		}
	}
}

// memory maps untouched memory of this process.
func memory(t *testing.T, n int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Madvise(b, unix.MADV_NOHUGEPAGE)
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

// memory returns untouched memory of this process that the device can access for the
// attachments of.
func (w *world) memory(n int, of ...*raw) []byte {
	w.t.Helper()
	if !w.shared {
		return memory(w.t, n)
	}
	n = (n + device.PageSize - 1) &^ (device.PageSize - 1)
	fd, err := rdma.MakeMemory(uint64(n), device.PageSize)
	if err != nil {
		w.t.Fatal(err)
	}
	defer unix.Close(fd)
	b, err := unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = unix.Munmap(b) })
	for _, r := range of {
		m := attach.Share{Product: "raw", VA: va(b), Size: uint64(n), Writable: true}
		if text := r.ask(w.t, m.Append(nil), fd); text != "" {
			w.t.Fatalf("sharing memory: %s", text)
		}
	}
	return b
}

// discard drops the pages of such memory.
func (w *world) discard(b []byte) {
	w.t.Helper()
	advice := unix.MADV_DONTNEED
	if w.shared {
		advice = unix.MADV_REMOVE
	}
	if err := unix.Madvise(b, advice); err != nil {
		w.t.Fatal(err)
	}
}

func va(b []byte) device.VA { return device.VA(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

func needRoot(t *testing.T, why string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skipf("not root: %s", why)
	}
}

func within(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}
