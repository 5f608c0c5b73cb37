package mediate_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/device/queues"
	"github.com/exanet/pfd/emu/serve"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/internal/suite"
	"github.com/exanet/pfd/vfio/mediate"
	"github.com/exanet/pfd/vfio/user"
)

// other makes a Connect whose function f replaces.
func other(path string, f func(mediate.Function) mediate.Function) mediate.Connect {
	connect := mediate.VFIOUser(path, user.Options{})
	return func(ctx context.Context, vectors []int) (mediate.Function, error) {
		fn, err := connect(ctx, vectors)
		if err != nil {
			return nil, err
		}
		return f(fn), nil
	}
}

// copied maps another file for the device than the one that is mapped here, like a virtual
// machine without share=on.
type copied struct {
	mediate.Function
	t testing.TB
}

func (c copied) MapDMA(addr, size uint64, fd int, offset uint64, rights uint32) error {
	apart, err := unix.MemfdCreate("apart", 0)
	if err == nil {
		defer func() { _ = unix.Close(apart) }()
		err = unix.Ftruncate(apart, int64(offset+size))
	}
	if err != nil {
		return err
	}
	return c.Function.MapDMA(addr, size, apart, offset, rights)
}

// TestMemoryNotShared: memory that the device does not see is detected at the start, with an
// error that says what to do.
func TestMemoryNotShared(t *testing.T) {
	_, dir := startServer(t, false)
	began := time.Now()
	_, err := mediate.New(t.Context(), mediate.Config{Connect: []mediate.Connect{
		other(serve.SocketPath(dir, 0), func(f mediate.Function) mediate.Function { return copied{f, t} }),
	}})
	if took := time.Since(began); !errors.Is(err, mediate.ErrMemory) || !strings.Contains(err.Error(), "share=on") || took > 10*time.Second {
		t.Errorf("after %v: %v", took, err)
	}
}

// byMessages maps no file for the device, which must request every byte.
type byMessages struct {
	mediate.Function
	mu     sync.Mutex
	mapped [][]byte
}

