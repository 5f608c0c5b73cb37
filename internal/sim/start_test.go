package sim

import (
	"testing"

	"github.com/exanet/pfd/device"
)

// A driver restarts while its node lives on and reads a block of an earlier process. The next
// process's transfer starts and receives its own end.
func TestDriverStartsAnew(t *testing.T) {
	w, err := New(Config{Seed: 1, Nodes: 1, Memory: 1e6, TimeoutUS: 20_000, GuardUS: 20_000})
	if err != nil {
		t.Fatal(err)
	}
	n := w.Node(0)
	attach := func() *Process {
		p, err := n.Attach(1000, churnBase, 2)
		if err != nil {
			t.Fatal(err)
		}
		p.Touch(0, len(p.Data))
		return p
	}
	write := func(p *Process) {
		p.Write(0, device.Descriptor{Src: churnBase, Dst: churnBase + device.PageSize, Size: 64, DstGeneration: p.Domain.Generation})
	}
	write(attach())
	if err := n.start(); err != nil {
		t.Fatal(err)
	}
	p, done, status := attach(), uint32(0), uint8(0)
	p.OnDone = func(_ int, d uint32, s uint8) { done, status = d, s }
	p.Data[0] = 1
	write(p)
	if err := w.Run(1e9, func() bool { return done != 0 }); err != nil {
		t.Fatal(err)
	}
	if done != device.DoneCompleted || p.Data[device.PageSize] != 1 {
		t.Errorf("done %d, status %d, byte %d", done, status, p.Data[device.PageSize])
	}
}
