package daemon

import (
	"errors"
	"os"
	"reflect"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/internal/quota"
	"github.com/exanet/pfd/pagein"
	"github.com/exanet/pfd/proc"
	"github.com/exanet/pfd/uffd"
)

// What a process sends to be registered stays whose it was: closing a descriptor of
// somebody else's may last for ever, and only package attach bounds that.
func TestRegisteredDescriptorsStayTheCallers(t *testing.T) {
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(self)
	p, err := proc.Look(self)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	fd, _, err := uffd.Open(false)
	if err != nil {
		t.Skip(err)
	}
	const size = device.PageSize
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b)
	if err := uffd.Register(fd, device.VA(reflect.ValueOf(b).Pointer()), size); err != nil {
		t.Fatal(err)
	}
	s := &session{d: &Daemon{regions: quota.New(1, 1, nil)}, uid: 1, regions: gup.NewRegions(p)}
	defer s.regions.Close()
	m := attach.Range{Type: attach.TypeRegister, VA: device.VA(reflect.ValueOf(b).Pointer()), Size: size}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if err := (registrar{s}).Register(m, int(null.Fd())); !errors.Is(err, uffd.ErrNotOne) {
		t.Errorf("/dev/null registered: %v", err)
	}
	if err := (registrar{s}).Register(m, fd); err != nil {
		t.Fatal(err) // the one place is free again
	}
	if b[0] != 0 { // served
		t.Error(b[0])
	}
	for _, fd := range []int{int(null.Fd()), fd} {
		if err := unix.Close(fd); err != nil {
			t.Errorf("descriptor %d: %v", fd, err)
		}
	}
}

// sharingOf is a Sharing that can map a page once more and nothing else.
type sharingOf struct {
	Sharing
	again []device.VA
}

func (m *sharingOf) Again(_, _ int, va device.VA, _ bool) gup.Result {
	m.again = append(m.again, va)
	return gup.Result{}
}

// What a device with tables of pfd's own is refused is mapped once more, whoever brings
// the process's own memory in.
func TestMappedOnceMoreByEveryMethod(t *testing.T) {
	const base = device.VA(0x7f0000000000)
	for _, method := range []pagein.Method{pagein.GUP, pagein.Touch, pagein.Populate, pagein.UFFD} {
		m := &sharingOf{}
		s := &session{d: &Daemon{machine: m}, n: &node{}, method: method}
		p, ok := s.pagerFor(3).(fault.Remapper)
		if !ok {
			t.Errorf("%v: its pager maps nothing once more", method)
			continue
		}
		if p.Again(base, true); !slices.Equal(m.again, []device.VA{base}) {
			t.Errorf("%v: mapped once more: %v, want %v", method, m.again, base)
		}
	}
}
