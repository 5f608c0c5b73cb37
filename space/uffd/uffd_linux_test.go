package uffd

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// Sizes and offsets of include/uapi/linux/userfaultfd.h; the numbers are those that strace prints
// for the same calls in C.
func TestLayout(t *testing.T) {
	for name, pair := range map[string][2]uintptr{
		"uffdio_api":      {unsafe.Sizeof(apiArg{}), 24},
		"uffdio_range":    {unsafe.Sizeof(rangeArg{}), 16},
		"uffdio_register": {unsafe.Sizeof(registerArg{}), 32},
		"uffdio_copy":     {unsafe.Sizeof(copyArg{}), 40},
		"copied":          {unsafe.Offsetof(copyArg{}.copied), 32},
		"uffdio_zeropage": {unsafe.Sizeof(zeroArg{}), 32},
		"zeroed":          {unsafe.Offsetof(zeroArg{}.zeroed), 24},
		"UFFDIO_API":      {ioctlAPI, 0xc018aa3f},
		"UFFDIO_REGISTER": {ioctlRegister, 0xc020aa00},
		"UFFDIO_WAKE":     {ioctlWake, 0x8010aa02},
		"UFFDIO_COPY":     {ioctlCopy, 0xc028aa03},
		"UFFDIO_ZEROPAGE": {ioctlZero, 0xc020aa04},
		"uffdio_continue": {unsafe.Sizeof(continueArg{}), 32},
		"mapped":          {unsafe.Offsetof(continueArg{}.mapped), 24},
		"UFFDIO_CONTINUE": {ioctlContinue, 0xc020aa07},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s is %#x, want %#x", name, pair[0], pair[1])
		}
	}
}

// eachMode runs f with ranges registered for write-protect faults, and as on a kernel that has
// none.
func eachMode(t *testing.T, f func(t *testing.T, mode uint64)) {
	for name, mode := range map[string]uint64{"write-protect": modeProtected, "missing": modeMissing} {
		t.Run(name, func(t *testing.T) { f(t, mode) })
	}
}

// region registers memory of this process and serves it.
func region(t *testing.T, pages int, mode uint64, events bool) (*Region, []byte) {
	t.Helper()
	fd, full, err := Open(events)
	if errors.Is(err, ErrForbidden) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("full mode: %v", full)
	b, err := unix.Mmap(-1, 0, pages*device.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	at := device.VA(uintptr(unsafe.Pointer(&b[0])))
	if _, err := register(fd, uint64(at), uint64(len(b)), mode); err != nil {
		t.Skip("this kernel has no faults of that kind: ", err)
	}
	ended := make(chan struct{})
	r, err := serve(fd, at, uint64(len(b)), []uint64{mode}, func() { close(ended) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		<-ended
	})
	return r, b
}

func there(t *testing.T, b []byte) (n int) {
	t.Helper()
	vec := make([]byte, len(b)/device.PageSize)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(unsafe.Pointer(&vec[0]))); errno != 0 {
		t.Fatal(errno)
	}
	for _, v := range vec {
		n += int(v & 1)
	}
	return n
}

// With events each call that discards pages is counted, by whatever call, and so is a fill during
// one; nothing blocks for ever.
func TestSeen(t *testing.T) { eachMode(t, testSeen) }

func testSeen(t *testing.T, mode uint64) {
	r, b := region(t, 64, mode, true)
	if n, err := r.Fill(r.Start, 64, true); n != 64 || err != nil {
		t.Fatalf("filled %d, %v", n, err)
	}
	for i := range 8 {
		if err := unix.Madvise(b[i*4096:(i+1)*4096], unix.MADV_DONTNEED); err != nil {
			t.Fatal(err)
		}
	}
	// The call returns when its event is read, and the event is counted right after.
	seen := func(want uint64) {
		t.Helper()
		for calls, _ := r.Seen(); calls != want; calls, _ = r.Seen() {
			if calls > want {
				t.Fatalf("%d calls seen, want %d", calls, want)
			}
			runtime.Gosched()
		}
	}
	seen(8)
	// Pages are discarded and filled all the time, by this thread and by threads that touch them.
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 200 {
			_ = unix.Madvise(b, unix.MADV_DONTNEED) // an error shows as a missing count
			// By a system call: a goroutine must not wait for its own process.
			_ = unix.Madvise(b[:8*4096], unix.MADV_POPULATE_WRITE)
		}
	}()
	for over := false; !over; {
		if _, err := r.Fill(r.Start, 64, true); err != nil && !errors.Is(err, unix.EAGAIN) {
			t.Fatal(err)
		}
		select {
		case <-done:
			over = true
		default:
		}
	}
	seen(208)
	_, conflicts := r.Seen()
	t.Logf("%d fills met one", conflicts)
	// Map over it instead of munmap: the runtime could map memory there, which the end of the
	// test would unmap.
	if _, err := unix.MmapPtr(-1, 0, unsafe.Pointer(&b[32*4096]), 32*4096, unix.PROT_NONE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED); err != nil {
		t.Fatal(err)
	}
	seen(209)
}

// Missing pages are filled; present ones keep their bytes.
func TestFill(t *testing.T) { eachMode(t, testFill) }

