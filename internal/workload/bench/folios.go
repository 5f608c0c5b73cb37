package bench

import (
	"fmt"
	"slices"
	"strings"

	"github.com/exanet/pfd/internal/workload"
)

// foliosTable has a section of its own in docs/benchmarks.md.
const foliosTable = "folios"

// folios measures absent memory that comes in by folios beside memory that comes in by single pages.
// A median would hide the faults of small transfers: the figures are means of a row's transfers.
func (r *run) folios() error {
	r.usual(workload.Memories...)
	defer r.usual(workload.Shared)
	t := r.table(foliosTable, "Absent memory that comes in by folios (gup): mean of a row's transfers", "us", "destination", "present")
	t.Means = true
	return r.with(2, func(d *pfd) error {
		for _, k := range []struct {
			column, policy string
			size           uint64
		}{{"4 KiB, p1", "p1", smallSize}, {"64 KiB, pa", "pa", 64 << 10}, {"1 MiB, pa", "pa", largeSize}} {
			p := r.open(d, 0, 1, "gup", k.policy)
			turns := make([]*turn, 3)
			for i, q := range []workload.PerfRun{{}, {Dst: 1}, {Dst: 1, Folios: true}} {
				q.Size, q.Count, q.Parts = k.size, 1, rowOf(k.size)
				turns[i] = &turn{count: max(r.count(k.size)/q.Parts, r.Count/50, 1), do: func(add func(*Cell, ...float64)) error {
					for _, q.Memory = range r.kinds(p) {
						got, err := r.row(p, q)
						if err != nil {
							return err
						}
						for _, row := range folioRows(q, &got) {
							add(t.cell(row.name, k.column).of(q.Memory), summarize(us(row.ns)).Mean)
						}
						memory := fmt.Sprintf("Memory %s: ", q.Memory)
						told := slices.ContainsFunc(t.Notes, func(n string) bool { return strings.HasPrefix(n, memory) })
						if got.Folio.Single != "" && !told {
							t.note("%s%v.", memory, got.Folio)
						}
					}
					return nil
				}}
			}
			if err := r.takeTurns(turns...); err != nil {
				return err
			}
		}
		return nil
	})
}

// folioRow is a part of a row of transfers, which has a row of the table.
type folioRow struct {
	name string
	ns   []int64
}

func folioRows(q workload.PerfRun, got *workload.PerfResult) []folioRow {
	switch {
	case q.Dst == 0:
		return []folioRow{{"present", got.Latencies}}
	case !q.Folios:
		return []folioRow{{"absent, single pages", got.Latencies}}
	case got.Folio.Pages < 2:
		return nil
	}
	name := "absent, folios of " + sizeText(uint64(got.Folio.Bytes()))
	rows := []folioRow{{name, got.Latencies}}
	if first, others := got.ByFolio(); len(first) > 0 && len(others) > 0 {
		rows = append(rows, folioRow{name + ": those that bring one in", first}, folioRow{name + ": the others", others})
	}
	return rows
}
