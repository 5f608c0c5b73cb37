// Package accesslog writes one line for each access to a device's windows, with the register's
// name and its fields by name:
//
//	0.001234567 node 0 r32 pl+0x00020 IRQ_STATUS = 0x3: fault fifo
//	0.001236010 node 0 w32 smmu+0x10058 CB_FSR[0] = 0x2: tf
//
// Times are seconds; r and w are followed by the access's width in bits. A one-bit field is named
// if it is set, other fields are printed with their value if it is not zero. The log wraps a
// driver's bus; when off, it is not in the path at all.
package accesslog

import (
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/exanet/pfd/device"
)

// Log writes the lines, each with one Write. Several buses may share it.
type Log struct {
	out io.Writer
	now func() time.Duration

	mu     sync.Mutex
	line   []byte
	fields map[string][]device.Field // by window and name: Fields allocates
}

// New returns a log. now returns the time to print. Errors of Write are ignored: a lost line must
// not stop a driver.
func New(out io.Writer, now func() time.Duration) *Log {
	return &Log{out: out, now: now, fields: map[string][]device.Field{}}
}

// Bus returns bus with accesses to its windows logged.
func (l *Log) Bus(bus device.Bus, node int) device.Bus {
	b := &watchedBus{Bus: bus}
	for id := range b.windows {
		b.windows[id] = window{l, bus.Window(device.WindowID(id)), node, device.WindowID(id)}
	}
	return b
}

type watchedBus struct {
	device.Bus
	windows [device.Windows]window
}

// Window implements device.Bus.
func (b *watchedBus) Window(id device.WindowID) device.Window {
	if id >= device.Windows {
		return b.Bus.Window(id)
	}
	return device.Window{Access: &b.windows[id]}
}

type window struct {
	log  *Log
	to   device.Window
	node int
	id   device.WindowID
}

// Load implements device.Access.
func (w *window) Load(off uint32, width int) (uint64, error) {
	v, err := w.to.Load(off, width)
	w.log.access(w, 'r', width, off, v&(^uint64(0)>>(64-8*width)), err)
	return v, err
}

// Store implements device.Access.
func (w *window) Store(off uint32, width int, v uint64) error {
	err := w.to.Store(off, width, v)
	w.log.access(w, 'w', width, off, v, err)
	return err
}

// access writes one line.
func (l *Log) access(w *window, dir byte, width int, off uint32, v uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	b := strconv.AppendInt(l.line[:0], int64(now/time.Second), 10)
	b = append(b, '.')
	b = appendPadded(b, uint64(now%time.Second), 10, 9)
	b = append(b, " node "...)
	b = strconv.AppendInt(b, int64(w.node), 10)
	b = append(b, ' ', dir)
	b = strconv.AppendInt(b, int64(8*width), 10)
	b = append(b, ' ')
	b = append(b, w.id.String()...)
	b = append(b, "+0x"...)
	b = appendPadded(b, uint64(off), 16, 5)
	b = append(b, ' ')
	b = l.value(b, w.id, width, off, v, err)
	b = append(b, '\n')
	_, _ = l.out.Write(b)
	l.line = b
}

// value appends the register's name and its value.
func (l *Log) value(b []byte, id device.WindowID, width int, off uint32, v uint64, err error) []byte {
	t, ok := device.Resolve(id, off, width)
	switch r, _, known := device.Lookup(id, off); {
	case ok && t.Memory, !ok && known && r.Memory:
		b = append(b, "memory"...)
		ok = false // no fields
	case ok:
		b = appendName(b, &t.Register, t.Index)
		if t.Shift != 0 {
			b = append(b, " high half"...)
		}
	default:
		b = append(b, "BAD ACCESS"...)
	}
	var next device.Register
	if t.Pair {
		var i int
		if next, i, ok = device.Lookup(id, off+4); ok {
			b = append(b, ' ')
			b = appendName(b, &next, i)
		}
	}
	if err != nil {
		b = append(b, ": "...)
		return append(b, err.Error()...)
	}
	b = append(b, " = 0x"...)
	b = strconv.AppendUint(b, v, 16)
	if !ok {
		return b
	}
	mark := len(b)
	b = append(b, ':')
	if t.Pair {
		b = l.bits(b, &t.Register, v&(1<<32-1))
		b = l.bits(b, &next, v>>32)
	} else {
		b = l.bits(b, &t.Register, v<<uint(t.Shift))
	}
	if len(b) == mark+1 {
		b = b[:mark] // no field has anything
	}
	return b
}

func appendName(b []byte, r *device.Register, i int) []byte {
	b = append(b, r.Name...)
	if r.Count > 1 {
		b = append(b, '[')
		b = strconv.AppendInt(b, int64(i), 10)
		b = append(b, ']')
	}
	return b
}

// bits appends the fields that are not zero.
func (l *Log) bits(b []byte, r *device.Register, v uint64) []byte {
	key := r.Window.String() + "/" + r.Name
	fields, ok := l.fields[key]
	if !ok {
		fields = r.Fields()
		l.fields[key] = fields
	}
	for _, f := range fields {
		x := f.Of(v)
		if x == 0 {
			continue
		}
		b = append(b, ' ')
		b = append(b, f.Name...)
		if f.Hi != f.Lo {
			b = append(b, "=0x"...)
			b = strconv.AppendUint(b, x, 16)
		}
	}
	return b
}

func appendPadded(b []byte, v uint64, base, digits int) []byte {
	var tmp [20]byte
	s := strconv.AppendUint(tmp[:0], v, base)
	for range digits - len(s) {
		b = append(b, '0')
	}
	return append(b, s...)
}
