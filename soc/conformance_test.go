package soc_test

import (
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc"
)

// registers is a node's windows with all actions dropped.
type registers struct {
	n *soc.Node
	w device.WindowID
}

func (r registers) Load(off uint32, width int) (uint64, error) { return r.n.Load(r.w, off, width), nil }
func (r registers) Store(off uint32, width int, v uint64) error {
	r.n.Store(0, r.w, off, width, v, nil)
	return nil
}

func TestRegistersConform(t *testing.T) {
	for name, cfg := range map[string]soc.Config{
		"sva":       {ID: 5, VABits: 48, SVA: true, Epoch: 7},
		"no TXFIFO": {ID: 0x3fffff, VABits: 39, NoTXFIFO: true},
		"queues":    {ID: 5, VABits: 48, Epoch: 7, Queues: true},
		"gsas":      {ID: 5, VABits: 48, SVA: true, Epoch: 7, GSAS: true},
		"windows":   {ID: 5, VABits: 48, SVA: true, Epoch: 7, Windows: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := soc.New(cfg)
			conformance(t, func(w device.WindowID) device.Window { return device.Window{Access: registers{n, w}} })
		})
	}
}
