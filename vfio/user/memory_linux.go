package user

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// fileID identifies the file behind a descriptor.
type fileID struct{ dev, ino uint64 }

// memory is a file of the peer, opened or mapped once, from its beginning to the end of the used
// part, however many DMA mappings refer to it. The peer's descriptors are closed: the area keeps
// the file, and with it the file's identity, alive.
//
// The peer can make a file smaller while it is mapped. A seal would exclude that, but not every
// client seals, and even then a huge page can be missing. Therefore every access goes through
// touch, which turns the fault into an error; no signal remains that could kill the process.
// Reading and writing by system calls would also do, but costs some hundred nanoseconds each, too
// much for a table walk. A fault that never ends, in a file served by a process (FUSE), cannot be
// turned into an error: so only tmpfs and hugetlbfs files are mapped at all.
type memory struct {
	id       fileID
	area     *area
	size     uint64 // bytes of the file that are mapped, or being mapped
	writable bool
	foreign  bool // owned by the embedding program: not unmapped
	index    uint32
	mapped   uint64 // bytes of DMA mappings
}

// space holds the memory that one peer mapped for the other: address ranges, and the files behind
// them. It is safe for concurrent use. Removing a range waits for the accesses in flight to it,
// so that none of ours touches it afterwards. No operation that may sleep runs with the lock
// held, and an access waits only for its own file: not for an access to a page of another file
// that is being punched out, nor for that file's mmap or munmap.
type space struct {
	mu sync.Mutex
	flights
	table  mappings
	files  map[fileID]*memory
	list   []*memory // files by their index, and the embedding program's memory; nil: free
	mapped uint64    // bytes of files mapped
	most   int       // the largest number of pieces since memory was last given back

	// Limits. The system allows some 65,000 mappings and 128 TiB for each process, and our own
	// allocator needs some of them. Defined by this project.
	maxMaps, maxPieces, maxFiles int
	maxMapped                    uint64
	maxKept                      uint32 // files with a lower index keep a descriptor; only a device uses touchAside
}

const (
	defaultMaxFiles  = 1024
	defaultMaxMapped = 1 << 42
	// A file is mapped in steps of fileStep, as far as it is used. With this size a file that is
	// long, or grows, uses no larger share of defaultMaxMapped than of defaultMaxFiles.
	fileStep = defaultMaxMapped / defaultMaxFiles

	// QEMU makes a mapping for each page of its guest's IOMMU, refuses a server that announces
	// more than 65,535, and sends more than were announced. So more are accepted: 16 GiB in pages
	// of 4 KiB (defined by this project).
	serverMaxMaps = 4 << 20
	announcedMaps = 65535
)

// newSpace makes room for maps mappings. They take 32 bytes each, and at most twice that in the
// worst order: 256 MiB for 4 Mi.
func newSpace(maps int) *space {
	s := &space{
		files:   map[fileID]*memory{},
		maxMaps: maps, maxPieces: maps/(pieceMax/2) + 1, maxFiles: defaultMaxFiles, maxMapped: defaultMaxMapped,
	}
	s.flights.landed = sync.NewCond(&s.mu)
	return s
}

// check refuses arguments that no mapping can have.
func (m DMAMap) check() error {
	switch {
	case m.ArgSize < dmaMapSize:
		return refuse(unix.EINVAL, "argsz %d below 32", m.ArgSize)
	case m.Flags&^(DMARead|DMAWrite) != 0 || m.Flags == 0:
		return refuse(unix.EINVAL, "flags %#x, must be readable, writable or both", m.Flags)
	case m.Size == 0 || m.Address+m.Size-1 < m.Address:
		return refuse(unix.EINVAL, "range %#x+%#x is empty or wraps", m.Address, m.Size)
	case (m.Address|m.Size|m.Offset)%defaultPageSizes != 0:
		return refuse(unix.EINVAL, "range %#x+%#x at offset %#x is not of whole pages", m.Address, m.Size, m.Offset)
	}
	return nil
}

