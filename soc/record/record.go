// Package record keeps the inputs of the emulated machines with their times, so
// that a run can be replayed: the same inputs give the same actions, to the
// byte (package soc). The bytes that transfers carry are not kept: nothing that
// a machine does depends on them. The format is described in docs/record.md.
package record

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/queue"
	"github.com/exanet/pfd/soc/r5"
	"github.com/exanet/pfd/soc/wire"
)

// Version is the format's version (ours).
//
//	1: without the firmware's options and Take
//	2: an epoch of 16 bits, no generations
//	   without a walk's access flags and external faults, and the bytes of a
//	   move that failed
//	3: what follows
//
// The machines of 1 and 2 were others: no run of theirs can be played again.
const Version = 3

// Errors of reading. What is wrong in a file matches one of them.
var (
	// ErrFormat says that a file is not a recording, or a broken one.
	ErrFormat = errors.New("not a recording of this format")
	// ErrVersion says that a recording is of another version.
	ErrVersion = errors.New("recording of another version")
	// ErrTruncated says that a recording has no end: its pfd was killed, or its
	// disk was full. What came before is good.
	ErrTruncated = errors.New("the recording breaks off")
)

// Header says how the recorded machines were built.
type Header struct {
	Nodes    int // node i has id i
	VABits   int
	NoTXFIFO bool
	SVA      bool
	Stall    bool
	Queues   bool
	Epoch    uint32 // the first one of all nodes
	Firmware r5.Options
	Started  int64 // wall clock, nanoseconds since 1970
}

// Kind tells what a record is.
type Kind uint8

// The kinds: the events of package soc by their numbers, then what a driver does
// (ours).
const (
	Tick             = Kind(soc.Tick)
	FrameArrived     = Kind(soc.FrameArrived)
	Walked           = Kind(soc.Walked)
	Moved            = Kind(soc.Moved)
	DoorbellRung     = Kind(soc.DoorbellRung)
	DescriptorCopied = Kind(soc.DescriptorCopied)
	MessageSent      = Kind(soc.MessageSent)
	QueueAccessed    = Kind(soc.QueueAccessed)

	Load  Kind = 32 // a register was read, with its side effects
	Store Kind = 33 // a register was written
	Take  Kind = 34 // the head message of a mailbox was taken for a process
	Check Kind = 62 // the digest at this place
	End   Kind = 63 // the same, and nothing follows
)

// String gives the kind's name, as docs/record.md has it.
func (k Kind) String() string {
	switch k {
	case Tick:
		return "deadline"
	case FrameArrived:
		return "frame"
	case Walked:
		return "walk"
	case Moved:
		return "move"
	case DoorbellRung:
		return "doorbell"
	case DescriptorCopied:
		return "descriptor"
	case MessageSent:
		return "message"
	case QueueAccessed:
		return "queue"
	case Load:
		return "load"
	case Store:
		return "store"
	case Take:
		return "take"
	case Check:
		return "check"
	case End:
		return "end"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Record is one input, or a check.
type Record struct {
	Kind Kind
	Node int
	At   int64 // of the engine's clock, ns; of a Load: of the record before it

	Event soc.Event // of the events; Frame is nil
	// Frame of a FrameArrived counts all frames that the machines transmitted,
	// from 0 on.
	Frame uint64
	Data  []byte // of a QueueAccessed: what was read

	Window device.WindowID // of Load and Store
	Offset uint32
	Width  int
	Value  uint64 // of Store

	Mailbox int // of Take

	Count  uint64 // of Check and End: records before it
	Digest uint64
}

// Digest is a fingerprint of all that machines do: the actions in their order
// and the values that registers read. It starts at its zero value.
type Digest uint64

// mix takes one number (ours: a multiplication by 2^64 over the golden ratio).
func (d *Digest) mix(v uint64) {
	h := (uint64(*d) ^ v) * 0x9e3779b97f4a7c15
	*d = Digest(h ^ h>>32)
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// Actions takes what a step or a store brought out of a node.
func (d *Digest) Actions(node int, out []soc.Action) {
	d.mix(uint64(node)<<32 | uint64(len(out)))
	for i := range out {
		a := &out[i]
		d.mix(uint64(a.Kind) | uint64(a.Slot)<<8 | uint64(a.Channel)<<16 | uint64(a.Interface)<<24 |
			uint64(a.Vector)<<32 | uint64(a.Status)<<40 | uint64(a.Paused)<<48)
		d.mix(uint64(a.Done))
		if x := a.Access; x != nil {
			d.mix(uint64(x.ID) | uint64(x.Slot)<<32 | bit(x.Write)<<40 | bit(x.Ordered)<<41)
			d.mix(uint64(x.VA))
			d.mix(uint64(len(x.Data)))
		}
		if f := a.Frame; f != nil {
			d.frame(f)
		}
		if q := a.Queue; q != nil {
			d.queue(q)
		}
	}
}

func (d *Digest) queue(q *queue.Access) {
	d.mix(uint64(q.ID) | uint64(len(q.Data))<<32 | bit(q.Write)<<62 | bit(q.Entries)<<63)
	d.mix(q.Addr)
	for i := 0; q.Write && i+8 <= len(q.Data); i += 8 {
		d.mix(binary.LittleEndian.Uint64(q.Data[i:]))
	}
}

func (d *Digest) frame(f *wire.Frame) {
	d.mix(uint64(f.Kind) | uint64(f.SrcNode)<<24 | uint64(f.SrcInterface)<<48)
	d.mix(uint64(f.Epoch) | uint64(f.Link)<<32)
	d.mix(uint64(f.SrcGeneration) | uint64(f.DstGeneration)<<32)
	d.mix(uint64(f.SrcPDID) | uint64(f.DstNode)<<16 | uint64(f.DstMailbox)<<40)
	d.mix(uint64(f.DstPDID) | uint64(f.ID)<<16 | uint64(f.Seq)<<32 | uint64(f.First)<<48)
	d.mix(uint64(f.Code) | uint64(f.Block)<<8 | uint64(f.Length)<<32 | bit(f.Last)<<48 | bit(f.HasWords)<<49 | bit(f.WordsMissing)<<50)
	d.mix(uint64(f.VA))
	d.mix(uint64(f.Remaining))
	d.mix(f.Present)
	d.mix(f.Corrupt)
	d.mix(f.Duplicate)
	d.mix(uint64(f.Completion.VA))
	d.mix(f.Completion.First)
	d.mix(f.Completion.Last)
	for _, w := range f.Message[:min(int(f.MessageLen), len(f.Message))] {
		d.mix(w)
	}
}

// Taken takes a message that was taken out of a mailbox; ok is false where there
// was none.
func (d *Digest) Taken(source mailbox.Source, words *[device.PktzMaxWords]uint64, ok bool) {
	d.mix(bit(ok))
	d.mix(source.Encode())
	for _, w := range words {
		d.mix(w)
	}
}

// Loaded takes what a register read.
func (d *Digest) Loaded(v uint64) { d.mix(v) }
