package deploy

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
	"github.com/exanet/pfd/space/uffd"
)

// A process shares memory with a device elsewhere and unmaps it without Unshare. No write
// reaches the old memory or a new mapping at the same address. Unshare then returns no error.
func TestUnmappedWithoutUnshare(t *testing.T) {
	needProtection(t)
	l := newPlace(t)
	l.serve()
	d := l.daemon([]int{0, 1})
	join := func(node device.NodeID) *rdma.Endpoint {
		e, err := rdma.Attach(t.Context(), rdma.Options{Socket: d.socket, Node: node, Group: "unmapped", AcceptGroup: true, Method: rdma.MethodGUP})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		return e
	}
	from, to := join(0), join(1)
	const size = 4 * device.PageSize
	src, err := from.Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	write := func(va device.VA) error {
		remote, err := to.ExportVA(va, size)
		if err != nil {
			t.Fatal(err)
		}
		x, err := from.Write(t.Context(), rdma.WriteRequest{Src: src.Bytes(), Dst: remote})
		if err != nil {
			t.Fatal(err)
		}
		return x.Wait(t.Context())
	}
	copy(src.Bytes(), bytes.Repeat([]byte{7}, size))
	for _, part := range []int{size, device.PageSize} {
		fd, err := rdma.MakeMemory(size, device.PageSize)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Munmap(b) }()
		va := rdma.VAOf(b)
		if err := to.Share(va, size, fd, 0, true); err != nil {
			t.Fatal(err)
		}
		if err := write(va); err != nil || !bytes.Equal(b, src.Bytes()) {
			t.Fatalf("a write of shared memory: %v", err)
		}
		if _, err := unix.MmapPtr(-1, 0, unsafe.Pointer(&b[0]), uintptr(part), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED); err != nil {
			t.Fatal(err)
		}
		if err := write(va); !errors.Is(err, rdma.ErrAddress) {
			t.Errorf("a write where %d bytes of a share were unmapped: %v, want ErrAddress", part, err)
		}
		if bytes.ContainsRune(b[:part], 7) {
			t.Errorf("bytes arrived in the mapping over %d bytes of a share", part)
		}
		if err := to.Unshare(va, size); err != nil {
			t.Errorf("unsharing unmapped memory: %v", err)
		}
		if err := to.Unshare(va, size); err == nil {
			t.Error("unshared twice")
		}
		if err := to.Share(va, size, fd, 0, true); err != nil {
			t.Errorf("sharing there again: %v", err)
		}
		if err := to.Unshare(va, size); err != nil {
			t.Error(err)
		}
	}
}

func needProtection(t *testing.T) {
	t.Helper()
	if !uffd.Protects() {
		t.Skip("this kernel has no write-protect faults of shared memory: arm64 has them from Linux 6.10 on")
	}
}

// pfd holds at most a sixteenth of its descriptors as userfaultfds of one user. Further memory
// is still shared if the device uses the process's tables, and is refused with the cause
// elsewhere. Unsharing makes room.
func TestWatchesLeaveDescriptors(t *testing.T) {
	needProtection(t)
	const limit, most = 512, 512 / 16
	for _, elsewhere := range []bool{false, true} {
		name := map[bool]string{false: "emu", true: "vfio-user"}[elsewhere]
		t.Run(name, func(t *testing.T) {
			l := newPlace(t)
			args := []string{"--nodes", "2"}
			if elsewhere {
				l.serve()
				args = []string{"--device", "vfio-user:" + l.file("node0.sock") + "," + l.file("node1.sock")}
			}
			socket := l.file("pfd.sock")
			p := startWithin(t, limit, "pfd", append(args, "--socket", socket)...)
			newDaemon(t, socket, p).ready()
			e, err := rdma.Attach(t.Context(), rdma.Options{Socket: socket, Method: rdma.MethodGUP})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			own := userfaultfds(t, p.cmd.Process.Pid) // the view's
			var list []*rdma.Buffer
			for range most + 4 {
				b, err := e.Alloc(device.PageSize)
				var refused *attach.RefusedError
				if errors.As(err, &refused) && elsewhere && len(list) == most {
					if !strings.Contains(refused.Text, "LimitNOFILE") {
						t.Errorf("refused: %s", refused.Text)
					}
					continue
				}
				if err != nil {
					t.Fatalf("after %d shares: %v", len(list), err)
				}
				list = append(list, b)
			}
			keeps := func() bool { return userfaultfds(t, p.cmd.Process.Pid)-own == most }
			until(t, fmt.Sprintf("pfd keeps %d userfaultfds of %d shares", most, len(list)), keeps) // pfd closes a request's descriptor after its answer
			if err := list[0].Free(); err != nil {
				t.Fatal(err)
			}
			if _, err := e.Alloc(device.PageSize); err != nil {
				t.Error(err)
			}
			until(t, fmt.Sprintf("pfd keeps %d userfaultfds once one was given back and another came", most), keeps)
		})
	}
}
