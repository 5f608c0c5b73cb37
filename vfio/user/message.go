package user

import "fmt"

func short(name string, n, want int) error {
	return fmt.Errorf("%s of %d bytes, must be %d: %w", name, n, want, ErrShort)
}

// Rights of a DMA mapping (spec, "VFIO_USER_DMA_MAP").
const (
	DMARead  = 1 << 0 // the device may read
	DMAWrite = 1 << 1 // the device may write
	// unmapAll is DMA_UNMAP's flag for every mapping; linux/vfio.h, VFIO_DMA_UNMAP_FLAG_ALL. It
	// is not in the specification's text, but QEMU and libvfio-user use it.
	unmapAll = 1 << 1
)

// DMAMap is DMA_MAP: argsz 4, flags 4, offset 8, address 8, size 8.
type DMAMap struct {
	ArgSize, Flags        uint32
	Offset, Address, Size uint64
}

const dmaMapSize = 32

// Append appends the 32 bytes.
func (m DMAMap) Append(b []byte) []byte {
	b = order.AppendUint32(b, m.ArgSize)
	b = order.AppendUint32(b, m.Flags)
	b = order.AppendUint64(b, m.Offset)
	b = order.AppendUint64(b, m.Address)
	return order.AppendUint64(b, m.Size)
}

// DecodeDMAMap decodes a DMA_MAP, which has no reply payload.
func DecodeDMAMap(b []byte) (DMAMap, error) {
	if len(b) != dmaMapSize {
		return DMAMap{}, short("DMA_MAP", len(b), dmaMapSize)
	}
	return DMAMap{order.Uint32(b), order.Uint32(b[4:]), order.Uint64(b[8:]), order.Uint64(b[16:]), order.Uint64(b[24:])}, nil
}

// DMAUnmap is DMA_UNMAP and its reply: argsz 4, flags 4, address 8, size 8.
type DMAUnmap struct {
	ArgSize, Flags uint32
	Address, Size  uint64
}

const dmaUnmapSize = 24

// Append appends the 24 bytes.
func (m DMAUnmap) Append(b []byte) []byte {
	b = order.AppendUint32(b, m.ArgSize)
	b = order.AppendUint32(b, m.Flags)
	b = order.AppendUint64(b, m.Address)
	return order.AppendUint64(b, m.Size)
}

// DecodeDMAUnmap decodes a DMA_UNMAP.
func DecodeDMAUnmap(b []byte) (DMAUnmap, error) {
	if len(b) != dmaUnmapSize {
		return DMAUnmap{}, short("DMA_UNMAP", len(b), dmaUnmapSize)
	}
	return DMAUnmap{order.Uint32(b), order.Uint32(b[4:]), order.Uint64(b[8:]), order.Uint64(b[16:])}, nil
}

// Flags of DeviceInfo (linux/vfio.h).
const (
	DeviceReset = 1 << 0
	DevicePCI   = 1 << 1
)

// DeviceInfo is DEVICE_GET_INFO and its reply: argsz 4, flags 4, num_regions 4,
// num_irqs 4.
type DeviceInfo struct{ ArgSize, Flags, Regions, IRQs uint32 }

const deviceInfoSize = 16

// Append appends the 16 bytes.
func (m DeviceInfo) Append(b []byte) []byte {
	return append4(b, m.ArgSize, m.Flags, m.Regions, m.IRQs)
}

func append4(b []byte, v ...uint32) []byte {
	for _, x := range v {
		b = order.AppendUint32(b, x)
	}
	return b
}

// DecodeDeviceInfo decodes a DEVICE_GET_INFO or its reply.
func DecodeDeviceInfo(b []byte) (DeviceInfo, error) {
	if len(b) != deviceInfoSize {
		return DeviceInfo{}, short("DEVICE_GET_INFO", len(b), deviceInfoSize)
	}
	return DeviceInfo{order.Uint32(b), order.Uint32(b[4:]), order.Uint32(b[8:]), order.Uint32(b[12:])}, nil
}

