package mediate_test

import (
	"context"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/emu/serve"
	"github.com/exanet/pfd/internal/suite"
	"github.com/exanet/pfd/vfio/mediate"
	"github.com/exanet/pfd/vfio/user"
)

// deaf is a node whose vectors are not received, as with UIO.
type deaf struct{ mediate.Function }

func (deaf) Polled() {}

// newDeaf makes two nodes that are polled.
func newDeaf(t testing.TB, bare bool, cfg mediate.Config) *machine {
	t.Helper()
	s, dir := startServer(t, bare)
	for node := range 2 {
		connect := mediate.VFIOUser(serve.SocketPath(dir, node), user.Options{})
		cfg.Connect = append(cfg.Connect, func(ctx context.Context, vectors []int) (mediate.Function, error) {
			unseen := make([]int, len(vectors))
			for i := range unseen {
				fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
				if err != nil {
					return nil, err
				}
				unseen[i] = fd
				defer unix.Close(fd) // the server has its own
			}
			f, err := connect(ctx, unseen)
			if err != nil {
				return nil, err
			}
			return deaf{f}, nil
		})
	}
	return &machine{Mediated: suite.Mediated{Machine: running(t, cfg)}, server: s}
}

// TestWithoutVectors is the fault suite on nodes that are polled: through their event queues, or
// IRQ_STATUS.
func TestWithoutVectors(t *testing.T) {
	for name, registers := range map[string]bool{"queues": false, "registers": true} {
		t.Run(name, func(t *testing.T) {
			suite.Run(t, func(t *testing.T, bare bool) suite.Machine {
				return newDeaf(t, bare, mediate.Config{Registers: registers})
			})
		})
	}
}
