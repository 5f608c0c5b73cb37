package uio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/mmio"
)

// Configuration space (PCI 3.0, 6.2).
const (
	configID      = 0
	configCommand = 4
	// Bits of the command register.
	commandMemory = 1 << 1
	commandMaster = 1 << 2
)

// Device is a device with its windows. Its methods are safe for concurrent use, except Close;
// the result of Bytes must not be used after Close.
type Device struct {
	name    string
	place   place
	file    *os.File // of UIO; its lock is the ownership of the device
	config  *os.File // a PCI function's configuration space, or nil
	id      uint32
	mapped  [][]byte
	windows [][]byte

	end *mmio.End
}

// Open opens a device by its name, as uio0, or the address of a PCI function, and maps the
// requested windows. It resets a PCI function and enables its memory and bus mastering, which
// the driver leaves off. Errors are *Error and match those of this package.
func Open(name string, windows []Window) (*Device, error) { return open("/", name, windows) }

func open(root, name string, windows []Window) (*Device, error) {
	d := &Device{name: name, end: mmio.NewEnd("uio " + name)}
	if err := d.open(root, windows); err != nil {
		d.Close()
		return nil, explain(root, name, err)
	}
	return d, nil
}

func (d *Device) open(root string, want []Window) error {
	var err error
	if d.place, err = find(root, d.name); err != nil {
		return err
	}
	if err = d.place.bare(); err != nil {
		return err
	}
	if d.file, err = openFile(d.place.file()); err != nil {
		return err
	}
	if err = unix.Flock(int(d.file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return os.NewSyscallError("flock", err)
	}
	if d.place.pci != "" {
		if err = d.begin(); err != nil {
			return err
		}
	}
	list, err := d.place.windows(want)
	if err != nil {
		return err
	}
	for _, w := range list {
		if err := d.mmap(w); err != nil {
			return err
		}
	}
	return nil
}

// openFile opens a file without registering it for polling: UIO's file polls as an error if the
// device has no interrupt.
func openFile(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// begin resets the function, and enables its memory and bus mastering.
func (d *Device) begin() error {
	reset := filepath.Join(d.place.dir, "reset")
	if exists(reset) { // the function can be reset
		if err := os.WriteFile(reset, []byte("1"), 0); err != nil {
			return err
		}
	}
	var err error
	if d.config, err = openFile(filepath.Join(d.place.dir, "config")); err != nil {
		return err
	}
	if d.id, err = d.identity(); err != nil {
		return err
	}
	var b [2]byte
	if _, err = d.config.ReadAt(b[:], configCommand); err == nil {
		binary.LittleEndian.PutUint16(b[:], binary.LittleEndian.Uint16(b[:])|commandMemory|commandMaster)
		_, err = d.config.WriteAt(b[:], configCommand)
	}
	return err
}

func (d *Device) identity() (uint32, error) {
	var b [4]byte
	_, err := d.config.ReadAt(b[:], configID)
	return binary.LittleEndian.Uint32(b[:]), err
}

func (d *Device) mmap(w window) error {
	fd := int(d.file.Fd())
	if w.path != d.place.file() {
		f, err := openFile(w.path)
		if err != nil {
			return err
		}
		defer f.Close() // the mapping stays valid
		fd = int(f.Fd())
	}
	b, err := unix.Mmap(fd, int64(w.offset), int(w.skip+w.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return &os.PathError{Op: "mmap", Path: w.path, Err: err}
	}
	d.mapped = append(d.mapped, b)
	d.windows = append(d.windows, b[w.skip:])
	return nil
}

// ID returns the vendor of a PCI function in [15:0] and the device in [31:16]; 0 for other
// devices.
func (d *Device) ID() uint32 { return d.id }

// Bytes returns a window.
func (d *Device) Bytes(i int) []byte { return d.windows[i] }

// access returns an error for an access outside a window.
func (d *Device) access(i int, off uint64, size int) ([]byte, error) {
	if i < 0 || i >= len(d.windows) || size < 1 || size > 8 || size&(size-1) != 0 ||
		off%uint64(size) != 0 || off >= uint64(len(d.windows[i])) {
		return nil, fmt.Errorf("uio %s: access of %d bytes at %#x of window %d: %w", d.name, size, off, i, unix.EINVAL)
	}
	return d.windows[i], d.Err()
}

// Read performs one load of size bytes (1, 2, 4 or 8) from a window. If a PCI function reads as
// all ones, Read checks whether it is gone: a removed function reads so.
func (d *Device) Read(i int, off uint64, size int) (uint64, error) {
	b, err := d.access(i, off, size)
	if err != nil {
		return 0, err
	}
	v, err := mmio.Load(b, off, size)
	if err != nil {
		return 0, d.end.Fail(fmt.Errorf("read window %d, %#x: %w", i, off, err))
	}
	if v == ^uint64(0)>>(64-8*size) && d.config != nil {
		if id, err := d.identity(); err != nil || id == 1<<32-1 {
			return 0, d.end.Fail(errors.Join(errors.New("its identity reads all ones"), err))
		}
	}
	return v, nil
}

// Post performs one store, which the device may execute later; it is complete before a later
// read returns.
func (d *Device) Post(i int, off uint64, size int, v uint64) error {
	b, err := d.access(i, off, size)
	if err != nil {
		return err
	}
	if err := mmio.Store(b, off, size, v); err != nil {
		return d.end.Fail(fmt.Errorf("write window %d, %#x: %w", i, off, err))
	}
	return nil
}

// Done returns a channel that is closed when the device is gone; Err then returns why.
func (d *Device) Done() <-chan struct{} { return d.end.Done() }

// Err returns why the device is gone, or nil if it is not. It matches ErrGone.
func (d *Device) Err() error { return d.end.Err() }

// Close releases the device. uio_pci_generic turns bus mastering off with the last descriptor.
func (d *Device) Close() {
	_ = d.end.Fail(errors.New("closed"))
	for _, b := range d.mapped {
		_ = unix.Munmap(b) // cannot fail: unmaps exactly what was mapped
	}
	for _, f := range []*os.File{d.config, d.file} {
		if f != nil {
			_ = f.Close() // no written data can be lost
		}
	}
	d.mapped, d.windows, d.config, d.file = nil, nil, nil, nil
}
