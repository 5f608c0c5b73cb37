package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
)

// pfd refuses to share other memory in place of memory that is still shared, and to unshare a
// part of a share: the old share would get writes that are not for it. A refusal changes
// nothing.
func TestShareBounds(t *testing.T) {
	_, client, ctx := startEngine(t)
	var ends [2]*rdma.Endpoint
	for i := range ends {
		var err error
		if ends[i], err = rdma.Attach(ctx, rdma.Options{Socket: client.Socket(), Node: device.NodeID(i), Group: "bounds"}); err != nil {
			t.Fatal(err)
		}
		defer ends[i].Close()
	}
	const size = 16 * device.PageSize
	var files [2]int
	for i := range files {
		var err error
		if files[i], err = rdma.MakeMemory(size, device.PageSize); err != nil {
			t.Fatal(err)
		}
		defer unix.Close(files[i])
	}
	at := func(addr unsafe.Pointer, fd int) []byte {
		flags := unix.MAP_SHARED
		if addr != nil {
			flags |= unix.MAP_FIXED
		}
		p, err := unix.MmapPtr(fd, 0, addr, size, unix.PROT_READ|unix.PROT_WRITE, flags)
		if err != nil {
			t.Fatal(err)
		}
		return unsafe.Slice((*byte)(p), size)
	}
	b := at(nil, files[0])
	defer func() { _ = unix.MunmapPtr(unsafe.Pointer(&b[0]), size) }()
	va, e := rdma.VAOf(b), ends[1]
	share := func(from device.VA, n uint64, fd int) error { return e.Share(from, n, fd, 0, true) }
	if err := share(va, size, files[0]); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"share anew":        share(va, size, files[1]),
		"share a part":      share(va+device.PageSize, device.PageSize, files[1]),
		"share beyond":      share(va-device.PageSize, size, files[1]),
		"unshare the first": e.Unshare(va, size/2),
		"unshare the last":  e.Unshare(va+size/2, size/2),
		"unshare more":      e.Unshare(va, 2*size),
	} {
		var refused *attach.RefusedError
		if !errors.As(err, &refused) || refused.Code != attach.CodeMemory {
			t.Errorf("%s: %v, want a refusal with code %d", name, err, attach.CodeMemory)
		}
	}
	if err := e.Unshare(va, size); err != nil {
		t.Error(err)
	}
	if err := e.Unshare(va, size); err != nil { // as before: memory that is not shared needs no release
		t.Error(err)
	}
	b = at(unsafe.Pointer(&b[0]), files[1])
	if err := share(va, size, files[1]); err != nil {
		t.Error(err)
	}
	remote, err := e.ExportVA(va, size)
	if err != nil {
		t.Fatal(err)
	}
	x, err := ends[0].Write(ctx, rdma.WriteRequest{Src: bytes.Repeat([]byte{7}, size), Dst: remote})
	if err == nil {
		err = x.Wait(ctx)
	}
	if err != nil || !bytes.Equal(b, bytes.Repeat([]byte{7}, size)) {
		t.Errorf("a write into what is shared now: %v, begins with %x", err, b[:8])
	}
}

// A transfer cannot write into memory that a process may write but shares read-only, whether pfd
// maps it or not (a file without seals), absent or not, with each method, until it is unshared.
func TestSharedForReading(t *testing.T) {
	_, client, ctx := startEngine(t)
	const size = 16 * device.PageSize
	from, err := rdma.Attach(ctx, rdma.Options{Socket: client.Socket(), Group: "reading"})
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	for _, m := range []rdma.Method{rdma.MethodGUP, rdma.MethodTouch, rdma.MethodPopulate} {
		for _, seen := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, seen %t", m, seen), func(t *testing.T) {
				e, err := rdma.Attach(ctx, rdma.Options{Socket: client.Socket(), Node: 1, Group: "reading", Method: m, AcceptGroup: true})
				if err != nil {
					t.Fatal(err)
				}
				defer e.Close()
				fd, err := rdma.MakeMemory(size, device.PageSize)
				if !seen {
					fd, err = unix.MemfdCreate("reading", unix.MFD_CLOEXEC)
					err = errors.Join(err, unix.Ftruncate(fd, size))
				}
				if err != nil {
					t.Fatal(err)
				}
				defer unix.Close(fd)
				b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = unix.Munmap(b) }()
				for i := range size / 2 {
					b[i] = 1
				}
				was := bytes.Clone(b[:size/2])
				va := rdma.VAOf(b)
				if err := e.Share(va, size, fd, 0, false); err != nil {
					t.Fatal(err)
				}
				write := func(at device.VA, n uint64) error {
					remote, err := e.ExportVA(at, n)
					if err != nil {
						t.Fatal(err)
					}
					x, err := from.Write(ctx, rdma.WriteRequest{Src: bytes.Repeat([]byte{7}, int(n)), Dst: remote})
					if err != nil {
						t.Fatal(err)
					}
					return x.Wait(ctx)
				}
				for at, n := range map[device.VA]uint64{va: size, va + 5: 8, va + size/2: device.PageSize} {
					if err := write(at, n); !errors.Is(err, rdma.ErrAddress) {
						t.Errorf("a write of %d bytes at %d: %v, want ErrAddress", n, at-va, err)
					}
				}
				if !bytes.Equal(b[:size/2], was) || bytes.ContainsRune(b[size/2:], 7) {
					t.Error("bytes have changed")
				}
				if err := e.Unshare(va, size); err != nil {
					t.Fatal(err)
				}
				if err := write(va, size); err != nil || !bytes.Equal(b, bytes.Repeat([]byte{7}, size)) {
					t.Errorf("a write once it is unshared: %v", err)
				}
			})
		}
	}
}
