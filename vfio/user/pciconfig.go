package user

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// Identity is the identification of a PCI device in its header.
type Identity struct {
	Vendor, Device       uint16
	SubVendor, SubDevice uint16 // both zero: Vendor and Device
	Class                uint32 // 24 bits: base class, sub-class, interface
	Revision             uint8
}

// BAR is one of the six memory BARs of a device.
type BAR struct {
	Size         uint64 // a power of two, at least 16; 0: the BAR is absent
	Is64         bool   // uses the next BAR too, which must be absent
	Prefetchable bool
	// Areas are the parts that a client may map, in whole pages; without them every access is a
	// message. The client maps FD at FDOffset plus the area's offset. FD is a memfd of the
	// embedding program that is sealed against shrinking. Accesses to a mapped area cannot be
	// refused while memory decode is off.
	Areas    []Area
	FD       int
	FDOffset uint64
}

// MSIX places the vector table and the pending bits in a BAR.
type MSIX struct {
	Vectors int // 1 to 2048
	BAR     int
	Table   uint64 // offset in the BAR, a multiple of 8; 16 bytes for each vector
	PBA     uint64 // likewise; 8 bytes for each 64 vectors, rounded up
}

// Offsets and bits of configuration space (PCI Express Base 5.0, 7.5; names as in
// linux/pci_regs.h). The places of the capabilities are defined by this project.
const (
	configSize = 4096

	cfgVendor      = 0x00
	cfgCommand     = 0x04
	cfgStatus      = 0x06
	cfgRevision    = 0x08
	cfgCacheLine   = 0x0c
	cfgBAR0        = 0x10
	cfgSubVendor   = 0x2c
	cfgCapPtr      = 0x34
	cfgIntLine     = 0x3c
	statusCapList  = 0x10
	cfgFirstCap    = 0x40 // capabilities lie after the header, 4-byte aligned
	maxCaps        = (256 - cfgFirstCap) / 4
	barIs64        = 0x4
	barPrefetch    = 0x8
	barFlagMask    = 0xf
	capIDPM        = 0x01
	capIDMSIX      = 0x11
	capIDExpress   = 0x10
	capPM          = 0x40 // 8 bytes
	capMSIX        = 0x48 // 12 bytes
	capExpress     = 0x60 // 60 bytes
	pmControl      = capPM + 4
	msixControl    = capMSIX + 2
	expDevCap      = capExpress + 4
	expDevControl  = capExpress + 8
	expLinkCap     = capExpress + 0xc
	expLinkControl = capExpress + 0x10
	expLinkStatus  = capExpress + 0x12
	expDevCap2     = capExpress + 0x24
	expDevControl2 = capExpress + 0x28
	expLinkCap2    = capExpress + 0x2c
	expLinkCtl2    = capExpress + 0x30

	// Bits of the command register: memory space, bus master, and those that are stored without
	// effect: parity error response, SERR#, INTx disable.
	CommandMemory = 1 << 1
	CommandMaster = 1 << 2
	commandMask   = CommandMemory | CommandMaster | 1<<6 | 1<<8 | 1<<10

	pmStateMask    = 3      // PMCSR 1:0: D0 is 0, D3hot 3; there is no D1 or D2
	pmNoSoftReset  = 1 << 3 // D3hot to D0 keeps the state
	pmVersion3     = 3
	msixEnable     = 1 << 15
	msixFuncMask   = 1 << 14
	expVersion2    = 2
	expRoleBased   = 1 << 15
	expFLR         = 1 << 28 // device capabilities
	expInitiateFLR = 1 << 15 // device control
	// Device control: error enables, relaxed ordering, payload size, extended
	// tags, no snoop, read request size.
	expDevControlMask  = 0x79ff
	expDevControlReset = 0x2810
	expLinkControlMask = 0x00cb // ASPM, read completion boundary, common clock, extended sync
	expDevControl2Mask = 0x001f // completion timeout value and disable
	expLinkCtl2Mask    = 0x000f // target link speed
)

// pciConfig is the configuration space of a type 0 function with power management, MSI-X and PCI
// Express capabilities. It is plain data: store returns what a write asks for, and its caller
// acts on that.
type pciConfig struct {
	b     [configSize]byte
	write [configSize]byte // bits that a write changes
	reset [configSize]byte
	bars  [6]BAR
	msix  MSIX
}

