package soc

import "github.com/exanet/pfd/soc/r5"

// Stamp sets the time by a clock other than the machines', before a Step or a Store. Refusals
// reports it; nothing else depends on it.
func (n *Node) Stamp(v int64) { n.fw.Stamp(v) }

// Refusals returns the blocks whose wait for pages ended in the last Step or Store.
func (n *Node) Refusals() []r5.Refusal { return n.fw.Refusals() }
