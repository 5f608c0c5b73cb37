package emu

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/space"
)

func (t *tree) bit(back uint64) (first uint64, word int, mask uint64) {
	page := back >> device.PageShift
	return page &^ (setPages - 1), int(page % setPages / 64), 1 << (page % 64)
}

// has reports whether the page of a place in the tree's memory has been brought in.
func (t *tree) has(back uint64) bool {
	first, word, mask := t.bit(back)
	s := t.present[first]
	return s != nil && s[word]&mask != 0
}

// note notes whether it has.
func (t *tree) note(back uint64, present bool) {
	first, word, mask := t.bit(back)
	s := t.present[first]
	if s == nil {
		if !present {
			return
		}
		s = new(pageSet)
		t.present[first] = s
	}
	if s[word] &^= mask; present {
		s[word] |= mask
	}
}

// run makes a step: a touch, or a page-in.
func (o *operation) run(step space.Step) error {
	if step != space.Mapped {
		return o.tree.Memory.PageIn(o.access.Back)
	}
	o.values, o.hit = o.tree.Memory.Do(o.access.Op, o.access.Back, &o.access.Args)
	return nil
}
