package sim

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc/wire"
	"github.com/exanet/pfd/space"
)

// Costs are the durations of all work besides the links, ns. A world with Costs uses them
// instead of random times.
type Costs struct {
	Firmware  int64 // from a doorbell until its block is sent
	Access    int64 // a walk or a move of the PLDMA
	Interrupt int64 // from a vector to the driver's handling of it
	Call      int64 // a page-in call of the driver, with all its overhead
	Page      int64 // plus each page that the call pages in
	Request   int64 // a request for retransmission, until the firmware receives it
	Touch     int64 // the first page that a process touches itself; each further page takes Page
}

// Board returns the costs that the papers measured on the board (an A53 of 1.2 GHz, links of 10
// Gb/s). Of the 4 us of a small write (002 §III.A) the firmware takes 3 and the hardware less
// than 1. A fault (002 fig. 8, 9) takes 1 us for the SMMU's interrupt, 19 for the tasklet with
// one page, and 1 for the request. The 7 us of context switches, which are in figure 9 but not
// in figure 8, are included in the interrupt. Touching pages (000 table 4.1) takes 3 us for one
// and 40 us for sixteen.
func Board() Costs {
	return Costs{Firmware: 3000, Access: 200, Interrupt: 8000, Call: 16_500, Page: 2500, Request: 1000, Touch: 3000}
}

// Other settings of the papers: two blocks of a transfer in flight (001), and a time-out longer
// than any fault.
const (
	papersOutstanding = 2
	papersTimeout     = 25_000 // us (000 ch. 4)
)

// Trial is one write between two nodes.
type Trial struct {
	Size     int // bytes, from the start of a page on
	Policy   fault.Policy
	Src, Dst float64 // probability that a page of an end is absent
	Touch    bool    // the target touches its pages first, which is part of the time
	// TimeoutUS, if not 0, is the time-out that ends source faults, without a TXFIFO, as in the
	// papers.
	TimeoutUS uint32
	Seed      uint64
}

// Outcome is the result of a trial.
type Outcome struct {
	Nanoseconds     int64
	Faults          uint64 // accesses that the SMMU aborted, as the drivers saw them
	Retransmissions uint64 // retransmitted blocks
}

// ErrTrial reports that the write failed or wrote wrong bytes.
var ErrTrial = errors.New("simulated write")

// Write performs a trial. The same trial has the same outcome.
func (c Costs) Write(t Trial) (Outcome, error) {
	const src, dst = device.VA(0x5500_0000_0000), device.VA(0x7f00_0000_0000)
	cfg := Config{Seed: t.Seed, Nodes: 2, Costs: &c, Policy: t.Policy, Outstanding: papersOutstanding, TimeoutUS: papersTimeout, GuardUS: 1e6}
	if t.TimeoutUS != 0 {
		cfg.TimeoutUS, cfg.NoTXFIFO = t.TimeoutUS, true
	}
	w, err := New(cfg)
	if err != nil {
		return Outcome{}, err
	}
	pages := (t.Size + device.PageSize - 1) / device.PageSize
	var ends [2]*Process
	for i, base := range [2]device.VA{src, dst} {
		if ends[i], err = w.Node(i).Attach(1000, base, pages+1); err != nil {
			return Outcome{}, err
		}
		ends[i].Set(pages, present)
	}
	done, status := uint32(0), uint8(0)
	ends[0].OnDone = func(_ int, d uint32, s uint8) { done, status = d, s }
	write := func(page, size int) error {
		at, over := device.VA(page)<<device.PageShift, w.now+60e9
		d := device.Descriptor{Src: src + at, Dst: dst + at, Size: uint32(size), DstNode: 1, DstGeneration: ends[1].Domain.Generation}
		done = device.DoneOngoing
		w.after(c.Firmware, func() { ends[0].Write(0, d) })
		if err := w.Run(over, func() bool { return done != device.DoneOngoing }); err != nil {
			return err
		}
		if done != device.DoneCompleted {
			return fmt.Errorf("%w of %d bytes: done %d, status %d", ErrTrial, size, done, status)
		}
		return nil
	}
	if err := write(pages, 16); err != nil { // the first write makes the nodes known to each other
		return Outcome{}, err
	}
	rng := rand.New(rand.NewPCG(t.Seed, 2))
	for i, p := range ends {
		for page := range pages {
			if rng.Float64() >= [2]float64{t.Src, t.Dst}[i] {
				p.Set(page, present)
			}
		}
	}
	for i := range ends[0].Data[:t.Size] {
		if ends[0].pages[i>>device.PageShift] == present {
			ends[0].Data[i] = byte(rng.Uint32())
		}
	}
	start := w.now
	if n := ends[1].missing(dst, pages); t.Touch && n > 0 {
		start -= c.Touch + int64(n-1)*c.Page
		ends[1].Touch(0, t.Size)
	}
	if err := write(0, t.Size); err != nil {
		return Outcome{}, err
	}
	o := Outcome{Nanoseconds: w.now - start}
	if !bytes.Equal(ends[0].Data[:t.Size], ends[1].Data[:t.Size]) {
		return Outcome{}, fmt.Errorf("%w of %d bytes: wrong bytes", ErrTrial, t.Size)
	}
	for _, n := range w.nodes {
		o.Faults += n.Driver.Stats().Faults
		o.Retransmissions += n.SOC.Count(device.Retransmits)
	}
	return o, nil
}

// later returns the extra delay of a frame: that of a request for retransmission.
func (c *Costs) later(f *wire.Frame) int64 {
	if f.Kind == wire.Message && f.MessageLen > 0 && mailbox.OpcodeOf(f.Message[0]) == mailbox.OpRAPF {
		return c.Request + c.Firmware
	}
	return 0
}

// work returns how long a page-in takes: its own duration and that of earlier ones. Page-ins that
// faults wait for use one processor, those that policies add use another one.
func (c *Costs) work(n *Node, slot int, op *space.Op, long bool) int64 {
	lane, d := 0, c.Call
	if long {
		lane, d = 1, 0 // not started by an interrupt
	}
	d += int64(n.process[slot].missing(op.VA, op.Pages)) * c.Page
	if !op.Write { // the request goes to the own node's firmware, not over a link
		d += c.Request + c.Firmware
	}
	n.free[lane] = max(n.free[lane], n.world.now) + d
	return n.free[lane] - n.world.now
}

// Missing returns how many pages of a range of bytes are absent.
func (p *Process) Missing(from, to int) int {
	first := from / device.PageSize
	return p.missing(p.Base+device.VA(first)<<device.PageShift, (to-1)/device.PageSize-first+1)
}

// missing returns how many pages from va on are absent.
func (p *Process) missing(va device.VA, pages int) (n int) {
	for i := range pages {
		if p.state(va.Page()+device.VA(i)<<device.PageShift) == absent {
			n++
		}
	}
	return n
}
