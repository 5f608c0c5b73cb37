// Package record stores the inputs of the emulated machines with their times, so that a run can
// be replayed: the same inputs produce the same actions, to the byte (package soc). The data that
// transfers carry is not stored, because no machine's behaviour depends on it; the values of the
// global shared address space are. The format is
// described in docs/record.md.
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

// Version is the format's version (defined by this project).
//
//	1: without the firmware's options and Take
//	2: an epoch of 16 bits, no generations, no access flags and external faults
//	   of a walk, no byte counts of failed moves
//	3: no numbers of messages, and a process was not told of a late refusal
//	4: no base of the nodes' ids, and no frames of other hosts
//	5: nodes of other hosts had one time-out, and each node was told of each of them
//	6: the current one
//
// The machines of former versions were different: their runs cannot be replayed.
const Version = 6

// Errors of reading. Every error about a file's content matches one of them.
var (
	// ErrFormat means that a file is not a recording, or is a damaged one.
	ErrFormat = errors.New("not a recording of this format")
	// ErrVersion means that a recording has another version.
	ErrVersion = errors.New("recording of another version")
	// ErrTruncated means that a recording has no end: its pfd was killed, or its disk was full.
	// The records before that are valid.
	ErrTruncated = errors.New("the recording is truncated")
)

// Header describes the recorded machines.
type Header struct {
	Nodes    int
	Base     device.NodeID // node i has ID Base + i
	VABits   int
	NoTXFIFO bool
	SVA      bool
	Stall    bool
	Queues   bool
	Windows  bool
	GSAS     bool
	Epoch    uint32 // the first epoch of all nodes
	Firmware r5.Options
	Started  int64 // wall clock, nanoseconds since 1970
}

// Kind is the type of a record.
type Kind uint8

// The kinds: the events of package soc with their numbers, then the driver's accesses (defined by
// this project).
const (
	Tick             = Kind(soc.Tick)
	FrameArrived     = Kind(soc.FrameArrived)
	Walked           = Kind(soc.Walked)
	Moved            = Kind(soc.Moved)
	DoorbellRung     = Kind(soc.DoorbellRung)
	DescriptorCopied = Kind(soc.DescriptorCopied)
	MessageSent      = Kind(soc.MessageSent)
	QueueAccessed    = Kind(soc.QueueAccessed)
	AtomicDone       = Kind(soc.AtomicDone)
	LinkReady        = Kind(soc.LinkReady)
	NodeGone         = Kind(soc.NodeGone)
	NodeDrains       = Kind(soc.NodeDrains)
	LinkUp           = Kind(soc.LinkUp)

	Load  Kind = 32 // a register was read, with its side effects
	Store Kind = 33 // a register was written
	Take  Kind = 34 // the head message of a mailbox was taken for a process
	Admit Kind = 35 // a frame of another host arrived: Outside, without its bytes
	Route Kind = 36 // from here on the node Event.Destination, of another host, has a route (Event.OK) or none
	Check Kind = 62 // the digest at this point
	End   Kind = 63 // the digest at the end
)

// String returns the kind's name, as in docs/record.md.
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
	case AtomicDone:
		return "atomic"
	case LinkReady:
		return "link"
	case NodeGone:
		return "gone"
	case NodeDrains:
		return "drains"
	case LinkUp:
		return "link-up"
	case Admit:
		return "admit"
	case Route:
		return "route"
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
	// Frame identifies a FrameArrived's frame by its index among all frames that the machines
	// transmitted.
	Frame uint64
	// Outside is the frame of an Admit, without a payload, and Payload is the length of that.
	Outside wire.Frame
	Payload int
	Data    []byte // of a QueueAccessed: the bytes that were read

	Window device.WindowID // of Load and Store
	Offset uint32
	Width  int
	Value  uint64 // of Store

	Mailbox int // of Take

	Count  uint64 // of Check and End: records before it
	Digest uint64
}

