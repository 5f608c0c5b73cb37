package kernel

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/mmio"
)

// fake is a device whose file is a memfd: configuration space, a mapped BAR and one that is not
// mapped.
func fake(t *testing.T) *Device {
	t.Helper()
	fd, err := unix.MemfdCreate("device", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, 3*4096); err != nil {
		t.Fatal(err)
	}
	d := &Device{address: addr, fd: fd, watch: [3]int{-1, -1, -1}, end: mmio.NewEnd("vfio " + addr)}
	d.regions[0] = region{flags: regionMmap, size: 4096}
	d.regions[1] = region{size: 4096, offset: 4096}
	d.regions[RegionConfig] = region{size: 256, offset: 8192}
	d.mmap(0)
	if d.Bytes(0) == nil || d.Bytes(1) != nil {
		t.Fatal("the first BAR must be mapped, the second must not")
	}
	if err := d.pwrite(RegionConfig, configID, 4, 0xe4a01234); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// Accesses have the requested width, mapped or not.
func TestAccess(t *testing.T) {
	d := fake(t)
	for bar := range 2 {
		for _, size := range []int{1, 2, 4, 8} {
			if err := d.Post(bar, 64, 8, 0x1111111111111111); err != nil {
				t.Fatal(err)
			}
			if err := d.Post(bar, 64, size, 0x8877665544332200); err != nil {
				t.Fatal(err)
			}
			mask := ^uint64(0) >> (64 - 8*size)
			want := 0x1111111111111111&^mask | 0x8877665544332200&mask
			v, err := d.Read(bar, 64, 8)
			low, lowErr := d.Read(bar, 64, size)
			if err != nil || lowErr != nil || v != want || low != want&mask {
				t.Errorf("BAR %d, %d bytes: %#x, %v, %#x, %v, want %#x", bar, size, v, err, low, lowErr, want)
			}
		}
	}
}

func TestAccessOutside(t *testing.T) {
	d := fake(t)
	for _, c := range []struct {
		region int
		off    uint64
		size   int
	}{{-1, 0, 4}, {8, 0, 4}, {0, 4096, 4}, {0, 4092, 8}, {0, 1 << 63, 4}, {0, ^uint64(0) - 3, 4}, {0, 2, 4}, {0, 0, 3}, {0, 0, 16}, {0, 0, 0}, {2, 0, 4}} {
		if _, err := d.Read(c.region, c.off, c.size); !errors.Is(err, unix.EINVAL) {
			t.Errorf("read %+v: %v", c, err)
		}
		if err := d.Post(c.region, c.off, c.size, 0); !errors.Is(err, unix.EINVAL) {
			t.Errorf("write %+v: %v", c, err)
		}
	}
	if err := d.Err(); err != nil {
		t.Errorf("the device has ended: %v", err)
	}
}

// All ones in a register are a value; all ones in the identity mean that the device is gone.
func TestAllOnes(t *testing.T) {
	d := fake(t)
	if err := d.Post(0, 0, 4, 0xffffffff); err != nil {
		t.Fatal(err)
	}
	if v, err := d.Read(0, 0, 4); err != nil || v != 0xffffffff {
		t.Fatalf("%#x, %v", v, err)
	}
	if err := d.pwrite(RegionConfig, configID, 4, 0xffffffff); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Read(0, 0, 4); !errors.Is(err, ErrGone) {
		t.Errorf("read: %v, want ErrGone", err)
	}
	select {
	case <-d.Done():
	default:
		t.Error("Done is open")
	}
	if err := d.Post(0, 0, 4, 0); !errors.Is(err, ErrGone) {
		t.Errorf("write: %v, want ErrGone", err)
	}
}

// A mapping whose pages were removed means that the device is gone, and causes no crash.
func TestMappingGone(t *testing.T) {
	d := fake(t)
	if err := unix.Ftruncate(d.fd, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Read(0, 0, 8); !errors.Is(err, ErrGone) || !errors.Is(err, mmio.ErrFault) {
		t.Errorf("read: %v", err)
	}
	d = fake(t)
	if err := unix.Ftruncate(d.fd, 0); err != nil {
		t.Fatal(err)
	}
	if err := d.Post(0, 0, 8, 0); !errors.Is(err, ErrGone) || !errors.Is(err, mmio.ErrFault) {
		t.Errorf("write: %v", err)
	}
}
