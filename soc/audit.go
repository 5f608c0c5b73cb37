package soc

// Audit checks what must hold between two steps whatever the inputs were, and
// tells the first thing that does not. It is for tests and simulations.
func (n *Node) Audit() error {
	if err := n.fw.Audit(); err != nil {
		return err
	}
	return n.dma.Audit()
}

// OpenContexts gives the number of receive contexts in use.
func (n *Node) OpenContexts() int { return n.dma.OpenContexts() }
