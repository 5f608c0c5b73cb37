package view

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/space/uffd"
)

// ErrShare says that memory cannot be mapped here; pfd accesses it through the process's page
// table.
var ErrShare = errors.New("memory cannot be mapped for a view")

// Budget bounds the page tables of views. Each takes 4 KiB of pfd's memory and maps 2 MiB; a
// single entered page needs one.
type Budget interface {
	Take() bool
	Give()
}

// View is pfd's mapping of one process's shared memory. It is safe for concurrent use.
type View struct {
	entries *uffd.Entries
	budget  Budget // nil: none

	// mu is write-locked while the list changes. Accesses do not wait for it: they miss.
	mu    sync.RWMutex
	list  []*share // by address
	bytes uint64
}

// share is memory that the process shares.
type share struct {
	va      device.VA
	b       []byte
	write   bool
	folio   int         // pages that come in together if one is touched; 1: single pages
	coming  []uint64    // with folios, one bit a page: a page-in brings it in
	entered []uint64    // one bit a page
	tables  []uint32    // one word a page table: 1 if it exists
	holes   *uffd.Holes // reports that the process unmaps it; nil: nothing does
	fills   bool        // holes also fills missing pages
}

// New returns a View without memory. Its error matches uffd.ErrForbidden.
func New() (*View, error) { return NewWithin(nil) }

// NewWithin is like New. b, unless nil, bounds the page tables: if b grants none, no page is
// entered.
func NewWithin(b Budget) (*View, error) {
	e, err := uffd.NewEntries()
	if err != nil {
		return nil, fmt.Errorf("create a view of a process's memory: %w", err)
	}
	return &View{entries: e, budget: b}, nil
}

// Close unmaps all memory. No other method may be called afterwards.
func (v *View) Close() error {
	v.mu.Lock()
	list := v.list
	v.list, v.bytes = nil, 0
	v.mu.Unlock()
	var errs []error
	for _, s := range list {
		errs = append(errs, v.unmap(s))
	}
	return errors.Join(append(errs, v.entries.Close())...)
}

// Unwatch closes the userfaultfds of all shares, so that the process may use its own there.
func (v *View) Unwatch() error {
	var list []*uffd.Holes
	v.mu.RLock()
	for _, s := range v.list {
		if s.holes != nil {
			list = append(list, s.holes)
		}
	}
	v.mu.RUnlock()
	var errs []error
	for _, h := range list { // waits while the process changes its mappings
		errs = append(errs, h.Close())
	}
	return errors.Join(errs...)
}

// Share maps size bytes of a memfd, from offset on, that the process has mapped at va. The file
// must be sealed against shrinking; the caller still closes fd. Errors match ErrShare.
func (v *View) Share(va device.VA, size uint64, fd int, offset uint64, write bool) error {
	return v.ShareFolios(va, size, fd, offset, write, 1)
}

// ShareFolios is like Share, for memory of which the kernel brings in folio pages together, a power
// of two, if an absent one is touched.
func (v *View) ShareFolios(va device.VA, size uint64, fd int, offset uint64, write bool, folio int) error {
	if err := check(va, size, fd, offset); err != nil {
		return err
	}
	prot := unix.PROT_READ
	if write {
		prot |= unix.PROT_WRITE
	}
	b, err := unix.Mmap(fd, int64(offset), int(size), prot, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrShare, os.NewSyscallError("mmap", err))
	}
	words := (size>>device.PageShift + 63) / 64
	s := &share{va: va, b: b, write: write, folio: folio, entered: make([]uint64, words)}
	if folio > 1 {
		s.coming = make([]uint64, words)
	}
	if v.budget != nil {
		s.tables = make([]uint32, size>>device.PageShift/tablePages+2) // it may begin and end inside a table's range
	}
	if err = unix.Madvise(b, unix.MADV_DONTDUMP); err == nil {
		err = v.entries.Add(b)
	}
	if err == nil {
		err = v.add(s)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("%w: %w", ErrShare, err), unix.Munmap(b))
	}
	return nil
}

