package bench

import (
	"fmt"
	"strconv"

	"github.com/exanet/pfd/pagein"
	"github.com/exanet/pfd/workload"
)

// Study is a sweep: every combination of these.
type Study struct {
	Methods, Policies []string
	Sizes             []uint64
	Patterns          []workload.Pattern
	Probabilities     []float64 // of a page of the destination being absent, 0 to 1
	Read              bool
}

// Suite gives the suite that sweeps: a table for each size and pattern, with the
// probabilities as rows and methods and policies as columns. An error says what cannot be swept.
func (s Study) Suite() (Suite, error) {
	for _, m := range s.Methods {
		if _, err := pagein.ParseMethod(m); err != nil {
			return Suite{}, err
		}
	}
	for _, p := range s.Policies {
		if _, err := pagein.ParsePolicy(p); err != nil {
			return Suite{}, err
		}
	}
	for _, size := range s.Sizes {
		for _, p := range s.Patterns {
			for _, f := range s.Probabilities {
				q := workload.PerfRun{Size: size, Order: p, Dst: f, Count: 1}
				if err := q.Check(); err != nil {
					return Suite{}, err
				}
			}
		}
	}
	return Suite{"study", "a sweep of methods, policies, sizes, patterns and probabilities", s.run}, nil
}

func (s Study) run(r *run) error {
	return r.with(2, func(d *pfd) error {
		for _, size := range s.Sizes {
			for _, pattern := range s.Patterns {
				r.says("study: %s, %s", sizeText(size), pattern)
				t := r.table(fmt.Sprintf("study-%d-%s", size, pattern), fmt.Sprintf("%s, %s", sizeText(size), pattern), "us", "% of pages absent", "")
				for _, m := range s.Methods {
					var turns []*turn
					for _, policy := range s.Policies {
						p, err := r.open(d, 0, 1, m, policy)
						if err != nil {
							return err
						}
						for _, f := range s.Probabilities {
							turns = append(turns, r.transfers(p, workload.PerfRun{Size: size, Order: pattern, Dst: f, Read: s.Read},
								t.cell(strconv.FormatFloat(100*f, 'g', -1, 64), m+" "+policy), nil))
						}
					}
					if err := r.takeTurns(turns...); err != nil {
						return err
					}
					if err := d.closePerfs(); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
}
