// Package tally counts the transfers that have ended, by direction, class and status,
// and how long they took, and the bytes that arrive. It has no clock and no lock: who owns the transfers owns
// the counts.
package tally

import "github.com/exanet/pfd/device"

// Bounds are the upper bounds of a histogram's buckets, nanoseconds (ours): a minor
// fault takes a few microseconds, a transfer whose target is gone some seconds.
var Bounds = [...]int64{
	1e3, 2e3, 5e3, 10e3, 20e3, 50e3, 100e3, 200e3, 500e3,
	1e6, 2e6, 5e6, 10e6, 50e6, 100e6, 1e9, 10e9,
}

// Histogram is how often something took how long. In[i] counts what took longer than
// Bounds[i-1] and at most Bounds[i].
type Histogram struct {
	Count uint64
	Sum   int64 // ns
	In    [len(Bounds)]uint64
}

// Observe takes one time in nanoseconds.
func (h *Histogram) Observe(ns int64) {
	h.Count++
	h.Sum += ns
	for i, b := range Bounds {
		if ns <= b {
			h.In[i]++
			return
		}
	}
}

// Direction is who moves the data for whom.
type Direction uint8

// The directions.
const (
	Write      Direction = iota // for a process of the node
	Read                        // a read of the node's memory, for whoever asked
	Directions = 2
)

// Transfers are the transfers that ended in one way.
type Transfers struct {
	Bytes uint64 // that they were to move
	Time  Histogram
}

// Sum is what transfers came to, without how and how long.
type Sum struct {
	Completed, Failed uint64
	Bytes             uint64 // of acknowledged blocks, also while their transfer goes on
}

// Node is a node's counts.
type Node struct {
	Ways [Directions][device.Classes][device.Statuses]Transfers
	// Slots are the sums of each slot's, over all its domains.
	Slots [device.Slots]Sum
}

// Over takes the end of a slot's transfer of size bytes after ns nanoseconds. class is
// the one that it began with.
func (n *Node) Over(slot int, dir Direction, class device.Class, status uint8, size uint32, ns int64) {
	if slot < 0 || slot >= device.Slots || dir >= Directions || class >= device.Classes || status >= device.Statuses {
		return
	}
	t := &n.Ways[dir][class][status]
	t.Bytes += uint64(size)
	t.Time.Observe(max(ns, 0))
	s := &n.Slots[slot]
	if status != device.StatusNone {
		s.Failed++
		return
	}
	s.Completed++
}

// Arrived adds a block of size bytes of a slot's transfer that its target has acknowledged.
func (n *Node) Arrived(slot int, size uint32) {
	if slot >= 0 && slot < device.Slots {
		n.Slots[slot].Bytes += uint64(size)
	}
}

// Less gives what s has more than an earlier base.
func (s Sum) Less(base Sum) Sum {
	return Sum{s.Completed - base.Completed, s.Failed - base.Failed, s.Bytes - base.Bytes}
}

// Sum gives that of all slots.
func (n *Node) Sum() (all Sum) {
	for _, s := range n.Slots {
		all.Completed += s.Completed
		all.Failed += s.Failed
		all.Bytes += s.Bytes
	}
	return all
}
