package view

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/space/uffd"
)

// Atomic is pfd's mapping of a memfd in which it performs atomic operations on words that other
// processes may map, too. No page comes in by itself: Do misses, and PageIn brings the page in.
type Atomic struct {
	entries *uffd.Entries
	b       []byte // registered with entries
}

// NewAtomic maps size bytes of a memfd, which must be sealed against shrinking. The caller closes fd.
// Errors match ErrShare or uffd.ErrForbidden.
func NewAtomic(fd int, size uint64) (*Atomic, error) {
	if err := check(0, size, fd, 0); err != nil {
		return nil, err
	}
	if !wide() {
		return nil, fmt.Errorf("%w: the processor has no atomic operations on 128 bits, or no stores of 256", ErrShare)
	}
	entries, err := uffd.NewEntries()
	if err != nil {
		return nil, fmt.Errorf("create a view of atomic words: %w", err)
	}
	b, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrShare, os.NewSyscallError("mmap", err)), entries.Close())
	}
	a := &Atomic{entries, b}
	if err = os.NewSyscallError("madvise", unix.Madvise(b, unix.MADV_DONTDUMP)); err == nil {
		err = entries.Add(b)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrShare, err), a.Close())
	}
	return a, nil
}

// Close unmaps the memory. No other method may be called afterwards.
func (a *Atomic) Close() error {
	err := os.NewSyscallError("munmap", unix.Munmap(a.b))
	a.b = nil
	return errors.Join(err, a.entries.Close())
}

// Do performs an operation on the words at a place, which is aligned to their size. It is one atomic
// access of the processor up to 128 bits, and several for 256. ok is false if the page is not
// present. Do makes no system call, and sleeps only while the page is being punched out.
func (a *Atomic) Do(op atomics.Op, at uint64, args *[atomics.MaxArgs]uint64) (values [atomics.MaxValues]uint64, ok bool) {
	size := uint64(op.Bytes())
	if size == 0 || at%size != 0 || at >= uint64(len(a.b)) {
		return values, false
	}
	words := wordsAt(a.b, at)
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		if recover() != nil {
			ok = false
		}
	}()
	perform(op, words, args, &values)
	return values, true
}

// PageIn brings the page of a place in. It may sleep, but not because of a process that keeps a write(2)
// to the file from ending.
func (a *Atomic) PageIn(at uint64) error {
	if at >= uint64(len(a.b)) {
		return fmt.Errorf("%w: byte %d of %d", ErrShare, at, len(a.b))
	}
	page := a.b[at&^(device.PageSize-1):][:device.PageSize]
	for range 2 {
		_, err := a.entries.Enter(page) // reads it from swap, too
		switch {
		case err == nil, errors.Is(err, unix.EEXIST):
			return nil
		case !errors.Is(err, unix.EFAULT):
			return fmt.Errorf("enter a page: %w", os.NewSyscallError("UFFDIO_CONTINUE", err))
		}
		// The file has no page there.
		switch _, err = a.entries.Make(page); {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EEXIST):
			return fmt.Errorf("make a page: %w", os.NewSyscallError("UFFDIO_ZEROPAGE", err))
		}
	}
	return fmt.Errorf("%w: the page is punched out again and again", ErrShare)
}

// Perform performs an operation as Atomic.Do does on the words at the beginning of b, whose address is aligned
// to their size and which has all of them. Its caller handles a page that is not present.
func Perform(op atomics.Op, b []byte, args *[atomics.MaxArgs]uint64) (values [atomics.MaxValues]uint64) {
	_ = b[op.Bytes()-1]
	perform(op, wordsAt(b, 0), args, &values)
	return values
}

// CanPerform reports whether the processor has all operations.
func CanPerform() bool { return wide() }

// perform performs an operation on the first of four words, or on as many as it accesses. The words
// after these are not touched.
func perform(op atomics.Op, w *[atomics.MaxValues]uint64, args *[atomics.MaxArgs]uint64, values *[atomics.MaxValues]uint64) {
	switch op {
	case atomics.Read64:
		values[0] = load64(&w[0])
	case atomics.Write64:
		swap64(&w[0], args[0])
	case atomics.Swap:
		values[0] = swap64(&w[0], args[0])
	case atomics.FetchAdd:
		values[0] = add64(&w[0], args[0])
	case atomics.CAS:
		values[0] = cas64(&w[0], args[0], args[1])
	case atomics.FetchAnd, atomics.FetchOr, atomics.FetchXor:
		values[0] = change(op, &w[0], args)
	case atomics.Read128:
		values[0], values[1] = cas128(&w[0], 0, 0, 0, 0)
	case atomics.CAS128:
		values[0], values[1] = cas128(&w[0], args[0], args[1], args[2], args[3])
	case atomics.Write128:
		for low, high := args[0], args[1]; ; {
			l, h := cas128(&w[0], low, high, args[0], args[1])
			if l == low && h == high {
				return
			}
			low, high = l, h
		}
	case atomics.Read256, atomics.Write256, atomics.CWrite256:
		var m, was [atomics.MaxValues]uint64
		for i := range m {
			m[i] = load64(&w[i])
		}
		was = m
		*values = op.Apply(&m, args)
		if m != was {
			store256(w, &m)
		}
	}
}

// change is an operation for which the processor has no instruction that returns the old value.
func change(op atomics.Op, p *uint64, args *[atomics.MaxArgs]uint64) (old uint64) {
	for old = load64(p); ; {
		m := [atomics.MaxValues]uint64{old}
		op.Apply(&m, args)
		was := cas64(p, old, m[0])
		if was == old {
			return old
		}
		old = was
	}
}

// The atomic accesses of the processor. They are not those of sync/atomic, which under the race
// detector run on a stack where a fault cannot become a panic.

//go:noescape
func load64(p *uint64) uint64

//go:noescape
func swap64(p *uint64, v uint64) (old uint64)

//go:noescape
func add64(p *uint64, v uint64) (old uint64)

// cas64 stores v if *p is expected.
//
//go:noescape
func cas64(p *uint64, expected, v uint64) (old uint64)

// cas128 stores the pair v0, v1 if the two words at p, aligned to 16 bytes, are e0 and e1.
//
//go:noescape
func cas128(p *uint64, e0, e1, v0, v1 uint64) (old0, old1 uint64)

// store256 stores four words at p, aligned to 32 bytes, by one instruction: if the page is taken away
// meanwhile, none of them is stored.
//
//go:noescape
func store256(p, v *[atomics.MaxValues]uint64)
