package fault

import "github.com/exanet/pfd/device"

// gone handles a failed access: the device is gone, and the driver stops. Serve returns the error
// to its caller.
func (d *Driver) gone(err error) {
	d.stats.Gone++
	if !d.dead {
		d.dead = true
		d.lg.Error("fault driver stopped: the device does not answer", "node", uint32(d.node), "error", err)
	}
}

func (d *Driver) read32(w device.WindowID, off uint32) uint32 {
	v, err := d.bus.Window(w).Read32(off)
	if err != nil {
		d.gone(err)
		return 0
	}
	return v
}

func (d *Driver) read64(w device.WindowID, off uint32) uint64 {
	v, err := d.bus.Window(w).Read64(off)
	if err != nil {
		d.gone(err)
		return 0
	}
	return v
}

func (d *Driver) write32(w device.WindowID, off, v uint32) {
	if err := d.bus.Window(w).Write32(off, v); err != nil {
		d.gone(err)
	}
}

// start reads the node's capabilities and mask, once.
func (d *Driver) start() bool {
	if d.ready || d.dead {
		return !d.dead
	}
	caps := d.read64(device.PL, device.PLCaps)
	d.mask = d.read32(device.PL, device.PLIRQMask)
	if d.dead {
		return false
	}
	bits := min(max(caps&device.CapsVABitsMask, device.MinVABits), device.MaxVABits)
	d.limit = 1 << (bits - device.PageShift)
	d.tx = caps&device.CapsTXFIFO != 0
	d.bare = d.timeoutSource || !d.tx
	d.ready = true
	return true
}

func (d *Driver) setMask(v uint32) {
	if v != d.mask {
		d.mask = v
		d.write32(device.PL, device.PLIRQMask, v)
	}
}

func (d *Driver) setSCTLR(n int, set, cleared uint32) {
	at := device.Bank(n, device.SCTLR)
	d.write32(device.SMMU, at, d.read32(device.SMMU, at)&^cleared|set)
}
