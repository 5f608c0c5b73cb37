package shadow

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// share is memory that a process has shared.
type share struct {
	slot   int
	va     device.VA
	size   uint64
	fd     int
	offset uint64
	write  bool
	file   fileID
	weight int  // of the file, in units of the peer's limit
	users  int  // page-ins in progress that use b
	gone   bool // being unshared: no page of it is entered any more
	places map[uint64]*place

	mapping sync.Mutex
	mapped  atomic.Bool // b is set
	b       []byte      // our own mapping of it; nil after it is unmapped
}

// own maps the share, if it is not mapped yet, and returns its bytes. mmap and munmap hold the
// lock of pfd's address space, and wait while a process punches a hole into the file. So a share
// is mapped only when a page-in needs the mapping, or if the device needs it. The caller uses the
// share.
func (s *share) own(k Kind) ([]byte, error) {
	if s.mapped.Load() {
		return s.b, nil
	}
	s.mapping.Lock()
	defer s.mapping.Unlock()
	if s.mapped.Load() {
		return s.b, nil
	}
	prot := unix.PROT_READ
	if s.write && k != Physical {
		prot |= unix.PROT_WRITE
	}
	b, err := unix.Mmap(s.fd, int64(s.offset), int(s.size), prot, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("mapping %d bytes of the file: %w", s.size, err)
	}
	_ = unix.Madvise(b, unix.MADV_DONTDUMP) // keeps the process's memory out of core dumps; cannot fail
	s.b = b
	s.mapped.Store(true)
	return b, nil
}

// check refuses shares that are invalid regardless of the other shares.
func (m *Memory) check(s *share, size uint64, fd int) error {
	end := uint64(s.va) + size
	switch {
	case s.slot < 0 || s.slot >= device.Slots:
		return fmt.Errorf("%w: slot %d", ErrShare, s.slot)
	case size == 0 || (uint64(s.va)|size|s.offset)%device.PageSize != 0:
		return fmt.Errorf("%w: %d bytes at %v, from %d of the file: give whole pages of %d bytes", ErrShare, size, s.va, s.offset, device.PageSize)
	case size > MaxShared:
		return fmt.Errorf("%w: %d bytes: at most %d together", ErrShare, size, uint64(MaxShared))
	case end < uint64(s.va) || end > 1<<m.cfg.VABits:
		return fmt.Errorf("%w: %d bytes at %v pass the end of %d-bit addresses", ErrShare, size, s.va, m.cfg.VABits)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return fmt.Errorf("%w: it must be a memfd sealed with F_SEAL_SHRINK", ErrShare)
	}
	if err := checkFile(m.kind, s, fd); err != nil {
		return err
	}
	// The error that mmap would return.
	mode, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil || mode&unix.O_ACCMODE == unix.O_WRONLY || mode&unix.O_PATH != 0 ||
		s.write && (mode&unix.O_ACCMODE != unix.O_RDWR || seals&(unix.F_SEAL_WRITE|unix.F_SEAL_FUTURE_WRITE) != 0 && m.kind != Physical) {
		return fmt.Errorf("%w: its descriptor, or its seals, do not permit the access", ErrShare)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("%w: %w", ErrShare, err)
	}
	s.file, s.weight = fileID{st.Dev, st.Ino}, 1+int((s.offset+size-1)/fileStep)
	if length := uint64(st.Size); length > MaxShared || s.offset > length || size > length-s.offset {
		return fmt.Errorf("%w: %d bytes from %d of a file of %d bytes, which may have %d", ErrShare, size, s.offset, st.Size, uint64(MaxShared))
	}
	return nil
}

// hugePage is the size of the pages that can be shared by physical addresses.
const hugePage = 2 << 20

// Page returns the size of the pages that can be shared, in bytes.
func (m *Memory) Page() uint64 {
	if m.kind == Physical {
		return hugePage
	}
	return device.PageSize
}

