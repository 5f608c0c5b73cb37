package guests

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/internal/suite"
	"github.com/exanet/pfd/space/shadow"
	"github.com/exanet/pfd/vfio/kernel"
	"github.com/exanet/pfd/vfio/mediate"
)

// The parts of this program that run in a guest.

// insideVariable names the functions of a guest that TestInside drives.
const insideVariable = "EXANET_INSIDE"

// memfd creates a file of size bytes.
func memfd(size uint64) (int, error) {
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err == nil {
		err = unix.Ftruncate(fd, int64(size))
	}
	return fd, err
}

// say prints a line of JSON.
func say(v any) error { return json.NewEncoder(os.Stdout).Encode(v) }

func end(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Addresses of a test's maps, within the range of an IOMMU of 39 bits.
const (
	mapsAt    = 1 << 32
	mapRights = 3 // read, write
)

// bareTimes are the times of a bare map of 256 absent pages, by one call and by 16.
type bareTimes struct{ Whole, Places time.Duration }

// bareMap maps 1 MiB of an untouched file through the kernel's VFIO alone, once for each line
// that it reads.
func bareMap(args []string) int {
	d, err := kernel.Open(args[0], kernel.Options{})
	if err != nil {
		return end(err)
	}
	defer d.Close()
	one := func(step uint64) (time.Duration, error) {
		const size = 256 * device.PageSize
		fd, err := memfd(size)
		if err != nil {
			return 0, err
		}
		defer unix.Close(fd)
		began := time.Now()
		for at := uint64(0); at < size && err == nil; at += step {
			err = d.MapDMA(mapsAt+at, step, fd, at, mapRights)
		}
		return time.Since(began), errors.Join(err, d.UnmapDMA(mapsAt, size))
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		whole, err := one(256 * device.PageSize)
		places, more := one(16 * device.PageSize)
		if err := errors.Join(err, more, say(bareTimes{whole, places})); err != nil {
			return end(err)
		}
	}
	return 0
}

// mapPages maps a number of pages of 4 KiB for a device, and then unmaps them. It maps the
// pages of one file repeatedly, in an order in which no two are adjacent, so that the IOMMU
// needs an entry for each.
func mapPages(args []string) int {
	pages, err := strconv.ParseUint(args[1], 0, 64)
	if err != nil {
		return end(err)
	}
	d, err := kernel.Open(args[0], kernel.Options{})
	if err != nil {
		return end(err)
	}
	defer d.Close()
	const size = 64 << 20
	fd, err := memfd(size)
	if err != nil {
		return end(err)
	}
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return end(err)
	}
	for _, page := range rand.New(rand.NewPCG(1, 1)).Perm(size / device.PageSize) {
		b[page*device.PageSize] = 1
	}
	began := time.Now()
	for at := uint64(0); at < pages*device.PageSize; at += size {
		if err := d.MapDMA(mapsAt+at, min(size, pages*device.PageSize-at), fd, 0, mapRights); err != nil {
			return end(fmt.Errorf("after %d pages: %w", at/device.PageSize, err))
		}
	}
	mapped := time.Since(began)
	if err := say(mapped); err != nil {
		return end(err)
	}
	// They stay mapped until a line arrives.
	bufio.NewScanner(os.Stdin).Scan()
	return end(errors.Join(d.UnmapDMA(mapsAt, pages*device.PageSize), say(time.Since(began)-mapped)))
}

// limited executes a command that may lock at most this many bytes, even as root.
func limited(args []string) int {
	limit, err := strconv.ParseUint(args[0], 0, 64)
	if err == nil {
		err = unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_IPC_LOCK, 0, 0, 0)
	}
	if err == nil {
		err = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: limit, Max: limit})
	}
	var path string
	if err == nil {
		path, err = exec.LookPath(args[1])
	}
	if err == nil {
		err = unix.Exec(path, args[1:], os.Environ())
	}
	return end(err)
}

// hostile has the functions of a guest's nodes. Its driver does what no driver should do.
type hostile struct {
	addresses []string
	nodes     []*remapping
}

// remapping is a function whose mappings are removed and made again.
type remapping struct {
	mediate.Function
	mu   sync.Mutex
	maps []mapping
}

type mapping struct {
	addr, size, offset uint64
	fd                 int
	rights             uint32
}

// MapDMA implements shadow.DMA.
func (r *remapping) MapDMA(addr, size uint64, fd int, offset uint64, rights uint32) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.Function.MapDMA(addr, size, fd, offset, rights)
	if err == nil {
		if fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err == nil {
			r.maps = append(r.maps, mapping{addr, size, offset, fd, rights})
		}
	}
	return err
}

