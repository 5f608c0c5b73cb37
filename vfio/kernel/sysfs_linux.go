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

// Drivers of PCI functions that a process drives.
const (
	Driver    = "vfio-pci"        // the one that this package needs
	DriverUIO = "uio_pci_generic" // package uio
)

// noIOMMUName is the name of a group that VFIO has made itself, for a device without
// an IOMMU (drivers/vfio/group.c, vfio_noiommu_group_alloc), and noIOMMUSwitch what
// has it do so.
const (
	noIOMMUName   = "vfio-noiommu"
	noIOMMUSwitch = "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode"
)

// addressForm is domain, bus, device and function, as in /sys/bus/pci/devices.
var addressForm = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-1][0-9a-f]\.[0-7]$`)

// CheckAddress tells whether a text is an address of a PCI function. Its error
// matches ErrAddress.
func CheckAddress(addr string) error {
	if !addressForm.MatchString(addr) {
		return fmt.Errorf("%w: %q: want it as 0000:01:00.0 (lspci -D)", ErrAddress, addr)
	}
	return nil
}

// place is where a device is found.
type place struct {
	dir    string // in sysfs
	driver string // "": none
	group  string // its IOMMU group, "": none
	cdev   string // its own file, "": the kernel has none
	bare   bool   // the group is VFIO's own: there is no IOMMU
}

// file gives the group's file (Documentation/driver-api/vfio.rst).
func (p place) file() string {
	if p.bare {
		return "/dev/vfio/noiommu-" + p.group
	}
	return filepath.Join("/dev/vfio", p.group)
}

// find looks a device up in the sysfs below root.
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

// link gives the last part of what a link in sysfs names.
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

// memlock makes ErrMemlock of what mapping says where the limit is reached.
func memlock(err error) error {
	if errors.Is(err, unix.ENOMEM) {
		return fmt.Errorf("%w: %w", ErrMemlock, err)
	}
	return err
}

// explain names what settles a trouble.
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
		e.Remedy = "lspci -D shows what there is"
	case errors.Is(err, ErrUnbound):
		if p.driver != "" {
			e.Err = fmt.Errorf("%w: driver %s has it", err, p.driver)
		}
		e.Remedy = "exanetctl bind " + addr
	case errors.Is(err, ErrNoIOMMU):
		e.Remedy = "turn the IOMMU on in the firmware and boot the kernel with intel_iommu=on (Intel; AMD's is on), or without one: "
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
		e.Remedy = "fuser -v " + file + " shows who: end that one"
	case errors.Is(err, fs.ErrPermission):
		e.Err = fmt.Errorf("%w: %w", ErrPermission, err)
		e.Remedy = "run as root, or chown USER " + file
		if p.bare { // the kernel wants CAP_SYS_RAWIO, whoever owns the file
			e.Remedy = "run as root"
		}
	}
	return e
}

// Check tells whether the device can be opened, as far as that can be seen without
// taking it. Its error is an *Error.
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

// strangers gives the devices of a group that another driver than Driver has.
func strangers(dir string) []string {
	group := filepath.Join(dir, "iommu_group", "devices")
	list, err := os.ReadDir(group)
	if err != nil {
		return nil
	}
	var addrs []string
	for _, d := range list {
		driver := link(filepath.Join(group, d.Name()), "driver")
		if driver != "" && driver != Driver && driver != "pcieport" { // vfio takes bridges as they are
			addrs = append(addrs, d.Name())
		}
	}
	return addrs
}

// Find gives the addresses of all functions with an identity, in order.
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

// Bind gives the device to Driver or DriverUIO, and takes it from the driver that
// has it. Its error is an *Error.
func Bind(addr, driver string) error { return drive("/", addr, driver) }

// Unbind takes the device from these drivers and lets the kernel choose one.
func Unbind(addr string) error { return drive("/", addr, "") }

// drive binds a device by driver_override
// (Documentation/ABI/testing/sysfs-bus-pci); no driver: whichever fits.
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
		return &Error{Device: "vfio " + addr, Err: fmt.Errorf("%w: driver %s does not take it", ErrUnbound, driver), Remedy: "dmesg says why"}
	}
	return nil
}

func remedyOfWrite(err error) string {
	if errors.Is(err, fs.ErrPermission) {
		return "run as root"
	}
	return "dmesg says more"
}
