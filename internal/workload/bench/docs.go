package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/exanet/pfd/internal/outfile"
	"github.com/exanet/pfd/internal/version"
	"github.com/exanet/pfd/internal/workload"
)

// ErrSection means that a document has no section with a name.
var ErrSection = errors.New("no such section")

// Replace replaces the text in file between the lines "<!-- name -->" and
// "<!-- /name -->". Errors match ErrSection or come from package os.
func Replace(file, name, text string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("section %s: %w", name, err)
	}
	first, last := "<!-- "+name+" -->\n", "<!-- /"+name+" -->\n"
	before, rest, ok := strings.Cut(string(b), first)
	_, after, closed := strings.Cut(rest, last)
	if !ok || !closed {
		return fmt.Errorf("%w: %s has no lines %q and %q", ErrSection, file, strings.TrimSpace(first), strings.TrimSpace(last))
	}
	if err := outfile.Write(file, []byte(before+first+text+last+after)); err != nil {
		return fmt.Errorf("section %s: %w", name, err)
	}
	return nil
}

// Document writes all tables into dir/benchmarks.md, the comparison with the papers' figures
// into dir/evaluation.md, and the pictures into dir/plots. If only folios or hosts were measured it
// writes their table.
func (r *Report) Document(dir string) error {
	// The machine may allow none: the figures that are there stay.
	if t := r.Table(foliosTable); t != nil && len(t.Rows) > 2 {
		if err := Replace(filepath.Join(dir, "benchmarks.md"), "bench-folios", r.Head()+"\nVersion "+version.String()+".\n"+t.Markdown()); err != nil {
			return err
		}
	}
	if t, s := r.Table(hostsTable), r.Table(hostsStream); t != nil && s != nil {
		if err := Replace(filepath.Join(dir, "benchmarks.md"), "bench-hosts", r.Head()+"\nVersion "+version.String()+".\n"+t.Markdown()+s.Markdown()); err != nil {
			return err
		}
	}
	if len(r.Suites) == 1 {
		return nil
	}
	if err := Replace(filepath.Join(dir, "benchmarks.md"), "bench", r.Markdown()); err != nil {
		return err
	}
	if err := Replace(filepath.Join(dir, "evaluation.md"), "evaluation", r.Evaluation()); err != nil {
		return err
	}
	return r.Pictures(filepath.Join(dir, "plots"))
}

// point is a figure of the papers and the same figure of this project. It is a ratio if the
// board's times mean nothing on other machines.
type point struct {
	source, what, paper string
	ours                reading
	unit                string
}

// side selects figures: those of a kind of memory, or those of the simulated board.
type side struct {
	prefix string // of the tables' names
	memory workload.Memory
}

// reading returns a figure of a side, and whether it was measured.
type reading func(*Report, side) (float64, bool)

// cellOf returns the reading of a cell's median.
func cellOf(table, row, column string) reading {
	return func(r *Report, s side) (float64, bool) {
		t := r.Table(s.prefix + table)
		if t == nil {
			return 0, false
		}
		c := t.get(row, column, s.memory)
		if c == nil || s.memory == workload.Any && c.memory != s.memory {
			return 0, false
		}
		return summarize(c.Samples).Median, true
	}
}

// ratio returns the reading of a divided by b.
func ratio(a, b reading) reading {
	return func(r *Report, s side) (float64, bool) {
		x, ok := a(r, s)
		y, ok2 := b(r, s)
		return x / y, ok && ok2 && y != 0
	}
}