// configEvent is an action that a write to configuration space asks for.
type configEvent uint8

const (
	configFLR      configEvent = 1 << iota // initiate a function level reset
	configDelivery                         // bus mastering, power state or MSI-X control changed
)

// newConfig lays out the space. It refuses BARs and MSI-X places that hardware could not have.
func newConfig(id Identity, bars [6]BAR, msix MSIX) (*pciConfig, error) {
	c := &pciConfig{bars: bars, msix: msix}
	if id.SubVendor == 0 && id.SubDevice == 0 {
		id.SubVendor, id.SubDevice = id.Vendor, id.Device
	}
	c.put16(cfgVendor, id.Vendor, 0)
	c.put16(cfgVendor+2, id.Device, 0)
	c.put16(cfgCommand, 0, commandMask)
	c.put16(cfgStatus, statusCapList, 0)
	c.put32(cfgRevision, id.Class<<8|uint32(id.Revision), 0)
	c.put32(cfgCacheLine, 0, 0xff)
	c.put16(cfgSubVendor, id.SubVendor, 0)
	c.put16(cfgSubVendor+2, id.SubDevice, 0)
	c.put32(cfgCapPtr, capPM, 0)
	c.put32(cfgIntLine, 0, 0xff) // no INTx pin
	for i := 0; i < len(bars); i++ {
		if err := c.layBAR(i); err != nil {
			return nil, err
		}
		if bars[i].Size != 0 && bars[i].Is64 {
			i++ // the upper half belongs to it
		}
	}
	if err := c.checkMSIX(); err != nil {
		return nil, err
	}

	c.put16(capPM, capIDPM|capMSIX<<8, 0)
	c.put16(capPM+2, pmVersion3, 0)
	c.put32(pmControl, pmNoSoftReset, pmStateMask)

	c.put16(capMSIX, capIDMSIX|capExpress<<8, 0)
	c.put16(msixControl, uint16(msix.Vectors-1), msixEnable|msixFuncMask)
	c.put32(capMSIX+4, uint32(msix.Table)|uint32(msix.BAR), 0)
	c.put32(capMSIX+8, uint32(msix.PBA)|uint32(msix.BAR), 0)

	c.put16(capExpress, capIDExpress, 0)
	c.put16(capExpress+2, expVersion2, 0) // type 0: endpoint
	c.put32(expDevCap, expRoleBased|expFLR, 0)
	c.put16(expDevControl, expDevControlReset, expDevControlMask)
	c.put32(expLinkCap, 1|1<<4, 0) // 2.5 GT/s, one lane: without effect
	c.put16(expLinkControl, 0, expLinkControlMask)
	c.put16(expLinkStatus, 1|1<<4, 0)
	c.put32(expDevCap2, 1<<4, 0) // completion timeout can be disabled
	c.put16(expDevControl2, 0, expDevControl2Mask)
	c.put32(expLinkCap2, 1<<1, 0)
	c.put16(expLinkCtl2, 1, expLinkCtl2Mask)
	c.b = c.reset
	return c, nil
}

func (c *pciConfig) put16(at int, reset, write uint16) {
	binary.LittleEndian.PutUint16(c.reset[at:], reset)
	binary.LittleEndian.PutUint16(c.write[at:], write)
}

func (c *pciConfig) put32(at int, reset, write uint32) {
	binary.LittleEndian.PutUint32(c.reset[at:], reset)
	binary.LittleEndian.PutUint32(c.write[at:], write)
}

