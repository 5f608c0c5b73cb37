package soc

import (
	"math/bits"
	"slices"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/packetizer"
	"github.com/exanet/pfd/soc/fifo"
	"github.com/exanet/pfd/soc/gsas"
)

// queueHost is the node as seen by its queues in memory (docs/spec/queues.md).
type queueHost Node

// Waiting implements queue.Host. It takes from each source in turn, so that a flood from one does
// not starve the others.
func (h *queueHost) Waiting(out []device.Event) []device.Event {
	banks := 0
	if h.smmu.Interrupt() {
		if gfsr := uint32(h.smmu.LoadGlobal(device.GFSR, 0)); gfsr != 0 && h.smmu.LoadGlobal(device.SCR0, 0)&device.SCR0GFIE != 0 && len(out) < cap(out) {
			out = append(out, device.Event{Kind: device.EventGlobal, Status: gfsr, Address: h.smmu.LoadGlobal(device.GFAR, 0)})
		}
	} else {
		banks = device.Slots
	}
	for i := 0; ; i++ {
		before := len(out)
		out = waiting(out, &h.rx, false, i)
		out = waiting(out, &h.tx, true, i)
		for banks < device.Slots && len(out) < cap(out) {
			b := banks
			banks++
			if fsr := uint32(h.smmu.LoadBank(device.FSR, b)); fsr != 0 && h.smmu.LoadBank(device.SCTLR, b)&device.SCTLRCFIE != 0 {
				out = append(out, device.Event{
					Kind: device.EventBank, Index: uint8(b), Status: fsr,
					Syndrome: uint32(h.smmu.LoadBank(device.FSYNR0, b)), Address: h.smmu.LoadBank(device.FAR, b),
				})
				break
			}
		}
		for left := h.evented; left != 0 && len(out) < cap(out); left &= left - 1 {
			m := bits.TrailingZeros64(left)
			if e, ok := h.boxes[m].event(uint8(m), i); ok {
				e.Generation = (*Node)(h).wired(m) & device.EventGenerationMask
				out = append(out, e)
			}
		}
		out = h.operations(out, i)
		if len(out) == before {
			return out
		}
	}
}

// waiting appends entry i of a FIFO as an event.
func waiting(out []device.Event, f *fifo.FIFO, tx bool, i int) []device.Event {
	if e, ext, ok := f.Peek(i); ok && len(out) < cap(out) {
		lost := i == 0 && f.Status()&device.FIFOOverflow != 0
		out = append(out, device.Event{Kind: device.EventFault, TX: tx, Lost: lost, Words: e.Words(), Ext: ext})
	}
	return out
}

// operations appends page i that the GSAS unit wants, and call i of the driver, as events.
func (h *queueHost) operations(out []device.Event, i int) []device.Event {
	if h.unit == nil {
		return out
	}
	if page, ok := h.unit.Want(i); ok && len(out) < cap(out) {
		out = append(out, device.Event{Kind: device.EventWant, Address: page})
	}
	if i < len(h.calls) && len(out) < cap(out) {
		e := device.Event{Kind: device.EventCall, Cookie: uint64(h.calls[i].ID)}
		var words [atomics.MaxRequest]uint64
		h.calls[i].Encode(words[:])
		copy(e.Message[:], words[:])
		out = append(out, e)
	}
	return out
}

// Taken implements queue.Host.
func (h *queueHost) Taken(e *device.Event) {
	switch e.Kind {
	case device.EventFault:
		f := &h.rx
		if e.TX {
			f = &h.tx
		}
		if e.Lost {
			f.ClearStatus(device.FIFOOverflow)
		}
		// Do not pop another entry if something else reads the registers, too.
		if head, _, ok := f.Peek(0); ok && head.Words() == e.Words {
			f.Pop()
		}
	case device.EventBank:
		b := int(e.Index)
		h.smmu.StoreBank(device.FSR, b, h.smmu.LoadBank(device.FSR, b)&^uint64(e.Status))
	case device.EventGlobal:
		h.smmu.StoreGlobal(device.GFSR, 0, h.smmu.LoadGlobal(device.GFSR, 0)&^uint64(e.Status))
	case device.EventWant:
		h.unit.Told(e.Address)
	case device.EventCall:
		h.calls = slices.DeleteFunc(h.calls, func(a *gsas.Access) bool { return uint64(a.ID) == e.Cookie })
	case device.EventMessage:
		b := &h.boxes[e.Index]
		if head, ok := b.event(e.Index, 0); ok && head.Cookie == e.Cookie && head.Message == e.Message {
			b.drop()
			(*Node)(h).tellLong(int(e.Index))
		}
	}
}

// Command implements queue.Host.
func (h *queueHost) Command(c *device.Command) (device.Event, bool) {
	n := (*Node)(h)
	switch c.Kind {
	case device.CommandSend:
		ch := &n.pktz[c.Index][c.Channel]
		ch.destination = c.Destination
		copy(ch.payload[:], c.Words[:min(c.Count, device.EntryWords)])
		n.send(int(c.Index), int(c.Channel), int(c.Count), c.Number)
		ch.queued = true
		if ch.status != device.PktzRefused {
			break
		}
		if c.Number == 0 || c.Index < device.MailboxProcess || c.Index >= device.MailboxThread {
			return device.Event{Kind: device.EventRefused, Index: c.Index, Channel: c.Channel}, true
		}
		node, _, _ := packetizer.SplitDestination(c.Destination)
		n.refused(int(c.Index), node, c.Number)
	case device.CommandPayload:
		copy(n.pktz[c.Index][c.Channel].payload[device.EntryWords:], c.Words[:])
	case device.CommandAnswer:
		if n.unit != nil {
			n.unit.Called(n.now, uint32(c.Address), atomics.Status(c.Index), c.Value)
		}
	case device.CommandDoorbell:
		n.ringByWord(int(c.Index), int(c.Channel))
	case device.CommandInvalidate:
		n.smmu.Invalidate(int(c.Index), c.Page, c.Pages)
	}
	return device.Event{}, false
}

// Busy implements queue.Host.
func (h *queueHost) Busy(bank int) bool { return h.smmu.LoadBank(device.TLBSTATUS, bank) != 0 }