// points returns the figures of the papers.
func points() (list []point) {
	add := func(source, what, paper, unit string, ours reading) {
		list = append(list, point{source, what, paper, ours, unit})
	}
	by := func(table, row, column, baseRow, baseColumn string) reading {
		return ratio(cellOf(table, row, column), cellOf(table, baseRow, baseColumn))
	}
	add("002 fig. 7", "small write, present", "4 us", "us", cellOf("latency", "16 B", "write"))
	add("002 fig. 9", "4 KiB, minor fault at the destination", "38 us", "us", cellOf("first", "absent", "4 KiB, p1"))
	add("002 fig. 9", "the same by present memory", "6.3", "", by("first", "absent", "4 KiB, p1", "present", "4 KiB, p1"))
	for _, k := range []struct{ row, paper string }{{"time-out of 1ms", "the time-out"}, {"time-out of 100µs", "the time-out"}} {
		add("002 fig. 9", "4 KiB, source fault ended by a "+k.row, k.paper, "us", cellOf("timeouts", k.row, "source"))
	}
	add("ours", "the same, ended by a request for retransmission", "", "us", cellOf("timeouts", "RAPF, by TXFIFO", "source"))
	for _, k := range []struct{ stage, paper string }{{"drain", "interrupt 1 us, tasklet 19 us with the page-in"}, {"page in", "see above"}, {"answer", "1 us"}} {
		add("002 fig. 8", "a fault's stage: "+k.stage, k.paper, "us", cellOf("breakdown", k.stage, "gup"))
	}
	add("000 fig. 4.7", "driver's processor time a fault (here: all of pfd)", "19 us", "us", cellOf("breakdown", "pfd's processor time for one", "gup"))
	for _, k := range []struct{ policy, what string }{{"p1", "one page a fault"}, {"pa", "all of it"}} {
		add("000 fig. 4.7", "driver's invocations, 64 KiB, "+k.what, "", "", cellOf("driver", "64 KiB", k.policy+": interrupts"))
	}
	add("002 fig. 7", "touching an absent page", "3 us", "us", cellOf("overheads", "4 KiB", "touch, absent"))
	add("002 fig. 7", "touching 1 MiB that is present", "20 us", "us", cellOf("overheads", "1 MiB", "touch, present"))
	add("002 fig. 7", "touching 4 MiB that is present", "152 us", "us", cellOf("overheads", "4 MiB", "touch, present"))
	for _, k := range []struct{ call, small, large string }{{"mmap", "2 us", "2 us"}, {"munmap", "7 us", "19 us"}, {"mlock", "6 us", "49 us"}, {"munlock", "2 us", "14 us"}, {"touch, absent", "3 us", "40 us"}} {
		add("000 table 4.1", k.call+", 4 KiB", k.small, "us", cellOf("overheads", "4 KiB", k.call))
		add("000 table 4.1", k.call+", 64 KiB", k.large, "us", cellOf("overheads", "64 KiB", k.call))
	}
	add("002 fig. 10", "1 MiB, all absent, page in all (PIA) by no faults", "2.6", "", by("policies", "1 MiB", "pa", "1 MiB", "present"))
	add("002 fig. 10", "1 MiB, touched first by no faults", "2", "", by("policies", "1 MiB", "touched first", "1 MiB", "present"))
	add("002 fig. 10", "PIA by touched first, 1 MiB", "1.2", "", by("policies", "1 MiB", "pa", "1 MiB", "touched first"))
	add("002 fig. 10", "PIA by touched first, 64 KiB", "3.5", "", by("policies", "64 KiB", "pa", "64 KiB", "touched first"))
	add("002 fig. 10", "PIO by PIA, 64 KiB", "1", "", by("policies", "64 KiB", "p1", "64 KiB", "pa"))
	for _, k := range []struct{ f, paper string }{{"5", "1.3"}, {"20", "2.2"}, {"40", "3.6"}, {"80", "5.7"}, {"100", "6.7"}} {
		add("002 fig. 11", "1 MiB, "+k.f+" % absent, PIO by PIA", k.paper, "", by("frequency", k.f, "p1", k.f, "pa"))
	}
	for _, k := range []struct{ f, paper string }{{"5", "1.15"}, {"40", "1.56"}, {"100", "2.6"}} {
		add("002 fig. 11", "1 MiB, "+k.f+" % absent, PIA by no faults", k.paper, "", by("frequency", k.f, "pa", "0", "pa"))
	}
	for _, k := range []struct{ size, dst, src string }{{"16 KiB", "1.7", "3.9"}, {"64 KiB", "1.2", "4.7"}} {
		add("000 fig. 4.2", "destination, "+k.size+": one page a fault by four", k.dst, "", by("policies", k.size, "p1", k.size, "p4"))
		add("000 fig. 4.3", "source, "+k.size+", time-out of 1 ms: one page a fault by four", k.src, "", by("source", k.size, "p1", k.size, "p4"))
	}
	add("000 fig. 4.5", "faults at both ends by the source's alone, time-out of 1 ms", "below 1", "", by("timeouts", "time-out of 1ms", "both", "time-out of 1ms", "source"))
	add("000 fig. 2.3", "Firehose, working set 4 M by M / 2", "sharply more past M + MAXVICTIM", "", by("strategies", "Firehose", "4 M", "Firehose", "M / 2"))
	add("000 fig. 2.3", "rendezvous by Firehose, within M", "2", "", by("strategies", "rendezvous", "M / 2", "Firehose", "M / 2"))
	add("ours", "no pinning by Firehose, working set 4 M", "", "", by("strategies", "no pinning (ours)", "4 M", "Firehose", "4 M"))
	add("001 §3.3", "4 KiB without the fast path, by with it", "0.2 us more", "", by("firmware", "no-fastpath", "4 KiB present", "all", "4 KiB present"))
	return list
}

// Evaluation returns a table of the papers' figures and ours: measured with shared memory, with
// memory that is not shared if both kinds were measured, and simulated.
func (r *Report) Evaluation() string {
	var b strings.Builder
	b.WriteString(r.Head())
	b.WriteString("\n| source | figure | the paper's | ours | ours, memory any | simulated board |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, p := range points() {
		text := func(s side, missing string) string {
			v, ok := p.ours(r, s)
			if !ok {
				return missing
			}
			return strings.TrimSpace(number(v) + " " + p.unit)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", p.source, p.what, p.paper,
			text(side{memory: workload.Shared}, "not measured"), text(side{memory: workload.Any}, ""), text(side{prefix: simulatedPrefix}, ""))
	}
	for _, t := range r.Tables {
		if t.SVG() != "" {
			fmt.Fprintf(&b, "\n![%s](plots/%s.svg)\n", t.caption(), t.Name)
		}
	}
	return b.String()
}
