package gsas

import (
	"slices"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
)

// Load reads a register, with its side effects.
func (u *Unit) Load(offset uint32) uint64 {
	first, _ := device.SplitGSASRun(u.run)
	switch offset {
	case device.PLGSASCtrl:
		if u.on {
			return device.GSASEnable
		}
	case device.PLGSASPage:
		return u.run
	case device.PLGSASEntry:
		v := u.pages.get(first).bits
		if u.busy() {
			v |= device.GSASBusy
		}
		return v
	case device.PLGSASBack:
		return u.back
	case device.PLGSASGrant:
		return u.grant
	case device.PLGSASWant:
		if len(u.wants) == 0 {
			return device.GSASNoPage
		}
		page := u.wants[0]
		u.Told(page)
		return page
	}
	return 0
}

// Want returns page i of those that GSAS_WANT has. Told removes a page from them.
func (u *Unit) Want(i int) (page uint64, ok bool) {
	if i >= len(u.wants) {
		return 0, false
	}
	return u.wants[i], true
}

// Told removes a page from GSAS_WANT: the driver knows that it is wanted.
func (u *Unit) Told(page uint64) {
	if i := slices.Index(u.wants, page); i >= 0 {
		u.wants = slices.Delete(u.wants, i, i+1)
	}
}

// Store writes a register.
func (u *Unit) Store(now int64, offset uint32, v uint64) {
	switch offset {
	case device.PLGSASCtrl:
		if v&device.GSASEnable == 0 {
			u.Reset() // another driver may follow
			return
		}
		u.on = true
	case device.PLGSASPage:
		u.run = v
		first, _ := device.SplitGSASRun(v)
		u.back = u.pages.get(first).back
	case device.PLGSASBack:
		u.back = v
	case device.PLGSASEntry:
		u.enter(now, v&^device.GSASBusy)
	case device.PLGSASGrant:
		u.grant = v
		g := device.SplitGSASGrant(v)
		if u.grants == nil {
			u.grants = make([]device.GSASGrant, device.GSASGrants)
		}
		u.grants[g.Number] = g
	}
}

// Wanted reports whether GSAS_WANT has a page.
func (u *Unit) Wanted() bool { return len(u.wants) > 0 }

// enter sets the entries of the selected pages, and continues or ends the operations that wait for
// one of them.
func (u *Unit) enter(now int64, v uint64) {
	first, pages := device.SplitGSASRun(u.run)
	for i := range uint64(pages) {
		u.pages.put(first+i, entry{bits: v, back: u.back + i*device.PageSize})
	}
	u.wants = slices.DeleteFunc(u.wants, u.selects)
	for i := range u.flying() {
		o := &u.ops[i]
		if !o.waits || !u.selects(o.access.Address.Page()) {
			continue
		}
		e, status := u.admit(&o.access.Request)
		switch {
		case status != atomics.OK:
			u.end(now, i, status, nil)
		case e.bits&device.GSASPresent == 0:
			u.end(now, i, atomics.NoMemory, nil)
		default:
			u.start(o, e)
		}
	}
}

// selects reports whether GSAS_PAGE selects a page.
func (u *Unit) selects(page uint64) bool {
	first, pages := device.SplitGSASRun(u.run)
	return page >= first && page-first < uint64(pages)
}

// busy reports whether operations on selected pages have begun and not ended.
func (u *Unit) busy() bool {
	for i := range u.flying() {
		if o := &u.ops[i]; !o.waits && o.access.Op.Memory() && u.selects(o.access.Address.Page()) {
			return true
		}
	}
	return false
}
