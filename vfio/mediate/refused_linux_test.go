package mediate

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/internal/memfd"
	"github.com/exanet/pfd/vfio/user"
)

// word is a device with a register that reads 7.
type word struct{}

func (word) Read(int, uint64, int) uint64   { return 7 }
func (word) Write(int, uint64, int, uint64) {}
func (word) Reset(user.ResetKind)           {}

// TestRefusalsAreNotOthersErrors: a refused mapping that comes with the answer to another request
// is not an error of that request; after it mappings are awaited until one succeeds.
func TestRefusalsAreNotOthersErrors(t *testing.T) {
	s, err := user.New(user.Config{BARs: [6]user.BAR{{Size: 4096}}, MSIX: user.MSIX{Vectors: 1, PBA: 2048}, MaxMaps: 1}, word{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, stop := context.WithCancel(t.Context())
	path, listens, over := filepath.Join(t.TempDir(), "s"), make(chan struct{}), make(chan error, 1)
	go func() { over <- s.Serve(ctx, path, func() { close(listens) }) }()
	defer func() {
		stop()
		if err := <-over; err != nil {
			t.Error(err)
		}
	}()
	<-listens
	f := &userFunction{}
	if f.Client, err = user.Dial(ctx, path, f.options(user.Options{})); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	file, err := memfd.New("refused", 1<<20, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(file)
	f.PostMaps()
	try := func(addr uint64, want error, careful bool) {
		t.Helper()
		if err := f.MapDMA(addr, 4096, file, 0, user.DMARead); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("mapping at %#x: %v, want %v", addr, err, want)
		}
		if v, err := f.Read(user.RegionConfig, 0, 4); err != nil || v != 0 || f.careful.Load() != careful {
			t.Errorf("after it %#x, %v, careful %v, want %v", v, err, f.careful.Load(), careful)
		}
	}
	try(0, nil, false)
	try(4096, nil, true) // one more than the server allows: its refusal is not awaited
	try(4096, gup.ErrUnmappable, true)
	if err := f.UnmapDMA(0, 4096); err != nil {
		t.Error(err)
	}
	try(4096, nil, false)
	try(8192, nil, true)
}
