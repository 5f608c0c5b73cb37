package mediate

import (
	"container/list"
	"slices"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/space/shadow"
)

// treePages is the pages of trees that a device may access. The driver above says what belongs to whom, as if
// the device had SVA: GSAS_BACK is a place in the memory of a tree, and all valid pages are present. Here a
// valid page becomes present in the device when its unit wants it: the page is brought into the file, mapped
// for DMA, and entered. It belongs to the owner.
type treePages struct {
	n *node
	l *link

	run, back uint64 // GSAS_PAGE and GSAS_BACK, as the driver has written them
	owned     []owned
	mapped    map[uint64]*treePage
	here      list.List // the mapped pages that are not on their way, oldest first
	most      int       // of mapped
}

// owned is a run of valid pages. Runs are sorted and do not overlap.
type owned struct {
	first, pages uint64
	offset       uint64 // of the first one in its tree's memory
	entry        uint64 // GSAS_ENTRY
}

func (o *owned) end() uint64 { return o.first + o.pages }

func (o *owned) protection() atomics.Protection {
	return atomics.Protection(device.SplitGSASEntry(o.entry).Protection)
}

// treePage is a page that is mapped for DMA, or is going to be.
type treePage struct {
	number  uint64 // of the node's partition
	tree    *tree
	offset  uint64
	in      *list.Element // of here; nil: it is on its way in or out
	mapped  bool
	entered bool // it is present in the device
	leaves  bool
	again   bool // it was wanted while it left
}

// Values below are defined by this project.
const (
	evictMost  = 512 // pages that are evicted at once, at most
	drainPause = time.Millisecond
)

func newTreePages(n *node, l *link) *treePages {
	window := n.m.cfg.Window
	if window == 0 {
		window = shadow.DefaultWindow
	}
	return &treePages{n: n, l: l, mapped: map[uint64]*treePage{}, most: max(int(window/device.PageSize), 1)}
}

// store handles the driver's write to a register of window pl, and returns what is written instead.
// The driver writes GSAS_PAGE before each access to GSAS_ENTRY.
func (p *treePages) store(off uint32, width int, v uint64) uint64 {
	first, count := device.SplitGSASRun(p.run)
	switch {
	case width == 4 && off == device.PLCtrl && v&device.CtrlReset != 0:
		p.disown(0, 1<<48/device.PageSize)
	case width != 8:
	case off == device.PLGSASPage:
		p.run = v
	case off == device.PLGSASBack:
		p.back = v
	case off == device.PLGSASEntry:
		p.disown(first, uint64(count))
		if e := device.SplitGSASEntry(v); e.Valid && e.Present {
			v &^= device.GSASPresent
			p.own(owned{first: first, pages: uint64(count), offset: p.back, entry: v})
		}
	}
	return v
}

// own adds a run.
func (p *treePages) own(o owned) {
	i := p.search(o.first)
	if i > 0 {
		before := &p.owned[i-1]
		if before.end() == o.first && before.entry == o.entry && before.offset+before.pages*device.PageSize == o.offset {
			before.pages += o.pages
			return
		}
	}
	p.owned = slices.Insert(p.owned, i, o)
}

// search returns the index of the first run that ends behind a page.
func (p *treePages) search(page uint64) int {
	i, _ := slices.BinarySearchFunc(p.owned, page, func(o owned, page uint64) int {
		if o.end() <= page {
			return -1
		}
		return 1
	})
	return i
}

// disown removes pages from the runs.
func (p *treePages) disown(first, count uint64) {
	end := first + count
	i := p.search(first)
	k := i
	var rest []owned
	for ; k < len(p.owned) && p.owned[k].first < end; k++ {
		o := p.owned[k]
		if o.first < first {
			rest = append(rest, owned{o.first, first - o.first, o.offset, o.entry})
		}
		if o.end() > end {
			rest = append(rest, owned{end, o.end() - end, o.offset + (end-o.first)*device.PageSize, o.entry})
		}
	}
	p.owned = slices.Replace(p.owned, i, k, rest...)
	if count > uint64(len(p.mapped)) {
		for number, m := range p.mapped {
			m.entered = m.entered && (number < first || number >= end)
		}
		return
	}
	for number := first; number < end; number++ {
		if m := p.mapped[number]; m != nil {
			m.entered = false
		}
	}
}

// find returns the run of a page, nil if it is nobody's.
func (p *treePages) find(page uint64) *owned {
	if i := p.search(page); i < len(p.owned) && p.owned[i].first <= page {
		return &p.owned[i]
	}
	return nil
}

// wanted brings in a page that the node's unit wants.
func (n *node) wanted(number uint64) {
	if l := n.link.Load(); l != nil && l.pages != nil {
		l.pages.want(number)
	}
}

