package mediate_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/emu/serve"
	"github.com/exanet/pfd/internal/suite"
	"github.com/exanet/pfd/vfio/mediate"
	"github.com/exanet/pfd/vfio/user"
)

// cut keeps its descriptors in a file that can be made smaller.
type cut struct {
	mediate.Function
	b []byte
}

func (c cut) Descriptors() []byte { return c.b }

// TestMappedMemoryGoes: a device whose mapped memory is truncated counts as gone, even if the
// rest of it answers. Nothing crashes, and it can be connected to again.
func TestMappedMemoryGoes(t *testing.T) {
	fd, err := unix.MemfdCreate("btcm", unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(fd, device.BTCMDoorbells)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	b, err := unix.Mmap(fd, 0, device.BTCMDoorbells, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b)
	_, dir := startServer(t, false)
	var whole atomic.Bool
	m := running(t, mediate.Config{Connect: []mediate.Connect{other(serve.SocketPath(dir, 0), func(f mediate.Function) mediate.Function {
		if whole.Load() {
			return f
		}
		return cut{f, b}
	})}})
	served := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() { served <- m.Bus(0).Serve(ctx, nobody{}) }()
	read := func() (v uint32, err error) {
		done := make(chan struct{})
		m.Bus(0).Post(func() { defer close(done); v, err = m.Bus(0).Window(device.BTCM).Read32(0) })
		<-done
		return v, err
	}
	if _, err := read(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := read(); !errors.Is(err, device.ErrGone) {
		t.Errorf("the memory is gone: %v", err)
	}
	if err := <-served; !errors.Is(err, device.ErrGone) {
		t.Errorf("Serve: %v", err)
	}
	whole.Store(true)
	if err := m.Reconnect(ctx, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := read(); err != nil {
		t.Error(err)
	}
}

type nobody struct{}

func (nobody) Interrupt(int) {}

// A device that a former driver left in D3hot is brought to D0.
func TestDeviceAsleep(t *testing.T) {
	s, dir := startServer(t, false)
	var cfg mediate.Config
	for n := range 2 {
		c, err := user.Redial(t.Context(), serve.SocketPath(dir, n), user.Options{}, func(c *user.Client) error {
			return c.Write(user.RegionConfig, 0x44, 2, 3) // PM control: D3hot
		})
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		cfg.Connect = append(cfg.Connect, mediate.VFIOUser(serve.SocketPath(dir, n), user.Options{}))
	}
	oneWrite(t, suite.NewRig(t, drive(t, s, cfg.Connect, false), pagein.PI4, false), device.BlockSize)
}

// TestGoneWhileItComesBack: a device that comes back and is gone again during its preparation is
// waited for again; the machine's other nodes continue.
func TestGoneWhileItComesBack(t *testing.T) {
	_, dir := startServer(t, false)
	var first mediate.Function
	connects := 0
	m := running(t, mediate.Config{Connect: []mediate.Connect{other(serve.SocketPath(dir, 0), func(f mediate.Function) mediate.Function {
		switch connects++; connects {
		case 1:
			first = f
		case 2:
			f.Close()
		}
		return f
	})}})
	served := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() { served <- m.Bus(0).Serve(ctx, nobody{}) }()
	m.Bus(0).Post(func() { first.Close() }) // runs on the owner
	if err := <-served; !errors.Is(err, device.ErrGone) {
		t.Errorf("Serve: %v", err)
	}
	if err := m.Reconnect(ctx, 0); err != nil || connects != 3 {
		t.Errorf("connected %d times: %v", connects, err)
	}
}
