package view

import (
	"math/bits"

	"github.com/exanet/pfd/device"
)

// around returns the aligned blocks of a number of pages that contain 1 to 64 pages from the one at va
// on, as far as they lie in the share and are at most 64 pages.
func (s *share) around(va device.VA, pages, block int) (from, to device.VA) {
	size := device.VA(min(block, maxPages) << device.PageShift)
	end := va + device.VA(pages)<<device.PageShift
	from, to = max(va/size*size, s.va), min((end+size-1)/size*size, s.end())
	if to-from > maxPages<<device.PageShift {
		from, to = va, min(to, va+maxPages<<device.PageShift)
	}
	return from, to
}

// Folios begins a page-in of 1 to 64 pages from the one of va on, which EndFolios ends. ok is
// false if the pages are not shared, or are not known to come in together.
func (v *View) Folios(va device.VA, pages int, write bool) (f Folios, ok bool) {
	if !v.mu.TryRLock() {
		return f, false
	}
	defer v.mu.RUnlock()
	va = va.Page()
	s, _ := v.find(va, device.PageSize, write)
	if s == nil || s.folio <= 1 {
		return f, false
	}
	from, to := s.around(va, min(pages, int((s.end()-va)>>device.PageShift)), s.folio)
	first := int((from - s.va) >> device.PageShift)
	f.VA, f.Pages = from, int((to-from)>>device.PageShift)
	f.Asked = span(pages) << ((va - from) >> device.PageShift) & span(f.Pages)
	// Set the bits before looking: a page that another page-in brings in is then either in the file
	// or that page-in's to count.
	f.own = set(s.coming, first, span(f.Pages))
	f.There = s.inFile(first, f.Pages)
	s.clear(first, f.own&^f.There) // they may have been punched out since they were entered
	folio, page := uint64(s.folio), uint64(from)>>device.PageShift
	for absent := f.Asked &^ f.There; absent != 0; {
		i := uint64(bits.TrailingZeros64(absent))
		f.Touch |= 1 << i
		absent &^= span(int(min(maxPages, (page+i)/folio*folio+folio-page)))
	}
	return f, true
}

// EndFolios ends a page-in, and returns the pages that it has brought in and that are entered. It
// waits while the list changes: a page that stays marked as coming is never counted again.
func (v *View) EndFolios(f *Folios) (came uint64) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if s, at := v.find(f.VA, f.Pages<<device.PageShift, false); s != nil && s.folio > 1 {
		first := at >> device.PageShift
		came = s.bits(first, f.Pages) & f.own &^ f.There
		unset(s.coming, first, f.own)
	}
	return came
}

// InFile returns those of 1 to 64 pages from the one of va on that the file has, if the memory comes
// in by folios: the process's own table has only some of a folio's pages.
func (v *View) InFile(va device.VA, pages int) (there uint64, folios bool) {
	if !v.mu.TryRLock() {
		return 0, false
	}
	defer v.mu.RUnlock()
	s, at := v.find(va.Page(), pages<<device.PageShift, false)
	if s == nil || s.folio <= 1 {
		return 0, false
	}
	return s.inFile(at>>device.PageShift, pages), true
}

// inFile returns those of 1 to 64 pages from number first on that are in memory.
func (s *share) inFile(first, pages int) (there uint64) {
	var vec [maxPages]byte
	if mincore(s.b[first<<device.PageShift:(first+pages)<<device.PageShift], vec[:]) != nil {
		return 0
	}
	for i, b := range vec[:pages] {
		there |= uint64(b&1) << i
	}
	return there
}
