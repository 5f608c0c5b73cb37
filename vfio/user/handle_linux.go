package user

import (
	"encoding/binary"
	"errors"
	"slices"

	"golang.org/x/sys/unix"
)

// errUnfinished reports that the request continues in the next turn.
var errUnfinished = errors.New("the rest of the request is for the next turn")

// ofDevice reports whether a request concerns the device or other state of its owner.
func (c Command) ofDevice() bool {
	switch c {
	case CmdVersion, CmdRegionRead, CmdRegionWrite, CmdWriteMulti, CmdReset:
		return true
	}
	return false
}

// handle performs the current request, or as much of it as the turn has accesses for, and appends
// its reply. It closes the request's descriptors that nothing has taken over.
func (c *conn) handle() {
	m := &c.m
	if !c.begun {
		c.begun, c.start = true, len(c.out)
		if m.Command == CmdRegionRead && c.negotiated && len(m.fds) == 0 && m.isCommand() && !m.noReply() && c.readFast(m) {
			c.finished()
			return
		}
		if !m.noReply() {
			c.out = Header{ID: m.ID, Command: m.Command, Flags: flagReply}.Append(c.out)
		}
	}
	err := c.request(m)
	if errors.Is(err, errUnfinished) {
		return
	}
	if err == nil {
		closeFDs(m.fds) // files in memory: close does not block
	} else {
		c.sock.shed(m.fds)
	}
	m.fds = nil
	switch {
	case err != nil:
		c.refused(m, err)
		c.out = c.out[:c.start]
		c.dropReplyFDs()
		if !c.negotiated { // a failed VERSION cannot be repeated
			c.fail = err
		}
		if !m.noReply() {
			c.refuse(*m, err)
		}
	case m.noReply():
		c.out = c.out[:c.start]
		c.dropReplyFDs()
	default:
		order.PutUint32(c.out[c.start+4:], uint32(len(c.out)-c.start))
		c.outAt = c.start
	}
	c.finished()
}

// finished marks the current request as done: its reply may be sent.
func (c *conn) finished() {
	c.has, c.begun, c.whole = false, false, len(c.out)
}

// refused counts a refusal. It logs refusals of DMA_MAP as warnings: clients continue without the
// memory (QEMU logs the refusal), and the device's accesses to it fail.
func (c *conn) refused(m *message, err error) {
	c.s.refused.Add(1)
	if m.Command != CmdDMAMap {
		c.s.log.Debug("vfio-user: request refused", "command", m.Command, "error", err)
		return
	}
	// One line for each doubling, since a client can send them without end.
	if n := c.s.mapsRefused.Add(1); n&(n-1) == 0 {
		c.s.log.Warn("vfio-user: DMA_MAP refused: the device does not reach that memory", "error", err, "refused", n)
	}
}

func (c *conn) dropReplyFDs() {
	if c.outClose >= 0 {
		closeFDs([]int{c.outClose})
		c.outClose = -1
	}
	c.outFDs = nil
}

// refuse appends an error reply, which is a header only (spec, "Header").
func (c *conn) refuse(m message, err error) {
	c.out = Header{ID: m.ID, Command: m.Command, Size: HeaderSize, Flags: flagReply | flagError, Error: uint32(errnoOf(err))}.Append(c.out)
	c.whole = len(c.out)
}

// readFast is a fast path for the read of one register, the request whose latency matters most.
// It reports whether it has handled the request.
func (c *conn) readFast(m *message) bool {
	if len(m.body) != regionAccessSize {
		return false
	}
	offset, region, count := order.Uint64(m.body), order.Uint32(m.body[8:]), order.Uint32(m.body[12:])
	if count != 4 && count != 8 || region > 5 || offset%uint64(count) != 0 || !c.s.memory {
		return false
	}
	if size := c.s.cfg.BARs[region].Size; uint64(count) > size || offset > size-uint64(count) {
		return false
	}
	c.accesses--
	v := c.s.readBAR(int(region), offset, int(count))
	b := Header{ID: m.ID, Command: CmdRegionRead, Size: HeaderSize + regionAccessSize + count, Flags: flagReply}.Append(c.out)
	b = append(b, m.body...)
	if count == 4 {
		c.out = binary.LittleEndian.AppendUint32(b, uint32(v))
	} else {
		c.out = binary.LittleEndian.AppendUint64(b, v)
	}
	return true
}

