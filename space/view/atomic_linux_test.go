package view

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/space/uffd"
)

// memoryOps are the operations on memory.
func memoryOps() (list []atomics.Op) {
	for op := range atomics.Op(255) {
		if op.Memory() {
			list = append(list, op)
		}
	}
	return list
}

// newAtomic returns an Atomic, its file, and the file as another process maps it.
func newAtomic(t testing.TB, pages int) (a *Atomic, fd int, own []byte) {
	t.Helper()
	fd = memfd(t, pages, unix.F_SEAL_SHRINK)
	a, err := NewAtomic(fd, uint64(pages*page))
	if err != nil {
		t.Skipf("this kernel has no userfaultfd for a view, as Linux 5.14 has: %v", err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	if own, err = unix.Mmap(fd, 0, pages*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(own) })
	return a, fd, own
}

// Each operation does what Op.Apply says, at random places of a page, and nothing beside them.
func TestAtomicOperations(t *testing.T) {
	a, _, own := newAtomic(t, 2)
	if err := a.PageIn(0); err != nil {
		t.Fatal(err)
	}
	operations(t, own, func(op atomics.Op, at uint64, args *[atomics.MaxArgs]uint64) [atomics.MaxValues]uint64 {
		got, ok := a.Do(op, at, args)
		if !ok {
			t.Fatalf("%v is missed", op)
		}
		return got
	})
}

// The same in memory that needs no userfaultfd, which qemu-user has not.
func TestPerform(t *testing.T) {
	own, err := unix.Mmap(-1, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(own) })
	operations(t, own, func(op atomics.Op, at uint64, args *[atomics.MaxArgs]uint64) (values [atomics.MaxValues]uint64) {
		perform(op, wordsAt(own, at), args, &values)
		return values
	})
}

func operations(t *testing.T, memory []byte, do func(op atomics.Op, at uint64, args *[atomics.MaxArgs]uint64) [atomics.MaxValues]uint64) {
	const words = 32
	var model [words]uint64
	rng := rand.New(rand.NewPCG(1, 2))
	all := memoryOps()
	for range 10_000 {
		op := all[rng.IntN(len(all))]
		n := op.Bytes() / 8
		i := rng.IntN(words/n) * n
		var args [atomics.MaxArgs]uint64
		for k := range args {
			args[k] = rng.Uint64N(3) - 1 // so that comparisons succeed often
		}
		var m [atomics.MaxValues]uint64
		copy(m[:], model[i:i+n])
		want := op.Apply(&m, &args)
		copy(model[i:i+n], m[:])
		if got := do(op, uint64(8*i), &args); got != want {
			t.Fatalf("%v of %d: %d, want %d", op, args, got, want)
		}
		for k := range model {
			if v := wordsAt(memory, uint64(8*k))[0]; v != model[k] {
				t.Fatalf("%v at word %d: word %d is %d, want %d", op, i, k, v, model[k])
			}
		}
	}
}

