package session

import (
	"errors"
	"os"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/space/proc"
	"github.com/exanet/pfd/space/uffd"
)

// TestProofHangs reads proofs in memory whose userfaultfd nobody serves: the first process that
// joins waits for a bounded time, later ones do not wait, and the stuck reads end with the
// userfaultfd.
func TestProofHangs(t *testing.T) {
	fd, _, err := uffd.Open(false)
	if errors.Is(err, uffd.ErrForbidden) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "userfaultfd")
	defer f.Close()
	page, err := unix.Mmap(-1, 0, device.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(page)
	va := device.VA(uintptr(unsafe.Pointer(&page[0])))
	// struct uffdio_register, UFFDIO_REGISTER_MODE_MISSING.
	r := [4]uint64{uint64(va), device.PageSize, 1, 0}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), 0xc020aa00, uintptr(unsafe.Pointer(&r))); errno != 0 {
		t.Fatal(errno)
	}
	o := &session{group: member{proofVA: va}}
	read := func() ([]byte, error) {
		p, err := proc.OpenPID(os.Getpid())
		if err != nil {
			t.Error(err)
			return nil, err
		}
		return o.proofBy(p)
	}
	var wg sync.WaitGroup
	for range proofsLate {
		wg.Go(func() {
			if _, err := read(); !errors.Is(err, errUnanswered) {
				t.Errorf("%v, want errUnanswered", err)
			}
		})
	}
	wg.Wait()
	late := o.lateProofs.Load()
	if _, err := read(); !errors.Is(err, errUnanswered) || late != proofsLate || o.lateProofs.Load() != late {
		t.Errorf("%v with %d late, then %d", err, late, o.lateProofs.Load())
	}
	f.Close()
	for began := time.Now(); o.lateProofs.Load() != 0; time.Sleep(time.Millisecond) {
		if time.Since(began) > 2*time.Minute {
			t.Fatal("a read goes on without the userfaultfd")
		}
	}
	if b, err := read(); err != nil || len(b) != attach.ProofSize {
		t.Errorf("%x, %v", b, err)
	}
}