// Flags of RegionInfo, and the capability (linux/vfio.h).
const (
	RegionReadable = 1 << 0
	RegionWritable = 1 << 1
	RegionMmap     = 1 << 2
	regionCaps     = 1 << 3
	capSparseMmap  = 1
)

// Area is a part of a region, or of a file, that can be mapped.
type Area struct{ Offset, Size uint64 }

// RegionInfo is DEVICE_GET_REGION_INFO and its reply: argsz 4, flags 4, index 4, cap_offset 4,
// size 8, offset 8. A reply with capabilities has a list after that. Only the sparse-mmap
// capability is supported: id 2 (1), version 2 (1), next 4, nr_areas 4, reserved 4, then offset 8
// and size 8 for each area.
type RegionInfo struct {
	ArgSize, Flags, Index uint32
	Size, Offset          uint64
	Areas                 []Area // of the sparse-mmap capability
	// Sparse is set if the reply has the capability, even without an area.
	Sparse bool
}

const (
	regionInfoSize = 32
	capHeaderSize  = 8
	sparseCapSize  = 16
)

// needed returns the size of the payload with its capability.
func (m RegionInfo) needed() int {
	if !m.Sparse {
		return regionInfoSize
	}
	return regionInfoSize + sparseCapSize + 16*len(m.Areas)
}

// Append appends the payload, with the capability if m.Sparse is set.
func (m RegionInfo) Append(b []byte) []byte {
	flags, offset := m.Flags&^regionCaps, uint32(0)
	if m.Sparse {
		flags, offset = flags|regionCaps, regionInfoSize
	}
	b = append4(b, m.ArgSize, flags, m.Index, offset)
	b = order.AppendUint64(b, m.Size)
	b = order.AppendUint64(b, m.Offset)
	if !m.Sparse {
		return b
	}
	b = order.AppendUint16(b, capSparseMmap)
	b = order.AppendUint16(b, 1)
	b = append4(b, 0, uint32(len(m.Areas)), 0)
	for _, a := range m.Areas {
		b = order.AppendUint64(b, a.Offset)
		b = order.AppendUint64(b, a.Size)
	}
	return b
}

// DecodeRegionInfo decodes a DEVICE_GET_REGION_INFO or its reply. It follows the list of
// capabilities only forwards, so that a peer cannot make it loop.
func DecodeRegionInfo(b []byte) (RegionInfo, error) {
	if len(b) < regionInfoSize {
		return RegionInfo{}, short("DEVICE_GET_REGION_INFO", len(b), regionInfoSize)
	}
	m := RegionInfo{ArgSize: order.Uint32(b), Flags: order.Uint32(b[4:]), Index: order.Uint32(b[8:]), Size: order.Uint64(b[16:]), Offset: order.Uint64(b[24:])}
	if m.Flags&regionCaps == 0 {
		return m, nil
	}
	for at, last := uint64(order.Uint32(b[12:])), uint64(regionInfoSize-1); at != 0; {
		if at <= last || at+capHeaderSize > uint64(len(b)) {
			return m, fmt.Errorf("region %d: capability at %d of %d bytes: %w", m.Index, at, len(b), ErrMalformed)
		}
		c := b[at:]
		if order.Uint16(c) == capSparseMmap && order.Uint16(c[2:]) == 1 {
			if len(c) < sparseCapSize {
				return m, fmt.Errorf("region %d: sparse-mmap capability: %w", m.Index, ErrShort)
			}
			n := uint64(order.Uint32(c[8:]))
			if n > uint64(len(c)-sparseCapSize)/16 {
				return m, fmt.Errorf("region %d: %d sparse areas in %d bytes: %w", m.Index, n, len(c), ErrShort)
			}
			m.Sparse, m.Areas = true, nil
			for i := range n {
				a := c[sparseCapSize+16*i:]
				m.Areas = append(m.Areas, Area{order.Uint64(a), order.Uint64(a[8:])})
			}
		}
		last, at = at, uint64(order.Uint32(c[4:]))
	}
	return m, nil
}

