package gsas

// table has the entries of a partition's pages. Its zero value has none.
type table struct {
	chunks map[uint64]*chunk
	count  int // entries that are not zero
}

// entry is the registers of a page.
type entry struct {
	bits uint64 // GSAS_ENTRY
	back uint64 // GSAS_BACK
}

// chunkPages are the pages whose entries are kept together: 2 MiB of a partition (defined by this
// project).
const chunkPages = 512

type chunk struct {
	entries [chunkPages]entry
	count   int // that are not zero
}

func (t *table) get(page uint64) entry {
	if c := t.chunks[page/chunkPages]; c != nil {
		return c.entries[page%chunkPages]
	}
	return entry{}
}

// put sets an entry. One of GSAS_ENTRY 0 is removed.
func (t *table) put(page uint64, e entry) {
	c := t.chunks[page/chunkPages]
	if c == nil {
		if e.bits == 0 {
			return
		}
		if t.chunks == nil {
			t.chunks = map[uint64]*chunk{}
		}
		c = new(chunk)
		t.chunks[page/chunkPages] = c
	}
	old := &c.entries[page%chunkPages]
	if old.bits != 0 {
		c.count, t.count = c.count-1, t.count-1
	}
	if e.bits == 0 {
		e = entry{}
	} else {
		c.count, t.count = c.count+1, t.count+1
	}
	if *old = e; c.count == 0 {
		delete(t.chunks, page/chunkPages)
	}
}
