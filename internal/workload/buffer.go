package workload

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
)

const (
	pageSize  = device.PageSize
	blockSize = device.BlockSize
	// guardSize is the smallest distance from a buffer's own bytes to the ends of its area.
	guardSize = pageSize
)

// buffer is one test buffer: an area of whole pages that contains the buffer's own
// bytes. All other bytes of the area are guards, which must not change.
//
//	base            16 KiB boundary
//	|-- guard page --|-- offset --|-- data, size bytes --|-- rest --|-- guard page --|
//
// The data begin at an offset from a 16 KiB boundary, because blocks end there
// (spec/hardware.md 1).
type buffer struct {
	request    prepare
	mapped     unsafe.Pointer // start of the mapping, which is 16 KiB longer than the area
	length     uintptr
	area       []byte         // starts with the front guard
	data       uint64         // offset of the data in the area
	hole       span           // part of the area that was unmapped
	child      *child         // for COW
	ep         *rdma.Endpoint // nil if the memory needs no registration or sharing
	registered bool           // with ep, for its userfaultfd
	shares     bool           // the device accesses only shared memory
	shared     bool           // the area is shared with the device
	huge       bool           // the memory has huge pages
	lib        *rdma.Buffer   // the mapping, if it comes in by folios
	fd         int            // of the shared memory, otherwise -1
}

type span struct{ from, to uint64 }

// prepare describes the buffer to make.
type prepare struct {
	State  State  `json:"state"`
	Size   uint64 `json:"size"`
	Offset uint64 `json:"offset"`
	Seed   uint64 `json:"seed"`
	// Folios requests memory of the library that comes in by folios.
	Folios bool `json:"folios,omitempty"`
	// Page, if not 0, is the size of the shared pages; 0 means the device's page size.
	Page uint64 `json:"page,omitempty"`
	// Unproven omits the check of the pages' state. If a buffer is larger than the memory,
	// some of its pages are in swap. It is for the tests in guests, which write orders as JSON.
	Unproven bool `json:"unproven,omitempty"`
}

func (p prepare) content() content { return content{State: p.State, Seed: p.Seed} }

// data returns the offset of the data in the area.
func (p prepare) data() uint64 { return guardSize + p.Offset }

func roundUp(n, unit uint64) uint64 { return (n + unit - 1) / unit * unit }

// areaSize returns the size of the area in bytes.
func (p prepare) areaSize() uint64 {
	return guardSize + roundUp(p.Offset+p.Size, pageSize) + guardSize
}

// holeBases are addresses for address spaces of 47 and of 39 bits at which neither the
// kernel nor the Go runtime maps anything by itself, so that the hole of an unmapped buffer
// stays unmapped.
var holeBases = []uintptr{0x6000_0000_0000, 0x20_0000_0000}