// SubRegion is a part of a region whose writes are signalled through a descriptor (spec,
// "VFIO_USER_DEVICE_GET_REGION_IO_FDS"): offset 8, size 8, fd_index 4, type 4, flags 4, padding
// 4, datamatch or user_data 8.
type SubRegion struct {
	Offset, Size         uint64
	FDIndex, Type, Flags uint32
	Data                 uint64
}

// Type and flag of a SubRegion. The values of the types are libvfio-user's, since the
// specification has none. The flag is KVM's, linux/kvm.h.
const (
	TypeIOEventFD  = 0
	TypeIORegionFD = 1
	FlagDataMatch  = 1 << 0
)

const (
	regionIOSize  = 16
	subRegionSize = 40
)

// RegionIOFDs is DEVICE_GET_REGION_IO_FDS and its reply: argsz 4, flags 4, index
// 4, count 4, sub-regions.
type RegionIOFDs struct {
	ArgSize, Flags, Index, Count uint32
	SubRegions                   []SubRegion
}

// Append appends the payload with its sub-regions.
func (m RegionIOFDs) Append(b []byte) []byte {
	b = append4(b, m.ArgSize, m.Flags, m.Index, m.Count)
	for _, s := range m.SubRegions {
		b = order.AppendUint64(b, s.Offset)
		b = order.AppendUint64(b, s.Size)
		b = append4(b, s.FDIndex, s.Type, s.Flags, 0)
		b = order.AppendUint64(b, s.Data)
	}
	return b
}

// DecodeRegionIOFDs decodes a DEVICE_GET_REGION_IO_FDS or its reply. A reply that only states the
// count has no sub-regions.
func DecodeRegionIOFDs(b []byte) (RegionIOFDs, error) {
	if len(b) < regionIOSize {
		return RegionIOFDs{}, short("DEVICE_GET_REGION_IO_FDS", len(b), regionIOSize)
	}
	m := RegionIOFDs{ArgSize: order.Uint32(b), Flags: order.Uint32(b[4:]), Index: order.Uint32(b[8:]), Count: order.Uint32(b[12:])}
	b = b[regionIOSize:]
	if len(b) == 0 {
		return m, nil
	}
	if uint64(len(b)) != subRegionSize*uint64(m.Count) {
		return m, fmt.Errorf("%d sub-regions in %d bytes: %w", m.Count, len(b), ErrMalformed)
	}
	for ; len(b) > 0; b = b[subRegionSize:] {
		m.SubRegions = append(m.SubRegions, SubRegion{order.Uint64(b), order.Uint64(b[8:]), order.Uint32(b[16:]), order.Uint32(b[20:]), order.Uint32(b[24:]), order.Uint64(b[32:])})
	}
	return m, nil
}

// Flags of IRQInfo (linux/vfio.h).
const (
	IRQEventFD    = 1 << 0
	IRQMaskable   = 1 << 1
	IRQAutomasked = 1 << 2
	IRQNoResize   = 1 << 3
)

// IRQInfo is DEVICE_GET_IRQ_INFO and its reply: argsz 4, flags 4, index 4,
// count 4.
type IRQInfo struct{ ArgSize, Flags, Index, Count uint32 }

const irqInfoSize = 16

// Append appends the 16 bytes.
func (m IRQInfo) Append(b []byte) []byte { return append4(b, m.ArgSize, m.Flags, m.Index, m.Count) }

// DecodeIRQInfo decodes a DEVICE_GET_IRQ_INFO or its reply.
func DecodeIRQInfo(b []byte) (IRQInfo, error) {
	if len(b) != irqInfoSize {
		return IRQInfo{}, short("DEVICE_GET_IRQ_INFO", len(b), irqInfoSize)
	}
	return IRQInfo{order.Uint32(b), order.Uint32(b[4:]), order.Uint32(b[8:]), order.Uint32(b[12:])}, nil
}

