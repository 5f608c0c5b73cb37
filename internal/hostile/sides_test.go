package hostile

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// replaced maps new memory at the same address.
func replaced(part []byte) error {
	return errors.Join(
		unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(part)), uintptr(len(part))),
		func() error {
			_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(unsafe.SliceData(part)), uintptr(len(part)),
				unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE)
			return err
		}())
}

// forked is a child that has a part of its parent's memory.
type forked struct {
	memory *os.File // the child's
	half   []byte   // of the child's part, the second one
}

// childSeed is the pattern that the child's first half gets.
const childSeed = 99

// forkWith forks. The child writes the first half of part, and the parent one byte of each page, which is
// that of the pattern of a seed.
func (a *obedient) forkWith(part []byte, seed uint64) error {
	if err := a.fork(); err != nil {
		return err
	}
	m, err := os.OpenFile(filepath.Join("/proc", strconv.Itoa(a.forks[len(a.forks)-1]), "mem"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	at := int64(uintptr(unsafe.Pointer(unsafe.SliceData(part))))
	a.child = &forked{m, make([]byte, len(part)/2)}
	_, err = m.ReadAt(a.child.half, at+int64(len(part)/2))
	for off := 0; off < len(part) && err == nil; off += device.PageSize {
		part[off] = byte(word(seed, uint64(off/8)))
		if off < len(part)/2 {
			page := make([]byte, device.PageSize)
			fill(page, childSeed)
			_, err = m.WriteAt(page, at+int64(off))
		}
	}
	return err
}

// checkChild fails if the child's part has other bytes than those it had and wrote.
func (a *obedient) checkChild(part []byte) error {
	defer a.child.memory.Close()
	b, page := make([]byte, len(part)), make([]byte, device.PageSize)
	if _, err := a.child.memory.ReadAt(b, int64(uintptr(unsafe.Pointer(unsafe.SliceData(part))))); err != nil {
		return err
	}
	fill(page, childSeed)
	for off := 0; off < len(b)/2; off += device.PageSize {
		if !bytes.Equal(b[off:off+device.PageSize], page) {
			return fmt.Errorf("the child's page at %#x has bytes that it did not write", off)
		}
	}
	if !bytes.Equal(b[len(b)/2:], a.child.half) {
		return errors.New("bytes of the parent's transfer are in the child")
	}
	return nil
}

// eitherSideChanges has the process of either side of a write, and of a read, change the transfer's memory,
// or itself, while the transfer is under way. Each byte of the destination is old or new, and a completed
// transfer's are new where nothing was taken away.
func eitherSideChanges(t *testing.T, w *world) {
	const size = dyingSize
	image, err := self()
	if err != nil {
		t.Fatal(err)
	}
	b := w.bystander(attachOrder{UID: w.uid()})
	for _, c := range []struct {
		name, kind string
		o          order
		arrives    bool // if false, it may also fail with code 2
		whole      bool // each byte of the destination is new
	}{
		{"mapped anew", "anonymous", order{Op: "replace"}, false, false},
		{"munmap", "anonymous", order{Op: "unmap", Off: size / 2}, false, false},
		{"mremap", "anonymous", order{Op: "move"}, false, false},
		{"MADV_DONTNEED", "anonymous", order{Op: "advise", Advice: unix.MADV_DONTNEED}, true, false},
		{"MADV_FREE", "anonymous", order{Op: "advise", Advice: unix.MADV_FREE}, true, false},
		{"MADV_PAGEOUT", "anonymous", order{Op: "advise", Advice: unix.MADV_PAGEOUT}, true, true},
		{"fork", "anonymous", order{Op: "fork with", Seed: 7}, true, true},
		{"hole punched", "memfd", order{Op: "punch"}, true, false},
		{"truncated", "memfd", order{Op: "truncate", Off: size / 2}, false, false},
		{"exec", "fixed", order{Op: "exec", Path: image}, false, false},
		{"kill", "anonymous", order{}, false, false},
	} {
		for _, verb := range []string{"write", "read"} {
			for _, side := range []string{"initiator", "target"} {
				t.Run(fmt.Sprintf("%s/%s/%s", c.name, verb, side), func(t *testing.T) {
					w.during(t)
					arrived, failed := 0, 0
					for i, after := range delays {
						p := w.pair(methods[i%len(methods)], []string{"p1", "p4", "pa"}[i%3])
						changed := p.from
						if side == "target" {
							changed = p.to
						}
						// The seeds of both ends' memory; 0 is untouched.
						from, to, dst := uint64(7), uint64(0), p.to
						if verb == "read" {
							from, to, dst = 0, 7, p.from
						}
						alloc := func(x *proxy, seed uint64) reply {
							o := order{Op: "buffer", ID: "b", Kind: "anonymous", Size: size, Seed: seed}
							if x == changed {
								o.Kind, o.Off = c.kind, 0x7000_0000_0000
							}
							return x.must(o)
						}
						alloc(p.from, from)
						remote := alloc(p.to, to).Remote
						p.from.must(order{Op: verb, ID: "x", Kind: "b", Remote: remote, Size: size})
						time.Sleep(after)
						o := c.o
						o.ID = "b"
						if o.Op == "" {
							changed.kill()
						} else if r, err := changed.do(o); err != nil || r.Err != "" {
							t.Logf("%s: %s %v", o.Op, r.Err, err) // EAGAIN, EBUSY: the memory is unchanged
						}
						ended := o.Op == "" || o.Op == "exec"
						done := false
						if !ended || changed == p.to {
							r := p.from.wait("x")
							switch done = r.Done; {
							case done:
								arrived++
							case c.arrives || r.Text == "" || r.Code == 0 || !ended && r.Code != device.StatusDecode:
								t.Errorf("after %v: %+v", after, r)
							default:
								failed++
							}
						}
						switch {
						case ended && dst == changed:
							if o.Op == "exec" { // the new image has its own memory at the same address
								dst.must(order{Op: "buffer", ID: "b", Kind: "fixed", Off: 0x7000_0000_0000, Size: size})
								w.until("the slot is free", func() bool { return w.domains() == 3 })
								dst.holds("b", 0, 0, size)
							}
						case c.whole, done && dst != changed && ended:
							dst.holds("b", 7, 0, size)
						case dst == changed && (o.Op == "unmap" || o.Op == "truncate"):
							dst.must(order{Op: "either", ID: "b", Seed: 7, Size: size / 2})
						case o.Op == "move" && dst == changed: // where it was there is nothing
						default:
							dst.must(order{Op: "either", ID: "b", Seed: 7})
						}
						if o.Op == "fork with" {
							changed.must(order{Op: "check child", ID: "b"})
						}
						if !ended { // both live on, and their other memory works as before
							p.from.buffer("again", "anonymous", 1<<20, 9)
							p.from.write("y", "again", p.to.buffer("again", "anonymous", 1<<20, 0).Remote, 1<<20)
							p.from.arrives("y")
							p.to.holds("again", 9, 0, 1<<20)
						}
						p.kill()
					}
					t.Logf("%d arrived, %d failed", arrived, failed)
				})
			}
		}
	}
	b.fine()
}
