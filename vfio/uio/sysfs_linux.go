package uio

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// pciDriver is the driver of PCI functions, boardDriver that of nodes of the device tree.
const (
	pciDriver   = "uio_pci_generic"
	boardDriver = "uio_pdrv_genirq"
)

var (
	nameForm    = regexp.MustCompile(`^uio[0-9]{1,6}$`)
	addressForm = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-1][0-9a-f]\.[0-7]$`)
)

// CheckName returns nil if name is a UIO device, as uio0, or a PCI address. Errors match
// ErrName.
func CheckName(name string) error {
	if !nameForm.MatchString(name) && !addressForm.MatchString(name) {
		return fmt.Errorf("%w: %q: want uio0 (ls /sys/class/uio), or the address of a PCI function as 0000:01:00.0 (lspci -D)", ErrName, name)
	}
	return nil
}

// place has the paths and names of a device.
type place struct {
	root string
	uio  string // as uio0
	dir  string // of the device, in sysfs
	pci  string // its address; "": not a PCI function
}

func (p place) file() string { return filepath.Join(p.root, "dev", p.uio) }

// find finds a device in the sysfs below root.
func find(root, name string) (place, error) {
	if err := CheckName(name); err != nil {
		return place{}, err
	}
	p := place{root: root}
	if nameForm.MatchString(name) {
		p.uio, p.dir = name, filepath.Join(root, "sys/class/uio", name, "device")
		if !exists(filepath.Dir(p.dir)) {
			if !exists(filepath.Join(root, "sys/class/uio")) {
				return p, ErrModule
			}
			return p, ErrNoDevice
		}
		if exists(filepath.Join(p.dir, "config")) {
			if to, err := filepath.EvalSymlinks(p.dir); err == nil {
				p.pci = filepath.Base(to)
			}
		}
		return p, nil
	}
	p.pci, p.dir = name, filepath.Join(root, "sys/bus/pci/devices", name)
	if !exists(p.dir) {
		return p, ErrNoDevice
	}
	list, err := os.ReadDir(filepath.Join(p.dir, "uio"))
	switch {
	case err == nil && len(list) == 1:
		p.uio = list[0].Name()
		return p, nil
	case !exists(filepath.Join(root, "sys/bus/pci/drivers", pciDriver)):
		return p, ErrModule
	}
	return p, ErrUnbound
}

// bare returns an error for a device behind an IOMMU that translates
// (Documentation/ABI/testing/sysfs-kernel-iommu_groups).
func (p place) bare() error {
	kind := read(p.dir, "iommu_group", "type")
	if kind == "" || kind == "identity" {
		return nil
	}
	return fmt.Errorf("%w: its group's type is %s", ErrIOMMU, kind)
}

// window is a window of the device in a file that can be mapped.
type window struct {
	path         string
	offset, skip uint64 // offset of the mapping in the file, and of the window in the mapping
	size         uint64
}

// Window describes a requested window.
type Window struct {
	Names []string // its possible names in the device
	Size  uint64   // bytes, at least
}

// entry is a directory of maps/ (uio-howto.rst, "mmap() device memory").
type entry struct {
	name         string
	index        int
	size, offset uint64
}

// windows finds the requested windows: by name if the device has names, else in order.
func (p place) windows(want []Window) ([]window, error) {
	maps, err := p.maps()
	if err != nil {
		return nil, err
	}
	if len(maps) == 0 && p.pci != "" {
		return p.resources(want)
	}
	chosen := make([]*entry, len(want))
	named := 0
	for i, w := range want {
		for k := range maps {
			for _, n := range w.Names {
				if maps[k].name == n && chosen[i] == nil {
					chosen[i] = &maps[k]
					named++
				}
			}
		}
	}
	list := make([]window, len(want))
	for i, w := range want {
		e := chosen[i]
		if named == 0 && i < len(maps) {
			e = &maps[i]
		}
		if e == nil {
			return nil, fmt.Errorf("%w: it has %d, and none is %s", ErrWindows, len(maps), strings.Join(w.Names, " or "))
		}
		if e.size < w.Size || e.offset > e.size || e.size > 1<<30 {
			return nil, fmt.Errorf("%w: %s (map%d, %q) has %d bytes, want %d", ErrWindows, w.Names[0], e.index, e.name, e.size, w.Size)
		}
		list[i] = window{path: p.file(), offset: uint64(e.index) * uint64(os.Getpagesize()), skip: e.offset, size: w.Size}
	}
	return list, nil
}

func (p place) maps() ([]entry, error) {
	var list []entry
	for i := 0; ; i++ {
		dir := filepath.Join(p.root, "sys/class/uio", p.uio, "maps", "map"+strconv.Itoa(i))
		if !exists(dir) {
			return list, nil
		}
		e := entry{name: read(dir, "name"), index: i}
		var err [2]error
		e.size, err[0] = strconv.ParseUint(read(dir, "size"), 0, 64)
		e.offset, err[1] = strconv.ParseUint(read(dir, "offset"), 0, 64)
		if err := errors.Join(err[:]...); err != nil {
			return nil, fmt.Errorf("%w: map%d: %w", ErrWindows, i, err)
		}
		list = append(list, e)
	}
}

// resources finds a PCI function's BARs in the kernel's resource files: uio_pci_generic of
// older kernels has no maps.
func (p place) resources(want []Window) ([]window, error) {
	list := make([]window, len(want))
	for i, w := range want {
		path := filepath.Join(p.dir, "resource"+strconv.Itoa(i))
		st, err := os.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("%w: the kernel has neither maps nor a file of %s: %w", ErrWindows, w.Names[0], err)
		}
		if uint64(st.Size()) < w.Size {
			return nil, fmt.Errorf("%w: %s (%s) has %d bytes, want %d", ErrWindows, w.Names[0], path, st.Size(), w.Size)
		}
		list[i] = window{path: path, size: w.Size}
	}
	return list, nil
}

// explain adds a remedy to an error.
func explain(root, name string, err error) error {
	if known := new(Error); errors.As(err, &known) {
		return err
	}
	e := &Error{Device: "uio " + name, Err: err}
	p, _ := find(root, name)
	bind := "exanetctl bind --driver " + pciDriver + " " + p.pci
	switch {
	case errors.Is(err, ErrName):
	case errors.Is(err, ErrModule) && p.pci != "":
		e.Remedy = "modprobe " + pciDriver + ", " + bind
	case errors.Is(err, ErrModule):
		e.Remedy = "modprobe " + pciDriver + ", on a board modprobe " + boardDriver + " of_id=generic-uio"
	case errors.Is(err, ErrNoDevice) && p.pci != "":
		e.Remedy = "lspci -D lists the functions"
	case errors.Is(err, ErrNoDevice):
		e.Remedy = "ls /sys/class/uio lists the devices, exanetctl bind --driver " + pciDriver + " ADDRESS makes one"
	case errors.Is(err, ErrUnbound):
		e.Remedy = bind
	case errors.Is(err, ErrIOMMU) && p.pci != "":
		e.Remedy = "exanetctl bind " + p.pci + ", and pfd --device vfio:" + p.pci
	case errors.Is(err, ErrIOMMU):
		e.Remedy = "boot the kernel with iommu.passthrough=1"
	case errors.Is(err, ErrWindows) && p.pci != "":
		e.Remedy = "exanetctl bind " + p.pci + ", and pfd --device vfio:" + p.pci
	case errors.Is(err, ErrWindows):
		e.Remedy = "give its node the windows of docs/board.dts"
	case errors.Is(err, unix.EWOULDBLOCK):
		e.Err = fmt.Errorf("%w: %w", ErrBusy, err)
		e.Remedy = "fuser -v " + p.file() + " shows the process: end it"
	case errors.Is(err, fs.ErrPermission):
		e.Err = fmt.Errorf("%w: %w", ErrPermission, err)
		e.Remedy = "run as root"
	case errors.Is(err, fs.ErrNotExist):
		e.Err = fmt.Errorf("%w: %w", ErrNoDevice, err)
		e.Remedy = "ls /dev/uio*: the machine's /dev lacks what its kernel has"
	}
	return e
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func read(parts ...string) string {
	b, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
