package deploy

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
)

// TestWindows opens memory to another group's process, with the devices in another process, by
// queues in memory and by registers, and with a device for each pfd: it reaches exactly the window,
// until that is withdrawn.
func TestWindows(t *testing.T) {
	for _, args := range [][]string{nil, {"--registers"}} {
		for _, apart := range []bool{false, true} {
			t.Run(fmt.Sprint(args, " apart ", apart), func(t *testing.T) {
				l := newPlace(t)
				l.serve()
				if !apart {
					d := l.daemon([]int{0, 1}, args...)
					openWindows(t, d.socket, d.socket, true)
					return
				}
				var sockets []string
				for node, pdids := range []string{"1-1000", "1001-2000"} {
					sockets = append(sockets, l.daemon([]int{node}, append([]string{"--pdid-range", pdids}, args...)...).socket)
				}
				openWindows(t, sockets[0], sockets[1], args == nil)
			})
		}
	}
}

func openWindows(t *testing.T, first, second string, messages bool) {
	const size, from, n = 3 * 4096, 4099, 4091
	attached := func(socket string, node device.NodeID, group string) *rdma.Endpoint {
		e, err := rdma.Attach(t.Context(), rdma.Options{Socket: socket, Node: node, Group: group})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		return e
	}
	guest, target := attached(first, 0, "guest"), attached(second, 1, "target")
	m, err := target.Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	all, err := target.Export(m.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	local, err := guest.Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	copy(local.Bytes(), bytes.Repeat([]byte{1}, size))
	do := func(what string, at, k int, want bool) {
		t.Helper()
		w, err := guest.Write(t.Context(), rdma.WriteRequest{Src: local.Bytes()[:k], Dst: all, Offset: uint64(at)})
		if err != nil {
			t.Fatal(err)
		}
		r, err := guest.Read(t.Context(), rdma.ReadRequest{Dst: local.Bytes()[size/2:][:k], Src: all, Offset: uint64(at)})
		if err != nil {
			t.Fatal(err)
		}
		for _, tr := range []*rdma.Transfer{w, r} {
			if err := tr.Wait(t.Context()); want != (err == nil) || err != nil && !errors.Is(err, rdma.ErrDomain) {
				t.Errorf("%s, %d bytes at %d: %v; want done: %v", what, k, at, err, want)
			}
		}
	}
	do("before", from, 1, false)
	readOnly(t, target)
	window, err := target.Window(part(all, from, n), guest.Info().PDID, rdma.RightRead|rdma.RightWrite)
	if err != nil {
		t.Fatal(err)
	}
	for _, edge := range []int{from, from + n} {
		for at := edge - 1; at <= edge; at++ {
			for k := 1; k <= 2; k++ {
				do("window", at, k, at >= from && at+k <= from+n)
			}
		}
	}
	do("all of it", from, n, true)
	want := make([]byte, size)
	copy(want[from:from+n], bytes.Repeat([]byte{1}, n))
	if !bytes.Equal(m.Bytes(), want) {
		t.Error("the target's memory holds other bytes than the window admits")
	}
	if err := window.Close(); err != nil {
		t.Fatal(err)
	}
	do("after", from, 1, false)
	if !messages {
		t.Log("messages are left out: driven by registers, pfd looks at the mailbox of a process that sends nothing only for messages of its own nodes")
		return
	}
	if window, err = target.Window(part(all, 0, 1), 0, rdma.RightMessages); err != nil {
		t.Fatal(err)
	}
	if _, err := guest.Send(t.Context(), all, 0, 5); err != nil {
		t.Fatal(err)
	}
	if got, err := target.Receive(t.Context()); err != nil || got.PDID != guest.Info().PDID || got.Words[1] != 5 {
		t.Errorf("received %+v, %v", got, err)
	}
	if err := window.Close(); err != nil {
		t.Fatal(err)
	}
}

// readOnly checks that a process cannot give a right that it has not.
func readOnly(t *testing.T, e *rdma.Endpoint) {
	const size = 2 * device.PageSize
	fd, err := rdma.MakeMemory(size, device.PageSize)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Share(rdma.VAOf(b), size, fd, 0, false); err != nil {
		t.Fatal(err)
	}
	r, err := e.Export(b)
	if err != nil {
		t.Fatal(err)
	}
	var refused *attach.RefusedError
	for _, at := range []int{0, size - 1} {
		if _, err := e.Window(part(r, at, 1), 0, rdma.RightWrite); !errors.As(err, &refused) || refused.Code != attach.CodeMemory {
			t.Errorf("a right to write byte %d of memory that is shared read-only: %v", at, err)
		}
	}
	w, err := e.Window(part(r, 0, size), 0, rdma.RightRead)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// part is the Remote of a part of another's memory.
func part(r rdma.Remote, at, n int) rdma.Remote {
	r.VA += device.VA(at)
	r.Len = uint64(n)
	return r
}
