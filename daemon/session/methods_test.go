package session

import (
	"errors"
	"os"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/internal/quota"
	"github.com/exanet/pfd/space/proc"
	"github.com/exanet/pfd/space/uffd"
)

// Descriptors that a process sends to be registered are closed only by package attach: closing a
// descriptor of somebody else's may last for ever, and only that package bounds it.
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
	s := &session{d: &Host{regions: quota.New(1, 1, nil)}, uid: 1, regions: gup.NewRegions(p)}
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

// sharingOf is a Sharing that takes shares and nothing else.
type sharingOf struct{ Sharing }

func (m *sharingOf) Share(_, _ int, s attach.Share, _ int) error {
	if s.Size == 0 {
		return errors.New("no size")
	}
	return nil
}

func (m *sharingOf) Unshare(_, _ int, r attach.Range) error { return nil }

// The shares of one user leave the others theirs, and are no longer counted after their end.
func TestSharesOfAUser(t *testing.T) {
	m := &sharingOf{}
	d := &Host{shares: quota.New(2, 5, nil)}
	of := func(uid uint32) sharing { return sharing{m, &session{d: d, n: &Node{}, uid: uid}} }
	full := func(h sharing) bool { return h.Share(attach.Share{Size: 1}, -1, -1) != nil }
	a, b, c := of(7), of(7), of(8)
	if a.Share(attach.Share{}, -1, -1) == nil || d.shares.Total() != 0 {
		t.Error("what was refused counts")
	}
	if full(a) || full(b) || !full(a) || !full(b) || full(c) {
		t.Errorf("%d are shared, want two of one user and one of another", d.shares.Total())
	}
	if err := a.Unshare(attach.Range{}); err != nil || full(b) {
		t.Error("what was unshared counts", err)
	}
	b.s.unshared()
	b.s.unshared()
	if n := d.shares.Total(); n != 1 || full(a) {
		t.Errorf("%d are shared when a session has ended, want the other user's one", n)
	}
}
