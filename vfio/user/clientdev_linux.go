package user

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// powerOnTime is the time from D3hot to D0 during which the device must not be accessed (PCI Bus
// Power Management 1.2, 5.6.1).
const powerOnTime = 10 * time.Millisecond

// maxCapabilities bounds the answer to DEVICE_GET_REGION_INFO that a client accepts. It is
// defined by this project.
const maxCapabilities = 64 << 10

// Region returns the server's description of a region. For a region with mappable areas it also
// returns a descriptor to map them from, which the caller must close; otherwise it returns -1. A
// region that is mappable as a whole has one area.
func (c *Client) Region(index int) (RegionInfo, int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, fd, err := c.region(index)
	if err != nil {
		return r, -1, fmt.Errorf("vfio-user: region %d: %w", index, err)
	}
	return r, fd, nil
}

func (c *Client) region(index int) (RegionInfo, int, error) {
	for size := uint32(regionInfoSize); ; {
		m, err := c.request(CmdRegionInfo, RegionInfo{ArgSize: size, Index: uint32(index)}.Append(c.begin()), nil)
		if err != nil {
			return RegionInfo{}, -1, err
		}
		r, err := DecodeRegionInfo(m.body)
		if err != nil || r.Index != uint32(index) || len(m.fds) > 1 || r.ArgSize > maxCapabilities {
			c.sock.shed(m.fds)
			return r, -1, c.fail(fmt.Errorf("%w: answer to DEVICE_GET_REGION_INFO", ErrMalformed))
		}
		if r.ArgSize > size {
			c.sock.shed(m.fds)
			size = r.ArgSize
			continue
		}
		if r.Flags&RegionMmap == 0 || len(m.fds) == 0 {
			c.sock.shed(m.fds)
			return r, -1, nil
		}
		if !r.Sparse {
			r.Areas = []Area{{0, r.Size}}
		}
		for _, a := range r.Areas {
			if a.Size > r.Size || a.Offset > r.Size-a.Size {
				c.sock.shed(m.fds)
				return r, -1, c.fail(fmt.Errorf("%w: area outside region %d", ErrMalformed, index))
			}
		}
		return r, m.fds[0], nil
	}
}

// Mapped is an area of a region in the address space of this process. It stays mapped when the
// server is gone, but then no device reads it.
type Mapped struct {
	Area  Area
	Bytes []byte
}

// Map maps the mappable areas of a region; there may be none. It refuses a file that the server
// could make smaller, since an access beyond its end would kill this process: use Read and Write
// there.
func (c *Client) Map(index int) ([]Mapped, error) {
	r, fd, err := c.Region(index)
	if err != nil || fd < 0 {
		return nil, err
	}
	defer closeFDs([]int{fd})
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, fmt.Errorf("vfio-user: map region %d: the server's file is not sealed against shrinking; use messages: %w", index, unix.EPERM)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("vfio-user: map region %d: %w", index, err)
	}
	var out []Mapped
	for _, a := range r.Areas {
		end := r.Offset + a.Offset + a.Size
		if end < r.Offset || end > uint64(st.Size) {
			return nil, errors.Join(c.fail(fmt.Errorf("%w: area of region %d outside its file", ErrMalformed, index)), Unmap(out))
		}
		b, err := unix.Mmap(fd, int64(r.Offset+a.Offset), int(a.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("vfio-user: map region %d, %#x: %w", index, a.Offset, err), Unmap(out))
		}
		out = append(out, Mapped{a, b})
	}
	return out, nil
}

// Unmap undoes Map.
func Unmap(ms []Mapped) error {
	var err error
	for i := range ms {
		err = errors.Join(err, unix.Munmap(ms[i].Bytes))
		ms[i].Bytes = nil
	}
	return err
}

// IOFD is a write of a region that the client can replace by Signal of FD, an eventfd.
type IOFD struct {
	SubRegion
	FD int // -1: none
}

