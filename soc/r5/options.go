package r5

import (
	"errors"
	"fmt"
	"strings"
)

// Options switch off the optimizations of 001 §3.3, and one defined by this project, so that each
// can be measured on and off. The zero value has all of them on.
type Options struct {
	// NoFastPath: a doorbell word in the scratchpad is handled like a mailbox message ("R5 is
	// notified firstly in scratchpad").
	NoFastPath bool
	// NoBypass: a transfer of the high class waits in its queue even if the queue is empty
	// ("Scheduler Bypassing").
	NoBypass bool
	// NoTickets: a free transaction ID is searched for in the table instead of taken from the
	// ticket queue ("Ticket-based circular transaction queue").
	NoTickets bool
	// NoCounters: queues and time-out lists are scanned even if counters say that they are empty
	// ("Peripheral optimized counters").
	NoCounters bool
	// NoRetransmissionBit: a block is retransmitted even while the hardware still sends it
	// ("Retransmission bit").
	NoRetransmissionBit bool
	// NoWholeBlocks: a block is sent as several frames, between which other frames and events
	// arrive, like its packets on a link (defined by this project; for tests).
	NoWholeBlocks bool
}

// ErrOption means that a word names no optimization.
var ErrOption = errors.New("no such optimization of the firmware")

// names returns the words of ParseOptions in the order of 001 §3.3.
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

// Bits returns the options as a number, for files: bit i is set if optimization i, in the order
// of Options, is off.
func (o Options) Bits() (bits uint16) {
	for i, n := range o.names() {
		if *n.off {
			bits |= 1 << i
		}
	}
	return bits
}

// OptionsOf is the inverse of Bits; ok is false if an undefined bit is set.
func OptionsOf(bits uint16) (o Options, ok bool) {
	names := o.names()
	for i, n := range names {
		*n.off = bits>>i&1 != 0
	}
	return o, bits>>len(names) == 0
}

// String returns the words that ParseOptions parses into o: "all", "none", or the optimizations
// that are off, each prefixed with no-.
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

// ParseOptions parses "all", "none", or a comma-separated list of optimizations that are on, or
// off if prefixed with no-. If every word has the prefix, the others stay on. Errors match
// ErrOption.
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
			return Options{}, fmt.Errorf("%w: %q: give all, none, or a list of fastpath, bypass, tickets, counters, retransmission-bit, whole-blocks, each with or without the prefix no-", ErrOption, w)
		}
	}
	return o, nil
}
