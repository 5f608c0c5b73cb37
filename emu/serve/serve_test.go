package serve

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/smmu"
	"github.com/exanet/pfd/space/proc"
	"github.com/exanet/pfd/vfio/user"
)

// start serves two nodes and connects to the first.
func start(t *testing.T) (*Machine, string) {
	t.Helper()
	m, err := New(Config{Nodes: 2})
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "exanet-")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done, ready := make(chan error, 1), make(chan struct{})
	go func() { done <- m.Run(ctx, dir, func() { close(ready) }) }()
	<-ready
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, m.Close(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	for n := range 2 { // the sockets exist, since ready was called
		c, err := net.Dial("unix", SocketPath(dir, n))
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
	return m, dir
}

func connect(t *testing.T, dir string) *user.Client {
	t.Helper()
	c, err := user.Redial(t.Context(), SocketPath(dir, 0), user.Options{}, func(c *user.Client) error {
		return c.SetCommand(user.CommandMemory | user.CommandMaster)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

type client struct {
	*testing.T
	*user.Client
}

func (c client) read(w device.WindowID, off uint32, size int) uint64 {
	c.Helper()
	v, err := c.Read(int(w), uint64(off), size)
	if err != nil {
		c.Fatal(err)
	}
	return v
}

func (c client) write(w device.WindowID, off uint32, size int, v uint64) {
	c.Helper()
	if err := c.Write(int(w), uint64(off), size, v); err != nil {
		c.Fatal(err)
	}
}

// TestIdentity compares the device with spec/hardware.md 2.
func TestIdentity(t *testing.T) {
	_, dir := start(t)
	c := client{t, connect(t, dir)}
	for _, r := range []struct {
		off  uint64
		size int
		want uint64
	}{{0, 4, 0xe4a01234}, {8, 4, 0x02800001}, {0x3d, 1, 0}} {
		if v, err := c.Read(user.RegionConfig, r.off, r.size); err != nil || v != r.want {
			t.Errorf("configuration space, %#x: %#x, %v, want %#x", r.off, v, err, r.want)
		}
	}
	for bar, size := range []uint64{128 << 10, 128 << 10, 128 << 10, 256 << 10, 256 << 10, 4 << 10} {
		r, fd, err := c.Region(bar)
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		if err != nil || r.Size != size || (fd >= 0) != (bar == int(device.BTCM)) {
			t.Errorf("BAR %d: %+v, descriptor %d, %v", bar, r, fd, err)
		}
	}
	if i, err := c.IRQ(user.IRQMSIX); err != nil || i.Count != device.Vectors {
		t.Errorf("MSI-X: %+v, %v", i, err)
	}
	if v := c.read(device.PL, device.PLCaps, 8); v&device.CapsSVA != 0 {
		t.Errorf("CAPS %#x says SVA", v)
	}
	subs, fds, err := c.RegionIOFDs(int(device.PKTZ))
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
	if err != nil || len(subs) != device.Slots || len(fds) != device.Slots {
		t.Errorf("I/O eventfds of the packetizers: %d, %d descriptors, %v", len(subs), len(fds), err)
	}
	// Accesses of a width that no register has are counted as bad.
	before := c.read(device.PL, device.BadAccess.Offset(), 8)
	c.write(device.PL, device.PLTimeoutUS, 2, 7)
	if v := c.read(device.PL, device.PLTimeoutUS, 2); v != 0 {
		t.Errorf("a read of two bytes gives %#x", v)
	}
	if v := c.read(device.PL, device.BadAccess.Offset(), 8); v != before+2 {
		t.Errorf("%d bad accesses counted, want 2", v-before)
	}
}

// TestStateStays: a device keeps its state when its driver disconnects, and can no longer access its
// driver's memory; a reset restores its initial state.
func TestStateStays(t *testing.T) {
	m, dir := start(t)
	c := client{t, connect(t, dir)}
	fd, err := unix.MemfdCreate("dma", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Ftruncate(fd, 4096), c.MapDMA(0x10000, 4096, fd, 0, user.DMARead|user.DMAWrite)); err != nil {
		t.Fatal(err)
	}
	c.write(device.PL, device.PLTimeoutUS, 4, 1234)
	c.write(device.PL, device.PLCtrl, 4, device.CtrlEnable)
	c.write(device.PL, device.PLPDCfg, 8, 7|device.CfgEnable)
	c.write(device.BTCM, 8, 8, 0x1122334455667788)
	dma := m.Server(0).DMA()
	if err := dma.Write(0x10010, []byte{1, 2, 3}); err != nil {
		t.Fatal(err)
	}
	if err := c.SetCommand(user.CommandMemory); err != nil {
		t.Fatal(err)
	}
	if err := dma.Read(0x10010, make([]byte, 3)); !errors.Is(err, user.ErrBusMaster) {
		t.Errorf("DMA with bus mastering off: %v", err)
	}
	c.Close()
	<-c.Done()

	c = client{t, connect(t, dir)}
	if err := dma.Read(0x10010, make([]byte, 3)); !errors.Is(err, user.ErrUnmapped) {
		t.Errorf("DMA to what the driver before had mapped: %v", err)
	}
	if v := c.read(device.PL, device.PLPDCfg, 8); v != 7|device.CfgEnable {
		t.Errorf("PD_CFG is %#x after a reconnection", v)
	}
	mapped, err := c.Map(int(device.BTCM))
	if err != nil || len(mapped) != 1 || mapped[0].Bytes[8] != 0x88 || len(mapped[0].Bytes) != device.BTCMDoorbells {
		t.Fatalf("btcm: %v", err)
	}
	defer func() { _ = user.Unmap(mapped) }()
	mapped[0].Bytes[9] = 0xff
	if v := c.read(device.BTCM, 8, 8); v != 0x112233445566ff88 {
		t.Errorf("btcm by message is %#x", v)
	}
	for _, kind := range []string{"command", "FLR"} {
		c.write(device.PL, device.PLTimeoutUS, 4, 4321)
		c.write(device.PL, device.PLIRQMask, 4, 0xf)
		c.write(device.PL, device.PLCtrl, 4, device.CtrlEnable)
		if kind == "command" {
			err = c.Reset()
		} else {
			// PCI Express capability at 0x60, device control at +8, bit 15.
			err = errors.Join(c.Write(user.RegionConfig, 0x68, 2, 1<<15), c.SetCommand(user.CommandMemory|user.CommandMaster))
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range []struct {
			off  uint32
			want uint64
		}{{device.PLCtrl, 0}, {device.PLTimeoutUS, device.TimeoutReset}, {device.PLIRQMask, 0}, {device.PLPDCfg, 0}} {
			if v := c.read(device.PL, r.off, 4); v != r.want {
				t.Errorf("%s: register %#x is %#x, want %#x", kind, r.off, v, r.want)
			}
		}
		if mapped[0].Bytes[9] != 0 {
			t.Errorf("%s: btcm keeps its bytes", kind)
		}
	}
}

// TestMemory reads and writes through tables that the driver keeps, in scattered pieces, and nothing
// beyond the mapped and entered pages.
func TestMemory(t *testing.T) {
	m, dir := start(t)
	c := client{t, connect(t, dir)}
	fd, err := unix.MemfdCreate("dma", unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(fd, 16*4096)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	b, err := unix.Mmap(fd, 0, 16*4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(b) }()
	const base = 0x100000
	if err := c.MapDMA(base, 16*4096, fd, 0, user.DMARead|user.DMAWrite); err != nil {
		t.Fatal(err)
	}
	put := func(page, i int, e uint64) {
		for k := range 8 {
			b[page*4096+8*i+k] = byte(e >> (8 * k))
		}
	}
	// Three levels at pages 0 to 2 (39 bits), VA 0x5000 on: pages 8, 9, 3, none, and
	// one that is not mapped; at 0x20000 one without an access flag, at 0x200000 a
	// table that is not mapped.
	put(0, 0, base+0x1003)
	put(1, 0, base+0x2003)
	put(1, 1, 0x800003)
	put(2, 0x20, base+8*4096|0x43)
	for i, e := range []uint64{base + 8*4096, base + 9*4096, base + 3*4096, 0, 0x900000} {
		if e != 0 {
			put(2, 5+i, e|0x443)
		}
	}
	mem := newMemory(m.Server(0).DMA(), smmu.Tables{TTBR0: base, TCR: 25})
	w, err := mem.Walk(0x5000, 6, true)
	if err != nil || w.Absent != 1<<3|1<<5 || w.Denied != 0 {
		t.Errorf("walk: %+v, %v", w, err)
	}
	if w, err := mem.Walk(0x1f000, 2, true); err != nil || w != (proc.Walk{Absent: 1, Unused: 2}) {
		t.Errorf("walk of an entry without an access flag: %+v, %v", w, err)
	}
	if w, err := mem.Walk(0x1ff000, 2, true); err != nil || w != (proc.Walk{Absent: 1, External: 2}) {
		t.Errorf("walk into a table that is not there: %+v, %v", w, err)
	}
	data := make([]byte, 2*4096)
	for i := range data {
		data[i] = byte(i*7 + i>>8)
	}
	bufs := [][]byte{data[:100], {}, data[100:5000], data[5000:]}
	if n, err := mem.WriteV(bufs, 0x5800); err != nil || n != len(data) {
		t.Fatalf("write: %d, %v", n, err)
	}
	if string(b[8*4096+0x800:9*4096]) != string(data[:0x800]) || string(b[9*4096:10*4096]) != string(data[0x800:0x1800]) || string(b[3*4096:3*4096+0x800]) != string(data[0x1800:]) {
		t.Error("the bytes are not where the tables say")
	}
	got := make([]byte, len(data))
	if n, err := mem.ReadV([][]byte{got[:1], got[1:]}, 0x5800); err != nil || n != len(got) || string(got) != string(data) {
		t.Errorf("read: %d, %v", n, err)
	}
	if n, err := mem.WriteV([][]byte{data}, 0x7000); n != 4096 || !errors.Is(err, errWalk) {
		t.Errorf("write into a page without an entry: %d bytes, %v", n, err)
	}
	if n, err := mem.ReadV([][]byte{got}, 0x9000); n != 0 || !errors.Is(err, user.ErrUnmapped) {
		t.Errorf("read of a page that is entered and not mapped: %d bytes, %v", n, err)
	}
	if err := c.UnmapDMA(base, 16*4096); err != nil {
		t.Fatal(err)
	}
	if w, err := mem.Walk(0x5000, 3, false); err != nil || w != (proc.Walk{External: 7}) {
		t.Errorf("walk without tables: %+v, %v", w, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "node1.sock")); err != nil {
		t.Error(err)
	}
}