// request checks a request whole, performs it and appends the reply's payload. It empties m.fds
// when it takes over the descriptors.
func (c *conn) request(m *message) error {
	if !m.isCommand() {
		return refuse(unix.EINVAL, "message of type %d", m.Flags&flagTypeMask)
	}
	if !c.negotiated && m.Command != CmdVersion {
		return refuse(unix.EINVAL, "%v before VERSION", m.Command)
	}
	if len(m.fds) > 0 && m.Command != CmdDMAMap && m.Command != CmdSetIRQs {
		return refuse(unix.EINVAL, "%v with %d descriptors", m.Command, len(m.fds))
	}
	if len(m.fds) > c.s.cfg.MaxFDs {
		return refuse(unix.EINVAL, "%d descriptors, at most %d", len(m.fds), c.s.cfg.MaxFDs)
	}
	switch m.Command {
	case CmdVersion:
		return c.version(m)
	case CmdDMAMap:
		return c.dmaMap(m)
	case CmdDMAUnmap:
		return c.dmaUnmap(m)
	case CmdDeviceInfo:
		return c.deviceInfo(m)
	case CmdRegionInfo:
		return c.regionInfo(m)
	case CmdRegionIOFDs:
		return c.regionIOFDs(m)
	case CmdIRQInfo:
		return c.irqInfo(m)
	case CmdSetIRQs:
		set, err := DecodeIRQSet(m.body)
		if err != nil {
			return err
		}
		if err := c.s.irq.set(set, m.fds); err != nil {
			return err
		}
		m.fds = nil
		return nil
	case CmdRegionRead:
		return c.regionRead(m)
	case CmdRegionWrite:
		return c.regionWrite(m)
	case CmdWriteMulti:
		return c.writeMulti(m)
	case CmdReset:
		if len(m.body) != 0 {
			return refuse(unix.EINVAL, "DEVICE_RESET with a payload")
		}
		c.s.reset(ResetCommand)
		c.accesses, c.reset = 0, true
		return nil
	case CmdFeature:
		if _, _, err := DecodeFeature(m.body); err != nil {
			return err
		}
		// The kernel's answer for a feature that a device does not have.
		return refuse(unix.ENOTTY, "no device feature is supported")
	case CmdMigDataRead, CmdMigDataWrite:
		return refuse(unix.EOPNOTSUPP, "migration is not supported")
	case CmdDMARead, CmdDMAWrite:
		return refuse(unix.EINVAL, "%v goes from server to client", m.Command)
	}
	return refuse(unix.EINVAL, "unknown command %d", uint16(m.Command))
}

// version negotiates the protocol.
func (c *conn) version(m *message) error {
	if c.negotiated {
		return refuse(unix.EINVAL, "a second VERSION")
	}
	v, err := DecodeVersion(m.body)
	if err != nil {
		return err
	}
	if v.Major != Major {
		return refuse(unix.EINVAL, "major version %d, ours is %d", v.Major, Major)
	}
	if c.peer, err = v.Capabilities.limits(); err != nil {
		return err
	}
	cfg := &c.s.cfg
	reply := Version{Major, min(v.Minor, Minor), Capabilities{
		MaxFDs:      ptr(uint64(cfg.MaxFDs)),
		MaxTransfer: ptr(uint64(cfg.MaxTransfer)),
		MaxMaps:     ptr(uint64(min(cfg.MaxMaps, announcedMaps))),
		PageSizes:   ptr(defaultPageSizes),
		WriteMulti:  v.Capabilities.WriteMulti,
	}}
	if t := v.Capabilities.Twin; t != nil && t.Supported {
		ours, theirs, err := pair()
		if err != nil {
			return refuse(unix.EMFILE, "twin socket: %v", err)
		}
		c.outFDs, c.outClose = []int{theirs}, theirs
		reply.Capabilities.Twin = &TwinSocket{Supported: true, FDIndex: ptr(0)}
		c.dmaMu.Lock()
		c.twinI = newInbox(HeaderSize + dmaAccessSize + int(cfg.MaxTransfer))
		c.dmaMu.Unlock()
		ours.closer = c.sock.closer
		c.twin.Store(ours)
		if err := ours.timeouts(cfg.Timeout, cfg.Timeout); err != nil {
			return refuse(unix.EIO, "twin socket: %v", err)
		}
	}
	if !m.noReply() {
		c.out = reply.Append(c.out)
	}
	c.negotiated = true
	c.s.connections.Add(1)
	c.s.dma.conn.Store(c)
	if w, ok := c.s.dev.(Watcher); ok {
		w.Connected()
	}
	return nil
}