// UnmapDMA implements shadow.DMA.
func (r *remapping) UnmapDMA(addr, size uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.maps = slices.DeleteFunc(r.maps, func(m mapping) bool {
		inside := m.addr >= addr && m.addr-addr < size
		if inside {
			_ = unix.Close(m.fd)
		}
		return inside
	})
	return r.Function.UnmapDMA(addr, size)
}

// remap removes each mapping and makes it again.
func (r *remapping) remap() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.maps {
		err := r.Function.UnmapDMA(m.addr, m.size)
		if err == nil {
			err = r.Function.MapDMA(m.addr, m.size, m.fd, m.offset, m.rights)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pinning is a machine over the kernel's VFIO.
type pinning struct{ suite.Mediated }

// MayPin implements suite.Pinning.
func (pinning) MayPin() int64 { return 2 * int64(shadow.Bound(smallWindow)) }

// drive returns a rig that drives the two nodes.
func (h *hostile) drive(t *testing.T) *suite.Rig {
	t.Helper()
	h.nodes = nil
	cfg := mediate.Config{Window: smallWindow}
	for _, address := range h.addresses {
		connect := mediate.VFIO(address, false, nil)
		cfg.Connect = append(cfg.Connect, func(ctx context.Context, vectors []int) (mediate.Function, error) {
			f, err := connect(ctx, vectors)
			if err != nil {
				return nil, err
			}
			r := &remapping{Function: f}
			h.nodes = append(h.nodes, r)
			return r, nil
		})
	}
	m, err := mediate.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, m.Close()); err != nil {
			t.Error(err)
		}
	})
	r := suite.NewRig(t, pinning{suite.Mediated{Machine: m}}, fault.PIA, false)
	for n := range h.addresses {
		r.On(n, func() { err = errors.Join(err, m.Bus(n).Window(device.PL).Write32(device.PLTimeoutUS, 1e6)) })
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// file writes to a file of the target in sysfs, which root may do.
func (h *hostile) file(name string, at int64, b ...byte) error {
	f, err := os.OpenFile(filepath.Join("/sys/bus/pci/devices", h.addresses[1], name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, at)
	return errors.Join(err, f.Close())
}

// Hostile acts on the target during transfers.
var hostilities = []struct {
	name string
	act  func(h *hostile) error
}{
	{"remap", func(h *hostile) error { return h.nodes[1].remap() }},
	{"FLR", func(h *hostile) error { return h.file("reset", 0, '1') }},
	{"CTRL", func(h *hostile) error {
		return h.nodes[1].Post(int(device.PL), device.PLCtrl, 4, device.CtrlReset)
	}},
	{"D3hot", func(h *hostile) error { return h.file("config", 0x44, 3, 0) }}, // PMCSR (vfio/user, pciconfig.go)
	// A SYNC waits for transfers in flight.
	{"bus mastering off under a SYNC", func(h *hostile) error {
		bank := func(r uint32) uint64 { return uint64(device.Bank(0, r)) }
		err := h.nodes[1].Post(int(device.SMMU), bank(device.TLBSYNC), 4, 0)
		return errors.Join(err, h.file("config", 4, 2, 0)) // command: memory
	}},
}

// TestInside runs the hostile driver in a guest.
func TestInside(t *testing.T) {
	names := os.Getenv(insideVariable)
	if names == "" {
		t.Skip("runs only in a guest: TestHostileDriver starts it there")
	}
	h := &hostile{addresses: strings.Split(names, ",")}
	const size = 1 << 20
	for _, x := range hostilities {
		t.Run(x.name, func(t *testing.T) {
			t.Run("transfers", func(t *testing.T) {
				r := h.drive(t)
				src, dst := r.Map(t, size), r.Map(t, size)
				src[0] = 1
				for ch := range 8 {
					r.Start(ch, device.Descriptor{Src: suite.VA(src), Dst: suite.VA(dst), Size: size, DstNode: 1})
				}
				for range 8 {
					if err := x.act(h); err != nil {
						t.Fatal(err)
					}
				}
			})
			r := h.drive(t)
			src, dst := r.Map(t, size), r.Map(t, size)
			_, _ = rand.NewChaCha8([32]byte{1}).Read(src)
			done, status := r.Write(0, device.Descriptor{Src: suite.VA(src), Dst: suite.VA(dst), Size: size, DstNode: 1})
			if done != device.DoneCompleted || !bytes.Equal(src, dst) {
				t.Errorf("the next driver's transfer: done %d, status %d", done, status)
			}
		})
	}
}
