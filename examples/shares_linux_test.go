package examples

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/rdma"
	"github.com/exanet/pfd/space/uffd"
)

const sharedSize = 16 * device.PageSize

// Package rdma with the memory that a program shares: core dumps, userfaultfds, and a share in the
// place of another one.
func TestSharesOfGo(t *testing.T) {
	client := start(t)
	for method := pagein.GUP; method <= pagein.Populate; method++ {
		for _, with := range []bool{false, true} {
			t.Run(fmt.Sprint(method, " ", with), func(t *testing.T) {
				e, err := rdma.Attach(t.Context(), rdma.Options{Socket: client.Socket(), Method: method, Dump: with, NoUserfaultfd: with})
				if err != nil {
					t.Fatal(err)
				}
				defer e.Close()
				b, err := e.Alloc(sharedSize)
				if err != nil {
					t.Fatal(err)
				}
				fd, err := rdma.MakeMemory(sharedSize, device.PageSize)
				if err != nil {
					t.Fatal(err)
				}
				defer unix.Close(fd)
				own, err := unix.Mmap(fd, 0, sharedSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
				if err != nil {
					t.Fatal(err)
				}
				defer unix.Munmap(own)
				share := func() error { return e.Share(rdma.VAOf(own), sharedSize, fd, 0, true) }
				if err := share(); err != nil {
					t.Fatal(err)
				}
				for name, va := range map[string]device.VA{"Alloc": b.VA(), "Share": rdma.VAOf(own)} {
					if leftOut(t, va) == with {
						t.Errorf("%s: left out of core dumps: %v", name, !with)
					}
					if name == "Alloc" && method == pagein.UFFD {
						continue // it is registered for pfd to page in
					}
					if err := registers(va); with != (err == nil) || err != nil && !errors.Is(err, unix.EBUSY) {
						t.Errorf("%s: own userfaultfd: %v", name, err)
					}
				}
				if with {
					// pfd does not learn of memory mapped in the place of a share: sharing it is
					// refused.
					var refused *attach.RefusedError
					if err := share(); !errors.As(err, &refused) || refused.Code != attach.CodeMemory {
						t.Errorf("a share in the place of another: %v", err)
					}
					gone, err := e.Alloc(sharedSize)
					if err == nil {
						err = unix.Munmap(gone.Bytes()) // and not gone.Free
					}
					if err != nil {
						t.Fatal(err)
					}
					// The kernel usually returns the same place again.
					next, err := e.Alloc(sharedSize)
					switch refused = nil; {
					case err == nil && method != pagein.UFFD && next.VA() < gone.VA()+sharedSize && gone.VA() < next.VA()+sharedSize:
						t.Error("Alloc gives memory in the place of another share")
					case err != nil && (!errors.As(err, &refused) || refused.Code != attach.CodeMemory):
						t.Errorf("Alloc in the place of another share: %v", err)
					}
				}
				if err := e.Unshare(rdma.VAOf(own), sharedSize); err != nil {
					t.Fatal(err)
				}
				if err := e.Close(); err != nil {
					t.Fatal(err)
				}
				if leftOut(t, rdma.VAOf(own)) {
					t.Error("left out of core dumps after Unshare")
				}
				for _, va := range []device.VA{b.VA(), rdma.VAOf(own)} {
					if err := registers(va); err != nil {
						t.Errorf("own userfaultfd after the end: %v", err)
					}
				}
				if err := b.Free(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// registers registers memory with another userfaultfd for a moment.
func registers(va device.VA) error {
	fd, _, err := uffd.Open(false)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return uffd.Register(fd, va, sharedSize)
}

// leftOut reports whether memory is excluded from core dumps (proc(5), VmFlags).
func leftOut(t *testing.T, va device.VA) bool {
	t.Helper()
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	here := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var from, to uint64
		if n, _ := fmt.Sscanf(lines.Text(), "%x-%x ", &from, &to); n == 2 {
			here = from <= uint64(va) && uint64(va) < to
		}
		if flags, ok := strings.CutPrefix(lines.Text(), "VmFlags:"); ok && here {
			return strings.Contains(flags+" ", " dd ")
		}
	}
	t.Fatalf("nothing is mapped at %v", va)
	return false
}
