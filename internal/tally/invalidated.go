package tally

// Invalidated counts observed invalidations of memory that a device could access.
type Invalidated struct {
	Calls     uint64 // that removed pages
	Pages     uint64 // that were removed and that the device had
	Conflicts uint64 // page-ins of pages that were just being removed
}

// Plus returns the sum.
func (i Invalidated) Plus(o Invalidated) Invalidated {
	return Invalidated{i.Calls + o.Calls, i.Pages + o.Pages, i.Conflicts + o.Conflicts}
}

// Less returns the growth since base, or i itself if a new device has restarted its counts.
func (i Invalidated) Less(base Invalidated) Invalidated {
	if i.Calls < base.Calls || i.Pages < base.Pages || i.Conflicts < base.Conflicts {
		return i
	}
	return Invalidated{i.Calls - base.Calls, i.Pages - base.Pages, i.Conflicts - base.Conflicts}
}