// Watch takes the userfaultfd with which the process has registered the share at va; the caller
// still closes fd. If the process unmaps some of the share without Unshare, the View drops all of
// it before the process continues: it calls gone with a function that lets the process continue
// and unmaps the memory here. With fill the descriptor also fills missing pages. Errors are
// ErrShare, if nothing is shared at va, and those of uffd.TakeHoles.
func (v *View) Watch(va device.VA, fd int, fill bool, gone func(unmap func())) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	i, there := v.search(va)
	if !there || v.list[i].holes != nil {
		return fmt.Errorf("%w: no share at %v without a userfaultfd", ErrShare, va)
	}
	s := v.list[i]
	holes, err := uffd.TakeHoles(fd, va, uint64(len(s.b)))
	if err != nil {
		return err
	}
	s.holes, s.fills = holes, fill
	go func() {
		if !holes.AwaitUnmap() {
			return
		}
		// No error below matters: nothing is written through holes, and the memory was mapped.
		if !v.drop(s) { // Unshare was first
			_ = holes.Close()
			return
		}
		gone(func() {
			_ = holes.Close()
			_ = v.unmap(s)
		})
	}()
	return nil
}

// drop removes a share from the list and reports whether it was there.
func (v *View) drop(s *share) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	i := slices.Index(v.list, s)
	if i >= 0 {
		v.list = slices.Delete(v.list, i, i+1)
		v.bytes -= uint64(len(s.b))
	}
	return i >= 0
}

// Count returns the number of shares, and of those with a userfaultfd.
func (v *View) Count() (shares, watched int) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, s := range v.list {
		if s.holes != nil {
			watched++
		}
	}
	return len(v.list), watched
}

// check returns an error for a file that is not a memfd or could end before the mapping.
func check(va device.VA, size uint64, fd int, offset uint64) error {
	if size == 0 || size > MaxBytes || (uint64(va)|size|offset)%device.PageSize != 0 || uint64(va)+size < uint64(va) {
		return fmt.Errorf("%w: %d bytes at %v, from %d of the file: only whole pages, %d bytes at most", ErrShare, size, va, offset, uint64(MaxBytes))
	}
	// This must be the first call on the file: a file that the process serves (FUSE) may not
	// answer others.
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return fmt.Errorf("%w: it must be a memfd sealed with F_SEAL_SHRINK", ErrShare)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		return fmt.Errorf("%w: its pages are not %d bytes", ErrShare, device.PageSize)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || offset > uint64(st.Size) || size > uint64(st.Size)-offset {
		return fmt.Errorf("%w: %d bytes from %d of a file of %d bytes", ErrShare, size, offset, st.Size)
	}
	return nil
}

func (v *View) add(s *share) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.list) >= MaxShares || v.bytes+uint64(len(s.b)) > MaxBytes {
		return fmt.Errorf("too much memory: the process already shares %d pieces, %d bytes", len(v.list), v.bytes)
	}
	if v.overlaps(s.va, uint64(len(s.b))) {
		return errors.New("it overlaps memory that is already shared")
	}
	i, _ := v.search(s.va)
	v.list = slices.Insert(v.list, i, s)
	v.bytes += uint64(len(s.b))
	return nil
}

// Overlaps reports whether some of a range is shared.
func (v *View) Overlaps(va device.VA, size uint64) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.overlaps(va, size)
}

func (v *View) overlaps(va device.VA, size uint64) bool {
	i, there := v.search(va)
	return there || i > 0 && v.list[i-1].end() > va || i < len(v.list) && uint64(v.list[i].va-va) < size
}

// Unshare removes what one Share added, with exactly its bounds. It returns false if there is
// none. After it returns, pfd does not touch the memory.
func (v *View) Unshare(va device.VA, size uint64) bool {
	v.mu.Lock()
	i, there := v.search(va)
	if !there || uint64(len(v.list[i].b)) != size {
		v.mu.Unlock()
		return false
	}
	s := v.list[i]
	v.list = slices.Delete(v.list, i, i+1)
	v.bytes -= size
	v.mu.Unlock()
	_ = v.unmap(s) // cannot fail: this slice was mapped
	return true
}

// unmap unmaps a share that is off the list and returns its page tables to the budget.
func (v *View) unmap(s *share) error {
	err := unix.Munmap(s.b)
	if s.holes != nil {
		err = errors.Join(err, s.holes.Close())
	}
	for _, there := range s.tables {
		if there != 0 && v.budget != nil {
			v.budget.Give()
		}
	}
	return err
}

// table reports whether pages may be entered from number first on, and how many of them its page
// table maps.
func (v *View) table(s *share, first int) (pages int, ok bool) {
	in := int(base(s.b)>>device.PageShift&(tablePages-1)) + first
	pages = tablePages - in&(tablePages-1)
	if v.budget == nil {
		return pages, true
	}
	t := &s.tables[in/tablePages]
	if atomic.LoadUint32(t) != 0 {
		return pages, true
	}
	if !v.budget.Take() {
		return pages, false
	}
	if !atomic.CompareAndSwapUint32(t, 0, 1) {
		v.budget.Give()
	}
	return pages, true
}

