package tally

// Invalidated is how often memory went that a device could use, as far as it is seen.
type Invalidated struct {
	Calls     uint64 // that had pages go
	Pages     uint64 // that went, and that the device had
	Conflicts uint64 // page-ins that met pages which were just going
}

// Plus gives the sum.
func (i Invalidated) Plus(o Invalidated) Invalidated {
	return Invalidated{i.Calls + o.Calls, i.Pages + o.Pages, i.Conflicts + o.Conflicts}
}

// Less gives what came since base; all of it where a new device counts anew.
func (i Invalidated) Less(base Invalidated) Invalidated {
	if i.Calls < base.Calls || i.Pages < base.Pages || i.Conflicts < base.Conflicts {
		return i
	}
	return Invalidated{i.Calls - base.Calls, i.Pages - base.Pages, i.Conflicts - base.Conflicts}
}
