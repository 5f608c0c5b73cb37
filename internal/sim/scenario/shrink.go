package scenario

import (
	"context"
	"errors"
	"slices"
)

// Limits of shrinking (defined by this project).
const (
	shrinkSeeds = 8    // seeds that are tried for each smaller scenario
	shrinkRuns  = 4000 // runs in all
)

// Shrink returns a scenario that fails as f does with as few transfers, injections, nodes and bytes as it
// finds, and its violation. It returns nil if f does not fail. The result's workloads are single
// transfers, so its file replays it.
func Shrink(ctx context.Context, f *File) (*File, error, error) {
	s := shrinker{ctx: ctx}
	if !s.fails(f) {
		return nil, nil, s.fatal
	}
	if single := s.singles(f); single != nil && s.accept(single) {
		s.drop(func(f *File) *[]Workload { return &f.Workload })
	}
	for before := ""; s.fatal == nil && s.runs < shrinkRuns; {
		text, err := s.best.Text()
		if err != nil || string(text) == before {
			break
		}
		before = string(text)
		s.drop(func(f *File) *[]Workload { return &f.Workload })
		dropInjects(&s)
		s.simplify()
	}
	return s.best, s.violation, s.fatal
}

// shrinker is a search for a smaller scenario.
type shrinker struct {
	ctx       context.Context
	best      *File
	violation error
	runs      int
	fatal     error // an error that is no violation
}

// fails reports whether a scenario fails, and makes it the best one if so.
func (s *shrinker) fails(f *File) bool {
	if s.fatal != nil || s.runs >= shrinkRuns || f.check() != nil {
		return false
	}
	s.runs++
	_, err := Run(s.ctx, f, Options{})
	switch {
	case errors.Is(err, ErrViolation):
		s.best, s.violation = f, err
		return true
	case err != nil && !errors.Is(err, ErrFile):
		s.fatal = err
	}
	return false
}

// accept is fails with several seeds: what the network does depends on all that it carries, so a smaller
// scenario may need another one.
func (s *shrinker) accept(f *File) bool {
	for k := range uint64(shrinkSeeds) {
		g := *f
		if k > 0 {
			g.Seed = k
		}
		if s.fails(&g) {
			return true
		}
	}
	return false
}

// singles returns the scenario with each transfer as a workload of its own, which starts when it started
// in the run that failed; nil if there are too many.
func (s *shrinker) singles(f *File) *File {
	const most = 20_000
	transfers, err := f.Expand()
	if err != nil || len(transfers) > most {
		return nil
	}
	started := make([]int64, len(transfers))
	_, _ = runTransfers(s.ctx, f, transfers, Options{Watch: func(e *Event) {
		if e.Kind == Started {
			started[e.Transfer] = e.At
		}
	}})
	g := *f
	if g.Topology.Kind == "full" && g.Topology.Nodes == 0 {
		g.Topology.Nodes = f.named()
	}
	g.Workload = nil
	for i, t := range transfers {
		if t.After >= 0 && started[i] == 0 {
			continue
		}
		w := Workload{
			Kind: "write", From: Nodes{t.From}, To: Nodes{t.To}, Size: Size(t.Size), Start: Duration(max(t.Start, 0)),
			Absent: t.Absent, Gone: t.Gone, Touch: t.Touch, Read: t.Read, Urgent: t.Urgent, Pages: t.Pages >> 1, // a TOML number has 63 bits
		}
		if t.After >= 0 {
			w.Start = Duration(started[i])
		}
		g.Workload = append(g.Workload, w)
	}
	return &g
}

// drop takes workloads away: halves first, then smaller parts.
func (s *shrinker) drop(list func(*File) *[]Workload) {
	for part := len(*list(s.best)) / 2; part >= 1; part /= 2 {
		for at := 0; at < len(*list(s.best)) && len(*list(s.best)) > 1; {
			g := *s.best
			*list(&g) = slices.Delete(slices.Clone(*list(s.best)), at, min(at+part, len(*list(s.best))))
			if len(*list(&g)) == 0 || !s.accept(&g) {
				at += part
			}
		}
	}
}

// dropInjects takes injections away one by one.
func dropInjects(s *shrinker) {
	for at := 0; at < len(s.best.Inject); {
		g := *s.best
		g.Inject = slices.Delete(slices.Clone(s.best.Inject), at, at+1)
		if !s.accept(&g) {
			at++
		}
	}
}

// simplify makes values simpler, one at a time.
func (s *shrinker) simplify() {
	try := func(change func(f *File) bool) {
		g := *s.best
		g.Workload, g.Inject = slices.Clone(g.Workload), slices.Clone(g.Inject)
		if change(&g) {
			s.accept(&g)
		}
	}
	try(func(f *File) bool { // without a topology, and no more nodes than are used
		changed := f.Topology.Kind != "full" || f.Topology.Nodes != f.named()
		f.Topology = Topology{Kind: "full", Nodes: f.named()}
		return changed
	})
	try(func(f *File) bool { // numbers of nodes without gaps
		used := map[int]int{}
		rename := func(list Nodes) (to Nodes) {
			for _, n := range list {
				if _, ok := used[n]; !ok {
					used[n] = len(used)
				}
				to = append(to, used[n])
			}
			return to
		}
		for i := range f.Workload {
			w := &f.Workload[i]
			w.From, w.To = rename(w.From), rename(w.To)
		}
		for i := range f.Inject {
			f.Inject[i].Nodes = rename(f.Inject[i].Nodes)
		}
		gaps := false
		for n, to := range used {
			gaps = gaps || n != to
		}
		f.Topology = Topology{Kind: "full", Nodes: max(len(used), 2)}
		return gaps
	})
	for _, change := range []func(f *File) bool{
		func(f *File) bool { return set(&f.Firmware.IDs, 0) },
		func(f *File) bool { return set(&f.Firmware.FIFO, 0) },
		func(f *File) bool { return set(&f.Firmware.Contexts, 0) },
		func(f *File) bool { return set(&f.Firmware.Options, "") },
		func(f *File) bool { return set(&f.Firmware.Rate, "") },
		func(f *File) bool { return set(&f.Driver.Policy, New().Driver.Policy) },
	} {
		try(change)
	}
	for i := range s.best.Workload {
		for _, change := range []func(w *Workload) bool{
			func(w *Workload) bool { return set(&w.Size, (w.Size+1)/2) },
			func(w *Workload) bool { return set(&w.Start, 0) },
			func(w *Workload) bool { return set(&w.Absent, 0) },
			func(w *Workload) bool { return set(&w.Gone, 0) },
			func(w *Workload) bool { return set(&w.Touch, false) },
			func(w *Workload) bool { return set(&w.Urgent, false) },
			func(w *Workload) bool { return set(&w.Read, false) },
		} {
			try(func(f *File) bool { return i < len(f.Workload) && change(&f.Workload[i]) })
		}
	}
}

// set sets a value, and reports whether it was another one.
func set[T comparable](to *T, v T) bool {
	changed := *to != v
	*to = v
	return changed
}