func (s *share) end() device.VA { return s.va + device.VA(len(s.b)) }

func (v *View) search(va device.VA) (int, bool) {
	return slices.BinarySearchFunc(v.list, va, func(s *share, va device.VA) int { return cmp.Compare(s.va, va) })
}

// find returns the share that contains the whole range, and the range's offset in it. v is
// locked.
func (v *View) find(va device.VA, size int, write bool) (s *share, at int) {
	i, there := v.search(va)
	if !there {
		i--
	}
	if i < 0 {
		return nil, 0
	}
	if s = v.list[i]; va >= s.end() || uint64(size) > uint64(s.end()-va) || write && !s.write {
		return nil, 0
	}
	return s, int(va - s.va)
}

// Has reports whether all of 1 to 64 pages from the one of va on are entered and present.
func (v *View) Has(va device.VA, pages int, write bool) bool {
	if !v.mu.TryRLock() {
		return false
	}
	defer v.mu.RUnlock()
	s, at := v.find(va.Page(), pages<<device.PageShift, write)
	if s == nil {
		return false
	}
	if !s.has(at, pages<<device.PageShift) {
		return false
	}
	var all byte
	ok := s.try(func() {
		for i := range pages {
			all |= s.b[at+i<<device.PageShift]
		}
	})
	runtime.KeepAlive(all)
	return ok
}

// Window returns the pages that a walk should look up to enter 1 to 64 pages from the one of va
// on: more than those if they are few. ok is false if they are not shared.
func (v *View) Window(va device.VA, pages int, write bool) (at device.VA, n int, ok bool) {
	if !v.mu.TryRLock() {
		return va, pages, false
	}
	defer v.mu.RUnlock()
	s, _ := v.find(va.Page(), pages<<device.PageShift, write)
	if s == nil || pages > fewPages {
		return va, pages, s != nil
	}
	from, to := s.around(va.Page(), pages, max(windowPages, s.folio))
	return from, int((to - from) >> device.PageShift), true
}

// Shares returns how many of the pages from the one of va on lie in one share, 0 if none, and the
// start of that share.
func (v *View) Shares(va device.VA, pages int, write bool) (start device.VA, n int) {
	if !v.mu.TryRLock() {
		return 0, 0
	}
	defer v.mu.RUnlock()
	s, at := v.find(va.Page(), device.PageSize, write)
	if s == nil {
		return 0, 0
	}
	return s.va, min(pages, (len(s.b)-at)>>device.PageShift)
}

// Fill fills those of the missing pages that nobody has touched, of 1 to 64 pages from the one of
// va on, and returns a bitmap of the pages that it filled. It may sleep while the process changes
// its mappings.
func (v *View) Fill(va device.VA, pages int, missing uint64) (filled uint64) {
	if !v.mu.TryRLock() {
		return 0
	}
	va = va.Page()
	s, _ := v.find(va, device.PageSize, false)
	var holes *uffd.Holes
	if s != nil && s.fills {
		holes = s.holes
	}
	v.mu.RUnlock()
	if holes == nil {
		return 0
	}
	filled, _ = runs(missing&span(pages), func(first, n int) (int, error) {
		return holes.Fill(va+device.VA(first)<<device.PageShift, uint64(n)<<device.PageShift)
	}, func(rest uint64) uint64 { return v.Enter(va, pages, rest) })
	if !v.mu.TryRLock() {
		return filled
	}
	defer v.mu.RUnlock()
	if s, at := v.find(va, pages<<device.PageShift, false); s != nil {
		s.clear(at>>device.PageShift, filled) // a page that was entered before has been punched out since
	}
	return filled
}

// runs calls f for each run of the pages and returns a bitmap of the pages that f did and one of
// those that were done before (EEXIST). f returns how many bytes it did before an error. A page
// that f cannot do (EFAULT) is skipped; any other error at the first page of a run ends runs. At
// the first page that was done before or cannot be done, runs also skips the pages that skip
// returns, if skip is not nil, because each page costs a call.
func runs(pages uint64, f func(first, n int) (int, error), skip func(rest uint64) uint64) (done, met uint64) {
	for pages != 0 {
		first := bits.TrailingZeros64(pages)
		n := bits.TrailingZeros64(^(pages >> first))
		bytes, err := f(first, n)
		k := bytes >> device.PageShift
		done |= span(k) << first
		switch {
		case k > 0: // repeat for the rest: the error is EAGAIN, whatever stopped f
		case errors.Is(err, unix.EEXIST), errors.Is(err, unix.EFAULT):
			if errors.Is(err, unix.EEXIST) {
				met |= 1 << first
			}
			k = 1
			if skip != nil {
				pages &^= skip(pages)
				skip = nil
			}
		default:
			return done, met
		}
		pages &^= span(k) << first
	}
	return done, met
}