// add maps a range. A negative fd means a range that is accessed by messages. The descriptor
// remains the caller's.
func (s *space) add(m DMAMap, fd int) error {
	if err := m.check(); err != nil {
		return err
	}
	a, err := s.insert(m, fd)
	if err != nil || a == nil {
		return err
	}
	if err = a.wait(mapTime); err == nil {
		return nil
	}
	_ = s.remove(m.Address, m.Address+m.Size-1) // cannot fail: it has whole pages
	return refuse(errnoOf(err), "mapping a file for range %#x+%#x: %v", m.Address, m.Size, err)
}

// insert adds a mapping and returns the area that is being mapped for it, or nil.
func (s *space) insert(m DMAMap, fd int) (a *area, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := m.Address + m.Size - 1
	if s.table.overlaps(m.Address, last) {
		return nil, refuse(unix.EEXIST, "range %#x+%#x overlaps a mapping", m.Address, m.Size)
	}
	if err := s.room(); err != nil {
		return nil, err
	}
	file := noFile
	if fd >= 0 {
		f, err := s.open(fd, m)
		if err != nil {
			return nil, err
		}
		f.mapped += m.Size
		file, a = f.index, f.area
	}
	s.table.insert(mapping{m.Address, last, m.Offset, file, m.Flags})
	return a, nil
}

// room returns an error if the table is full.
func (s *space) room() error {
	if s.table.n >= s.maxMaps || len(s.table.pieces) > s.maxPieces {
		return refuse(unix.ENOSPC, "more than %d mappings", s.table.n)
	}
	return nil
}

// enlist assigns an index to a file.
func (s *space) enlist(f *memory) {
	i := slices.Index(s.list, nil)
	if i < 0 {
		i = len(s.list)
		s.list = append(s.list, nil)
	}
	s.list[i], f.index = f, uint32(i)
}

// open returns the memory of a descriptor. It starts mapping the file if it is new, if more of it
// is used, or if it is to be written for the first time.
func (s *space) open(fd int, m DMAMap) (*memory, error) {
	const other = "descriptor of a mapping is no memfd and no file in shared memory"
	// Only files in memory have seals. No further call is made on other files: a FUSE server may
	// never answer, and every access would wait for it.
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, refuse(unix.EINVAL, other)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, refuse(unix.EBADF, "descriptor of a mapping: %v", err)
	}
	f := s.files[fileID{st.Dev, st.Ino}]
	if f == nil && !sharedMemory(fd, &st) {
		return nil, refuse(unix.EINVAL, other)
	}
	size := uint64(max(st.Size, 0))
	if m.Offset > size || m.Size > size-m.Offset {
		return nil, refuse(unix.EINVAL, "range of %#x bytes at offset %#x of a file of %#x", m.Size, m.Offset, size)
	}
	write := m.Flags&DMAWrite != 0
	if err := permits(fd, seals, write); err != nil {
		return nil, err
	}
	if f != nil && m.Offset+m.Size <= f.size && (!write || f.writable) {
		return f, nil
	}
	had := uint64(0)
	if f != nil {
		had = f.size
	} else if len(s.files) >= s.maxFiles {
		return nil, refuse(unix.ENOSPC, "mappings of more than %d files", s.maxFiles)
	}
	// Not shorter than before, even if the file has shrunk: older mappings refer to it.
	size = max(had, min(size, (m.Offset+m.Size+fileStep-1)/fileStep*fileStep))
	if size > s.maxMapped || s.mapped-had > s.maxMapped-size {
		return nil, refuse(unix.ENOSPC, "files of more than %#x bytes together", s.maxMapped)
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, refuse(errnoOf(err), "keeping a descriptor until its file is mapped: %v", err)
	}
	if f == nil {
		f = &memory{id: fileID{st.Dev, st.Ino}}
		s.files[f.id] = f
		s.enlist(f)
	}
	before := *f
	f.area, f.size, f.writable = newArea(size, write || f.writable), size, write || f.writable
	s.mapped += size - had
	go s.fill(f.area, own, f, &before)
	return f, nil
}