// Flags of IRQSet: exactly one of each kind (linux/vfio.h).
const (
	IRQDataNone      = 1 << 0
	IRQDataBool      = 1 << 1
	IRQDataEventFD   = 1 << 2
	IRQActionMask    = 1 << 3
	IRQActionUnmask  = 1 << 4
	IRQActionTrigger = 1 << 5

	irqDataMask   = IRQDataNone | IRQDataBool | IRQDataEventFD
	irqActionMask = IRQActionMask | IRQActionUnmask | IRQActionTrigger
)

// IRQSet is DEVICE_SET_IRQS, which has no reply payload: argsz 4, flags 4, index 4, start 4,
// count 4, then with IRQDataBool a byte for each interrupt.
type IRQSet struct {
	ArgSize, Flags, Index, Start, Count uint32
	Bools                               []byte // shares the message's bytes
}

const irqSetSize = 20

// Append appends the payload.
func (m IRQSet) Append(b []byte) []byte {
	b = append4(b, m.ArgSize, m.Flags, m.Index, m.Start, m.Count)
	return append(b, m.Bools...)
}

// DecodeIRQSet decodes a DEVICE_SET_IRQS: one kind of data, one action, and bytes exactly if the
// flags say so.
func DecodeIRQSet(b []byte) (IRQSet, error) {
	if len(b) < irqSetSize {
		return IRQSet{}, short("DEVICE_SET_IRQS", len(b), irqSetSize)
	}
	m := IRQSet{order.Uint32(b), order.Uint32(b[4:]), order.Uint32(b[8:]), order.Uint32(b[12:]), order.Uint32(b[16:]), b[irqSetSize:]}
	if m.ArgSize < irqSetSize {
		return m, fmt.Errorf("DEVICE_SET_IRQS with argsz %d: %w", m.ArgSize, ErrMalformed)
	}
	data, action := m.Flags&irqDataMask, m.Flags&irqActionMask
	if data == 0 || data&(data-1) != 0 || action == 0 || action&(action-1) != 0 || m.Flags&^(irqDataMask|irqActionMask) != 0 {
		return m, fmt.Errorf("DEVICE_SET_IRQS with flags %#x, must be one kind of data and one action: %w", m.Flags, ErrMalformed)
	}
	want := uint64(0)
	if data == IRQDataBool {
		want = uint64(m.Count)
	}
	if uint64(len(m.Bools)) != want {
		return m, fmt.Errorf("DEVICE_SET_IRQS with %d bytes of data, must be %d: %w", len(m.Bools), want, ErrMalformed)
	}
	return m, nil
}

// RegionAccess begins REGION_READ, REGION_WRITE and their replies: offset 8, region 4, count 4.
// The data follows in a write and in the reply to a read.
type RegionAccess struct {
	Offset        uint64
	Region, Count uint32
}

const regionAccessSize = 16

// Append appends the 16 bytes.
func (m RegionAccess) Append(b []byte) []byte {
	b = order.AppendUint64(b, m.Offset)
	b = order.AppendUint32(b, m.Region)
	return order.AppendUint32(b, m.Count)
}

// DecodeRegionAccess decodes the 16 bytes and returns the bytes after them.
func DecodeRegionAccess(b []byte) (RegionAccess, []byte, error) {
	if len(b) < regionAccessSize {
		return RegionAccess{}, nil, short("region access", len(b), regionAccessSize)
	}
	return RegionAccess{order.Uint64(b), order.Uint32(b[8:]), order.Uint32(b[12:])}, b[regionAccessSize:], nil
}

// DMAAccess begins DMA_READ, DMA_WRITE and their replies: address 8, count 8. The data follows in
// a write and in the reply to a read.
type DMAAccess struct{ Address, Count uint64 }

const (
	dmaAccessSize = 16
	// The specification's table of DMA_WRITE's reply has a count of 4 bytes (spec,
	// "VFIO_USER_DMA_WRITE"), every implementation one of 8: we read both and write 8.
	dmaWriteReplySize = 12
)

// Append appends the 16 bytes.
func (m DMAAccess) Append(b []byte) []byte {
	b = order.AppendUint64(b, m.Address)
	return order.AppendUint64(b, m.Count)
}

