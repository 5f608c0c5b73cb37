package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Drivers of PCI functions for userspace drivers.
const (
	Driver    = "vfio-pci"        // for this package
	DriverUIO = "uio_pci_generic" // for package uio
)

// noIOMMUName is the name of a group that VFIO has created for a device without an IOMMU
// (drivers/vfio/group.c, vfio_noiommu_group_alloc); noIOMMUSwitch permits that.
const (
	noIOMMUName   = "vfio-noiommu"
	noIOMMUSwitch = "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode"
)

// addressForm matches domain, bus, device and function, as in /sys/bus/pci/devices.
var addressForm = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-1][0-9a-f]\.[0-7]$`)

// CheckAddress returns nil if addr is the address of a PCI function. Errors match ErrAddress.
func CheckAddress(addr string) error {
	if !addressForm.MatchString(addr) {
		return fmt.Errorf("%w: %q: want it as 0000:01:00.0 (lspci -D)", ErrAddress, addr)
	}
	return nil
}

// place has the paths and names of a device.
type place struct {
	dir    string // in sysfs
	driver string // "": none
	group  string // its IOMMU group; "": none
	cdev   string // its device file; "": none
	bare   bool   // VFIO has created the group: there is no IOMMU
}

// file returns the path of the group's file (Documentation/driver-api/vfio.rst).
func (p place) file() string {
	if p.bare {
		return "/dev/vfio/noiommu-" + p.group
	}
	return filepath.Join("/dev/vfio", p.group)
}

// find finds a device in the sysfs below root.
func find(root, addr string) (place, error) {
	if err := CheckAddress(addr); err != nil {
		return place{}, err
	}
	p := place{dir: filepath.Join(root, "sys/bus/pci/devices", addr)}
	if !exists(p.dir) {
		return p, ErrNoDevice
	}
	p.driver = link(p.dir, "driver")
	p.group = link(p.dir, "iommu_group")
	p.bare = read(p.dir, "iommu_group", "name") == noIOMMUName
	if p.driver != Driver {
		return p, ErrUnbound
	}
	list, err := os.ReadDir(filepath.Join(p.dir, "vfio-dev"))
	if err == nil && len(list) == 1 {
		// Documentation/driver-api/vfio.rst, "VFIO Device cdev".
		if path := filepath.Join(root, "dev/vfio/devices", list[0].Name()); exists(path) {
			p.cdev = path
		}
	}
	return p, nil
}

// link returns the last element of a sysfs link's target.
func link(dir, name string) string {
	to, err := os.Readlink(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// memlock turns the error of a mapping that exceeds the limit into ErrMemlock.
func memlock(err error) error {
	if errors.Is(err, unix.ENOMEM) {
		return fmt.Errorf("%w: %w", ErrMemlock, err)
	}
	return err
}

// explain adds a remedy to an error.
func explain(root, addr string, err error) error {
	e := &Error{Device: "vfio " + addr, Err: err}
	if known := new(Error); errors.As(err, &known) {
		return err
	}
	p, _ := find(root, addr)
	file := p.file()
	if p.cdev != "" && exists(filepath.Join(root, "dev/iommu")) {
		file = p.cdev
	}
	switch {
	case errors.Is(err, ErrAddress):
	case errors.Is(err, ErrNoDevice):
		e.Remedy = "lspci -D lists the functions"
	case errors.Is(err, ErrUnbound):
		if p.driver != "" {
			e.Err = fmt.Errorf("%w: its driver is %s", err, p.driver)
		}
		e.Remedy = "exanetctl bind " + addr
	case errors.Is(err, ErrNoIOMMU):
		e.Remedy = "enable the IOMMU in the firmware and boot the kernel with intel_iommu=on (Intel; AMD's is on), or without one: "
		switch {
		case p.bare:
			e.Remedy += "pfd --unsafe-noiommu"
		case exists(filepath.Join(root, noIOMMUSwitch)):
			e.Remedy += "echo 1 >" + noIOMMUSwitch + ", exanetctl bind " + addr + ", pfd --unsafe-noiommu"
		default: // VFIO is built without CONFIG_VFIO_NOIOMMU, or not loaded
			e.Remedy += "exanetctl bind --driver " + DriverUIO + " " + addr + ", pfd --device uio:" + addr
		}
	case errors.Is(err, ErrNotViable):
		e.Remedy = "exanetctl bind " + strings.Join(strangers(p.dir), " ")
	case errors.Is(err, ErrMemlock):
		e.Remedy = "LimitMEMLOCK=infinity in the service (ulimit -l unlimited in a shell), or a smaller pfd --window"
	case errors.Is(err, ErrModules), errors.Is(err, fs.ErrNotExist):
		if !errors.Is(err, ErrModules) {
			e.Err = fmt.Errorf("%w: %w", ErrModules, err)
		}
		e.Remedy = "modprobe vfio-pci vfio_iommu_type1"
	case errors.Is(err, unix.EBUSY):
		e.Err = fmt.Errorf("%w: %w", ErrBusy, err)
		e.Remedy = "fuser -v " + file + " shows the process: end it"
	case errors.Is(err, fs.ErrPermission):
		e.Err = fmt.Errorf("%w: %w", ErrPermission, err)
		e.Remedy = "run as root, or chown USER " + file
		if p.bare { // the kernel requires CAP_SYS_RAWIO, not only ownership of the file
			e.Remedy = "run as root"
		}
	}
	return e
}

// Check returns an *Error if the device cannot be opened, as far as this is visible without
// opening it.
func Check(addr string) error { return check("/", addr) }

func check(root, addr string) error {
	p, err := find(root, addr)
	file := p.cdev
	if file == "" || !exists(filepath.Join(root, "dev/iommu")) {
		file = filepath.Join(root, p.file())
	}
	switch {
	case err != nil:
	case p.group == "" || p.bare:
		err = ErrNoIOMMU
	case len(strangers(p.dir)) > 0:
		err = ErrNotViable
	default:
		err = unix.Access(file, unix.R_OK|unix.W_OK)
	}
	if err != nil {
		return explain(root, addr, err)
	}
	return nil
}

// strangers returns the devices of a group with another driver than Driver.
func strangers(dir string) []string {
	group := filepath.Join(dir, "iommu_group", "devices")
	list, err := os.ReadDir(group)
	if err != nil {
		return nil
	}
	var addrs []string
	for _, d := range list {
		driver := link(filepath.Join(group, d.Name()), "driver")
		if driver != "" && driver != Driver && driver != "pcieport" { // VFIO accepts bridges as they are
			addrs = append(addrs, d.Name())
		}
	}
	return addrs
}

// Find returns the addresses of all functions with an identity, in order.
func Find(vendor, device uint16) ([]string, error) {
	const dir = "/sys/bus/pci/devices"
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("PCI devices: %w", err)
	}
	var addrs []string
	for _, d := range list {
		if read(dir, d.Name(), "vendor") == fmt.Sprintf("0x%04x", vendor) && read(dir, d.Name(), "device") == fmt.Sprintf("0x%04x", device) {
			addrs = append(addrs, d.Name())
		}
	}
	slices.Sort(addrs)
	return addrs, nil
}

func read(parts ...string) string {
	b, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// Bind binds the device to Driver or DriverUIO, and unbinds it from its current driver. Errors
// are *Error.
func Bind(addr, driver string) error { return drive("/", addr, driver) }

// Unbind unbinds the device from these drivers and lets the kernel select one.
func Unbind(addr string) error { return drive("/", addr, "") }

// drive binds a device by driver_override (Documentation/ABI/testing/sysfs-bus-pci). Without a
// driver the kernel selects one.
func drive(root, addr, driver string) error {
	p, err := find(root, addr)
	switch {
	case err != nil && !errors.Is(err, ErrUnbound):
		return explain(root, addr, err)
	case driver != "" && p.driver == driver, driver == "" && p.driver != Driver && p.driver != DriverUIO:
		return nil
	case driver != "" && !exists(filepath.Join(root, "sys/bus/pci/drivers", driver)):
		if driver == Driver {
			return explain(root, addr, ErrModules)
		}
		return &Error{Device: "vfio " + addr, Err: fmt.Errorf("no driver %s: %w", driver, fs.ErrNotExist), Remedy: "modprobe " + driver}
	}
	write := func(path, text string) error {
		if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0); err != nil {
			return &Error{Device: "vfio " + addr, Err: err, Remedy: remedyOfWrite(err)}
		}
		return nil
	}
	device := "sys/bus/pci/devices/" + addr
	if err := write(device+"/driver_override", driver+"\n"); err != nil {
		return err
	}
	if p.driver != "" {
		if err := write(device+"/driver/unbind", addr); err != nil {
			return err
		}
	}
	if err := write("sys/bus/pci/drivers_probe", addr); err != nil {
		return err
	}
	if now := link(filepath.Join(root, device), "driver"); driver != "" && now != driver {
		if driver == Driver && p.group == "" {
			return explain(root, addr, ErrNoIOMMU)
		}
		return &Error{Device: "vfio " + addr, Err: fmt.Errorf("%w: driver %s refuses it", ErrUnbound, driver), Remedy: "dmesg says why"}
	}
	return nil
}

func remedyOfWrite(err error) string {
	if errors.Is(err, fs.ErrPermission) {
		return "run as root"
	}
	return "dmesg says more"
}