func (c *conn) dmaMap(m *message) error {
	d, err := DecodeDMAMap(m.body)
	if err != nil {
		return err
	}
	fd := -1
	switch len(m.fds) {
	case 0:
	case 1:
		fd = m.fds[0]
	default:
		return refuse(unix.EINVAL, "DMA_MAP with %d descriptors", len(m.fds))
	}
	if fd < 0 && d.Offset != 0 {
		return refuse(unix.EINVAL, "DMA_MAP with offset %#x and no descriptor", d.Offset)
	}
	if fd < 0 { // before a device can find it
		c.remotes.Store(true)
	}
	return c.space.add(d, fd)
}

func (c *conn) dmaUnmap(m *message) error {
	u, err := DecodeDMAUnmap(m.body)
	if err != nil {
		return err
	}
	if u.ArgSize < dmaUnmapSize {
		return refuse(unix.EINVAL, "DMA_UNMAP with argsz %d", u.ArgSize)
	}
	last := u.Address + u.Size - 1
	switch u.Flags {
	case 0:
		if u.Size == 0 || last < u.Address {
			return refuse(unix.EINVAL, "DMA_UNMAP of %#x+%#x, which is empty or wraps", u.Address, u.Size)
		}
	case unmapAll:
		if u.Address != 0 || u.Size != 0 {
			return refuse(unix.EINVAL, "DMA_UNMAP of everything and of %#x+%#x", u.Address, u.Size)
		}
		last = ^uint64(0)
	default:
		return refuse(unix.EINVAL, "DMA_UNMAP with flags %#x", u.Flags)
	}
	if err := c.space.remove(u.Address, last); err != nil {
		return err
	}
	u.ArgSize = dmaUnmapSize
	c.out = u.Append(c.out)
	return nil
}

func (c *conn) deviceInfo(m *message) error {
	d, err := DecodeDeviceInfo(m.body)
	if err != nil {
		return err
	}
	if d.ArgSize < deviceInfoSize {
		return refuse(unix.EINVAL, "argsz %d", d.ArgSize)
	}
	c.out = DeviceInfo{deviceInfoSize, DevicePCI | DeviceReset, numRegions, numIRQs}.Append(c.out)
	return nil
}

// size returns a region's size, or 0 if the region does not exist.
func (s *Server) size(region uint32) uint64 {
	switch {
	case region <= 5:
		return s.cfg.BARs[region].Size
	case region == RegionConfig:
		return configSize
	}
	return 0
}

func (c *conn) regionInfo(m *message) error {
	q, err := DecodeRegionInfo(m.body)
	if err != nil {
		return err
	}
	if q.ArgSize < regionInfoSize || q.Index >= numRegions {
		return refuse(unix.EINVAL, "region %d, argsz %d", q.Index, q.ArgSize)
	}
	// The request may be as long as argsz; the space after the structure is for the reply.
	r := RegionInfo{Index: q.Index, Size: c.s.size(q.Index)}
	if r.Size != 0 {
		r.Flags = RegionReadable | RegionWritable
	}
	if q.Index <= 5 {
		if bar := &c.s.cfg.BARs[q.Index]; len(bar.Areas) > 0 {
			r.Flags |= RegionMmap
			r.Offset, r.Areas, r.Sparse = bar.FDOffset, bar.Areas, true
			if c.peer.fds < 1 {
				return refuse(unix.ENOSPC, "the client takes no descriptors")
			}
			c.outFDs = []int{bar.FD}
		}
	}
	r.ArgSize = uint32(r.needed())
	if q.ArgSize < r.ArgSize { // no room for the capability: argsz is the size that is needed
		r.Sparse = false
	}
	c.out = r.Append(c.out)
	return nil
}

