package session

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/trace"
)

// records adds a node's faults to the trace. It belongs to the owning goroutine.
type records struct {
	log     *trace.Log
	post    func(func()) // defers a show until the owner is idle; nil: the machine shows
	base    int64        // CLOCK_MONOTONIC at time 0 of Config.Now
	due     bool         // a show is posted
	id      func() device.NodeID
	process func(slot int) uint32 // the pid of a slot's process, 0 if there is none
	server  func() int            // the pid of the process that serves the node; nil: this one does
}

// begin handles that the node's device is there, which may be another one than before.
func (r *records) begin() {
	if r.server == nil {
		return
	}
	r.log.Fabric = 0
	if pid := r.server(); pid != 0 {
		r.log.Fabric = trace.Served(pid)
	}
}

func (r *records) add(rec *trace.Record) {
	rec.Node = uint32(r.id())
	r.log.Add(rec)
	if r.post != nil && !r.due {
		r.due = true
		r.post(func() {
			r.due = false
			r.log.Show()
		})
	}
}

// abs converts a time of Config.Now to CLOCK_MONOTONIC; 0 stays 0.
func (r *records) abs(t int64) int64 {
	if t == 0 {
		return 0
	}
	return r.base + t
}

// fault records a fault whose outcome is final, if a tracer is attached.
func (r *records) fault(f *fault.Record) {
	if !trace.On() {
		return
	}
	rec := trace.Record{
		Kind: trace.Fault, Method: uint8(f.Method), Policy: uint8(f.Policy), Outcome: uint8(f.Outcome),
		Slot: uint8(f.Slot), Process: r.process(f.Slot), Source: uint32(f.Source), PDID: uint16(f.PDID),
		Transaction: uint16(f.Transaction), Sequence: uint16(f.Sequence), Page: uint64(f.Page),
		Times: [6]int64{
			trace.FaultInterrupt: r.abs(f.Interrupt), trace.FaultDrained: r.abs(f.Drained),
			trace.FaultStarted: r.abs(f.Started), trace.FaultResident: r.abs(f.Resident), trace.FaultAnswered: r.abs(f.Answered),
		},
	}
	if f.Resident != 0 {
		rec.FaultKind = uint8(f.Kind) + 1
	}
	if f.Write {
		rec.Flags |= trace.Write
	}
	if f.Block {
		rec.Flags |= trace.HasBlock
	}
	if f.Answers {
		rec.Flags |= trace.Answers
	}
	r.add(&rec)
}

// pageIn records a page-in that has ended, if a tracer is attached.
func (r *records) pageIn(p *fault.PageIn) {
	if !trace.On() {
		return
	}
	rec := trace.Record{
		Kind: trace.PageIn, Method: uint8(p.Method), Policy: uint8(p.Policy), FaultKind: uint8(p.Kind) + 1,
		Slot: uint8(p.Slot), Process: r.process(p.Slot), PDID: uint16(p.PDID), Page: uint64(p.Page), Pages: uint32(p.New), Span: uint32(p.Pages),
		Times: [6]int64{trace.PageInStarted: r.abs(p.Started), trace.PageInEnded: r.abs(p.Ended)},
	}
	if p.Write {
		rec.Flags |= trace.Write
	}
	if p.Got > 0 {
		rec.Flags |= trace.Brought
	}
	r.add(&rec)
}
