package r5

import (
	"errors"
	"fmt"
	"strings"
)

// Options switch off the optimizations of 001 §3.3, and one of ours, so that each can be measured
// on and off. The zero value has them all.
type Options struct {
	// NoFastPath: a doorbell word in the scratchpad is taken by the way of the
	// mailbox ("R5 is notified firstly in scratchpad").
	NoFastPath bool
	// NoBypass: a transfer of the high class waits in its queue even if that is
	// empty ("Scheduler Bypassing").
	NoBypass bool
	// NoTickets: a free transaction id is searched for in the table instead of
	// taken from the ticket queue ("Ticket-based circular transaction queue").
	NoTickets bool
	// NoCounters: queues and time-out lists are looked through even if counters
	// say that they are empty ("Peripheral optimized counters").
	NoCounters bool
	// NoRetransmissionBit: a block is sent again although the hardware still
	// sends it ("Retransmission bit").
	NoRetransmissionBit bool
	// NoWholeBlocks: a block is not one frame but several, between which others and
	// events come, as its packets on a link (ours; for tests).
	NoWholeBlocks bool
}

// ErrOption says that a word names no optimization.
var ErrOption = errors.New("no such optimization of the firmware")

// optionNames are the words of ParseOptions in the order of 001 §3.3.
func (o *Options) names() []struct {
	name string
	off  *bool
} {
	return []struct {
		name string
		off  *bool
	}{
		{"fastpath", &o.NoFastPath}, {"bypass", &o.NoBypass}, {"tickets", &o.NoTickets},
		{"counters", &o.NoCounters}, {"retransmission-bit", &o.NoRetransmissionBit},
		{"whole-blocks", &o.NoWholeBlocks},
	}
}

// Bits gives the options as a number, for files: bit i is set where optimization i,
// in the order of Options, is off.
func (o Options) Bits() (bits uint16) {
	for i, n := range o.names() {
		if *n.off {
			bits |= 1 << i
		}
	}
	return bits
}

// OptionsOf is the inverse of Bits; ok is false where a bit has no meaning.
func OptionsOf(bits uint16) (o Options, ok bool) {
	names := o.names()
	for i, n := range names {
		*n.off = bits>>i&1 != 0
	}
	return o, bits>>len(names) == 0
}

// String gives the words that ParseOptions reads as o: "all", "none", or what is
// off, each with no- before it.
func (o Options) String() string {
	names := o.names()
	var off []string
	for _, n := range names {
		if *n.off {
			off = append(off, "no-"+n.name)
		}
	}
	switch len(off) {
	case 0:
		return "all"
	case len(names):
		return "none"
	}
	return strings.Join(off, ",")
}

// ParseOptions reads what is on: "all", "none", or words with commas between,
// each an optimization that is on, or with no- before it one that is off; words
// alone with no- leave the others on. Errors match ErrOption.
func ParseOptions(s string) (Options, error) {
	var o Options
	names := o.names()
	set := func(off bool) {
		for _, n := range names {
			*n.off = off
		}
	}
	words := strings.Split(s, ",")
	if s == "" || s == "all" {
		return o, nil
	}
	if s == "none" {
		set(true)
		return o, nil
	}
	set(!strings.HasPrefix(words[0], "no-"))
	for _, w := range words {
		name, off := strings.CutPrefix(w, "no-")
		known := false
		for _, n := range names {
			if n.name == name {
				known, *n.off = true, off
			}
		}
		if !known {
			return Options{}, fmt.Errorf("%w: %q: want all, none, or some of fastpath, bypass, tickets, counters, retransmission-bit, whole-blocks, each perhaps with no- before it", ErrOption, w)
		}
	}
	return o, nil
}