func (c *conn) regionIOFDs(m *message) error {
	q, err := DecodeRegionIOFDs(m.body)
	if err != nil {
		return err
	}
	if q.ArgSize < regionIOSize || q.Flags != 0 || q.Count != 0 || len(m.body) != regionIOSize {
		return refuse(unix.EINVAL, "argsz %d, flags %#x, count %d", q.ArgSize, q.Flags, q.Count)
	}
	if q.Index >= numRegions || c.s.size(q.Index) == 0 {
		return refuse(unix.EINVAL, "region %d", q.Index)
	}
	r := RegionIOFDs{Index: q.Index}
	var fds []int
	for i, ev := range c.s.cfg.IOEvents {
		if uint32(ev.BAR) == q.Index {
			r.SubRegions = append(r.SubRegions, SubRegion{ev.Offset, uint64(ev.Size), uint32(len(fds)), TypeIOEventFD, FlagDataMatch, ev.Value})
			fds = append(fds, c.s.ios.fds[i])
		}
	}
	r.Count = uint32(len(r.SubRegions))
	r.ArgSize = regionIOSize + subRegionSize*r.Count
	if q.ArgSize < r.ArgSize {
		r.SubRegions, fds = nil, nil
	}
	if len(fds) > c.peer.fds {
		return refuse(unix.ENOSPC, "%d descriptors, the client takes %d", len(fds), c.peer.fds)
	}
	if len(fds) > 0 {
		c.s.ios.start()
		c.outFDs = fds
	}
	c.out = r.Append(c.out)
	return nil
}

func (c *conn) irqInfo(m *message) error {
	q, err := DecodeIRQInfo(m.body)
	if err != nil {
		return err
	}
	if q.ArgSize < irqInfoSize || q.Index >= numIRQs {
		return refuse(unix.EINVAL, "interrupt index %d, argsz %d", q.Index, q.ArgSize)
	}
	count, flags := c.s.irq.count(q.Index)
	c.out = IRQInfo{irqInfoSize, flags, q.Index, count}.Append(c.out)
	return nil
}

// check refuses an access outside its region or beyond the limits.
func (s *Server) check(a RegionAccess) error {
	size := s.size(a.Region)
	switch {
	case size == 0:
		return refuse(unix.EINVAL, "region %d does not exist", a.Region)
	case a.Count > s.cfg.MaxTransfer:
		return refuse(unix.EINVAL, "%d bytes, at most %d", a.Count, s.cfg.MaxTransfer)
	case uint64(a.Count) > size || a.Offset > size-uint64(a.Count):
		return refuse(unix.EINVAL, "%#x+%#x of region %d of %#x bytes", a.Offset, a.Count, a.Region, size)
	case a.Region <= 5 && !s.memory:
		return refuse(unix.EIO, "memory decode is off")
	}
	return nil
}

func (c *conn) regionRead(m *message) error {
	a, rest, err := DecodeRegionAccess(m.body)
	if err != nil {
		return err
	}
	if c.at == 0 {
		if len(rest) != 0 {
			return refuse(unix.EINVAL, "REGION_READ with %d bytes of data", len(rest))
		}
		if err := c.s.check(a); err != nil {
			return err
		}
		c.out = a.Append(c.out)
		c.out = slices.Grow(c.out, int(a.Count))[:len(c.out)+int(a.Count)]
	}
	p := c.out[len(c.out)-int(a.Count):]
	if a.Region == RegionConfig {
		c.s.pci.read(p, a.Offset)
		c.accesses -= (len(p) + 7) / 8
		return nil
	}
	for ; c.at < len(p) && c.accesses > 0; c.accesses-- {
		offset := a.Offset + uint64(c.at)
		n := step(offset, len(p)-c.at)
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], c.s.readBAR(int(a.Region), offset, n))
		c.at += copy(p[c.at:c.at+n], word[:])
	}
	if c.at < len(p) {
		return errUnfinished
	}
	return nil
}