// permits refuses a descriptor with the errors of mmap(2). Opening the file again does not check
// that, since root may open any file.
func permits(fd, seals int, write bool) error {
	mode, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	switch {
	case err != nil || mode&unix.O_PATH != 0:
		return refuse(unix.EBADF, "descriptor of a mapping is not open")
	case mode&unix.O_ACCMODE == unix.O_WRONLY, write && mode&unix.O_ACCMODE != unix.O_RDWR:
		return refuse(unix.EACCES, "descriptor of a mapping does not permit the access")
	case write && seals&(unix.F_SEAL_WRITE|unix.F_SEAL_FUTURE_WRITE) != 0:
		return refuse(unix.EPERM, "file of a mapping is sealed against writing")
	}
	return nil
}

// fill opens or maps a file, in place of its previous mapping.
func (s *space) fill(a *area, fd int, f, before *memory) {
	if f.index < s.maxKept {
		a.file = reopen(fd, a.size, a.writable)
	}
	var err error
	if a.file < 0 {
		if a.b, err = mapFile(fd, a.size, a.writable); err == nil {
			a.mapped.Store(true)
		}
	}
	_ = unix.Close(fd) // nothing was written through it
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		before.area.retire()
	case f.area == a && before.area != nil: // the area stays as it was
		s.mapped -= f.size - before.size
		f.area, f.size, f.writable = before.area, before.size, before.writable
	}
	a.err = err
	close(a.ready)
}

// sharedMemory reports whether a descriptor is of a file in memory.
func sharedMemory(fd int, st *unix.Stat_t) bool {
	var fs unix.Statfs_t
	return st.Mode&unix.S_IFMT == unix.S_IFREG && unix.Fstatfs(fd, &fs) == nil &&
		(int64(fs.Type) == unix.TMPFS_MAGIC || int64(fs.Type) == unix.HUGETLBFS_MAGIC)
}

func errOr(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}

// addBytes maps a range to memory of the embedding program.
func (s *space) addBytes(m DMAMap, b []byte) error {
	if err := m.check(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	last := m.Address + m.Size - 1
	if s.table.overlaps(m.Address, last) {
		return refuse(unix.EEXIST, "range %#x+%#x overlaps a mapping", m.Address, m.Size)
	}
	if err := s.room(); err != nil {
		return err
	}
	f := &memory{area: newArea(uint64(len(b)), true), writable: true, foreign: true, mapped: m.Size}
	f.area.b = b
	f.area.mapped.Store(true)
	close(f.area.ready)
	s.enlist(f)
	s.table.insert(mapping{m.Address, last, 0, f.index, m.Flags})
	return nil
}

// remove unmaps all mappings in the range. There may be none, because clients unmap large ranges
// at once. It refuses a range that cuts a page.
func (s *space) remove(addr, last uint64) error {
	s.mu.Lock()
	shrunk, err := s.cut(addr, last)
	s.await(addr, last)
	s.mu.Unlock()
	if shrunk {
		debug.FreeOSMemory()
	}
	return err
}

// cut is remove with the lock held. shrunk is as for without.
func (s *space) cut(addr, last uint64) (shrunk bool, err error) {
	const in = defaultPageSizes - 1
	begin, cutsFirst := s.table.find(addr)
	end, cutsLast := s.table.find(last)
	if addr&in != 0 && cutsFirst || last&in != in && cutsLast {
		return false, refuse(unix.EINVAL, "range %#x to %#x cuts a page", addr, last)
	}
	if cutsFirst && cutsLast && begin == end && begin.addr < addr && begin.last > last { // one mapping becomes two
		if err := s.room(); err != nil {
			return false, err
		}
	}
	return s.without(addr, last), nil
}

// without drops the mappings of a range. It reports whether three quarters of a large table have
// gone, whose memory the runtime would take minutes to return to the system.
func (s *space) without(addr, last uint64) (shrunk bool) {
	s.most = max(s.most, len(s.table.pieces))
	s.table.remove(addr, last, s.release)
	n := len(s.table.pieces)
	if shrunk = s.most > largeTable && n < s.most/4; shrunk {
		s.most = n
	}
	return shrunk
}

// release drops a mapping's reference to its file. The last one unmaps the file.
func (s *space) release(m mapping) {
	if m.file == noFile {
		return
	}
	f := s.list[m.file]
	if f.mapped -= m.last - m.addr + 1; f.mapped > 0 {
		return
	}
	s.list[m.file] = nil
	if f.foreign {
		return
	}
	delete(s.files, f.id)
	s.mapped -= f.size
	f.area.retire()
}

// drain waits for the accesses in flight.
func (s *space) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.await(0, ^uint64(0))
}