// checkFile refuses parts of huge pages. Where nothing pins memory it also refuses files whose
// pages may move or be freed: only huge pages of a hugetlb file stay in place, and only while no
// process can punch them out, which F_SEAL_FUTURE_WRITE ensures.
func checkFile(k Kind, s *share, fd int) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return fmt.Errorf("%w: %w", ErrShare, err)
	}
	huge := int64(st.Type) == unix.HUGETLBFS_MAGIC
	if k == Physical && (!huge || st.Bsize != hugePage) {
		return fmt.Errorf("%w: the device uses physical addresses and nothing pins memory, which the kernel may move: "+
			"share a memfd of huge pages of 2 MiB (memfd_create with MFD_HUGETLB), or give the device an IOMMU", ErrShare)
	}
	if huge && (s.size|s.offset)%uint64(st.Bsize) != 0 {
		return fmt.Errorf("%w: %d bytes from %d of a file of huge pages: give whole ones of %d bytes", ErrShare, s.size, s.offset, st.Bsize)
	}
	if k != Physical {
		return nil
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err == nil && seals&unix.F_SEAL_FUTURE_WRITE == 0 {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE)
	}
	if err != nil {
		return fmt.Errorf("%w: its pages could be punched out: map it, and let pfd seal it with F_SEAL_FUTURE_WRITE (no F_SEAL_SEAL): %w", ErrShare, err)
	}
	return nil
}

// extent is memory of a share from start to end, in bytes from its beginning.
type extent struct{ start, end uint64 }

// resident returns which of the first size bytes of the share are in memory now. It queries the
// file (cachestat(2), Linux 6.5): mincore(2) requires a mapping, for which other goroutines would
// wait while a process punches a hole into the file.
func (s *share) resident(k Kind, size uint64) []extent {
	list, err := cached(nil, s.fd, s.offset, 0, size)
	if err == nil {
		return list
	}
	b, err := s.own(k) // an older kernel, huge pages, or a filter
	if err != nil {
		return nil
	}
	for i, t := range mincore(b[:size]) {
		if at := uint64(i) << device.PageShift; t&1 != 0 {
			list = join(list, at, at+device.PageSize)
		}
	}
	return list
}

// cached appends to list the resident extents of size bytes of a file, from offset+start on. It
// searches by halves.
func cached(list []extent, fd int, offset, start, size uint64) ([]extent, error) {
	var c unix.Cachestat_t
	if err := unix.Cachestat(uint(fd), &unix.CachestatRange{Off: offset + start, Len: size}, &c, 0); err != nil {
		return nil, err
	}
	pages := size >> device.PageShift
	switch {
	case c.Cache == 0:
		return list, nil
	case c.Cache >= pages:
		return join(list, start, start+size), nil
	}
	half := pages / 2 << device.PageShift
	list, err := cached(list, fd, offset, start, half)
	if err != nil {
		return nil, err
	}
	return cached(list, fd, offset, start+half, size-half)
}

// join appends an extent to a list, merging adjacent ones.
func join(list []extent, start, end uint64) []extent {
	if n := len(list); n > 0 && list[n-1].end == start {
		list[n-1].end = end
		return list
	}
	return append(list, extent{start, end})
}

// errLeaving reports that a conflicting share is being unshared.
var errLeaving = errors.New("being unshared")

// room refuses a share that conflicts with other shares of the slot.
func (m *Memory) room(s *share) error {
	list, total := m.spaces[s.slot].shares, s.size
	if m.closed {
		return fmt.Errorf("%w: the device is gone", ErrShare)
	}
	for _, o := range list {
		total += o.size
		if s.va < o.end() && o.va < s.end() {
			if o.gone {
				return errLeaving
			}
			return fmt.Errorf("%w: %d bytes at %v are shared already: unshare them first", ErrShare, o.size, o.va)
		}
	}
	if len(list) >= MaxShares || total > MaxShared {
		return fmt.Errorf("%w: the process shares %d pieces, %d bytes with this one: at most %d and %d", ErrShare, len(list), total, MaxShares, uint64(MaxShared))
	}
	return nil
}

func (s *share) end() device.VA { return s.va + device.VA(s.size) }

// drop unmaps our own mapping of a share that is gone after its last user has left. It does so in
// a goroutine, because munmap waits while a process punches a hole into the file. The Memory is
// locked, or the share not listed yet.
func (s *share) drop() {
	if !s.gone || s.users > 0 {
		return
	}
	if s.b != nil {
		go func(b []byte) { _ = unix.Munmap(b) }(s.b) // cannot fail: exactly the slice that was mapped
		s.b = nil
	}
	if s.fd >= 0 {
		_ = unix.Close(s.fd) // nothing was written through it
		s.fd = -1
	}
}
