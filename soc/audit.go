package soc

import "github.com/exanet/pfd/device"

// Audit checks what must hold between two steps whatever the inputs were, and
// tells the first thing that does not. It is for tests and simulations.
func (n *Node) Audit() error {
	if err := n.fw.Audit(); err != nil {
		return err
	}
	return n.dma.Audit()
}

// OpenContexts gives the number of receive contexts in use, in all and by blocks
// of a source domain.
func (n *Node) OpenContexts(pdid device.PDID) (all, ofDomain int) { return n.dma.OpenContexts(pdid) }