// Enter enters those of 1 to 64 pages from the one of va on whose bits in present are set, if the
// file has them. It returns a bitmap of the pages that are entered now. A swapped page is read from swap.
func (v *View) Enter(va device.VA, pages int, present uint64) (entered uint64) {
	return v.into(va, pages, present, false)
}

// into implements Enter. anew also tries pages recorded as entered, which may have been punched
// out since.
func (v *View) into(va device.VA, pages int, present uint64, anew bool) (entered uint64) {
	if !v.mu.TryRLock() {
		return 0
	}
	defer v.mu.RUnlock()
	s, at := v.find(va.Page(), pages<<device.PageShift, false)
	if s == nil {
		return 0
	}
	first := at >> device.PageShift
	for i := 0; i < pages; {
		n, ok := v.table(s, first+i)
		n = min(n, pages-i)
		want := present >> i & span(n)
		if !anew {
			want &^= s.bits(first+i, n)
		}
		if want != 0 && ok {
			var skip func(uint64) uint64
			if s.folio > 1 {
				skip = func(rest uint64) uint64 { return rest &^ s.inFile(first+i, n) }
			}
			done, met := runs(want, func(k, n int) (int, error) { return v.enter(s, first+i+k, n) }, skip)
			s.add(first+i, done|met)
			s.clear(first+i, want&^(done|met))
		}
		i += n
	}
	return present & s.bits(first, pages)
}

// enter enters pages from number first on, up to one that the file does not have or that is
// entered already.
func (v *View) enter(s *share, first, pages int) (bytes int, err error) {
	return v.entries.Enter(s.b[first<<device.PageShift : (first+pages)<<device.PageShift])
}

// Look enters those of 1 to 64 pages from the one of va on that the file has, and returns a
// bitmap of those that it does not have. If they are few and the file has some, Look also enters
// their neighbours in the window, up to the first that the file does not have. It does not
// consult the process: memory that the process has protected or unmapped stays shared until
// Unshare.
func (v *View) Look(va device.VA, pages int) (absent uint64) {
	va = va.Page()
	present := span(pages)
	if there, folios := v.InFile(va, pages); folios {
		present = there // one call for all absent pages
	}
	entered := v.into(va, pages, present, true)
	if from, n, _ := v.Window(va, pages, false); entered != 0 && n > pages {
		v.neighbours(va, from, n, pages)
	}
	return span(pages) &^ entered
}

// neighbours enters the pages of a window before and after those that were looked up: one call for
// each side, and none for entered pages.
func (v *View) neighbours(va, from device.VA, n, pages int) {
	if !v.mu.TryRLock() {
		return
	}
	defer v.mu.RUnlock()
	s, at := v.find(from, n<<device.PageShift, false)
	if s == nil {
		return
	}
	first, before := at>>device.PageShift, int((va-from)>>device.PageShift)
	for _, side := range [...]struct{ first, n int }{{first, before}, {first + before + pages, n - before - pages}} {
		for side.n > 0 && s.bits(side.first, 1) != 0 {
			side.first, side.n = side.first+1, side.n-1
		}
		if side.n <= 0 {
			continue
		}
		if room, ok := v.table(s, side.first); ok {
			bytes, _ := v.enter(s, side.first, min(side.n, room))
			s.add(side.first, span(bytes>>device.PageShift))
		}
	}
}

// PageIn fills those of 1 to 64 pages from the one of va on that nobody has touched, within one
// share, and enters the present pages. It returns bitmaps of the pages entered and filled. Like
// Look it does not consult the process: it fills a guard page, too.
func (v *View) PageIn(va device.VA, pages int, write bool) (entered, filled uint64) {
	_, pages = v.Shares(va, pages, write)
	if pages == 0 {
		return 0, 0
	}
	filled = v.Fill(va, pages, span(pages))
	return v.Enter(va, pages, span(pages)), filled
}

// Forget marks pages that may have been punched out as not entered, because a touch that misses
// takes longer. The next access enters those that are present again. It makes no system call.
func (v *View) Forget(va device.VA, size uint64) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	last := va + device.VA(size-1)
	for _, s := range v.list {
		if size == 0 || last < va || last < s.va || va >= s.end() {
			continue
		}
		from := int((max(va, s.va) - s.va) >> device.PageShift)
		to := int((min(last, s.end()-1)-s.va)>>device.PageShift) + 1
		for from < to {
			n := min(64-from%64, to-from)
			if atomic.LoadUint64(&s.entered[from/64]) != 0 {
				s.clear(from, span(n))
			}
			from += n
		}
	}
}

