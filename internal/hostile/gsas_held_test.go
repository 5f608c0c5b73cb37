package hostile

import (
	"context"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gsas"
	"github.com/exanet/pfd/rdma"
	"github.com/exanet/pfd/space/uffd"
)

// holdFile keeps a write to a file from ending, which holds its inode lock, until the end of the test or
// a call of what it returns.
func holdFile(t *testing.T, fd int) (release func()) {
	t.Helper()
	never, full, err := uffd.Open(false)
	if err != nil || !full {
		t.Skipf("no userfaultfd that serves system calls: %v", err)
	}
	source, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	if err := uffd.Intercept(never, device.VA(uintptr(unsafe.Pointer(&source[0]))), 4096); err != nil {
		t.Fatal(err)
	}
	wrote := make(chan struct{})
	go func() {
		defer close(wrote)
		_, _ = unix.Pwrite(fd, source, 0)
	}()
	event := []unix.PollFd{{Fd: int32(never), Events: unix.POLLIN}}
	for n := 0; n == 0; { // until the write waits for its source
		if n, err = unix.Poll(event, -1); err == unix.EINTR {
			n = 0
		} else if err != nil {
			t.Fatal(err)
		}
	}
	held := true
	release = func() {
		if held {
			held = false
			_ = unix.Close(never)
			<-wrote
		}
	}
	t.Cleanup(release)
	return release
}

// A member of a tree keeps a write to the tree's memory from ending, which holds the inode lock of the
// file. His pages come in as before, no other thread waits when he frees them and ends, and pfd can be
// killed. His pages count until they have gone.
func TestTreeWhoseFileIsHeld(t *testing.T) { onEach(t, treeWhoseFileIsHeld) }

func treeWhoseFileIsHeld(t *testing.T, w *world) {
	b := w.bystander(attachOrder{})
	v := newVictims(t, w)
	ep, err := rdma.Attach(w.ctx(), rdma.Options{Socket: w.socket(), Group: "holder", Threads: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ep.Close() })
	first, err := ep.NewThread([16]byte{})
	if err != nil {
		t.Fatal(err)
	}
	fd := -1
	if err := first.Memory(func(tree int) (err error) { fd, err = unix.Dup(tree); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	th, err := gsas.Join(ep, gsas.Token(first.Info().Token))
	if err != nil {
		t.Fatal(err)
	}
	const pages = 16
	a, err := th.Alloc(w.ctx(), 0, pages, 0)
	if err != nil {
		t.Fatal(err)
	}
	release := holdFile(t, fd)
	for i := range gsas.Address(pages) {
		if old, err := th.FetchAdd(w.ctx(), a+i*4096, 1); err != nil || old != 0 {
			t.Fatalf("page %d: %d, %v", i, old, err)
		}
	}
	short, cancel := context.WithTimeout(w.ctx(), 100*time.Millisecond)
	defer cancel()
	if err := th.Free(short, a); err == nil {
		t.Error("pages are free while their file is held")
	}
	v.add(w)
	tree := th.Tree()
	if err := ep.Close(); err != nil {
		t.Fatal(err)
	}
	v.add(w)
	has := func() bool {
		trees, err := w.GSAS(w.ctx())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range trees {
			if uint32(r.Protection) == tree {
				return true
			}
		}
		return false
	}
	if !has() {
		t.Error("the pages of the tree do not count, and are still there")
	}
	b.fine()
	if w.kill(); t.Failed() {
		return
	}
	release()
	if err := w.run(); err != nil {
		t.Fatal(err)
	}
}