// A page that is absent or has been punched out is missed by each operation and comes in empty.
func TestAtomicMisses(t *testing.T) {
	a, fd, own := newAtomic(t, 4)
	args := [atomics.MaxArgs]uint64{0, 7, 7, 7, 7}
	for _, op := range memoryOps() {
		for _, at := range []uint64{page, 2*page - uint64(op.Bytes())} {
			if _, ok := a.Do(op, at, &args); ok {
				t.Fatalf("%v of an absent page", op)
			}
			var st unix.Stat_t
			if err := unix.Fstat(fd, &st); err != nil || st.Blocks != 0 {
				t.Fatalf("%v brings %d blocks in, %v", op, st.Blocks, err)
			}
			if err := a.PageIn(at); err != nil {
				t.Fatal(err)
			}
			if err := a.PageIn(at); err != nil {
				t.Fatalf("a page that is present: %v", err)
			}
			if got, ok := a.Do(op, at, &args); !ok || got != [atomics.MaxValues]uint64{} {
				t.Fatalf("%v: %d, %v", op, got, ok)
			}
			own[page+100] = 1
			if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, page, page); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A process that keeps its write to the file from ending, by memory whose faults nobody serves, holds the
// file's inode lock. Pages come in nevertheless.
func TestAtomicBesideAWriteThatHangs(t *testing.T) {
	a, fd, _ := newAtomic(t, 4)
	never, full, err := uffd.Open(false)
	if err != nil || !full {
		t.Skipf("no userfaultfd that serves system calls: %v", err)
	}
	source, err := unix.Mmap(-1, 0, page, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	if err := uffd.Intercept(never, device.VA(uintptr(unsafe.Pointer(&source[0]))), page); err != nil {
		t.Fatal(err)
	}
	wrote := make(chan error)
	go func() {
		_, err := unix.Pwrite(fd, source, 0)
		wrote <- err
	}()
	event := []unix.PollFd{{Fd: int32(never), Events: unix.POLLIN}}
	for n := 0; n == 0; { // until the write waits for its source
		if n, err = unix.Poll(event, -1); err != nil && !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
	}
	came := make(chan error, 1)
	go func() { came <- a.PageIn(2 * page) }()
	select {
	case err = <-came:
	case <-time.After(10 * time.Second):
		t.Error("the page-in waits for the write")
	}
	if err != nil {
		t.Error(err)
	}
	_ = unix.Close(never) // the write gets zeros
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	_ = unix.Munmap(source)
}

// A page is taken away (from the mapping, as a page in swap is, and with what it has) at any moment of an
// operation on 256 bits: the operation is then done in whole when it is repeated.
func TestAtomicOf256BitsIsWhole(t *testing.T) {
	a, _, _ := newAtomic(t, 1)
	over := make(chan struct{})
	var taker sync.WaitGroup
	taker.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
				if err := unix.Madvise(a.b[:page], unix.MADV_DONTNEED); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	misses := 0
	for i := uint64(0); i < 300_000 && !t.Failed(); i++ {
		args := [atomics.MaxArgs]uint64{i, i + 1, i + 1, i + 1, i + 1}
		for {
			if was, ok := a.Do(atomics.CWrite256, 64, &args); ok {
				if was != [atomics.MaxValues]uint64{i, i, i, i} {
					t.Errorf("write %d finds %d", i, was)
				}
				break
			}
			misses++
			if err := a.PageIn(64); err != nil && !errors.Is(err, ErrShare) {
				t.Fatal(err)
			}
		}
	}
	close(over)
	taker.Wait()
	t.Logf("%d misses", misses)
}

func TestAtomicBounds(t *testing.T) {
	a, _, _ := newAtomic(t, 2)
	for at := uint64(0); at < 2*page; at += page {
		if err := a.PageIn(at); err != nil {
			t.Fatal(err)
		}
	}
	var args [atomics.MaxArgs]uint64
	for _, op := range memoryOps() {
		size := uint64(op.Bytes())
		for at, want := range map[uint64]bool{0: true, 2*page - size: true, 2 * page: false, 2*page - size/2: false, size / 2: false, 1: false, 1 << 63: false, ^uint64(0): false} {
			if _, ok := a.Do(op, at, &args); ok != want {
				t.Errorf("%v at 0x%x: %v", op, at, ok)
			}
		}
	}
	if _, ok := a.Do(atomics.Alloc, 0, &args); ok {
		t.Error("an operation of the driver")
	}
	for _, at := range []uint64{2 * page, 1 << 63, ^uint64(0)} {
		if err := a.PageIn(at); !errors.Is(err, ErrShare) {
			t.Errorf("page-in at 0x%x: %v", at, err)
		}
	}
	if _, err := NewAtomic(memfd(t, 2, 0), 2*page); !errors.Is(err, ErrShare) {
		t.Errorf("a file that may shrink: %v", err)
	}
	if _, err := NewAtomic(memfd(t, 2, unix.F_SEAL_SHRINK), 3*page); !errors.Is(err, ErrShare) {
		t.Errorf("more than the file: %v", err)
	}
}

// Other processes that map the memory do their own atomic operations on it: none is lost.
func TestAtomicAgainstProcessors(t *testing.T) {
	a, _, own := newAtomic(t, 1)
	if err := a.PageIn(0); err != nil {
		t.Fatal(err)
	}
	const rounds, others = 5_000, 2
	word, pair := &wordsAt(own, 8)[0], &wordsAt(own, 32)[0]
	var wg sync.WaitGroup
	for range others {
		wg.Go(func() {
			for range rounds {
				add64(word, 1)
				for low, high := uint64(0), uint64(0); ; {
					l, h := cas128(pair, low, high, low+1, high-1)
					if l == low && h == high {
						break
					}
					low, high = l, h
				}
			}
		})
	}
	xors := uint64(0)
	for i := range uint64(rounds) {
		if _, ok := a.Do(atomics.FetchAdd, 8, &[atomics.MaxArgs]uint64{1 << 32}); !ok {
			t.Fatal("missed")
		}
		v, _ := a.Do(atomics.FetchXor, 8, &[atomics.MaxArgs]uint64{1 << 63})
		if v[0]>>63 != i&1 {
			t.Fatalf("xor %d: %x", i, v[0])
		}
		xors ^= 1 << 63
		both, _ := a.Do(atomics.Read128, 32, new([atomics.MaxArgs]uint64))
		if both[0]+both[1] != 0 {
			t.Fatalf("a torn pair: %x", both[:2])
		}
	}
	wg.Wait()
	if v := load64(word); v != rounds<<32+rounds*others^xors {
		t.Errorf("%x", v)
	}
	if l, h := cas128(pair, 0, 0, 0, 0); l != rounds*others || l+h != 0 {
		t.Errorf("%d, %d", l, h)
	}
}

func BenchmarkAtomic(b *testing.B) {
	a, _, _ := newAtomic(b, 1)
	if err := a.PageIn(0); err != nil {
		b.Fatal(err)
	}
	var args [atomics.MaxArgs]uint64
	for _, op := range []atomics.Op{atomics.FetchAdd, atomics.CAS128, atomics.Read256} {
		b.Run(op.String(), func(b *testing.B) {
			for b.Loop() {
				if _, ok := a.Do(op, 64, &args); !ok {
					b.Fatal("missed")
				}
			}
		})
	}
	b.Run("miss", func(b *testing.B) {
		a, fd, _ := newAtomic(b, 1)
		for b.Loop() {
			if err := a.PageIn(0); err != nil {
				b.Fatal(err)
			}
			if _, ok := a.Do(atomics.FetchAdd, 0, &args); !ok {
				b.Fatal("missed")
			}
			b.StopTimer()
			if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, device.PageSize); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
}