func testFill(t *testing.T, mode uint64) {
	r, b := region(t, 100, mode, false)
	// By a system call: a goroutine must not wait for its own process (doc.go of package rdma,
	// Register).
	if err := unix.Madvise(b[5*4096:6*4096], unix.MADV_POPULATE_WRITE); err != nil {
		t.Fatal(err)
	}
	b[5*4096] = 9
	if n, err := r.Fill(r.Start, 64, true); n != 64 || err != nil {
		t.Errorf("filled %d, %v", n, err)
	}
	if n := there(t, b); n != 64 {
		t.Errorf("%d pages are there, want 64", n)
	}
	if b[5*4096] != 9 || b[0] != 0 {
		t.Errorf("bytes %d and %d", b[5*4096], b[0])
	}
	if n, err := r.Fill(r.Start+64<<device.PageShift, 36, false); n != 36 || err != nil {
		t.Errorf("filled %d to be read, %v", n, err)
	}
	if n, err := r.Fill(r.End, 1, true); !errors.Is(err, ErrNotRegistered) {
		t.Errorf("behind the end: %d, %v", n, err)
	}
}

// The kernel serves memory again that could be registered but not filled: waiting threads
// continue, and filling is not retried for ever.
func TestUnfillable(t *testing.T) {
	zeros, err := os.OpenFile("/dev/zero", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer zeros.Close()
	fd, full, err := Open(false)
	if errors.Is(err, ErrForbidden) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	b, err := unix.Mmap(int(zeros.Fd()), 0, 2*device.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(b) }()
	at := device.VA(uintptr(unsafe.Pointer(&b[0])))
	if err := Intercept(fd, at, uint64(len(b))); err != nil {
		t.Skip("not even to be registered: ", err)
	}
	ended := make(chan struct{})
	r, err := serve(fd, at, uint64(len(b)), []uint64{modeMissing}, func() { close(ended) })
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if full {
		// By a system call: a goroutine must not wait for its own process.
		if err := unix.Madvise(b[:device.PageSize], unix.MADV_POPULATE_WRITE); err != nil {
			t.Error(err)
		}
	} else if n, err := r.Fill(at, 1, true); !errors.Is(err, ErrNotRegistered) {
		t.Errorf("filled %d, %v", n, err)
	}
	<-ended
	if n, err := r.Fill(at, 2, true); n != 0 || !errors.Is(err, ErrNotRegistered) {
		t.Errorf("filled %d, %v after the end", n, err)
	}
}

func TestServeRefusesHugePages(t *testing.T) {
	fd, _, err := Open(false)
	if errors.Is(err, ErrForbidden) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	b, err := unix.Mmap(-1, 0, 2<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_HUGETLB|unix.MAP_NORESERVE)
	if err != nil {
		t.Skip("no huge pages: ", err)
	}
	defer func() { _ = unix.Munmap(b) }()
	at := device.VA(uintptr(unsafe.Pointer(&b[0])))
	if err := Register(fd, at, uint64(len(b))); err != nil {
		t.Fatal(err)
	}
	if r, err := Serve(fd, at, uint64(len(b)), nil); !errors.Is(err, ErrUnfit) {
		t.Errorf("%v, %v", r, err)
	}
}

func TestServeRefuses(t *testing.T) {
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, fd := range []int{int(f.Fd()), -1} {
		if _, err := Serve(fd, 4096, 4096, nil); !errors.Is(err, ErrNotOne) {
			t.Errorf("descriptor %d: %v", fd, err)
		}
	}
}

// TestOwnTouch: the process accesses registered memory as if it were not registered, although
// nothing serves it.
func TestOwnTouch(t *testing.T) {
	fd, _, err := Open(false)
	if errors.Is(err, ErrForbidden) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	closing := sync.OnceFunc(func() { _ = unix.Close(fd) })
	defer closing()
	b, err := unix.Mmap(-1, 0, 4*device.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(b) }()
	at := device.VA(uintptr(unsafe.Pointer(&b[0])))
	if _, err := register(fd, uint64(at), uint64(len(b)), modeProtected); (err == nil) != Protects() {
		t.Errorf("registering for write-protect faults: %v, and the kernel says that it has them: %v", err, Protects())
	} else if err != nil {
		t.Skip("this kernel has no write-protect faults: ", err)
	}
	if err := Register(fd, at, uint64(len(b))); err != nil {
		t.Fatal(err)
	}
	touched := make(chan struct{})
	go func() {
		defer close(touched)
		b[0], b[3*device.PageSize] = 1, 1
	}()
	select {
	case <-touched:
	case <-time.After(10 * time.Second):
		t.Error("a touch waits for who serves the userfaultfd")
		closing() // it returns
		<-touched
	}
	if n := there(t, b); n != 2 {
		t.Errorf("%d pages are there, want 2", n)
	}
}

// A process may make its descriptor blocking at any time; a read that blocks would outlive it.
func TestReadNow(t *testing.T) {
	fd, _, err := Open(false)
	if errors.Is(err, ErrForbidden) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var buf [msgSize]byte
	if n, err := readNow(fd, buf[:]); n > 0 || !errors.Is(err, unix.EAGAIN) {
		t.Fatalf("%d bytes, %v, want EAGAIN", n, err)
	}
	if _, err := unix.Preadv2(fd, [][]byte{buf[:]}, -1, unix.RWF_NOWAIT); !errors.Is(err, unix.EAGAIN) {
		t.Skip("this kernel cannot read a userfaultfd without waiting (Linux 6.10): ", err)
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := readNow(fd, buf[:])
		done <- err
	}()
	select {
	case err := <-done:
		if !errors.Is(err, unix.EAGAIN) {
			t.Errorf("%v, want EAGAIN", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it waits")
	}
}
