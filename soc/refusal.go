package soc

import "github.com/exanet/pfd/soc/r5"

// Stamp gives the node the time by a clock other than the machines', before a Step or
// a Store: Refusals tells it, and nothing depends on it.
func (n *Node) Stamp(v int64) { n.fw.Stamp(v) }

// Refusals gives the blocks of which the last Step or Store has ended a wait for pages.
func (n *Node) Refusals() []r5.Refusal { return n.fw.Refusals() }