// RegionIOFDs returns the writes of a region that can go through descriptors. Several writes may
// share one descriptor. The caller must close the descriptors in fds. Descriptors that are not
// eventfds are refused.
func (c *Client) RegionIOFDs(index int) (subs []IOFD, fds []int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for size := uint32(regionIOSize); ; {
		m, err := c.request(CmdRegionIOFDs, RegionIOFDs{ArgSize: size, Index: uint32(index)}.Append(c.begin()), nil)
		if err != nil {
			return nil, nil, fmt.Errorf("vfio-user: I/O descriptors of region %d: %w", index, err)
		}
		r, err := DecodeRegionIOFDs(m.body)
		if err != nil || r.ArgSize > maxCapabilities || len(r.SubRegions) > 0 && r.ArgSize > size {
			c.sock.shed(m.fds)
			return nil, nil, c.fail(fmt.Errorf("%w: answer to DEVICE_GET_REGION_IO_FDS", ErrMalformed))
		}
		if r.ArgSize > size {
			c.sock.shed(m.fds)
			size = r.ArgSize
			continue
		}
		for _, fd := range m.fds {
			if !isEventFD(fd) {
				c.sock.shed(m.fds)
				return nil, nil, c.fail(fmt.Errorf("%w: I/O descriptors of region %d: one is not an eventfd", ErrMalformed, index))
			}
		}
		for _, s := range r.SubRegions {
			fd := -1
			if uint64(s.FDIndex) < uint64(len(m.fds)) {
				fd = m.fds[s.FDIndex]
			}
			subs = append(subs, IOFD{s, fd})
		}
		return subs, m.fds, nil
	}
}

// Signal adds one to an eventfd of RegionIOFDs. A server that fills the eventfd and makes it
// block ends the client with an error that says so.
func (c *Client) Signal(fd int) error {
	c.bells.signal(fd)
	return c.Err()
}

// IRQ returns the number of interrupts of an index and their properties.
func (c *Client) IRQ(index int) (IRQInfo, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, err := c.plain(CmdIRQInfo, IRQInfo{ArgSize: irqInfoSize, Index: uint32(index)}.Append(c.begin()))
	if err != nil {
		return IRQInfo{}, fmt.Errorf("vfio-user: interrupt index %d: %w", index, err)
	}
	i, err := DecodeIRQInfo(m.body)
	if err != nil {
		return i, c.fail(err)
	}
	return i, nil
}

// SetEventFDs assigns eventfds to the interrupts of an index from start on; -1 removes one.
// action is IRQActionTrigger for the interrupt itself, or IRQActionMask or IRQActionUnmask for
// the notification of a change of its mask. The descriptors remain the caller's. While several
// messages are in progress only some of the interrupts may be set.
func (c *Client) SetEventFDs(index, start int, action uint32, fds []int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(fds) > 0 {
		n, with := 1, fds[0] >= 0
		for n < len(fds) && (fds[n] >= 0) == with && (!with || n < c.peer.fds) {
			n++
		}
		m := IRQSet{ArgSize: irqSetSize, Flags: IRQDataEventFD | action, Index: uint32(index), Start: uint32(start), Count: uint32(n)}
		var send []int
		if with {
			send = fds[:n]
		}
		r, err := c.request(CmdSetIRQs, m.Append(c.begin()), send)
		c.sock.shed(r.fds)
		if err != nil {
			return fmt.Errorf("vfio-user: eventfds of interrupts %d+%d of index %d: %w", start, n, index, err)
		}
		fds, start = fds[n:], start+n
	}
	return nil
}

// SetCommand writes the PCI command register: CommandMemory lets the BARs answer, CommandMaster
// lets the device access memory and send interrupts. Both are off until a driver sets them.
func (c *Client) SetCommand(bits uint16) error {
	if err := c.Write(RegionConfig, cfgCommand, 2, uint64(bits)); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cmd = bits
	return nil
}

