package soc_test

import "github.com/exanet/pfd/device"

// model is a node made only of the register map: each register keeps what its masks allow, and
// nothing else happens except CTRL.reset, FSRRESTORE and the latched causes of IRQ_STATUS. It is
// for one goroutine; newModel creates it.
type model struct {
	regs map[slot]uint64
	mem  map[uint32]uint32 // btcm, by word
	caps uint64
	bad  uint64
}

type slot struct {
	w  device.WindowID
	at uint32
}

// newModel returns a model in its reset state with these capabilities (the value of CAPS).
func newModel(caps uint64) *model {
	return &model{regs: make(map[slot]uint64), mem: make(map[uint32]uint32), caps: caps}
}

// Window returns one of the model's windows.
func (m *model) Window(w device.WindowID) device.Window { return device.Window{Access: window{m, w}} }

func (m *model) value(r device.Register, i int) uint64 {
	v, ok := m.regs[slot{r.Window, r.At(i)}]
	switch {
	case r.Name == "CAPS":
		v = m.caps
	case r.Window == device.PL && r.At(i) == device.BadAccess.Offset():
		v = m.bad
	case r.Name == "IRQ_STATUS":
		v |= m.causes()
	case !ok:
		v = r.ResetAt(i)
	}
	read, _, _ := r.Masks(m.caps)
	return v & read
}

// causes returns the vectors whose cause holds; the model implements only faults.
func (m *model) causes() uint64 {
	for i := range device.Slots {
		if m.regs[slot{device.SMMU, device.Bank(i, device.FSR)}] != 0 &&
			m.regs[slot{device.SMMU, device.Bank(i, device.SCTLR)}]&device.SCTLRCFIE != 0 {
			return 1 << device.VectorFault
		}
	}
	return 0
}

func (m *model) store(r device.Register, i int, v, lanes uint64) {
	status := slot{device.PL, device.PLIRQStatus}
	_, write, w1c := r.Masks(m.caps)
	write &= lanes
	at := slot{r.Window, r.At(i)}
	m.regs[at] = m.value(r, i)&^write&^(v&w1c&lanes) | v&write
	switch {
	case r.Name == "CTRL" && v&device.CtrlReset != 0:
		for k := range m.regs {
			if t, _, ok := device.Lookup(k.w, k.at); ok && resetByCtrl(t) {
				delete(m.regs, k)
			}
		}
		clear(m.mem)
	case r.Name == "CB_FSRRESTORE":
		m.regs[slot{device.SMMU, device.Bank(i, device.FSR)}] |= v & r.Act
	}
	m.regs[status] |= m.causes()
}

// memory returns a word of btcm.
func (m *model) memory(at uint32) uint32 {
	if v, ok := m.mem[at]; ok {
		return v
	}
	r, i, ok := device.Lookup(device.BTCM, at)
	if !ok {
		return 0
	}
	return uint32(r.ResetAt(i) >> (8 * (at - r.At(i))))
}

type window struct {
	m *model
	w device.WindowID
}

func (w window) inMemory(offset uint32, width int) bool {
	return w.w == device.BTCM && offset%uint32(width) == 0 && offset < w.w.Size()
}

func (w window) load(offset uint32, width int) uint64 {
	if w.inMemory(offset, width) {
		v := uint64(w.m.memory(offset))
		if width == 8 {
			v |= uint64(w.m.memory(offset+4)) << 32
		}
		return v
	}
	t, ok := device.Resolve(w.w, offset, width)
	if !ok {
		w.m.bad++
		return 0
	}
	v := w.m.value(t.Register, t.Index) >> t.Shift
	if t.Pair {
		next, i, _ := device.Lookup(w.w, offset+4)
		v |= w.m.value(next, i) << 32
	}
	return v
}

func (w window) store(offset uint32, width int, v uint64) {
	if w.inMemory(offset, width) {
		if r, _, ok := device.Lookup(w.w, offset); ok && r.Act != 0 {
			return // a doorbell is consumed at once
		}
		w.m.mem[offset] = uint32(v)
		if width == 8 {
			w.m.mem[offset+4] = uint32(v >> 32)
		}
		return
	}
	t, ok := device.Resolve(w.w, offset, width)
	if !ok {
		w.m.bad++
		return
	}
	lanes := ^uint64(0) >> (64 - 8*width) << t.Shift
	w.m.store(t.Register, t.Index, v<<t.Shift, lanes)
	if t.Pair {
		next, i, _ := device.Lookup(w.w, offset+4)
		w.m.store(next, i, v>>32, lanes)
	}
}

// Load implements device.Access.
func (w window) Load(offset uint32, width int) (uint64, error) { return w.load(offset, width), nil }

// Store implements device.Access.
func (w window) Store(offset uint32, width int, v uint64) error {
	w.store(offset, width, v)
	return nil
}