func (b *byMessages) MapDMA(addr, size uint64, fd int, offset uint64, rights uint32) error {
	m, err := unix.Mmap(fd, int64(offset), int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	b.mu.Lock()
	b.mapped = append(b.mapped, m)
	b.mu.Unlock()
	return b.Function.(interface {
		MapBytes(addr uint64, b []byte, rights uint32) error
	}).MapBytes(addr, m, rights)
}

func (b *byMessages) Close() {
	b.Function.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.mapped {
		_ = unix.Munmap(m)
	}
	b.mapped = nil
}

// refusing drops posted maps, as a server that refuses them, and refuses them when they are
// awaited.
type refusing struct {
	mediate.Function
	on, posts *atomic.Bool
	refused   *atomic.Int32
}

func (r refusing) PostMaps() { r.posts.Store(true) }

func (r refusing) MapDMA(addr, size uint64, fd int, offset uint64, rights uint32) error {
	if r.on.Load() {
		if r.refused.Add(1) > 1 || !r.posts.Load() {
			return fmt.Errorf("%w: %w", gup.ErrUnmappable, unix.EPERM)
		}
		return nil // not awaited: the refusal is not known yet
	}
	return r.Function.MapDMA(addr, size, fd, offset, rights)
}

// connected is a machine of two nodes whose functions are replaced by f.
func connected(t testing.TB, f func(mediate.Function) mediate.Function) *machine {
	t.Helper()
	s, dir := startServer(t, false)
	var cfg mediate.Config
	var fns [2]mediate.Function
	for i := range fns {
		cfg.Connect = append(cfg.Connect, other(serve.SocketPath(dir, i), func(fn mediate.Function) mediate.Function {
			fns[i] = f(fn)
			return fns[i]
		}))
	}
	m := running(t, cfg) // it connects the functions
	return &machine{Mediated: suite.Mediated{Machine: m}, server: s, functions: fns}
}

// Queues, tables and data that the device accesses only by messages.
func TestQueuesByMessages(t *testing.T) {
	m := connected(t, func(f mediate.Function) mediate.Function { return &byMessages{Function: f} })
	r := suite.NewRig(t, m, pagein.PI4, false)
	oneWrite(t, r, 3*device.BlockSize+100)
}

// oneWrite writes from absent to absent memory.
func oneWrite(t testing.TB, r *suite.Rig, n int) {
	t.Helper()
	src, dst := r.Map(t, n), r.Map(t, n)
	for i := range src {
		src[i] = byte(i>>3 ^ i)
	}
	d := device.Descriptor{Src: suite.VA(src), Dst: suite.VA(dst), Size: uint32(n), DstNode: 1}
	if done, status := r.Write(1, d); done != device.DoneCompleted || string(src) != string(dst) {
		t.Fatalf("done %d, status %d, bytes equal %v", done, status, string(src) == string(dst))
	}
}

// TestMapRefused: a posted DMA_MAP that is refused ends the transfer with status 2, and writes
// nothing.
func TestMapRefused(t *testing.T) {
	var on, posts atomic.Bool
	var refused atomic.Int32
	m := connected(t, func(f mediate.Function) mediate.Function { return refusing{f, &on, &posts, &refused} })
	r := suite.NewRig(t, m, pagein.PIO, false)
	oneWrite(t, r, device.PageSize)
	src, dst := r.Map(t, device.PageSize), r.Map(t, 256*device.PageSize)
	for i := range src {
		src[i] = 0x5a
	}
	r.Present(t, src)
	oneTransfer := func(to []byte) (uint32, uint8) {
		return r.Write(2, device.Descriptor{Src: suite.VA(src), Dst: suite.VA(to), Size: device.PageSize, DstNode: 1})
	}
	if done, status := oneTransfer(dst); done != device.DoneCompleted { // the source is mapped by now
		t.Fatalf("done %d, status %d", done, status)
	}
	on.Store(true)
	to := dst[128*device.PageSize:]
	if done, status := oneTransfer(to); done != device.DoneFailed || status != device.StatusDecode {
		t.Errorf("done %d, status %d; want %d and %d", done, status, device.DoneFailed, device.StatusDecode)
	}
	for i, b := range to[:device.PageSize] {
		if b != 0 {
			t.Fatalf("byte %d is %#x", i, b)
		}
	}
	on.Store(false)
	if refused.Load() == 0 {
		t.Error("nothing was refused")
	}
	oneWrite(t, r, device.PageSize)
}

// TestQueuesBreak unmaps a ring, sets a queue anew, or turns bus mastering off for a while. The
// driver falls back to the registers, and transfers continue; later the queues are on again, if
// possible.
func TestQueuesBreak(t *testing.T) {
	for name, breaks := range map[string]func(m *machine, fn mediate.Function) error{
		"rings unmapped": func(m *machine, fn mediate.Function) error {
			return fn.UnmapDMA(1<<48-queues.MemorySize, queues.MemorySize)
		},
		"base changed": func(m *machine, fn mediate.Function) error {
			return fn.Write(int(device.PL), device.PLEventQueue+device.QueueBase, 8, 0x5000)
		},
		"commands' base changed": func(m *machine, fn mediate.Function) error {
			return fn.Write(int(device.PL), device.PLCommandQueue+device.QueueBase, 8, 0x5000)
		},
		"CONS out of range": func(m *machine, fn mediate.Function) error {
			return fn.Write(int(device.PL), device.PLEventQueue+device.QueueCons, 4, 0xffff)
		},
		"turned off": func(m *machine, fn mediate.Function) error {
			return errors.Join(fn.UnmapDMA(1<<48-queues.MemorySize, queues.MemorySize), fn.Write(int(device.PL), device.PLCommandQueue+device.QueueDoorbell, 4, 1))
		},
		"bus mastering off": func(m *machine, fn mediate.Function) error {
			c := fn.(interface{ SetCommand(uint16) error })
			if err := c.SetCommand(user.CommandMemory); err != nil {
				return err
			}
			return errors.Join(fn.Write(int(device.PL), device.PLCommandQueue+device.QueueDoorbell, 4, 1), c.SetCommand(user.CommandMemory|user.CommandMaster))
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachineOf(t, false, mediate.Config{})
			r := suite.NewRig(t, m, pagein.PI4, false)
			oneWrite(t, r, device.BlockSize)
			for node := range 2 {
				if err := breaks(m, m.functions[node]); err != nil {
					t.Fatal(err)
				}
			}
			for range 4 {
				oneWrite(t, r, 2*device.BlockSize)
			}
			if name != "rings unmapped" && name != "turned off" { // they are not mapped again
				for node := range 2 {
					on := func(q uint64) bool {
						v, err := m.functions[node].Read(int(device.PL), q+device.QueueStatus, 4)
						return err == nil && v == device.QueueIsOn
					}
					for deadline := time.Now().Add(time.Minute); !on(device.PLEventQueue) || !on(device.PLCommandQueue); time.Sleep(10 * time.Millisecond) {
						if time.Now().After(deadline) {
							t.Fatalf("the queues of node %d stay off", node)
						}
					}
				}
				oneWrite(t, r, 2*device.BlockSize)
			}
			for node := range 2 {
				if err := m.functions[node].Err(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A function level reset turns the queues off, as DEVICE_RESET does.
func TestResetTurnsQueuesOff(t *testing.T) {
	m := newMachineOf(t, false, mediate.Config{})
	fn := m.functions[0]
	queues := []uint64{device.PLEventQueue, device.PLCommandQueue}
	for _, q := range queues {
		if v, err := fn.Read(int(device.PL), q+device.QueueStatus, 4); err != nil || v != device.QueueIsOn {
			t.Errorf("pl+%#x: STATUS %#x, %v", q, v, err)
		}
	}
	if err := fn.(interface{ Reset() error }).Reset(); err != nil {
		t.Fatal(err)
	}
	for _, q := range queues {
		for off := uint64(0); off <= device.QueueStatus; off += 4 {
			if v, err := fn.Read(int(device.PL), q+off, 4); err != nil || v != 0 {
				t.Errorf("pl+%#x reads %#x after a reset, %v", q+off, v, err)
			}
		}
	}
}