// ReadV reads memory from va on into the buffers, one after the other. It returns false if some
// of it is not present or not shared; the buffers may then hold part of it.
func (v *View) ReadV(dst [][]byte, va device.VA) bool {
	return v.move(dst, va, false, func(own, b []byte) { copy(b, own) })
}

// WriteV writes the buffers into memory from va on, one after the other. It returns false if some
// of it is not present or not shared for writing; part of it may then have been written.
func (v *View) WriteV(src [][]byte, va device.VA) bool {
	return v.move(src, va, true, func(own, b []byte) { copy(own, b) })
}

// WriteWords writes two words, the second after the first (001 §2.3.3.2). It returns false as
// WriteV does.
func (v *View) WriteWords(words []byte, va device.VA) bool {
	if va%8 != 0 || len(words) != 16 {
		return false
	}
	one := [1][]byte{words}
	return v.move(one[:], va, true, func(own, b []byte) {
		storeWord(own, binary.NativeEndian.Uint64(b))
		storeWord(own[8:], binary.NativeEndian.Uint64(b[8:]))
	})
}

func (v *View) move(bufs [][]byte, va device.VA, write bool, one func(own, b []byte)) bool {
	total := 0
	for _, b := range bufs {
		total += len(b)
	}
	if !v.mu.TryRLock() {
		return false
	}
	defer v.mu.RUnlock()
	s, at := v.find(va, total, write)
	if s == nil || !s.has(at, total) {
		return false
	}
	return s.try(func() {
		for _, b := range bufs {
			one(s.b[at:at+len(b)], b)
			at += len(b)
		}
	})
}

// try reports whether f accesses the mapping without a miss. After a miss the page and its
// neighbours count as not entered: the next access enters those that are present.
func (s *share) try(f func()) (ok bool) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		if r := recover(); r != nil {
			if fault, is := r.(interface{ Addr() uintptr }); is {
				s.missed(fault.Addr())
			}
			ok = false
		}
	}()
	f()
	return true
}

// missed records that no page is present at an address of the mapping.
func (s *share) missed(addr uintptr) {
	at := addr - base(s.b)
	if at >= uintptr(len(s.b)) {
		return
	}
	// The kernel takes out all pages of a folio when it splits it.
	window := min(max(windowPages, s.folio), maxPages)
	first := int(at>>device.PageShift) &^ (window - 1)
	s.clear(first, span(min(window, len(s.b)>>device.PageShift-first)))
}

// span returns the lowest n bits.
func span(n int) uint64 {
	if n >= 64 {
		return ^uint64(0)
	}
	return 1<<n - 1
}

// bits returns the bits of 1 to 64 pages from number first on.
func (s *share) bits(first, pages int) uint64 {
	i, shift := first/64, uint(first%64)
	word := atomic.LoadUint64(&s.entered[i]) >> shift
	if shift > 0 && i+1 < len(s.entered) {
		word |= atomic.LoadUint64(&s.entered[i+1]) << (64 - shift)
	}
	return word & span(pages)
}

// has reports whether all pages of a range are entered: touching one that is not takes longer.
func (s *share) has(at, size int) bool {
	first, end := at>>device.PageShift, (at+size+device.PageSize-1)>>device.PageShift
	for ; first < end; first += 64 {
		if n := min(64, end-first); s.bits(first, n) != span(n) {
			return false
		}
	}
	return true
}

// add marks the pages of mask as entered; bit 0 is page number first.
func (s *share) add(first int, mask uint64) { set(s.entered, first, mask) }

// set sets the bits of mask, from bit number first of a bitmap on, and returns those that it set.
func set(bitmap []uint64, first int, mask uint64) (fresh uint64) {
	i, shift := first/64, uint(first%64)
	was := atomic.OrUint64(&bitmap[i], mask<<shift) >> shift
	if shift > 0 && i+1 < len(bitmap) {
		was |= atomic.OrUint64(&bitmap[i+1], mask>>(64-shift)) << (64 - shift)
	}
	return mask &^ was
}

func (s *share) clear(first int, mask uint64) { unset(s.entered, first, mask) }

func unset(bitmap []uint64, first int, mask uint64) {
	i, shift := first/64, uint(first%64)
	atomic.AndUint64(&bitmap[i], ^(mask << shift))
	if shift > 0 && i+1 < len(bitmap) {
		atomic.AndUint64(&bitmap[i+1], ^(mask >> (64 - shift)))
	}
}
