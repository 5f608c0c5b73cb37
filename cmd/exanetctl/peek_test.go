package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/daemon"
	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/emu/serve"
	"github.com/exanet/pfd/rdma"
)

// shown is the output of two commands, as tables and as JSON.
type shown struct {
	fifoTable, fifoJSON, channelTable, channelJSON string
}

// volatile are the values that differ from run to run.
// An age is in the last column, to the right.
var volatile = regexp.MustCompile(`("age_ns":) ?\d+|(?m) +AGE$| +\d[0-9.]*(µs|ms|s)$`)

// The number of faults that wait at the same time depends on how fast they are served.
var (
	highest     = regexp.MustCompile(`(?m)^( +\d +[rt]xfifo +\d+) +\d+( +512)`)
	highestJSON = regexp.MustCompile(`("highest_level":)\d+`)
)

// retransmitted is also volatile after faults are resolved.
var retransmitted = regexp.MustCompile(`("blocks_retransmitted":)[1-9]\d*`)

func show(t *testing.T, socket string) shown {
	t.Helper()
	get := func(args ...string) string {
		t.Helper()
		code, out, errs := ctl(append([]string{"--socket", socket}, args...)...)
		if code != 0 {
			t.Fatalf("%v: exit code %d: %s", args, code, errs)
		}
		return volatile.ReplaceAllString(out, "${1}0")
	}
	return shown{get("fifo"), get("-o", "json", "fifo"), get("channel"), get("-o", "json", "channel")}
}

