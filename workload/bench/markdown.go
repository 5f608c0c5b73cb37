package bench

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// table writes a table of Markdown.
type table struct{ strings.Builder }

func (t *table) title(format string, args ...any) { fmt.Fprintf(t, "\n### "+format+"\n\n", args...) }

func (t *table) row(cells ...string) { t.WriteString("| " + strings.Join(cells, " | ") + " |\n") }

func (t *table) head(cells ...string) {
	t.row(cells...)
	t.row(strings.Split(strings.Repeat("--- ", len(cells)-1)+"---", " ")...)
}

func us(v float64) string {
	if v < 100 {
		return fmt.Sprintf("%.1f us", v)
	}
	return fmt.Sprintf("%.0f us", v)
}

func size(n uint64) string {
	if n >= 1<<20 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d KiB", n>>10)
}

// Markdown gives all tables, with what is asked of a figure beside it.
func (r *Report) Markdown() string {
	var t table
	fmt.Fprintf(&t, "Measured on %d processors (%s), Linux %s: medians of %d transfers of 4 KiB and %d of\n1 MiB of each kind, every byte of them checked; nothing was pinned (%d bytes).\n",
		r.Machine.Processors, r.Machine.Processor, r.Machine.Kernel, r.Small.Transfers, r.Large.Transfers, r.PinnedBytes)

	if r.Small.Transfers > 0 {
		r.faults(&t)
	}
	if len(r.Isolated) > 0 {
		t.title("4 KiB a pause after the last transfer (gup, p1, polling)")
		t.head("pause", "bare wake-up of a sleeping thread", "present", "absent", "present, back to back", "(present - wake-up) / back to back (asked: at most 1.2)")
		for _, i := range r.Isolated {
			t.row(fmt.Sprint(i.Pause), us(i.Wake), us(i.Present), us(i.Absent), us(i.BackToBack), fmt.Sprintf("%.2f", i.Excess))
		}
	}
	if len(r.Methods) > 0 {
		t.title("Page-in methods")
		t.head("method", "4 KiB absent, p1", "1 MiB absent, pa")
		for _, m := range r.Methods {
			t.row(m.Method, us(m.Small), us(m.Large))
		}
	}
	if len(r.Sizes) > 0 {
		t.title("Reads beside writes (gup, pa)")
		t.head("size", "write, present", "read, present", "write, absent", "read, absent")
		for _, z := range r.Sizes {
			t.row(size(z.Bytes), us(z.WritePresent), us(z.ReadPresent), us(z.WriteAbsent), us(z.ReadAbsent))
		}
	}
	if len(r.Outstanding) > 0 {
		t.title("Blocks of a transfer in flight (`pfd --outstanding`), 1 MiB")
		t.head("blocks", "present", "absent, pa")
		for _, w := range r.Outstanding {
			t.row(fmt.Sprint(w.Blocks), us(w.Present), us(w.Absent))
		}
	}
	if len(r.Firmware) > 0 {
		t.title("Optimizations of the firmware (`pfd --firmware-options`)")
		t.head("options", "4 KiB present", "1 MiB present", "1 MiB absent, p1")
		for _, f := range r.Firmware {
			t.row("`"+f.Options+"`", us(f.Small), us(f.Large), us(f.Absent))
		}
	}
	if len(r.Channels) > 0 {
		r.rates(&t)
	}
	if r.Idle.Nodes > 0 {
		t.title("An idle pfd")
		fmt.Fprintf(&t, "%d nodes, %d attached processes that do nothing, over %.0f s: %.2f %% of a processor\n(asked: under 0.5 %%), %.1f MiB resident (asked: under 64).\n",
			r.Idle.Nodes, r.Idle.Processes, r.Idle.Seconds, r.Idle.Percent, float64(r.Idle.Resident)/(1<<20))
	}
	if len(r.Tracing) > 0 {
		r.tracing(&t)
	}
	return t.String()
}

// Brief gives what parts faults and methods measured, on a page of 80 columns, beside
// PART's board (002 §V: figures 5 and 6).
func (r *Report) Brief() string {
	var b strings.Builder
	small, large := r.Small.Present, r.Large.Present
	line := func(name string, s, l float64, board string) {
		cell := func(v, present float64) string {
			if v == 0 {
				return fmt.Sprintf("%11s %6s", "-", "")
			}
			return fmt.Sprintf("%11s %5.1fx", us(v), v/present)
		}
		fmt.Fprintf(&b, "%-26s%s%s   %s\n", name, cell(s, small), cell(l, large), board)
	}
	fmt.Fprintf(&b, "%-26s%18s%18s   %s\n", "destination", "4 KiB   ratio", "1 MiB   ratio", "PART's board, 4 KiB")
	line("present", small, large, "4 us")
	for _, m := range r.Methods {
		board := ""
		if m.Method == "gup" {
			board = "38 us   9.5x"
		}
		line("absent, by "+m.Method, m.Small, m.Large, board)
	}
	line("touched first", 0, r.Large.TouchFirst, "7 us    1.8x")
	line("pinned first", 0, 0, "10 us   2.5x")
	fmt.Fprintf(&b, "\nMedians of %d and %d, every byte checked. %d processors (%s), Linux %s;\nload %.1f: with another load than 0 the times are other programs', too.\n",
		r.Small.Transfers, r.Large.Transfers, r.Machine.Processors, r.Machine.Processor, r.Machine.Kernel, r.Machine.Load)
	return b.String()
}

