package kernel

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	addr  = "0000:01:00.0"
	other = "0000:01:00.1"
)

// tree creates a sysfs and a /dev. A name that ends in -> is a link to its text; one that ends
// in / is a directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, strings.TrimSuffix(name, "->"))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		switch {
		case strings.HasSuffix(name, "->"):
			err = os.Symlink(text, path)
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(path, 0o755)
		default:
			err = os.WriteFile(path, []byte(text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// Parts of the trees.
const (
	device = "sys/bus/pci/devices/" + addr
	group  = "sys/kernel/iommu_groups/7"
)

func TestFind(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  place
		err   error
	}{
		{"no device", map[string]string{"sys/": ""}, place{}, ErrNoDevice},
		{"no driver", map[string]string{device + "/": ""}, place{}, ErrUnbound},
		{"another's", map[string]string{device + "/driver->": "../../drivers/nvme"}, place{driver: "nvme"}, ErrUnbound},
		{"without an IOMMU", map[string]string{device + "/driver->": "../../drivers/vfio-pci"}, place{driver: Driver}, nil},
		{"a group", map[string]string{device + "/driver->": "../../drivers/vfio-pci", device + "/iommu_group->": "../../../../kernel/iommu_groups/7"}, place{driver: Driver, group: "7"}, nil},
		{"its own file", map[string]string{device + "/driver->": "../../drivers/vfio-pci", device + "/iommu_group->": "../../../../kernel/iommu_groups/7", device + "/vfio-dev/vfio3/": "", "dev/vfio/devices/vfio3": ""}, place{driver: Driver, group: "7", cdev: "dev/vfio/devices/vfio3"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := tree(t, c.files)
			got, err := find(root, addr)
			c.want.dir = filepath.Join(root, device)
			if c.want.cdev != "" {
				c.want.cdev = filepath.Join(root, c.want.cdev)
			}
			if got != c.want || !errors.Is(err, c.err) {
				t.Errorf("%+v, %v, want %+v, %v", got, err, c.want, c.err)
			}
		})
	}
}

func TestCheckAddress(t *testing.T) {
	for text, good := range map[string]bool{addr: true, "10000:e1:1f.7": true, "01:00.0": false, "0000:01:00.8": false, "0000:01:00.0/..": false, "": false, "0000:01:00.0\n": false} {
		if err := CheckAddress(text); (err == nil) != good || err != nil && !errors.Is(err, ErrAddress) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// The error of each usual problem has a remedy.
func TestRemedies(t *testing.T) {
	bound := map[string]string{device + "/driver->": "../../drivers/vfio-pci", device + "/iommu_group->": "../../../../kernel/iommu_groups/7"}
	bare := map[string]string{
		device + "/driver->": "../../drivers/vfio-pci", device + "/iommu_group->": "../../../../kernel/iommu_groups/0",
		"sys/kernel/iommu_groups/0/name": noIOMMUName + "\n",
	}
	crowded := map[string]string{
		device + "/driver->": "../../drivers/vfio-pci", device + "/iommu_group->": "../../../../kernel/iommu_groups/7",
		group + "/devices/" + addr + "/driver->":  "../../../../bus/pci/drivers/vfio-pci",
		group + "/devices/" + other + "/driver->": "../../../../bus/pci/drivers/nvme",
		group + "/devices/0000:00:02.0/driver->":  "../../../../bus/pci/drivers/pcieport",
	}
	for _, c := range []struct {
		name   string
		files  map[string]string
		cause  error
		want   error
		remedy string
	}{
		{"no device", map[string]string{"sys/": ""}, ErrNoDevice, ErrNoDevice, "lspci -D"},
		{"unbound", map[string]string{device + "/driver->": "../../drivers/nvme"}, ErrUnbound, ErrUnbound, "its driver is nvme: exanetctl bind " + addr},
		{"no IOMMU", bound, ErrNoIOMMU, ErrNoIOMMU, "intel_iommu=on"},
		{"no IOMMU, UIO", map[string]string{device + "/driver->": "../../drivers/vfio-pci"}, ErrNoIOMMU, ErrNoIOMMU, "exanetctl bind --driver uio_pci_generic " + addr + ", pfd --device uio:" + addr},
		{"no IOMMU, a switch", map[string]string{device + "/driver->": "../../drivers/vfio-pci", noIOMMUSwitch[1:]: "N"}, ErrNoIOMMU, ErrNoIOMMU, "echo 1 >" + noIOMMUSwitch + ", exanetctl bind " + addr},
		{"no IOMMU, its mode", bare, ErrNoIOMMU, ErrNoIOMMU, "or without one: pfd --unsafe-noiommu"},
		{"no IOMMU, no permission", bare, &os.PathError{Op: "open", Path: "/dev/vfio/noiommu-0", Err: unix.EPERM}, ErrPermission, ": run as root"},
		{"not viable", crowded, ErrNotViable, ErrNotViable, ": exanetctl bind " + other},
		{"busy", bound, fmt.Errorf("group: %w", unix.EBUSY), ErrBusy, "fuser -v /dev/vfio/7"},
		{"no permission", bound, &os.PathError{Op: "open", Path: "/dev/vfio/7", Err: unix.EACCES}, ErrPermission, "chown USER /dev/vfio/7"},
		{"memlock", bound, memlock(unix.ENOMEM), ErrMemlock, "LimitMEMLOCK=infinity"},
		{"no modules", bound, ErrModules, ErrModules, "modprobe vfio-pci vfio_iommu_type1"},
		{"no file", bound, &os.PathError{Op: "open", Path: "/dev/vfio/7", Err: unix.ENOENT}, ErrModules, "modprobe"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := explain(tree(t, c.files), addr, c.cause)
			if !errors.Is(err, c.want) || !errors.Is(err, c.cause) || !strings.Contains(err.Error(), c.remedy) || !strings.Contains(err.Error(), addr) {
				t.Errorf("%v: want %v in it, and %q", err, c.want, c.remedy)
			}
			if strings.Count(err.Error(), c.want.Error()) != 1 || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v: want %v once, in one line", err, c.want)
			}
			if again := explain("/", addr, fmt.Errorf("more: %w", err)); strings.Count(again.Error(), c.remedy) != 1 {
				t.Errorf("explained twice: %v", again)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	bound := func(more ...string) map[string]string {
		m := map[string]string{device + "/driver->": "../../drivers/vfio-pci", device + "/iommu_group->": "../../../../kernel/iommu_groups/7", group + "/devices/" + addr + "/driver->": "../../../../bus/pci/drivers/vfio-pci"}
		for i := 0; i < len(more); i += 2 {
			m[more[i]] = more[i+1]
		}
		return m
	}
	for _, c := range []struct {
		name  string
		files map[string]string
		want  error
	}{
		{"a group", bound("dev/vfio/7", ""), nil},
		{"its own file", bound(device+"/vfio-dev/vfio3/", "", "dev/vfio/devices/vfio3", "", "dev/iommu", ""), nil},
		{"no device", map[string]string{"sys/": ""}, ErrNoDevice},
		{"unbound", map[string]string{device + "/": ""}, ErrUnbound},
		{"no IOMMU", map[string]string{device + "/driver->": "../../drivers/vfio-pci"}, ErrNoIOMMU},
		{"no file", bound(), ErrModules},
		{"another device in its group", bound("dev/vfio/7", "", group+"/devices/"+other+"/driver->", "../../../../bus/pci/drivers/nvme"), ErrNotViable},
	} {
		err := check(tree(t, c.files), addr)
		var e *Error
		if !errors.Is(err, c.want) || err != nil && (!errors.As(err, &e) || e.Remedy == "") {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

// Open of a missing device reports that, whatever devices this machine has.
func TestOpenNothing(t *testing.T) {
	_, err := Open("ffff:ff:1f.7", Options{})
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, ErrNoDevice) {
		t.Errorf("error %v", err)
	}
}

func TestDrive(t *testing.T) {
	files := func(driver string) map[string]string {
		m := map[string]string{"sys/bus/pci/drivers/vfio-pci/": "", "sys/bus/pci/drivers_probe": "", "sys/bus/pci/drivers/nvme/unbind": "", device + "/driver_override": ""}
		if driver != "" {
			m[device+"/driver->"] = "../../drivers/" + driver
		}
		return m
	}
	text := func(root, name string) string {
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(string(b))
	}
	t.Run("from another driver", func(t *testing.T) {
		with := files("nvme")
		with[device+"/iommu_group->"] = "../../../../kernel/iommu_groups/7"
		root := tree(t, with)
		err := drive(root, addr, Driver)
		// The kernel is not involved here: the driver stays.
		if !errors.Is(err, ErrUnbound) {
			t.Errorf("error %v", err)
		}
		for name, want := range map[string]string{device + "/driver_override": Driver, "sys/bus/pci/drivers/nvme/unbind": addr, "sys/bus/pci/drivers_probe": addr} {
			if got := text(root, name); got != want {
				t.Errorf("%s has %q, want %q", name, got, want)
			}
		}
	})
	t.Run("without an IOMMU", func(t *testing.T) {
		err := drive(tree(t, files("nvme")), addr, Driver)
		if !errors.Is(err, ErrNoIOMMU) || !strings.Contains(err.Error(), "exanetctl bind --driver uio_pci_generic") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("UIO's driver not loaded", func(t *testing.T) {
		err := drive(tree(t, files("nvme")), addr, DriverUIO)
		if err == nil || !strings.Contains(err.Error(), "modprobe uio_pci_generic") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("bound already", func(t *testing.T) {
		root := tree(t, files(Driver))
		if err := drive(root, addr, Driver); err != nil || text(root, "sys/bus/pci/drivers_probe") != "" {
			t.Errorf("error %v, probed %q", err, text(root, "sys/bus/pci/drivers_probe"))
		}
	})
	t.Run("no driver loaded", func(t *testing.T) {
		m := files("nvme")
		delete(m, "sys/bus/pci/drivers/vfio-pci/")
		if err := drive(tree(t, m), addr, Driver); !errors.Is(err, ErrModules) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("no device", func(t *testing.T) {
		if err := drive(tree(t, map[string]string{"sys/": ""}), addr, Driver); !errors.Is(err, ErrNoDevice) {
			t.Errorf("error %v", err)
		}
	})
}