// served serves two nodes until the test ends and returns pfd's --device for them.
func served(t *testing.T) string {
	t.Helper()
	m, err := serve.New(serve.Config{Nodes: 2})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	done, ready := make(chan error, 1), make(chan struct{})
	go func() { done <- m.Run(ctx, dir, func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	<-ready
	return daemon.DeviceVFIOUser + serve.SocketPath(dir, 0) + "," + serve.SocketPath(dir, 1)
}

// stuck is a pfd under load whose driver sees no fault, so that FIFOs stay full and blocks
// paused. After let it sees faults again.
type stuck struct {
	socket string
	let    func()
	wait   func()
}

const peekMemory = 1 << 20 // the first half is the sources'

// newStuck starts a pfd with a device and writes from and into absent memory.
func newStuck(t *testing.T, dev string, mem []byte, fd int) *stuck {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	cfg := daemon.Default()
	dir, err := os.MkdirTemp("", "peek")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Socket, cfg.Device = filepath.Join(dir, "s"), dev
	cfg.Registers = true // with queues in memory the entries go there at once
	m, err := daemon.Open(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	d, err := daemon.New(cfg, m)
	if err != nil {
		t.Fatal(err)
	}
	run, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(run) }()
	var ends []*rdma.Endpoint
	t.Cleanup(func() {
		for _, e := range ends {
			_ = e.Close()
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		cancel()
		_ = os.RemoveAll(dir)
	})
	c, err := control.New(cfg.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Status(ctx); err != nil {
		t.Fatal(err)
	}
	for node := range 2 {
		e, err := rdma.Attach(ctx, rdma.Options{Socket: cfg.Socket, Node: device.NodeID(node), Group: "peek"})
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, e)
		if e.Info().SVA() {
			continue
		}
		if err := e.Share(rdma.VAOf(mem), uint64(len(mem)), fd, 0, true); err != nil {
			t.Fatal(err)
		}
	}
	// pl changes registers of both nodes on their owners. Writes to a device in another
	// process are posted, so a read follows, which returns after the device has received
	// the writes.
	pl := func(change func(w device.Window) error) {
		t.Helper()
		for node := range 2 {
			done := make(chan error)
			m.Bus(node).Post(func() {
				w := m.Bus(node).Window(device.PL)
				err := change(w)
				if err == nil {
					_, err = w.Read32(device.PLIRQMask)
				}
				done <- err
			})
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
	}
	const faults = 1<<device.VectorFault | 1<<device.VectorFIFO
	mask := func(on uint32) {
		t.Helper()
		pl(func(w device.Window) error {
			v, err := w.Read32(device.PLIRQMask)
			if err != nil {
				return err
			}
			return w.Write32(device.PLIRQMask, v&^faults|on)
		})
	}
	mask(faults)
	for _, register := range []uint32{device.PLGuardUS, device.PLTimeoutUS} {
		pl(func(w device.Window) error { return w.Write32(register, uint32(patience/time.Microsecond)) })
	}
	remote, err := ends[1].Export(mem[peekMemory/2:])
	if err != nil {
		t.Fatal(err)
	}
	var transfers []*rdma.Transfer
	var rx, tx int
	for _, w := range peekWrites {
		tr, err := ends[0].Write(ctx, rdma.WriteRequest{Src: mem[w.at : w.at+w.size], Dst: remote, Offset: uint64(w.at)})
		if err != nil {
			t.Fatal(err)
		}
		transfers = append(transfers, tr)
		// The next transfer is issued when this one waits for all of its pages, so that
		// the transaction ids are the same in each run.
		rx, tx = rx+w.rx, tx+w.tx
		awaitEntries(ctx, t, c, rx, tx)
	}
	return &stuck{cfg.Socket, func() { mask(0) }, func() {
		t.Helper()
		for i, tr := range transfers {
			if err := tr.Wait(ctx); err != nil {
				t.Errorf("transfer %d: %v", i, err)
			}
		}
	}}
}

// awaitEntries waits until the FIFOs of destinations have rx entries and those of
// sources tx entries.
func awaitEntries(ctx context.Context, t *testing.T, c *control.Client, rx, tx int) {
	t.Helper()
	for {
		fifos, err := c.FIFOs(ctx, control.AllNodes)
		if err != nil {
			t.Fatal(err)
		}
		var n [2]int
		for _, f := range fifos {
			if f.Name == "rxfifo" {
				n[0] += len(f.Entries)
			} else {
				n[1] += len(f.Entries)
			}
		}
		if n == [2]int{rx, tx} {
			return
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("%d entries of destinations and %d of sources, want %d and %d: %+v", n[0], n[1], rx, tx, fifos)
		}
	}
}

// peekWrites are writes from a place in the first half of the memory to the same place in
// the second half. The sources of the first two are present. rx and tx are the numbers of
// pages of the destination and of the source that are absent and fault.
var peekWrites = []struct {
	at, size int
	present  bool
	rx, tx   int
}{{0, 4096, true, 1, 0}, {8192, 40000, true, 10, 0}, {65536, 8192, false, 0, 2}}

// exanetctl fifo and channel show the same fields for a device over vfio-user as for a device
// in pfd under the same load, while faults wait and after the end.
func TestPeekAsInProcess(t *testing.T) {
	fd, err := rdma.MakeMemory(peekMemory, 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	// One mapping for all, so that the addresses are equal.
	mem, err := unix.Mmap(fd, 0, peekMemory, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	var during, after [2]shown
	for i, name := range []string{"emu", "vfio-user"} {
		ok := t.Run(name, func(t *testing.T) {
			if err := unix.Madvise(mem, unix.MADV_REMOVE); err != nil {
				t.Fatal(err)
			}
			for _, w := range peekWrites {
				for at := w.at; w.present && at < w.at+w.size; at++ {
					mem[at] = byte(at*7 + at>>12)
				}
			}
			dev := daemon.DeviceEmu
			if i == 1 {
				dev = served(t)
			}
			s := newStuck(t, dev, mem, fd)
			during[i] = show(t, s.socket)
			if again := show(t, s.socket); again != during[i] {
				t.Errorf("what is shown changes by being looked at:\n%+v\n%+v", during[i], again)
			}
			var channels control.Channels
			if err := json.Unmarshal([]byte(during[i].channelJSON), &channels); err != nil {
				t.Fatal(err)
			}
			for k, c := range channels.Channels {
				// Blocks end at the boundaries of the destination, which the kernel has chosen.
				blocks := int((uint64(c.Dst)%device.BlockSize + c.SizeBytes + device.BlockSize - 1) / device.BlockSize)
				if k == 1 && (c.Blocks != blocks || c.InFlight != blocks || c.Paused != blocks || c.IssuedBytes != 40000 || c.Class != "high" || c.Window != 8) {
					t.Errorf("channel of 40,000 bytes: %+v", c)
				}
			}
			if len(channels.Channels) != len(peekWrites) {
				t.Errorf("%d channels", len(channels.Channels))
			}
			s.let()
			s.wait()
			over := show(t, s.socket)
			after[i] = shown{fifoTable: highest.ReplaceAllString(over.fifoTable, "$1 -$2"), fifoJSON: highestJSON.ReplaceAllString(over.fifoJSON, "${1}0"), channelJSON: retransmitted.ReplaceAllString(over.channelJSON, "${1}1")}
			for _, w := range peekWrites {
				for at := range w.size {
					if mem[w.at+at] != mem[peekMemory/2+w.at+at] {
						t.Fatalf("byte %d of %d at +%d differs", at, w.size, w.at)
					}
				}
			}
		})
		if !ok {
			t.FailNow()
		}
	}
	for _, x := range []struct {
		what string
		s    [2]shown
	}{{"while faults wait", during}, {"when all is over", after}} {
		if x.s[0] != x.s[1] {
			t.Errorf("%s: in process\n%s%s%s%s\nover vfio-user\n%s%s%s%s", x.what,
				x.s[0].fifoTable, x.s[0].channelTable, x.s[0].fifoJSON, x.s[0].channelJSON, x.s[1].fifoTable, x.s[1].channelTable, x.s[1].fifoJSON, x.s[1].channelJSON)
		}
	}
}