// PowerOn brings a device that a former driver left in a low-power state to D0, in which its
// registers answer (PCI Bus Power Management 1.2, 3.2). A device without that capability is
// always on.
func (c *Client) PowerOn() error {
	var b [256]byte
	if err := c.ReadRegion(RegionConfig, 0, b[:]); err != nil {
		return err
	}
	at := 0
	if b[cfgStatus]&statusCapList != 0 {
		at = int(b[cfgCapPtr]) &^ 3
	}
	for hops := 0; at >= cfgFirstCap && b[at] != capIDPM; hops++ {
		if at = int(b[at+1]) &^ 3; hops == maxCaps {
			return c.fail(fmt.Errorf("%w: its list of capabilities has no end", ErrMalformed))
		}
	}
	if at < cfgFirstCap {
		return nil
	}
	control := uint64(at + pmControl - capPM)
	if control+4 > uint64(len(b)) {
		return c.fail(fmt.Errorf("%w: its power management capability at %#x passes the end", ErrMalformed, at))
	}
	state := binary.LittleEndian.Uint16(b[control:])
	if state&pmStateMask == 0 {
		return nil
	}
	if err := c.Write(RegionConfig, control, 2, uint64(state&^pmStateMask)); err != nil {
		return err
	}
	time.Sleep(powerOnTime)
	v, err := c.Read(RegionConfig, control, 2)
	if err == nil && v&pmStateMask != 0 {
		err = fmt.Errorf("vfio-user: the device stays in power state D%d: %w", v&pmStateMask, unix.EIO)
	}
	return err
}

// Reset resets the device and then restores the command register that SetCommand wrote last, as
// the kernel does around a reset. Mappings and eventfds stay.
func (c *Client) Reset() error {
	c.mu.Lock()
	_, err := c.plain(CmdReset, c.begin())
	bits := c.cmd
	c.mu.Unlock()
	if err != nil {
		return fmt.Errorf("vfio-user: reset: %w", err)
	}
	return c.SetCommand(bits)
}

// MapDMA maps size bytes of a memfd, from offset on, at a DMA address for the device. rights are
// DMARead and DMAWrite. The descriptor remains the caller's: the server and this client keep the
// file's pages accessible without it. A range that overlaps another is refused with
// syscall.EEXIST.
func (c *Client) MapDMA(addr, size uint64, fd int, offset uint64, rights uint32) error {
	m := DMAMap{dmaMapSize, rights, offset, addr, size}
	return c.mapDMA(m, fd, func() error { return c.space.add(m, fd) })
}

// MapBytes lets the device access memory of this process by messages only: the server has no
// descriptor of it. b must consist of whole pages of 4 KiB and must not be unmapped before
// UnmapDMA; the device may access it at any time.
func (c *Client) MapBytes(addr uint64, b []byte, rights uint32) error {
	m := DMAMap{dmaMapSize, rights, 0, addr, uint64(len(b))}
	return c.mapDMA(m, -1, func() error {
		if !c.closed {
			c.mon.listen()
		}
		return c.space.addBytes(m, b)
	})
}

func (c *Client) mapDMA(m DMAMap, fd int, add func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var fds []int
	if fd >= 0 {
		fds = []int{fd}
	}
	err := add()
	if err == nil {
		var r message
		r, err = c.request(CmdDMAMap, m.Append(c.begin()), fds)
		c.sock.shed(r.fds)
		if err != nil {
			err = errors.Join(err, c.space.remove(m.Address, m.Address+m.Size-1))
		}
	}
	if err != nil {
		return fmt.Errorf("vfio-user: map DMA %#x+%#x: %w", m.Address, m.Size, err)
	}
	return nil
}

// UnmapDMA removes all mappings in a range: one, several, a part of one, or none. When it returns
// the device no longer accesses the range. A range that cuts a page of 4 KiB is refused.
func (c *Client) UnmapDMA(addr, size uint64) error {
	return c.unmap(DMAUnmap{dmaUnmapSize, 0, addr, size}, addr+size-1)
}

func (c *Client) unmap(u DMAUnmap, last uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.plain(CmdDMAUnmap, u.Append(c.begin()))
	if err == nil {
		err = c.space.remove(u.Address, last)
	}
	if err != nil {
		return fmt.Errorf("vfio-user: unmap DMA %#x+%#x: %w", u.Address, u.Size, err)
	}
	return nil
}
