package mediate

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// TestScratchpadThatGoes: each access to the memory of a device that is gone returns an error
// instead of killing the process.
func TestScratchpadThatGoes(t *testing.T) {
	fd, err := unix.MemfdCreate("btcm", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, device.BTCMDoorbells); err != nil {
		t.Fatal(err)
	}
	b, err := unix.Mmap(fd, 0, device.BTCMDoorbells, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b)
	s, err := newScratchpad(b)
	if err != nil {
		t.Fatal(err)
	}
	lost := 0
	s.lost = func() { lost++ }
	words := [device.DescriptorWords]uint64{1, 2, 3}
	s.put(1, 2, &words)
	if done, _, _, ok := s.state(1, 2); done != device.DoneInitialized || !ok || lost != 0 {
		t.Errorf("done %d, %v, lost %d times", done, ok, lost)
	}
	if err := unix.Ftruncate(fd, 0); err != nil {
		t.Fatal(err)
	}
	for i, access := range []func() bool{
		func() bool { _, ok := s.load(0, 4); return ok },
		func() bool { _, ok := s.load(8, 8); return ok },
		func() bool { return s.store32(0, 1) },
		func() bool { return s.store64(8, 1) },
		func() bool { _, _, _, ok := s.state(1, 2); return ok },
	} {
		before := lost
		if access() || lost == before {
			t.Errorf("access %d succeeds, or lost is not called", i)
		}
	}
	s.put(1, 2, &words)
	_, err = (&raw{&link{btcm: s}, device.BTCM}).Load(0, 4)
	if !errors.Is(err, device.ErrGone) || !errors.Is(err, errLost) {
		t.Error(err)
	}
	if err := unix.Ftruncate(fd, device.BTCMDoorbells); err != nil {
		t.Fatal(err)
	}
	if v, ok := s.load(0, 8); v != 0 || !ok {
		t.Errorf("back again: %#x, %v", v, ok)
	}
}