func (r *Report) tracing(t *table) {
	t.title("Tracing (`exanetctl trace`), 4 KiB absent, p1, polling")
	t.head("attached", "a write", "against detached", "pfd's processor time", "against detached", "asked for")
	for _, w := range r.Tracing {
		asked := ""
		switch w.Attached {
		case "a pfd without the probe point":
			asked = "within 1 %"
		case "faults: the records alone":
			asked = "at most +2 % and +0.5 us"
		case "everything":
			asked = "at most +10 %"
		}
		if w.Attached == "detached" {
			t.row(w.Attached, us(w.Latency), "", us(w.Processor), "", "")
			continue
		}
		t.row(w.Attached, us(w.Latency), fmt.Sprintf("%+.1f %% (%+.1f to %+.1f)", w.Added, w.AddedLow, w.AddedHigh),
			us(w.Processor), fmt.Sprintf("%+.2f us (%+.2f to %+.2f)", w.AddedProcessor, w.AddedProcessorLow, w.AddedProcessorHigh), asked)
	}
}

func (r *Report) faults(t *table) {
	t.title("Faulting against present memory (gup)")
	t.head("", "4 KiB, p1, polling", "1 MiB, pa, polling", "1 MiB, pa, sleeping", "asked for")
	s, l, w := &r.Small, &r.Large, &r.Sleeping
	ratio := func(v float64) string { return fmt.Sprintf("%.2f", v) }
	t.row("present", us(s.Present), us(l.Present), us(w.Present), "4 KiB: at most 9 us")
	t.row("absent", us(s.Absent), us(l.Absent), us(w.Absent), "")
	t.row("absent / present", ratio(s.Ratio), ratio(l.Ratio), ratio(w.Ratio), "4 KiB: at most 3.0")
	t.row("bare page-in by the same call (64 pages at once)", us(s.Bare), us(l.Bare), us(w.Bare), "")
	t.row("what a fault adds / bare page-in", ratio(s.AddedByBare), "", "", "at most 2.5")
	t.row("touch first, then write", "", us(l.TouchFirst), us(w.TouchFirst), "")
	t.row("absent / touch first", "", ratio(l.ByTouchFirst), ratio(w.ByTouchFirst), "at most 0.8")
	t.row("absent / (present + bare page-in)", "", ratio(l.BySum), ratio(w.BySum), "at most 0.8")
	t.row("raw copy, the same two calls at 256 KiB", "", us(l.Raw), us(w.Raw), "")
	t.row("raw copy / present", "", ratio(l.RawByPresent), ratio(w.RawByPresent), "at least 0.65")
}

func (r *Report) rates(t *table) {
	t.title("Channels kept busy")
	t.head("channels", "64 B: transfers a second", "time of one", "pfd's processor time for one", "4 KiB: transfers a second", "time of one", "pfd's processor time for one")
	grow := func(of func(*Channels) float64) float64 {
		least := of(&r.Channels[0])
		for i := range r.Channels {
			least = min(least, of(&r.Channels[i]))
		}
		return of(&r.Channels[len(r.Channels)-1]) / least
	}
	for _, c := range r.Channels {
		t.row(fmt.Sprint(c.Channels),
			fmt.Sprintf("%.0f", c.Tiny.PerSecond), us(c.Tiny.Cost), us(c.Tiny.Processor),
			fmt.Sprintf("%.0f", c.Small.PerSecond), us(c.Small.Cost), us(c.Small.Processor))
	}
	fmt.Fprintf(t, "\nWith the most channels one takes %.2f of the least with 64 bytes and %.2f with 4 KiB,\nand of pfd's processor time %.2f and %.2f (asked: at most 1.2).\n",
		grow(func(c *Channels) float64 { return c.Tiny.Cost }), grow(func(c *Channels) float64 { return c.Small.Cost }),
		grow(func(c *Channels) float64 { return c.Tiny.Processor }), grow(func(c *Channels) float64 { return c.Small.Processor }))
}

// ErrSection says that a document has no section of a name.
var ErrSection = errors.New("no such section")

// Replace puts text into file between its lines "<!-- name -->" and
// "<!-- /name -->". Errors match ErrSection, or are os's.
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
	if err := os.WriteFile(file, []byte(before+first+text+last+after), 0o644); err != nil {
		return fmt.Errorf("section %s: %w", name, err)
	}
	return nil
}
