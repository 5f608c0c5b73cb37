package sim

import (
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/internal/sim/topology"
)

// On each topology, with all queues full, every transfer arrives and no frame is left.
func TestTopologies(t *testing.T) {
	small, err := topology.Torus(3, 2, 1, topology.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []*topology.Network{topology.QFDB(topology.Options{}), topology.Blade(topology.Options{}), small} {
		t.Run(n.Name, func(t *testing.T) {
			c := Board()
			w, err := New(Config{Seed: 1, Nodes: n.Nodes, Topology: n, Costs: &c, Policy: fault.PIA, Outstanding: 8, TimeoutUS: 1e6, GuardUS: 1e6})
			if err != nil {
				t.Fatal(err)
			}
			writeAll(t, w, n.Nodes-1, n.Nodes-1)
			stopped, paused := int64(0), int64(0)
			for i := range w.net.outputs {
				o := &w.net.outputs[i]
				stopped += o.Link.Stopped
				paused += o.Link.Paused
				for vc := range o.queues {
					if len(o.queues[vc])+len(o.own[vc])+o.coming[vc]+len(o.blocked[vc])+len(o.paused[vc]) != 0 || o.busy {
						t.Errorf("link %v is left with %+v", n.Links[i], o)
					}
				}
				if o.Link.Highest > queueDepth {
					t.Errorf("link %v had %d frames queued", n.Links[i], o.Link.Highest)
				}
			}
			if n.Name == small.Name && (stopped == 0 || paused == 0) {
				t.Errorf("links waited %d ns, and nodes %d", stopped, paused)
			}
			for i := range w.nodes {
				if n := w.nodes[i].SOC.Count(device.Timeouts); n != 0 {
					t.Errorf("node %d: %d time-outs", i, n)
				}
			}
		})
	}
}
