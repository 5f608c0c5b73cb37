package guests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/qemu"
	"github.com/exanet/pfd/rdma"
)

// keyed is the result of a transfer of a page whose protection key forbids every access.
type keyed struct {
	Method  string
	Absent  bool // the destination was absent
	Error   string
	Arrived bool
}

// protectionKeys transfers pages with a protection key to which no thread of this process has a
// right, by each method, and prints the results.
func protectionKeys(methods []string) int {
	key, _, e := unix.Syscall(unix.SYS_PKEY_ALLOC, 0, 1, 0) // PKEY_DISABLE_ACCESS
	if e != 0 {
		return end(os.NewSyscallError("pkey_alloc", e))
	}
	for _, name := range methods {
		for _, absent := range []bool{false, true} {
			k, err := transferKeyed(name, absent, key)
			if err == nil {
				err = say(k)
			}
			if err != nil {
				return end(fmt.Errorf("%s: %w", name, err))
			}
		}
	}
	return 0
}

func transferKeyed(name string, absent bool, key uintptr) (k keyed, err error) {
	const page = device.PageSize
	k = keyed{Method: name, Absent: absent}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	method, err := pagein.ParseMethod(name)
	if err != nil {
		return k, err
	}
	from, err := rdma.Attach(ctx, rdma.Options{})
	if err != nil {
		return k, err
	}
	defer from.Close()
	to, err := rdma.Attach(ctx, rdma.Options{Node: 1, Method: method})
	if err != nil {
		return k, err
	}
	defer to.Close()
	b, err := unix.Mmap(-1, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return k, err
	}
	defer unix.Munmap(b)
	src, dst := b[:page], b[page:]
	copy(src, "protected")
	if !absent {
		dst[0] = 1
	}
	remote, err := to.Export(dst)
	if err != nil {
		return k, err
	}
	protect := func(key uintptr) error {
		_, _, e := unix.Syscall6(unix.SYS_PKEY_MPROTECT, uintptr(rdma.VAOf(b)), uintptr(len(b)), unix.PROT_READ|unix.PROT_WRITE, key, 0, 0)
		if e != 0 {
			return os.NewSyscallError("pkey_mprotect", e)
		}
		return nil
	}
	if err := protect(key); err != nil {
		return k, err
	}
	// The kernel reads memory like this process, with its rights.
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return k, err
	}
	n, err := unix.Write(ends[1], src)
	_, _ = unix.Close(ends[0]), unix.Close(ends[1])
	if !errors.Is(err, unix.EFAULT) {
		return k, fmt.Errorf("the process itself reads the page: %d bytes, %w", n, err)
	}
	t, err := from.Write(ctx, rdma.WriteRequest{Src: src, Dst: remote})
	if err == nil {
		err = t.Wait(ctx)
	}
	if err != nil {
		k.Error = err.Error()
	}
	if err := protect(0); err != nil {
		return k, err
	}
	k.Arrived = string(dst[:9]) == "protected"
	return k, nil
}

// A protection key applies to a thread, and no thread of the processes takes part in a
// transfer: pages to which no thread has a right are read and written. Absent pages are paged
// in, except by the methods that use the library's own thread.
func TestProtectionKeys(t *testing.T) {
	f := boot(t, qemu.Options{Guests: 1})
	to := f.install(0)
	f.run(0, "sh", "-c", `pfd --nodes 2 --timeout-us 1000000 --guard-us 2000000 >/run/pfd.log 2>&1 &
p=$!
until exanetctl status >/dev/null 2>&1; do kill -0 $p || exit 1; sleep 0.1; done`)
	out := f.run(0, to, "protection-keys", "gup", "uffd", "touch", "populate")
	dec, n := json.NewDecoder(strings.NewReader(out)), 0
	for dec.More() {
		var k keyed
		if err := dec.Decode(&k); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		n++
		t.Logf("%+v", k)
		byThread := k.Absent && (k.Method == "touch" || k.Method == "populate")
		if k.Arrived == byThread || (k.Error != "") != byThread {
			t.Errorf("%+v: want it to fail: %v", k, byThread)
		}
	}
	if n != 8 {
		t.Errorf("%d transfers: %s", n, out)
	}
}
