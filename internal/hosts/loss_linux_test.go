package hosts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device"
	files "github.com/exanet/pfd/link/hosts"
)

// Writes, reads, messages and streams in datagrams, of which the network loses one in twenty, and
// delivers one in twenty twice if the kernel can: every byte arrives once.
func TestLoss(t *testing.T) {
	long(t) // most of a minute
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("no program nft: install nftables")
	}
	c := prepare(t, 2, 1)
	path := filepath.Join(c.hosts[0].dir, files.FileName)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	udp := strings.ReplaceAll(string(text), "\n[[host]]\n", "\n[[host]]\nudp = true\n")
	if err := os.WriteFile(path, []byte(udp), 0o644); err != nil {
		t.Fatal(err)
	}
	for i, h := range c.hosts {
		const chain = "add table inet loss; add chain inet loss out { type filter hook output priority 0; }; "
		if err := h.machine.Run("nft", chain+"add rule inet loss out meta l4proto udp numgen random mod 20 < 1 drop"); err != nil {
			t.Skip("this kernel has no rules of nftables: ", err)
		}
		const twice = "add table ip twice; add chain ip twice out { type filter hook output priority 1; }; "
		if err := h.machine.Run("nft", twice+"add rule ip twice out meta l4proto udp numgen random mod 20 < 1 dup to "+c.hosts[1-i].machine.Addr().String()); err != nil {
			t.Log("no datagram arrives twice: ", err)
		}
		h.startPFD()
		h.startHostd()
	}
	c.up()
	const n = 200
	ctx, cancel := context.WithTimeout(t.Context(), longPatience)
	defer cancel()
	var workers sync.WaitGroup
	flows := c.flows(100<<10 + 13)
	for _, f := range flows {
		workers.Go(func() {
			for range n {
				for _, transfer := range []func(context.Context) error{f.write, f.read} {
					if err := transfer(ctx); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
		workers.Go(func() {
			if err := lossyMessages(ctx, f, 20*n); err != nil {
				t.Errorf("%s: %v", f.name, err)
			}
		})
	}
	workers.Wait()
	for i, f := range flows {
		workers.Go(func() {
			if err := streamed(ctx, f, 10*i+80, pattern(100<<10, uint64(i))); err != nil {
				t.Errorf("%s: stream: %v", f.name, err)
			}
		})
	}
	workers.Wait()
	for _, h := range c.hosts {
		list, err := h.client.Counters(ctx, control.AllNodes)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range list {
			if k.Name == device.Retransmits.String()+"_total" {
				t.Logf("%s: %d blocks were sent again", h.name, k.Value)
			}
		}
		h.unpinned()
	}
}

// lossyMessages sends n numbered messages, each until it has arrived: messages may be lost. It checks that
// none arrives more often than it was sent.
func lossyMessages(ctx context.Context, f *flow, n int) error {
	due := map[uint64]int{} // sent, and not arrived
	for i := range uint64(n) {
		for arrived := false; !arrived; {
			if _, err := f.from.Send(ctx, f.remote, i<<24, ^i); err != nil { // the lowest bits are not the caller's
				return fmt.Errorf("message %d: %w", i, err)
			}
			due[i]++
			soon, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			m, err := f.to.Receive(soon)
			cancel()
			if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
				continue
			}
			if err != nil {
				return fmt.Errorf("receive %d: %w", i, err)
			}
			k := m.Words[0] >> 24
			if due[k]--; m.N != 2 || m.Words[1] != ^k || due[k] < 0 {
				return fmt.Errorf("message %d is %x; %d were sent", i, m.Words[:m.N], due[k])
			}
			arrived = k == i
		}
	}
	return nil
}
