package emu_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"sync"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/space"
	"golang.org/x/sys/unix"
)

// remoteBus is a device.Bus that carries each register access and each vector over a socketpair to
// another bus: a driver that works on it does not depend on being in one process with the device.
// Memory stays with the device. Each vector is acknowledged before the next one of its number is sent.
type remoteBus struct {
	memory   space.Machine
	inner    device.Bus
	accesses [2]*os.File // driver's end, device's end: 14-byte requests, 8-byte answers
	vectors  [2]*os.File // device's end writes a byte a vector, driver's end reads
	windows  [device.Windows]remoteWindow

	mu    sync.Mutex
	posts []func()
	wake  chan struct{}
	end   chan struct{}
	wg    sync.WaitGroup

	// Owned by the device's goroutine.
	sent, waiting uint32
}

// requests are little-endian: op, window, offset (u32), value (u64).
const (
	opRead32 = iota
	opRead64
	opWrite32
	opWrite64
	opAcknowledge
	requestSize = 14
)

// newRemote puts a socketpair in front of inner. Close ends it.
func newRemote(inner device.Bus, memory space.Machine) (*remoteBus, error) {
	r := &remoteBus{inner: inner, memory: memory, wake: make(chan struct{}, 1), end: make(chan struct{})}
	for _, p := range []*[2]*os.File{&r.accesses, &r.vectors} {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("socketpair: %w", err)
		}
		p[0], p[1] = os.NewFile(uintptr(fds[0]), "driver"), os.NewFile(uintptr(fds[1]), "device")
	}
	for i := range r.windows {
		r.windows[i] = remoteWindow{r, device.WindowID(i)}
	}
	r.wg.Go(r.answer)
	return r, nil
}

// Close ends the bus. The driver no longer runs when it returns.
func (r *remoteBus) Close() {
	close(r.end)
	for _, f := range []*os.File{r.accesses[0], r.accesses[1], r.vectors[0], r.vectors[1]} {
		// Shutdown, not only close, so that a blocked read ends.
		if c, err := f.SyscallConn(); err == nil {
			_ = c.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
		}
	}
	r.wg.Wait()
	for _, f := range []*os.File{r.accesses[0], r.accesses[1], r.vectors[0], r.vectors[1]} {
		_ = f.Close()
	}
}

// answer is the device's end: it makes each access on the goroutine that owns the registers.
func (r *remoteBus) answer() {
	var q [requestSize]byte
	var a [8]byte
	done := make(chan struct{}, 1)
	for {
		n, err := r.accesses[1].Read(q[:])
		if err != nil || n != requestSize {
			return
		}
		op, off, v := q[0], binary.LittleEndian.Uint32(q[2:]), binary.LittleEndian.Uint64(q[6:])
		r.inner.Post(func() {
			w := r.inner.Window(device.WindowID(q[1]))
			var out uint64
			switch op {
			case opRead32:
				x, _ := w.Read32(off)
				out = uint64(x)
			case opRead64:
				out, _ = w.Read64(off)
			case opWrite32:
				_ = w.Write32(off, uint32(v))
			case opWrite64:
				_ = w.Write64(off, v)
			case opAcknowledge:
				r.acknowledged(int(v))
			}
			binary.LittleEndian.PutUint64(a[:], out)
			done <- struct{}{}
		})
		select {
		case <-done:
		case <-r.end:
			return
		}
		if _, err := r.accesses[1].Write(a[:]); err != nil {
			return
		}
	}
}

// Interrupt is the device's end of a vector. It runs on the device's goroutine.
func (r *remoteBus) Interrupt(v int) {
	bit := uint32(1) << uint(v)
	if r.sent&bit != 0 {
		r.waiting |= bit
		return
	}
	r.sent |= bit
	_, _ = r.vectors[1].Write([]byte{byte(v)})
}

func (r *remoteBus) acknowledged(v int) {
	bit := uint32(1) << uint(v)
	r.sent &^= bit
	if r.waiting&bit != 0 {
		r.waiting &^= bit
		r.Interrupt(v)
	}
}

func (r *remoteBus) access(op byte, w device.WindowID, off uint32, v uint64) (uint64, error) {
	var q [requestSize]byte
	q[0], q[1] = op, byte(w)
	binary.LittleEndian.PutUint32(q[2:], off)
	binary.LittleEndian.PutUint64(q[6:], v)
	if _, err := r.accesses[0].Write(q[:]); err != nil {
		return 0, fmt.Errorf("%w: %w", device.ErrGone, err)
	}
	var a [8]byte
	switch n, err := r.accesses[0].Read(a[:]); {
	case err != nil:
		return 0, fmt.Errorf("%w: %w", device.ErrGone, err)
	case n != len(a):
		return 0, fmt.Errorf("%w: answer of %d bytes, want %d", device.ErrGone, n, len(a))
	}
	return binary.LittleEndian.Uint64(a[:]), nil
}

// Window returns a window that sends each access as a message.
func (r *remoteBus) Window(id device.WindowID) device.Window {
	return device.Window{Access: &r.windows[id]}
}

// Post runs f on the goroutine of Serve.
func (r *remoteBus) Post(f func()) {
	r.mu.Lock()
	r.posts = append(r.posts, f)
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// PageIn makes the device page in, and runs Done on the goroutine of Serve.
func (r *remoteBus) PageIn(slot int, op *space.Op, long bool) {
	o := *op
	o.Done = func() {
		r.Post(func() {
			op.Paged, op.Started, op.Ended = o.Paged, o.Started, o.Ended
			op.Done()
		})
	}
	r.inner.Post(func() { r.memory.PageIn(slot, &o, long) })
}

// Serve runs the driver until ctx ends.
func (r *remoteBus) Serve(ctx context.Context, h device.Handler) error {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	r.wg.Go(func() { _ = r.inner.Serve(inner, r) })
	vectors := make(chan int)
	r.wg.Go(func() {
		var b [1]byte
		for {
			if n, err := r.vectors[0].Read(b[:]); err != nil || n != 1 {
				return
			}
			select {
			case vectors <- int(b[0]):
			case <-r.end:
				return
			}
		}
	})
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.end:
			return nil
		case v := <-vectors:
			// Acknowledged first, so that an event from here on interrupts again.
			if _, err := r.access(opAcknowledge, 0, 0, uint64(v)); err != nil {
				return err
			}
			h.Interrupt(v)
		case <-r.wake:
		}
		for {
			r.mu.Lock()
			posts := r.posts
			r.posts = nil
			r.mu.Unlock()
			if len(posts) == 0 {
				break
			}
			for _, f := range posts {
				f()
			}
		}
	}
}

type remoteWindow struct {
	r  *remoteBus
	id device.WindowID
}

func (w *remoteWindow) Load(off uint32, width int) (uint64, error) {
	if width == 4 {
		return w.r.access(opRead32, w.id, off, 0)
	}
	return w.r.access(opRead64, w.id, off, 0)
}

func (w *remoteWindow) Store(off uint32, width int, v uint64) (err error) {
	if width == 4 {
		_, err = w.r.access(opWrite32, w.id, off, v)
	} else {
		_, err = w.r.access(opWrite64, w.id, off, v)
	}
	return err
}
