package bench

import (
	"fmt"
	"strconv"
	"time"

	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/internal/sim"
)

// simulatedPrefix begins the names of tables of the simulated board. Their rows and columns
// are those of the live table with the rest of the name.
const simulatedPrefix = "simulated-"

// simulatedSeeds is the number of random choices of absent pages. Defined by this project.
const simulatedSeeds = 20

// simulated makes the measurements of the live suites in simulated time, with the same state
// machines, the same driver, and the costs that the papers measured on their board.
func (r *run) simulated() error {
	var err error
	// write adds the time of a trial, in us; one for each seed if absent pages are random.
	write := func(c *Cell, t sim.Trial) {
		seeds := uint64(1)
		if p := max(t.Src, t.Dst); p > 0 && p < 1 {
			seeds = simulatedSeeds
		}
		for seed := range seeds {
			t.Seed = seed
			o, e := sim.Board().Write(t)
			if e != nil && err == nil {
				err = e
			}
			c.Samples = append(c.Samples, float64(o.Nanoseconds)/1e3)
		}
	}
	policies := map[string]fault.Policy{"p1": fault.PIO, "p4": fault.PI4, "pa": fault.PIA}
	table := func(name, title, rows, base string) *Table {
		return r.table(simulatedPrefix+name, title+", on the simulated board", "us", rows, base)
	}

	t := table("latency", "Latency by size", "size", "")
	for size := 16; size <= 4<<20; size *= 4 {
		write(t.cell(sizeText(uint64(size)), "write"), sim.Trial{Size: size})
	}
	t = table("first", "Faulting against present memory", "destination", "present")
	t.note("The papers' costs (`sim.Board`): the firmware 3 us, an interrupt and the context switches 8, the driver's call 16.5, a page 2.5, a request 1, links of 10 Gb/s. Pages that a policy adds are brought in on another processor.")
	for _, k := range []struct {
		column, policy string
		size           int
	}{{"4 KiB, p1", "p1", smallSize}, {"64 KiB, pa", "pa", 64 << 10}, {"1 MiB, pa", "pa", largeSize}} {
		write(t.cell("present", k.column), sim.Trial{Size: k.size})
		write(t.cell("absent", k.column), sim.Trial{Size: k.size, Dst: 1, Policy: policies[k.policy]})
		write(t.cell("touched first", k.column), sim.Trial{Size: k.size, Dst: 1, Touch: true})
	}
	t = table("policies", "All pages of the destination absent, by policy", "size", "present")
	for size := 16 << 10; size <= 4<<20; size *= 4 {
		row := sizeText(uint64(size))
		write(t.cell(row, "present"), sim.Trial{Size: size})
		write(t.cell(row, "touched first"), sim.Trial{Size: size, Dst: 1, Touch: true})
		for _, p := range policyNames {
			write(t.cell(row, p), sim.Trial{Size: size, Dst: 1, Policy: policies[p]})
		}
	}
	t = table("frequency", "1 MiB by how many pages are absent", "% of pages absent", "0")
	for _, f := range frequencies {
		for _, p := range policyNames {
			write(t.cell(strconv.Itoa(f), p), sim.Trial{Size: largeSize, Dst: float64(f) / 100, Policy: policies[p]})
		}
	}
	t = table("timeouts", "RAPF against time-outs: 4 KiB, p1", "what sends the block again", "RAPF, by TXFIFO")
	for _, us := range []uint32{0, 25000, 2500, 1000, 100} {
		row := "RAPF, by TXFIFO"
		if us != 0 {
			row = fmt.Sprintf("time-out of %v", time.Duration(us)*time.Microsecond)
		}
		write(t.cell(row, "destination"), sim.Trial{Size: smallSize, Dst: 1, TimeoutUS: us})
		write(t.cell(row, "source"), sim.Trial{Size: smallSize, Src: 1, TimeoutUS: us})
		write(t.cell(row, "both"), sim.Trial{Size: smallSize, Src: 1, Dst: 1, TimeoutUS: us})
	}
	t = table("source", "All pages of the source absent, time-out of 1 ms, by policy", "size", "p4")
	for size := 16 << 10; size <= 64<<10; size *= 2 {
		for _, p := range policyNames[:2] {
			write(t.cell(sizeText(uint64(size)), p), sim.Trial{Size: size, Src: 1, TimeoutUS: 1000, Policy: policies[p]})
		}
	}
	return err
}