// layBAR sets a BAR's flag bits and makes the address bits above its size writable, from which a
// client learns the size.
func (c *pciConfig) layBAR(i int) error {
	bar := c.bars[i]
	if bar.Size == 0 {
		if len(bar.Areas) > 0 {
			return fmt.Errorf("BAR %d: areas without a size", i)
		}
		return nil
	}
	if bar.Size < 16 || bits.OnesCount64(bar.Size) != 1 {
		return fmt.Errorf("BAR %d: size %#x, must be a power of two, at least 16", i, bar.Size)
	}
	if !bar.Is64 && bar.Size > 1<<31 {
		return fmt.Errorf("BAR %d: size %#x needs a 64-bit BAR", i, bar.Size)
	}
	end := uint64(0)
	for _, a := range bar.Areas {
		if a.Size == 0 || (a.Offset|a.Size|bar.FDOffset)%4096 != 0 || a.Offset < end || a.Size > bar.Size || a.Offset > bar.Size-a.Size {
			return fmt.Errorf("BAR %d: area %#x+%#x, must be whole pages inside the BAR, in order, without overlap", i, a.Offset, a.Size)
		}
		end = a.Offset + a.Size
	}
	at, flags := cfgBAR0+4*i, uint32(0)
	if bar.Prefetchable {
		flags |= barPrefetch
	}
	mask := ^(bar.Size - 1)
	if bar.Is64 {
		if i == 5 || c.bars[i+1].Size != 0 {
			return fmt.Errorf("BAR %d: 64 bits need the next BAR, which is in use or does not exist", i)
		}
		flags |= barIs64
		c.put32(at+4, 0, uint32(mask>>32))
	}
	c.put32(at, flags, uint32(mask)&^barFlagMask)
	return nil
}

func (c *pciConfig) checkMSIX() error {
	m := c.msix
	if m.Vectors < 1 || m.Vectors > 2048 {
		return fmt.Errorf("MSI-X with %d vectors, must be 1 to 2048", m.Vectors)
	}
	if m.BAR < 0 || m.BAR > 5 || c.bars[m.BAR].Size == 0 {
		return fmt.Errorf("MSI-X in BAR %d, which does not exist", m.BAR)
	}
	size, table, pba := c.bars[m.BAR].Size, m.tableSize(), m.pbaSize()
	if (m.Table|m.PBA)%8 != 0 || table > size || m.Table > size-table || pba > size || m.PBA > size-pba ||
		m.Table < m.PBA+pba && m.PBA < m.Table+table {
		return fmt.Errorf("MSI-X table at %#x and pending bits at %#x, must be multiples of 8, without overlap, in %#x bytes", m.Table, m.PBA, size)
	}
	return nil
}

func (m MSIX) tableSize() uint64 { return 16 * uint64(m.Vectors) }
func (m MSIX) pbaSize() uint64   { return 8 * uint64((m.Vectors+63)/64) }

// restore sets every register to its value after a reset.
func (c *pciConfig) restore() { c.b = c.reset }

// read copies len(p) bytes from the offset, which the caller has checked.
func (c *pciConfig) read(p []byte, offset uint64) { copy(p, c.b[offset:]) }

// store writes len(p) bytes at the offset, which the caller has checked. Read-only bits keep
// their value.
func (c *pciConfig) store(p []byte, offset uint64) configEvent {
	before := c.delivery()
	pm := c.b[pmControl]
	var event configEvent
	for i, v := range p {
		at := int(offset) + i
		if at == expDevControl+1 && v&(expInitiateFLR>>8) != 0 {
			event |= configFLR
		}
		c.b[at] = c.b[at]&^c.write[at] | v&c.write[at]
	}
	// A write of an unsupported power state changes nothing (PCI Power Management 1.2, 3.2.4).
	if s := c.b[pmControl] & pmStateMask; s == 1 || s == 2 {
		c.b[pmControl] = pm
	}
	if c.delivery() != before {
		event |= configDelivery
	}
	return event
}

func (c *pciConfig) command() uint16 { return binary.LittleEndian.Uint16(c.b[cfgCommand:]) }
func (c *pciConfig) awake() bool     { return c.b[pmControl]&pmStateMask == 0 }

// memory reports whether the BARs answer.
func (c *pciConfig) memory() bool { return c.command()&CommandMemory != 0 && c.awake() }

// master reports whether the device may access memory, MSI-X messages included.
func (c *pciConfig) master() bool { return c.command()&CommandMaster != 0 && c.awake() }

func (c *pciConfig) functionMasked() bool {
	return binary.LittleEndian.Uint16(c.b[msixControl:])&msixFuncMask != 0
}

// delivery returns the state that interrupts and DMA depend on.
func (c *pciConfig) delivery() [2]bool { return [2]bool{c.master(), c.functionMasked()} }
