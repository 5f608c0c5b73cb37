package hostile

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/space/uffd"
)

// ask sends a message over an established attachment and returns the text of the refusal, or ""
// if it succeeded.
func (r *raw) ask(t *testing.T, msg []byte, fds ...int) string {
	t.Helper()
	if err := r.Conn.Send(msg, fds...); errors.Is(err, unix.EPERM) && fds != nil {
		return err.Error() // refused by the kernel (Linux 6.16)
	} else if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := within(patience)
	defer cancel()
	var buf [attach.MaxMessage]byte
	n, _, err := r.Receive(ctx, buf[:])
	if err != nil {
		t.Fatal(err)
	}
	if m, err := attach.DecodeRefused(buf[:n]); err == nil {
		return m.Text
	}
	if _, err := attach.DecodeShared(buf[:n]); err != nil {
		t.Fatal(err)
	}
	return ""
}

// Descriptors that are not userfaultfds, or not for the stated range, cause an error or failed
// transfers for their sender. pfd keeps as many as it promised.
func TestForgedRegistrations(t *testing.T) { onEach(t, forgedRegistrations) }

func forgedRegistrations(t *testing.T, w *world) {
	b := w.bystander(attachOrder{Method: "uffd"})
	liar := w.raw(attach.Hello{Group: "liar", Node: 1, Method: pagein.UFFD})
	from := w.raw(attach.Hello{Group: "liar"})
	fd, _, err := uffd.Open(false)
	if err != nil {
		t.Skip(err)
	}
	defer unix.Close(fd)
	mem := w.memory(64*device.PageSize, liar)
	file, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	private, err := unix.Mmap(int(file.Fd()), 0, device.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(private)
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	at := func(typ attach.Type, va device.VA, size uint64) []byte {
		m := attach.Range{Product: "liar", Type: typ, VA: va, Size: size}
		return m.Append(nil)
	}
	for _, c := range []struct {
		name string
		msg  []byte
		fds  []int
		text string
	}{
		{"another file", at(attach.TypeRegister, va(mem), 4096), []int{int(null.Fd())}, "not a userfaultfd"},
		{"a private mapping of a file", at(attach.TypeRegister, va(private), 4096), []int{fd}, "private mapping"},
		{"no descriptor", at(attach.TypeRegister, va(mem), 4096), nil, "0 descriptors"},
		{"two descriptors", at(attach.TypeRegister, va(mem), 4096), []int{fd, fd}, "2 descriptors"},
		{"half a page", at(attach.TypeRegister, va(mem)+8, 4096), []int{fd}, "whole pages"},
		{"past the end", at(attach.TypeRegister, ^device.VA(0xfff), 8192), []int{fd}, "end"},
		{"a range that is not registered", at(attach.TypeUnregister, va(mem), 4096), nil, "no such range"},
	} {
		if text := liar.ask(t, c.msg, c.fds...); !strings.Contains(text, c.text) {
			t.Errorf("%s: %q, want %q", c.name, text, c.text)
		}
	}
	if text := from.ask(t, at(attach.TypeRegister, va(mem), 4096), fd); !strings.Contains(text, "method uffd") && !strings.Contains(text, "not permitted") {
		t.Errorf("a registration under another method: %q", text)
	}
	// A range that is not registered with the descriptor: its pages are paged in as if there
	// were no userfaultfd.
	if text := liar.ask(t, at(attach.TypeRegister, va(mem), uint64(len(mem))), fd); text != "" {
		t.Fatal(text)
	}
	// Registered twice: the newest registration wins.
	if text := liar.ask(t, at(attach.TypeRegister, va(mem)+4096, 4096), fd); text != "" {
		t.Errorf("a range twice: %q", text)
	}
	src := w.memory(len(mem), from)
	fill(src, 3)
	from.ring(0, device.Descriptor{Src: va(src), Dst: va(mem), Size: uint32(len(mem)), DstNode: 1})
	if done, status := from.end(0); done != device.DoneCompleted {
		t.Errorf("done %d, status %d", done, status)
	}
	if n, first := wrong(mem, 3, 0); n != 0 {
		t.Errorf("%d bytes wrong from %d on", n, first)
	}
	// As many as there is room for, switched to blocking without pfd's knowledge.
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
	taken, text := 0, ""
	for i := range uint64(200) {
		if text = liar.ask(t, at(attach.TypeRegister, device.VA(0x6000_0000_0000+i*4096), 4096), fd); text != "" {
			break
		}
		taken++
		_ = unix.SetNonblock(fd, false)
	}
	if taken == 0 || taken > 64 || !strings.Contains(text, "64") {
		t.Errorf("%d registrations were taken, then %q", taken, text)
	}
	b.fine()
}
