package bench

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/internal/workload"
	"github.com/exanet/pfd/soc/link"
)

// studySuite is the name of a Study's suite.
const studySuite = "study"

// Study is a sweep over every combination of its values.
type Study struct {
	Methods, Policies []string
	Sizes             []uint64
	Patterns          []workload.Pattern
	Probabilities     []float64       // that a page of the destination is absent, 0 to 1
	Delays            []time.Duration // of a frame on its link (pfd --link-delay)
	Losses            []float64       // probability that a frame is lost (pfd --link-loss)
	Read              bool
}

// Suite returns the suite of the sweep. It has a table for each size, pattern and link, with
// the probabilities as rows and methods and policies as columns. If there are several links,
// it also has a table for each size and pattern with the links as rows, at the highest
// probability. It returns an error if a value is invalid.
func (s Study) Suite() (Suite, error) {
	var errs []error
	for _, m := range s.Methods {
		_, err := pagein.ParseMethod(m)
		errs = append(errs, err)
	}
	for _, p := range s.Policies {
		_, err := pagein.ParsePolicy(p)
		errs = append(errs, err)
	}
	for _, size := range s.Sizes {
		for _, p := range s.Patterns {
			for _, f := range s.Probabilities {
				q := workload.PerfRun{Size: size, Order: p, Dst: f, Count: 1}
				errs = append(errs, q.Check())
			}
		}
	}
	for _, d := range s.Delays {
		for _, l := range s.Losses {
			o := link.Options{Delay: d, Loss: l}
			errs = append(errs, o.Check())
		}
	}
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return Suite{}, errs[i]
	}
	return Suite{studySuite, "a sweep of methods, policies, sizes, patterns, probabilities and links", s.run}, nil
}

func (s Study) run(r *run) error {
	for _, delay := range s.Delays {
		for _, loss := range s.Losses {
			l := studyLink{delay, strconv.FormatFloat(loss, 'g', -1, 64)}
			if err := r.with(2, func(d *pfd) error { return s.overLink(r, d, l) }, "--link-delay", delay.String(), "--link-loss", l.loss); err != nil {
				return err
			}
		}
	}
	return nil
}

// studyLink is a link, its loss as text.
type studyLink struct {
	delay time.Duration
	loss  string
}

// overLink makes all measurements of one link.
func (s Study) overLink(r *run, d *pfd, l studyLink) error {
	of, suffix := "", ""
	if l.delay > 0 || l.loss != "0" {
		of, suffix = fmt.Sprintf(", links of %v that lose %s", l.delay, l.loss), fmt.Sprintf("-%v-%s", l.delay, l.loss)
	}
	for _, size := range s.Sizes {
		for _, pattern := range s.Patterns {
			name, title := fmt.Sprintf("study-%d-%s", size, pattern), fmt.Sprintf("%s, %s", sizeText(size), pattern)
			r.says("study: %s%s", title, of)
			t := r.table(name+suffix, title+of, "us", "% of pages absent", "")
			faults := r.table(name+suffix+"-faults", title+of+": faults of a transfer", "faults", "% of pages absent", "")
			faults.Means = true
			for _, m := range s.Methods {
				var turns []*turn
				for _, policy := range s.Policies {
					p := r.open(d, 0, 1, m, policy)
					for _, f := range s.Probabilities {
						row, column := strconv.FormatFloat(100*f, 'g', -1, 64), m+" "+policy
						for _, k := range r.kinds(p) {
							turns = append(turns, r.counted(d, faults.cell(row, column).of(k),
								r.transfers(p, workload.PerfRun{Size: size, Memory: k, Order: pattern, Dst: f, Read: s.Read}, t.cell(row, column), nil)))
						}
					}
				}
				before, err := aheads(r, d)
				if err == nil {
					err = r.takeTurns(turns...)
				}
				if err != nil {
					return err
				}
				after, err := aheads(r, d)
				if err != nil {
					return err
				}
				if n := after[0] - before[0]; n > 0 {
					unused := after[1] - before[1]
					t.note("%s adaptive: %d pages were brought in ahead of their use, %d of them (%.1f %%) were not used; %d pages were brought in in all.",
						m, n, unused, 100*float64(unused)/float64(n), after[2]-before[2])
				}
				if err := d.closePerfs(); err != nil {
					return err
				}
			}
			if len(s.Delays)*len(s.Losses) > 1 {
				s.byLink(r, t, name, title, l)
			}
		}
	}
	return nil
}

// aheads returns the number of pages that policy adaptive has brought in ahead, the number of
// those that were not used, and the number of all pages that were brought in.
func aheads(r *run, d *pfd) ([]uint64, error) {
	return r.counters(d, control.CounterAhead, control.CounterUnused, control.CounterPagesIn)
}

// counted returns the turn, with the faults per transfer added to c.
func (r *run) counted(d *pfd, c *Cell, t *turn) *turn {
	do, faults := t.do, func() (uint64, error) {
		n, err := r.counters(d, control.CounterFaults)
		return n[0], err
	}
	t.do = func(add func(*Cell, ...float64)) error {
		before, err := faults()
		if err != nil {
			return err
		}
		transfers := 0
		if err := do(func(c *Cell, v ...float64) { transfers = len(v) + min(len(v)/3, 16); add(c, v...) }); err != nil {
			return err
		}
		after, err := faults() // includes transfers without samples (cold in package workload)
		add(c, float64(after-before)/float64(transfers))
		return err
	}
	return t
}

// byLink adds the row of a link: the row of t with the highest probability.
func (s Study) byLink(r *run, t *Table, name, title string, l studyLink) {
	all := r.report.Table(name + "-links")
	absent := strconv.FormatFloat(100*slices.Max(s.Probabilities), 'g', -1, 64)
	if all == nil {
		all = r.table(name+"-links", fmt.Sprintf("%s, %s %% of the pages absent, by link", title, absent), "us", "delay us", "")
	}
	row := strconv.FormatFloat(float64(l.delay)/1e3, 'g', -1, 64)
	for _, c := range t.Columns {
		*all.cell(row, c+", loss "+l.loss) = *t.cell(absent, c)
	}
}
