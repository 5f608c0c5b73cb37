package atomics

import (
	"fmt"

	"github.com/exanet/pfd/device"
)

// Address is an address in the global address space (003 §2.1, fig. 6).
//
//	partition  [63:48], the node's ID + 1; 0 belongs to no node
//	byte       [47:0]
type Address uint64

// The parts of an address (docs/spec/gsas.md 1). MaxNode is the highest ID of a node that has a
// partition.
const (
	partitionShift = 48
	offsetMask     = 1<<partitionShift - 1

	MaxNode = 1<<16 - 2
	// Pages is the number of pages of a partition.
	Pages = 1 << (partitionShift - device.PageShift)
)

// At returns the address of a byte of a node's partition. The node is at most MaxNode.
func At(node device.NodeID, offset uint64) Address {
	return Address(uint64(node+1)<<partitionShift | offset&offsetMask)
}

// Node returns the node whose partition holds the address; false if none does.
func (a Address) Node() (device.NodeID, bool) {
	p := a >> partitionShift
	return device.NodeID(p - 1), p != 0
}

// Offset returns the byte's place in its partition.
func (a Address) Offset() uint64 { return uint64(a) & offsetMask }

// Page returns the number of the page in its partition.
func (a Address) Page() uint64 { return a.Offset() >> device.PageShift }

// String formats the address as in 003's figure 6.
func (a Address) String() string {
	return fmt.Sprintf("0x%04x-%04x-%04x-%04x", uint64(a)>>48, uint64(a)>>32&0xffff, uint64(a)>>16&0xffff, uint64(a)&0xffff)
}

// Thread identifies a thread by its packetizer: interface [23:18], node [17:0] (003 §2.2.2; the
// widths are defined by this project).
type Thread uint32

// Protection identifies a tree of threads. It is the Thread of the tree's root (003 §2.2.2).
type Protection uint32

// IDMask has the bits of a Thread and of a Protection (003 fig. 9).
const IDMask = 1<<24 - 1

// The fields of a thread's ID (docs/spec/gsas.md 2).
const (
	threadNodeMask   = 1<<18 - 1
	threadIfaceShift = 18
	threadIfaceMask  = 0x3f
)

// ThreadOf returns the ID of the thread that has an interface of a node.
func ThreadOf(node device.NodeID, iface int) Thread {
	return Thread(uint32(node)&threadNodeMask | uint32(iface)&threadIfaceMask<<threadIfaceShift)
}

// Node returns the thread's node, whose ID has 18 bits here.
func (t Thread) Node() device.NodeID { return device.NodeID(t & threadNodeMask) }

// Interface returns the thread's packetizer and mailbox.
func (t Thread) Interface() int { return int(t >> threadIfaceShift & threadIfaceMask) }

// Values of a tree's memory on a node (docs/attach.md 12; defined by this project).
const (
	// RegionSize is the size of that memory, which is a file, and of the part of the node's partition
	// where the tree has its pages: the byte at an address is at the address modulo RegionSize.
	RegionSize = 1 << 34
	// DirectoryPages is how many pages at the end of a partition are directories (Protection.Directory).
	// They are at the end of a tree's memory.
	DirectoryPages = device.Interfaces
)

// Directory returns the page that only the tree can have, where all its threads look for what they share:
// on the root's node, one of the last pages of the partition, by the root's interface. It is allocated
// like any other, by its address.
func (p Protection) Directory() Address {
	root := Thread(p)
	return At(root.Node(), (Pages-DirectoryPages+uint64(root.Interface()))*device.PageSize)
}
