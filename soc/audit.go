package soc

// Audit checks the invariants that hold between two steps whatever the inputs were, and returns
// the first violation. It is for tests and simulations.
func (n *Node) Audit() error {
	if err := n.fw.Audit(); err != nil {
		return err
	}
	return n.dma.Audit()
}

// OpenContexts returns the number of receive contexts in use.
func (n *Node) OpenContexts() int { return n.dma.OpenContexts() }
