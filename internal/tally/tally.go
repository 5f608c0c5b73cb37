// Package tally counts completed and failed transfers by direction, class and status, their
// duration, and the bytes that arrive. It has no clock and no lock: the owner of the transfers
// owns the counts.
package tally

import "github.com/exanet/pfd/device"

// Bounds are the upper bounds of a histogram's buckets in nanoseconds; defined by this project.
// A minor fault takes a few microseconds, a transfer to a dead target some seconds.
var Bounds = [...]int64{
	1e3, 2e3, 5e3, 10e3, 20e3, 50e3, 100e3, 200e3, 500e3,
	1e6, 2e6, 5e6, 10e6, 50e6, 100e6, 1e9, 10e9,
}

// Histogram counts durations. In[i] counts those longer than Bounds[i-1] and at most Bounds[i].
type Histogram struct {
	Count uint64
	Sum   int64 // ns
	In    [len(Bounds)]uint64
}

// Observe adds one duration in nanoseconds.
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

// Direction tells for which side a transfer moves data.
type Direction uint8

// The directions.
const (
	Write      Direction = iota // a write of a process of the node
	Read                        // a read of the node's memory, served for any node
	Directions = 2
)

// Transfers are the transfers that ended with one direction, class and status.
type Transfers struct {
	Bytes uint64 // their requested sizes
	Time  Histogram
}

// Sum summarizes transfers of all directions, classes and durations.
type Sum struct {
	Completed, Failed uint64
	Bytes             uint64 // of acknowledged blocks, also of transfers in flight
}

// Node has the counts of a node.
type Node struct {
	Ways [Directions][device.Classes][device.Statuses]Transfers
	// Slots are the sums of each slot over all its domains.
	Slots [device.Slots]Sum
}

// Over counts a slot's transfer of size bytes that ended after ns nanoseconds. class is the one
// that it began with.
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

// Arrived adds an acknowledged block of size bytes to a slot's counts.
func (n *Node) Arrived(slot int, size uint32) {
	if slot >= 0 && slot < device.Slots {
		n.Slots[slot].Bytes += uint64(size)
	}
}

// Less returns the growth of s since base.
func (s Sum) Less(base Sum) Sum {
	return Sum{s.Completed - base.Completed, s.Failed - base.Failed, s.Bytes - base.Bytes}
}

// Sum returns the sum over all slots.
func (n *Node) Sum() (all Sum) {
	for _, s := range n.Slots {
		all.Completed += s.Completed
		all.Failed += s.Failed
		all.Bytes += s.Bytes
	}
	return all
}
