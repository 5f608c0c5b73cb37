package soc

import "github.com/exanet/pfd/device"

// places keeps the places of a node that were accessed last, so that the register map is searched
// only once for each. Nothing invalidates an entry: the map and a node's capabilities never change.
// Each place has one possible entry, which the newest place takes. The 256 entries take 60 KiB, which
// the nodes of a simulation share. Values are defined by this project.
type places [1 << placeBits]place

const placeBits = 8

// place holds the register that an access of one width at one offset reaches, and its masks on this
// node.
type place struct {
	key              uint64 // window, offset and width; 0 for an entry that is free
	target           device.Target
	read, write, w1c uint64
}

// find returns the place of an access on a node with these capabilities, or nil if there is none
// (device.Resolve). A bad access is never kept. The place is valid until the next find.
func (p *places) find(caps uint64, w device.WindowID, offset uint32, width int) *place {
	if width != 4 && width != 8 {
		return nil
	}
	key := uint64(w)<<40 | uint64(offset)<<8 | uint64(width)
	// Fibonacci hashing: neighbours and equal offsets of two pages get different entries.
	at := &p[key*0x9e3779b97f4a7c15>>(64-placeBits)]
	if at.key == key {
		return at
	}
	t, ok := device.Resolve(w, offset, width)
	if !ok {
		return nil
	}
	*at = place{key: key, target: t}
	at.read, at.write, at.w1c = t.Masks(caps)
	return at
}