// Digest is a fingerprint of all outputs of the machines: the actions in order and the values
// that registers read. Its zero value is the start.
type Digest uint64

// Mix adds one number (defined by this project: a multiplication by 2^64 over the golden ratio).
func (d *Digest) Mix(v uint64) {
	h := (uint64(*d) ^ v) * 0x9e3779b97f4a7c15
	*d = Digest(h ^ h>>32)
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// Actions adds the actions of a step or a store.
func (d *Digest) Actions(node int, out []soc.Action) {
	d.Mix(uint64(node)<<32 | uint64(len(out)))
	for i := range out {
		a := &out[i]
		d.Mix(uint64(a.Kind) | uint64(a.Slot)<<8 | uint64(a.Channel)<<16 | uint64(a.Interface)<<24 |
			uint64(a.Vector)<<32 | uint64(a.Status)<<40 | uint64(a.Paused)<<48)
		d.Mix(uint64(a.Done))
		if x := a.Access; x != nil {
			d.Mix(uint64(x.ID) | uint64(x.Slot)<<32 | bit(x.Write)<<40 | bit(x.Ordered)<<41)
			d.Mix(uint64(x.VA))
			d.Mix(uint64(len(x.Data)))
		}
		if f := a.Frame; f != nil {
			d.frame(f)
		}
		if q := a.Queue; q != nil {
			d.queue(q)
		}
		if x := a.Atomic; x != nil {
			d.Mix(uint64(x.ID) | uint64(x.Op)<<32)
			d.Mix(uint64(x.Thread) | uint64(x.Protection)<<32)
			d.Mix(uint64(x.Address))
			d.Mix(x.Back)
			for _, w := range x.Args[:x.Op.Args()] {
				d.Mix(w)
			}
		}
	}
}

func (d *Digest) queue(q *queue.Access) {
	d.Mix(uint64(q.ID) | uint64(len(q.Data))<<32 | bit(q.Write)<<62 | bit(q.Entries)<<63)
	d.Mix(q.Addr)
	for i := 0; q.Write && i+8 <= len(q.Data); i += 8 {
		d.Mix(binary.LittleEndian.Uint64(q.Data[i:]))
	}
}

func (d *Digest) frame(f *wire.Frame) {
	d.Mix(uint64(f.Kind) | uint64(f.SrcNode)<<24 | uint64(f.SrcInterface)<<48)
	d.Mix(uint64(f.Epoch) | uint64(f.Link)<<32)
	d.Mix(uint64(f.SrcGeneration) | uint64(f.DstGeneration)<<32)
	d.Mix(uint64(f.SrcPDID) | uint64(f.DstNode)<<16 | uint64(f.DstMailbox)<<40)
	d.Mix(uint64(f.DstPDID) | uint64(f.ID)<<16 | uint64(f.Seq)<<32 | uint64(f.First)<<48)
	d.Mix(uint64(f.Code) | uint64(f.Block)<<8 | uint64(f.Length)<<32 | bit(f.Last)<<48 | bit(f.HasWords)<<49 | bit(f.WordsMissing)<<50)
	d.Mix(uint64(f.VA))
	d.Mix(uint64(f.Remaining))
	d.Mix(f.Present)
	d.Mix(f.Corrupt)
	d.Mix(f.Duplicate)
	d.Mix(uint64(f.Completion.VA))
	d.Mix(f.Completion.First)
	d.Mix(f.Completion.Last)
	for _, w := range f.Message[:min(int(f.MessageLen), len(f.Message))] {
		d.Mix(w)
	}
}

// Taken adds a message taken from a mailbox; ok is false if there was none.
func (d *Digest) Taken(source mailbox.Source, words *[device.PktzMaxWords]uint64, ok bool) {
	d.Mix(bit(ok))
	d.Mix(source.Encode())
	for _, w := range words {
		d.Mix(w)
	}
}

// Loaded adds the value that a register read.
func (d *Digest) Loaded(v uint64) { d.Mix(v) }