// newBuffer makes a buffer. If ep's device accesses only shared memory, the buffer is shared.
func newBuffer(p prepare, ep *rdma.Endpoint) (*buffer, error) {
	size := p.areaSize()
	b := &buffer{request: p, length: uintptr(size) + blockSize, data: p.data(), ep: ep, shares: ep != nil && !ep.Info().SVA(), fd: -1}
	if b.shares && p.Page == 0 {
		p.Page = ep.Info().Page
		b.request.Page = p.Page
	}
	if b.shares && p.Page > pageSize {
		if p.Folios {
			return nil, fmt.Errorf("%w: folios: this device accesses only huge pages", ErrSkipped)
		}
		if p.State != Absent && p.State != Present && p.State != Alternate {
			return nil, fmt.Errorf("%w: a buffer in state %s: this device accesses only huge pages", ErrSkipped, p.State)
		}
		b.huge = true
		b.length = uintptr(roundUp(uint64(b.length), p.Page))
	}
	if err := b.mmap(); err != nil {
		return nil, err
	}
	// The area's second page, where the offset begins, is at a 16 KiB boundary.
	start := roundUp(uint64(uintptr(b.mapped))+guardSize, blockSize) - guardSize - uint64(uintptr(b.mapped))
	b.area = unsafe.Slice((*byte)(unsafe.Add(b.mapped, start)), size)
	err := b.fill()
	if err == nil && b.shares && b.lib == nil {
		err = b.share()
	}
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

func (b *buffer) mmap() error {
	const prot = unix.PROT_READ | unix.PROT_WRITE
	flags := unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	var err error
	if b.request.Folios {
		if b.lib, err = b.ep.AllocWith(int(b.length), rdma.AllocOptions{Folios: true}); err == nil {
			b.mapped = unsafe.Pointer(unsafe.SliceData(b.lib.Bytes()))
		}
		return err
	}
	if b.shares {
		if b.fd, err = rdma.MakeMemory(uint64(b.length), b.request.Page); err != nil {
			return fmt.Errorf("memory of a %d-byte buffer: %w", b.length, err)
		}
		flags = unix.MAP_SHARED
	}
	if b.request.State == Unmapped {
		for _, base := range holeBases {
			b.mapped, err = unix.MmapPtr(b.fd, 0, unsafe.Add(nil, base), b.length, prot, flags|unix.MAP_FIXED_NOREPLACE)
			if err == nil {
				break
			}
		}
	} else {
		b.mapped, err = unix.MmapPtr(b.fd, 0, nil, b.length, prot, flags)
	}
	if err != nil {
		return fmt.Errorf("mmap of a %d-byte buffer: %w", b.length, err)
	}
	// With huge pages one touch would bring in 512 pages of 4 KiB.
	whole := unsafe.Slice((*byte)(b.mapped), b.length)
	if err := unix.Madvise(whole, unix.MADV_NOHUGEPAGE); err != nil && !errors.Is(err, unix.EINVAL) {
		return errors.Join(fmt.Errorf("MADV_NOHUGEPAGE: %w", err), b.close())
	}
	return nil
}

// fill writes the area and brings it into its state.
func (b *buffer) fill() error {
	s := b.request.State
	for page := 0; page*pageSize < len(b.area); page++ {
		if s.written(page) {
			fill(b.area[page*pageSize:(page+1)*pageSize], b.request.Seed, uint64(page)*pageSize/8)
		}
	}
	switch s {
	case COW:
		c, err := fork(b.area, b.request.Seed)
		if err != nil {
			return err
		}
		b.child = c
	case ReadOnly:
		if err := unix.Mprotect(b.area, unix.PROT_READ); err != nil {
			return fmt.Errorf("mprotect: %w", err)
		}
	case Pinned:
		return lockMemory(b.area)
	case Swapped:
		return b.swapOut()
	case Unmapped:
		from, to := b.data/pageSize*pageSize, roundUp(b.data+b.request.Size, pageSize)
		if to == from { // no bytes at all: leave a hole where they would start
			to += pageSize
		}
		if err := unix.MunmapPtr(unsafe.Pointer(&b.area[from]), uintptr(to-from)); err != nil {
			return fmt.Errorf("munmap: %w", err)
		}
		b.hole = span{from, to}
	}
	return nil
}

// pageOuts bounds the attempts to page a buffer out: the kernel skips pages that it is using
// at that moment.
const pageOuts = 20

// swapOut pages the buffer out to swap and verifies it: without swap MADV_PAGEOUT succeeds
// and leaves the pages in memory (spec/faultpath.md).
func (b *buffer) swapOut() error {
	if b.shares {
		return fmt.Errorf("%w: a buffer in state swapped: memory of a memfd is shared with pfd, which has it mapped too", ErrSkipped)
	}
	pages, err := openPagemap()
	if err != nil {
		return err
	}
	defer pages.close()
	for try := range pageOuts {
		if err := onEveryCPU(func() error { return unix.Madvise(b.area, unix.MADV_PAGEOUT) }); err != nil {
			return fmt.Errorf("MADV_PAGEOUT: %w", err)
		}
		n, err := pages.swapped(b.area)
		if err != nil {
			return err
		}
		if n == len(b.area)/pageSize {
			return nil
		}
		time.Sleep(time.Duration(try) * time.Millisecond)
	}
	return fmt.Errorf("%w: state swapped: the kernel does not page the buffer out: add swap (swapon), or room in it, and let the memory cgroup use it", ErrSkipped)
}

// onEveryCPU calls f on each processor that the thread may run on, until f fails. New pages
// are in lists of the processor that allocated them and can be paged out only from there.
func onEveryCPU(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return f()
	}
	defer func() { _ = unix.SchedSetaffinity(0, &all) }() // the thread had this set before
	for cpu := range 8 * len(all) * int(unsafe.Sizeof(all[0])) {
		if !all.IsSet(cpu) {
			continue
		}
		var one unix.CPUSet
		one.Set(cpu)
		_ = unix.SchedSetaffinity(0, &one) // on failure f runs on the current processor
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// share shares the buffer with the device, read-only if its state is. It includes the guards,
// so that a transfer can overwrite them and the check sees it.
func (b *buffer) share() error {
	switch b.request.State {
	case COW:
		return fmt.Errorf("%w: a buffer in state cow: this device accesses only shared memory, which is never copied", ErrRequest)
	case Unmapped:
		return nil // the address must not be shared
	}
	va, size := b.bounds()
	if err := b.ep.Share(va, size, b.fd, uint64(va)-uint64(uintptr(b.mapped)), b.request.State != ReadOnly); err != nil {
		return err
	}
	b.shared = true
	return nil
}

// bounds returns the shared range: the area, or all huge pages that contain it.
func (b *buffer) bounds() (device.VA, uint64) {
	if b.huge {
		return device.VA(uintptr(b.mapped)), uint64(b.length)
	}
	return device.VA(uintptr(unsafe.Pointer(unsafe.SliceData(b.area)))), uint64(len(b.area))
}

// register registers the buffer with the endpoint under method uffd, so that the endpoint
// fills its missing pages.
func (b *buffer) register() error {
	if b.ep == nil || b.lib != nil || b.ep.Info().Method != rdma.MethodUFFD || b.request.State == Unmapped {
		return nil
	}
	err := b.ep.Register(b.area)
	b.registered = err == nil
	return err
}

// prove returns an error if the buffer's pages are not in the requested state.
func (b *buffer) prove(pages *pagemap) error {
	state := b.request.State
	if b.request.Size == 0 || state == Unmapped || b.request.Unproven {
		return nil
	}
	resident, total, err := b.resident(pages)
	if err != nil {
		return err
	}
	want := 0
	for i := range total {
		if state.written(int(b.data/pageSize) + i) {
			want++
		}
	}
	if resident != want {
		return fmt.Errorf("%s buffer: %d of its %d pages are resident, want %d", state, resident, total, want)
	}
	return nil
}

// folio returns how the buffer comes in, if folios were requested.
func (b *buffer) folio() Folio {
	if b.lib == nil {
		return Folio{}
	}
	return folioOf(b.lib.Folio())
}

// addr returns the address of the first byte of the data.
func (b *buffer) addr() device.VA {
	return device.VA(uintptr(unsafe.Pointer(unsafe.SliceData(b.area)))) + device.VA(b.data)
}

// close ends the child and unmaps the area. It may be called twice and on a nil buffer.
func (b *buffer) close() error {
	if b == nil {
		return nil
	}
	var errs []error
	// If the attachment has ended, it has already released these registrations.
	let := func(err error) {
		if !errors.Is(err, rdma.ErrGone) && !errors.Is(err, rdma.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if b.registered {
		let(b.ep.Unregister(b.area))
		b.registered = false
	}
	if b.child != nil {
		errs = append(errs, b.child.close())
		b.child = nil
	}
	if b.shared {
		let(b.ep.Unshare(b.bounds()))
		b.shared = false
	}
	if b.fd >= 0 {
		errs = append(errs, unix.Close(b.fd))
		b.fd = -1
	}
	if b.lib != nil {
		let(b.lib.Free())
	} else if b.mapped != nil {
		// Unmapping a range with a hole is no error (munmap(2)).
		if err := unix.MunmapPtr(b.mapped, b.length); err != nil {
			errs = append(errs, fmt.Errorf("munmap: %w", err))
		}
	}
	b.mapped, b.area, b.lib = nil, nil, nil
	return errors.Join(errs...)
}

// verify describes the content that a buffer must have after a transfer.
type verify struct {
	// Arrived means that the data must be those of Source. If neither Arrived nor Partial
	// is set, the buffer must be unchanged.
	Arrived bool `json:"arrived"`
	// Partial means that the transfer failed in flight: each byte of the data may
	// be the old one or the new one.
	Partial bool `json:"partial"`
	// Source is the source's area, and SourceData the offset of the data in it.
	Source     content `json:"source"`
	SourceData uint64  `json:"source_data"`
}

// wanted returns the eight bytes of the source that belong at pos of this area. Its result
// is meaningless for a pos before the data.
func (b *buffer) wanted(v verify, pos uint64) uint64 { return v.Source.at(pos - b.data + v.SourceData) }

// verdict is the result of checking a buffer.
type verdict struct {
	Wrong    uint64 `json:"wrong"`    // number of wrong bytes, those of guards included
	First    int64  `json:"first"`    // the first wrong byte, relative to the start of the data
	Resident int    `json:"resident"` // pages of the data that were resident before the check
	Missing  int    `json:"missing"`  // pages of the data that the transfer wrote and that are absent
	Child    bool   `json:"child"`    // the forked child has lost its own bytes
}

func (v verdict) ok() bool { return v.Wrong == 0 && v.Missing == 0 && !v.Child }

func (v verdict) String() string {
	var parts []string
	if v.Wrong > 0 {
		parts = append(parts, fmt.Sprintf("%d bytes are wrong, the first at byte %d of the buffer", v.Wrong, v.First))
	}
	if v.Missing > 0 {
		parts = append(parts, fmt.Sprintf("%d pages are absent that the transfer must have written", v.Missing))
	}
	if v.Child {
		parts = append(parts, "the forked child does not have its own bytes any more")
	}
	if len(parts) == 0 {
		return "every byte is right"
	}
	return strings.Join(parts, "; ")
}

// check checks every byte of the area.
func (b *buffer) check(want verify, pages *pagemap) (verdict, error) {
	var v verdict
	if b.request.Size > 0 && b.request.State != Unmapped {
		// This comes first, because reading a page makes it present.
		resident, total, err := b.resident(pages)
		if err != nil {
			return v, err
		}
		v.Resident = resident
		if want.Arrived {
			v.Missing = total - resident
		}
	}
	b.compare(want, &v)
	if b.child != nil {
		kept, err := b.child.check()
		if err != nil {
			return v, err
		}
		v.Child = !kept
	}
	return v, nil
}

// resident returns the number of resident pages of the data and the number of all its pages.
func (b *buffer) resident(pages *pagemap) (resident, total int, err error) {
	from, to := b.data/pageSize, roundUp(b.data+b.request.Size, pageSize)/pageSize
	switch {
	case b.huge:
		resident, err = residentHuge(b.fd, int(to-from))
	case b.shares || b.lib != nil:
		resident, err = residentShared(b.area[from*pageSize : to*pageSize])
	default:
		resident, err = pages.resident(b.area[from*pageSize : to*pageSize])
	}
	return resident, int(to - from), err
}

func (b *buffer) compare(want verify, v *verdict) {
	old := b.request.content()
	end := b.data + b.request.Size
	for i := uint64(0); i < uint64(len(b.area)); i += 8 {
		if b.hole.from <= i && i < b.hole.to {
			i = b.hole.to - 8
			continue
		}
		got := binary.LittleEndian.Uint64(b.area[i:])
		was := old.word(i / 8)
		inside := i >= b.data && i+8 <= end
		if !want.Arrived && !want.Partial || i+8 <= b.data || i >= end {
			if got == was {
				continue
			}
		} else if inside && got == b.wanted(want, i) {
			continue
		}
		b.compareBytes(i, got, want, v)
	}
}

// compareBytes checks the bytes of a word that is wrong or contains more than one kind of
// bytes (data, guard, old, new).
func (b *buffer) compareBytes(i, got uint64, want verify, v *verdict) {
	var has, was, is [8]byte
	binary.LittleEndian.PutUint64(has[:], got)
	binary.LittleEndian.PutUint64(was[:], b.request.content().word(i/8))
	if want.Arrived || want.Partial {
		binary.LittleEndian.PutUint64(is[:], b.wanted(want, i))
	}
	for k := range has {
		pos := i + uint64(k)
		data := pos >= b.data && pos < b.data+b.request.Size
		var good bool
		switch {
		case !data, !want.Arrived && !want.Partial:
			good = has[k] == was[k]
		case want.Arrived:
			good = has[k] == is[k]
		default:
			good = has[k] == was[k] || has[k] == is[k]
		}
		if !good {
			if v.Wrong == 0 {
				v.First = int64(pos) - int64(b.data)
			}
			v.Wrong++
		}
	}
}
