package memport

import (
	"bytes"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/space/proc"
	"github.com/exanet/pfd/space/proc/proctest"
)

// FuzzHelperAnswer: pfd may write anything into a slot. The helper answers and writes only to the
// slot, its data and the count of answers.
func FuzzHelperAnswer(f *testing.F) {
	c := proctest.Start(f)
	va := c.Map(proctest.Anon, 80)
	c.Fill(va, 8, 1)
	p, err := proc.Open(c.PIDFDs())
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { p.Close() })
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { unix.Close(event) })
	b, err := unix.Mmap(-1, 0, Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = unix.Munmap(b) })
	s := &server{m: newMapped(b), wake: event, process: p, pager: gup.NewRegions(p)}

	for i, o := range []op{opWalk, opMove, opOrdered, opPageIn, opMapping, opPagemap, opInFile, 0, 8} {
		for _, size := range []uint64{0, 16, mappingSize, 512, dataStride, dataStride + 1, 1 << 63, most} {
			f.Add(uint8(i), uint32(o), uint64(va), size/8, size, uint64(i%2), uint32(i))
		}
		f.Add(uint8(15), uint32(o), most, most, uint64(dataStride), uint64(1), uint32(0))
	}
	f.Fuzz(func(t *testing.T, slot uint8, o uint32, at, pages, size, write uint64, asleep uint32) {
		i := int(slot % Slots)
		copy(b[:page], bytes.Repeat([]byte{0xa5}, page))
		from := offData + i*dataStride
		before, after := b[from-page:from], b[from+dataStride:min(from+dataStride+page, Size)]
		for _, edge := range [][]byte{before, after} {
			for j := range edge {
				edge[j] = 0xa5
			}
		}
		s.m.store(i, slotVA, at)
		s.m.store(i, slotPages, pages)
		s.m.store(i, slotBytes, size)
		s.m.store(i, slotWrite, write)
		atomic.StoreUint32(s.m.w32(slotAt(i)+slotOp), o)
		atomic.StoreUint32(s.m.state(i), stateClaimed)
		atomic.StoreUint32(s.m.w32(offAsleep), asleep)
		completed := atomic.LoadUint32(s.m.w32(offCompleted))

		s.answer(i)

		if v := atomic.LoadUint32(s.m.state(i)); v != stateDone {
			t.Errorf("state %d", v)
		}
		if v := atomic.LoadUint32(s.m.w32(offCompleted)); v != completed+1 {
			t.Errorf("%d answers", v-completed)
		}
		var count [8]byte
		if _, err := unix.Read(event, count[:]); (err == nil) != (asleep != 0) {
			t.Errorf("asleep %d, the eventfd: %v", asleep, err)
		}
		if size > dataStride && decodeError(s.m.load(i, slotCode)) == nil {
			t.Errorf("%d bytes, and no error", size)
		}
		for j, v := range b[:page] {
			inside := j >= int(slotAt(i)) && j < int(slotAt(i))+slotStride || j >= offCompleted && j < offCompleted+4 || j >= offAsleep && j < offAsleep+4
			if v != 0xa5 && !inside {
				t.Fatalf("byte %#x of the header was written", j)
			}
		}
		if i > 0 && bytes.Count(before, []byte{0xa5}) != len(before) || bytes.Count(after, []byte{0xa5}) != len(after) {
			t.Errorf("data of another slot was written")
		}
	})
}

// The missing pages of a private mapping of a file hold the file's bytes: a helper must not fill
// them with zeros.
func TestRegisterRefusesAPrivateFile(t *testing.T) {
	p := own(t)
	fd, _, _ := missing(t, 1)
	defer unix.Close(fd)
	file, err := unix.MemfdCreate("private", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(file)
	b, err := unix.Mmap(file, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b)
	if err := p.Register(address(b), page, fd); !errors.Is(err, ErrHelper) || !strings.Contains(err.Error(), "private mapping") {
		t.Errorf("%v, want ErrHelper for a private mapping", err)
	}
}