// DecodeDMAAccess decodes the 16 bytes and returns the bytes after them.
func DecodeDMAAccess(b []byte) (DMAAccess, []byte, error) {
	if len(b) < dmaAccessSize {
		return DMAAccess{}, nil, short("DMA access", len(b), dmaAccessSize)
	}
	return DMAAccess{order.Uint64(b), order.Uint64(b[8:])}, b[dmaAccessSize:], nil
}

// decodeDMAWriteReply decodes DMA_WRITE's reply in either of its two sizes.
func decodeDMAWriteReply(b []byte) (DMAAccess, error) {
	if len(b) == dmaWriteReplySize {
		return DMAAccess{order.Uint64(b), uint64(order.Uint32(b[8:]))}, nil
	}
	m, rest, err := DecodeDMAAccess(b)
	if err == nil && len(rest) != 0 {
		err = fmt.Errorf("reply to DMA_WRITE of %d bytes: %w", len(b), ErrMalformed)
	}
	return m, err
}

// Write is one of the writes of REGION_WRITE_MULTI: offset 8, region 4, count 4 (at most 8), data
// 8.
type Write struct {
	Offset        uint64
	Region, Count uint32
	Data          [8]byte
}

const (
	writeMultiHead = 8
	writeMultiSize = 24
)

// AppendWrites appends the payload of REGION_WRITE_MULTI: wr_cnt 8, the writes.
func AppendWrites(b []byte, ws []Write) []byte {
	b = order.AppendUint64(b, uint64(len(ws)))
	for _, w := range ws {
		b = order.AppendUint64(b, w.Offset)
		b = order.AppendUint32(b, w.Region)
		b = order.AppendUint32(b, w.Count)
		b = append(b, w.Data[:]...)
	}
	return b
}

// decodeWrites checks the frame of a REGION_WRITE_MULTI and returns the number of its writes;
// decodeWrite decodes the i-th.
func decodeWrites(b []byte) (int, error) {
	if len(b) < writeMultiHead {
		return 0, short("REGION_WRITE_MULTI", len(b), writeMultiHead)
	}
	n, rest := order.Uint64(b), uint64(len(b)-writeMultiHead)
	if rest%writeMultiSize != 0 || rest/writeMultiSize != n {
		return 0, fmt.Errorf("REGION_WRITE_MULTI of %d writes in %d bytes: %w", n, len(b), ErrMalformed)
	}
	return int(n), nil
}

func decodeWrite(b []byte, i int) Write {
	b = b[writeMultiHead+writeMultiSize*i:]
	w := Write{Offset: order.Uint64(b), Region: order.Uint32(b[8:]), Count: order.Uint32(b[12:])}
	copy(w.Data[:], b[16:])
	return w
}

// Flags of Feature (spec, "VFIO_USER_DEVICE_FEATURE").
const (
	FeatureMask  = 0xffff
	FeatureGet   = 1 << 16
	FeatureSet   = 1 << 17
	FeatureProbe = 1 << 18
)

// Feature begins DEVICE_FEATURE and its reply: argsz 4, flags 4; data follows. The server
// supports no feature: all of them belong to migration.
type Feature struct{ ArgSize, Flags uint32 }

const featureSize = 8

// DecodeFeature decodes the 8 bytes and returns the bytes after them.
func DecodeFeature(b []byte) (Feature, []byte, error) {
	if len(b) < featureSize {
		return Feature{}, nil, short("DEVICE_FEATURE", len(b), featureSize)
	}
	m := Feature{order.Uint32(b), order.Uint32(b[4:])}
	if m.ArgSize < featureSize || m.Flags&(FeatureGet|FeatureSet|FeatureProbe) == 0 ||
		m.Flags&^(FeatureMask|FeatureGet|FeatureSet|FeatureProbe) != 0 ||
		m.Flags&FeatureProbe == 0 && m.Flags&FeatureGet != 0 && m.Flags&FeatureSet != 0 {
		return m, nil, fmt.Errorf("DEVICE_FEATURE with argsz %d, flags %#x: %w", m.ArgSize, m.Flags, ErrMalformed)
	}
	return m, b[featureSize:], nil
}