// step returns the size of the next access: the largest aligned one within left, up to 8 bytes.
func step(offset uint64, left int) int {
	n := 8
	for n > left || offset%uint64(n) != 0 {
		n /= 2
	}
	return n
}

func (s *Server) readBAR(bar int, offset uint64, size int) uint64 {
	s.accesses.Add(1)
	if bar == s.cfg.MSIX.BAR && s.irq.vec.owns(offset) {
		return s.irq.readTable(offset, size)
	}
	return s.dev.Read(bar, offset, size)
}

func (c *conn) regionWrite(m *message) error {
	a, data, err := DecodeRegionAccess(m.body)
	if err != nil {
		return err
	}
	if c.at == 0 {
		if uint64(len(data)) != uint64(a.Count) {
			return refuse(unix.EINVAL, "REGION_WRITE of %d bytes with %d", a.Count, len(data))
		}
		if err := c.s.check(a); err != nil {
			return err
		}
	}
	if c.at += c.write(a.Region, a.Offset+uint64(c.at), data[c.at:]); c.at < len(data) {
		return errUnfinished
	}
	c.out = a.Append(c.out)
	return nil
}

// write stores as much of p as the turn has accesses for and returns the number of bytes.
func (c *conn) write(region uint32, offset uint64, p []byte) int {
	s := c.s
	if region == RegionConfig {
		event := s.pci.store(p, offset)
		if event&configFLR != 0 {
			s.reset(ResetFLR)
			c.accesses, c.reset = 0, true
		} else if event != 0 || s.memory != s.pci.memory() {
			s.refresh()
		}
		c.accesses -= (len(p) + 7) / 8
		return len(p)
	}
	at := 0
	for ; at < len(p) && c.accesses > 0; c.accesses-- {
		offset := offset + uint64(at)
		n := step(offset, len(p)-at)
		var word [8]byte
		copy(word[:], p[at:at+n])
		v := binary.LittleEndian.Uint64(word[:])
		s.accesses.Add(1)
		if int(region) == s.cfg.MSIX.BAR && s.irq.vec.owns(offset) {
			s.irq.writeTable(offset, n, v)
		} else {
			s.dev.Write(int(region), offset, n, v)
		}
		at += n
	}
	return at
}

// writeMulti checks every write before it performs the first. c.at counts the checks, then the
// writes.
func (c *conn) writeMulti(m *message) error {
	n, err := decodeWrites(m.body)
	if err != nil {
		return err
	}
	for checks := checksAnAccess * c.accesses; c.at < n; c.at++ {
		w := decodeWrite(m.body, c.at)
		if w.Count > 8 {
			return refuse(unix.EINVAL, "write %d of %d bytes, at most 8", c.at, w.Count)
		}
		// An earlier write of the message may enable memory decode.
		if err := c.s.check(RegionAccess{w.Offset, w.Region, w.Count}); err != nil && !errors.Is(err, unix.EIO) {
			return err
		}
		if checks--; checks <= 0 {
			c.at++
			c.accesses = 0
			return errUnfinished
		}
	}
	for ; c.at < 2*n; c.at++ {
		// An unaligned access is split into up to four.
		if c.accesses < 4 {
			return errUnfinished
		}
		w := decodeWrite(m.body, c.at-n)
		if err := c.s.check(RegionAccess{w.Offset, w.Region, w.Count}); err != nil {
			return err
		}
		c.write(w.Region, w.Offset, w.Data[:w.Count])
	}
	c.out = order.AppendUint64(c.out, uint64(n))
	return nil
}