func (p *treePages) want(number uint64) {
	o := p.find(number)
	if o == nil {
		return // it was taken away meanwhile, which has ended the operations
	}
	t := p.n.trees[o.protection()]
	offset := o.offset + (number-o.first)*device.PageSize
	m := p.mapped[number]
	switch {
	case t == nil || offset >= atomics.RegionSize:
		p.enter(number, false)
		return
	case m == nil:
		p.evict()
		m = &treePage{number: number, tree: t, offset: offset}
		p.mapped[number] = m
	case m.leaves:
		m.again = true
		return
	case m.in == nil:
		return // it is on its way
	default:
		p.here.Remove(m.in)
		m.in = nil
	}
	maps := !m.mapped
	t.worker.submit(p.n.m, &treeWork{
		run: func() error {
			err := t.bringIn(m.offset)
			if err == nil && maps {
				err = t.mapNow(p.l, m.offset)
			}
			return err
		},
		done: func(err error) {
			if p.mapped[number] == m && p.n.link.Load() == p.l {
				p.came(m, err)
			}
		},
	})
}

// came enters a page that was brought in, if it still belongs to its tree.
func (p *treePages) came(m *treePage, err error) {
	if m.mapped = m.mapped || err == nil; m.mapped {
		m.in = p.here.PushBack(m)
	} else {
		delete(p.mapped, m.number)
	}
	if err != nil {
		p.n.m.log.Warn("a page of a tree of GSAS threads was not brought in", "node", p.n.index, "err", err)
	}
	if p.find(m.number) == nil {
		return
	}
	m.entered = err == nil
	p.enter(m.number, m.entered)
}

// enter writes the entry of a page that belongs to a tree. Without present the operations that wait for it
// end with an error.
func (p *treePages) enter(number uint64, present bool) {
	o, to := p.find(number), p.l.windows[device.PL]
	entry := o.entry
	if m := p.mapped[number]; present && m != nil {
		entry |= device.GSASPresent
		_ = to.Write64(device.PLGSASPage, device.GSASRun(number, 1)) // a device that is gone is posted
		_ = to.Write64(device.PLGSASBack, m.tree.address(m.offset))
	} else {
		_ = to.Write64(device.PLGSASPage, device.GSASRun(number, 1))
	}
	_ = to.Write64(device.PLGSASEntry, entry)
}

// evict makes room for a page if there is none: it takes the oldest page, and those of its tree beside it.
func (p *treePages) evict() {
	if len(p.mapped) < p.most || p.here.Len() == 0 {
		return
	}
	oldest := p.here.Front().Value.(*treePage)
	first, end := oldest.number, oldest.number+1
	fits := func(number uint64) bool {
		m := p.mapped[number]
		return m != nil && m.in != nil && m.tree == oldest.tree && m.entered == oldest.entered &&
			m.offset-oldest.offset == (number-oldest.number)*device.PageSize && (!m.entered || p.find(number) == p.find(oldest.number))
	}
	most := uint64(min(evictMost, max(p.most/4, 1)))
	for end-first < most && fits(end) {
		end++
	}
	for end-first < most && first > 0 && fits(first-1) {
		first--
	}
	var list []*treePage
	for number := first; number < end; number++ {
		m := p.mapped[number]
		p.here.Remove(m.in)
		m.in, m.leaves = nil, true
		list = append(list, m)
	}
	if oldest.entered {
		to := p.l.windows[device.PL]
		_ = to.Write64(device.PLGSASPage, device.GSASRun(first, len(list))) // a device that is gone is posted
		_ = to.Write64(device.PLGSASEntry, p.find(first).entry)
	}
	p.leave(list)
}

// leave unmaps pages once no operation is under way on them.
func (p *treePages) leave(list []*treePage) {
	first, t := list[0], list[0].tree
	if p.n.link.Load() != p.l || t.over {
		return // with the device, or the tree, all are unmapped
	}
	to := p.l.windows[device.PL]
	_ = to.Write64(device.PLGSASPage, device.GSASRun(first.number, len(list)))
	v, err := to.Read64(device.PLGSASEntry)
	if err != nil {
		return
	}
	if v&device.GSASBusy != 0 {
		time.AfterFunc(drainPause, func() { p.n.m.loop.Post(func() { p.leave(list) }) })
		return
	}
	t.worker.submit(p.n.m, &treeWork{
		run: func() error {
			return p.l.fn.UnmapDMA(t.address(first.offset), uint64(len(list))*device.PageSize)
		},
		done: func(error) {
			for _, m := range list {
				if p.mapped[m.number] != m {
					continue // its tree has ended
				}
				delete(p.mapped, m.number)
				if m.again {
					p.want(m.number)
				}
			}
		},
	})
}

// forget forgets the pages of a tree that has ended.
func (p *treePages) forget(t *tree) {
	for number, m := range p.mapped {
		if m.tree != t {
			continue
		}
		if m.in != nil {
			p.here.Remove(m.in)
		}
		delete(p.mapped, number)
	}
}