func (s *space) clear() {
	s.mu.Lock()
	shrunk := s.without(0, ^uint64(0))
	s.table = mappings{}
	s.await(0, ^uint64(0))
	s.mu.Unlock()
	if shrunk {
		debug.FreeOSMemory()
	}
}

// largeTable is the number of pieces from which a table's memory is returned to the system at
// once: 4 MiB (defined by this project).
const largeTable = 256

// counts returns the numbers of mappings and of files.
func (s *space) counts() (maps, files int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.table.n, len(s.files)
}

// access reads into p, or writes from it, at a DMA address, while allowed returns no error. For
// memory without a descriptor it calls remote, outside the lock, which returns how many bytes it
// moved. Both functions may be nil.
func (s *space) access(addr uint64, p []byte, write bool, allowed func() error, remote func(addr uint64, p []byte, write bool) (int, error)) error {
	return s.accessBy(touch, addr, p, write, allowed, remote)
}

// accessBy is access with a given toucher.
func (s *space) accessBy(by toucher, addr uint64, p []byte, write bool, allowed func() error, remote func(addr uint64, p []byte, write bool) (int, error)) error {
	for len(p) > 0 {
		n, err := s.local(addr, p, write, allowed, by)
		if errors.Is(err, errRemote) {
			if remote == nil {
				err = fmt.Errorf("address %#x: %w", addr, ErrUnmapped)
			} else {
				n, err = remote(addr, p[:n], write)
			}
		}
		if err != nil {
			return err
		}
		p = p[n:]
		if addr += uint64(n); addr == 0 && len(p) > 0 {
			return fmt.Errorf("address wraps: %w", ErrUnmapped)
		}
	}
	return nil
}

// errRemote reports that the mapping has no bytes here.
var errRemote = refuse(unix.EREMOTE, "reached by messages")

// allows returns nil if the peer mapped an address with the right for an access.
func (s *space) allows(addr uint64, write bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.lookUp(addr, write)
	return err
}

// local serves the part of an access that lies in the first mapping and returns its length.
func (s *space) local(addr uint64, p []byte, write bool, allowed func() error, by toucher) (int, error) {
	s.mu.Lock()
	m, n, err := s.begin(addr, len(p), write, allowed)
	if err != nil {
		s.mu.Unlock()
		return n, err
	}
	a := s.list[m.file].area
	i := s.enter(a, addr, addr+uint64(n-1))
	s.mu.Unlock()
	if err = by(a, m.off+(addr-m.addr), p[:n], write); err != nil {
		err = fmt.Errorf("address %#x: %w", addr, err)
	}
	s.mu.Lock()
	s.leave(i)
	s.mu.Unlock()
	return n, err
}

// begin returns the mapping of an address and how much of an access lies in it. The caller holds
// mu.
func (s *space) begin(addr uint64, n int, write bool, allowed func() error) (mapping, int, error) {
	if allowed != nil {
		if err := allowed(); err != nil {
			return mapping{}, 0, err
		}
	}
	m, err := s.lookUp(addr, write)
	if err != nil {
		return m, 0, err
	}
	if left := m.last - addr; left < uint64(n-1) {
		n = int(left) + 1
	}
	if m.file == noFile {
		return m, n, errRemote
	}
	return m, n, nil
}

// lookUp returns the mapping of an address if it has the right. The caller holds mu.
func (s *space) lookUp(addr uint64, write bool) (mapping, error) {
	m, ok := s.table.find(addr)
	if !ok {
		return m, fmt.Errorf("address %#x: %w", addr, ErrUnmapped)
	}
	want := uint32(DMARead)
	if write {
		want = DMAWrite
	}
	if m.rights&want == 0 {
		return m, fmt.Errorf("address %#x: %w", addr, ErrDenied)
	}
	return m, nil
}
