package uio

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

const (
	addr = "0000:01:00.0"
	pci  = "sys/bus/pci/devices/" + addr
)

// tree creates a sysfs and a /dev. A name that ends in -> is a link to its text; one that ends
// in / is a directory.
func tree(t *testing.T, lists ...map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for _, files := range lists {
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
	}
	return root
}

// wanted returns a node's windows, as package mediate requests them.
func wanted() (list []Window) {
	for w := range device.Windows {
		list = append(list, Window{Names: []string{"exanet-" + w.String(), w.String()}, Size: uint64(w.Size())})
	}
	return list
}

// maps are those of a UIO device, by their names.
func maps(names ...string) map[string]string {
	files := map[string]string{"sys/class/uio/uio0/": "", "dev/uio0": strings.Repeat("x", 6*os.Getpagesize())}
	for i, n := range names {
		dir := "sys/class/uio/uio0/maps/map" + strconv.Itoa(i)
		files[dir+"/name"], files[dir+"/size"], files[dir+"/offset"] = n+"\n", "0x40000\n", "0x0\n"
	}
	return files
}

// function is a PCI function bound to uio_pci_generic.
var function = map[string]string{
	pci + "/uio/uio0/": "", pci + "/config": "\x34\x12\xa0\xe4\x02\x00\x00\x00",
	"sys/bus/pci/drivers/" + pciDriver + "/": "",
}

func TestWindows(t *testing.T) {
	pages := func(n ...uint64) []uint64 {
		for i := range n {
			n[i] *= uint64(os.Getpagesize())
		}
		return n
	}
	generic := []string{"0xfe800000", "0xfe820000", "0xfe840000", "0xfe860000", "0xfe8a0000"}
	for _, c := range []struct {
		name    string
		maps    []string
		offsets []uint64
		err     string
	}{
		{"by the address", generic, pages(0, 1, 2, 3, 4), ""},
		{"by names", []string{"mbox", "pktz", "pl", "smmu", "btcm"}, pages(2, 3, 4, 1, 0), ""},
		{"by the names of a board", []string{"exanet-mbox", "exanet-pktz", "exanet-pl", "exanet-smmu", "exanet-btcm"}, pages(2, 3, 4, 1, 0), ""},
		{"one by its name", append([]string{"pl"}, generic...), nil, "none is exanet-smmu or smmu"},
		{"too few", generic[:4], nil, "it has 4, and none is exanet-mbox or mbox"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := tree(t, maps(c.maps...))
			p, err := find(root, "uio0")
			if err != nil {
				t.Fatal(err)
			}
			list, err := p.windows(wanted())
			if c.err != "" {
				err = explain(root, "uio0", err)
				if !errors.Is(err, ErrWindows) || !strings.Contains(err.Error(), c.err) || !strings.Contains(err.Error(), "docs/board.dts") {
					t.Fatalf("%v, want %q in it", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for i, w := range list {
				if want := (window{path: filepath.Join(root, "dev/uio0"), offset: c.offsets[i], size: wanted()[i].Size}); w != want {
					t.Errorf("window %d: %+v, want %+v", i, w, want)
				}
			}
		})
	}
	t.Run("too small", func(t *testing.T) {
		files := maps(generic...)
		files["sys/class/uio/uio0/maps/map3/size"] = "0x1000"
		p, err := find(tree(t, files), "uio0")
		if err == nil {
			_, err = p.windows(wanted())
		}
		if !errors.Is(err, ErrWindows) || !strings.Contains(err.Error(), "has 4096 bytes, want 262144") {
			t.Error(err)
		}
	})
}

// TestResources: uio_pci_generic of older kernels has no maps.
func TestResources(t *testing.T) {
	files := map[string]string{"dev/uio0": ""}
	for i := range 5 {
		files[pci+"/resource"+strconv.Itoa(i)] = strings.Repeat(string(rune('a'+i)), 256<<10)
	}
	d, err := open(tree(t, function, files), addr, wanted())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if d.ID() != 0xe4a01234 {
		t.Errorf("identity %#x", d.ID())
	}
	if v, err := d.Read(3, 8, 8); err != nil || v != 0x6464646464646464 {
		t.Errorf("window 3 reads %#x, %v", v, err)
	}
	if err := d.Post(3, 8, 4, 1); err != nil {
		t.Error(err)
	}
	if v, err := d.Read(3, 8, 8); err != nil || v != 0x6464646400000001 {
		t.Errorf("window 3 reads %#x after a store, %v", v, err)
	}
	var command [2]byte
	if _, err := d.config.ReadAt(command[:], configCommand); err != nil || command[0] != commandMemory|commandMaster {
		t.Errorf("command register %#x, %v: want memory and bus mastering on", command, err)
	}
	for _, bad := range []struct {
		window int
		off    uint64
		size   int
	}{{-1, 0, 4}, {5, 0, 4}, {0, 2, 4}, {0, 128 << 10, 4}, {0, 0, 3}, {0, 0, 16}} {
		if _, err := d.Read(bad.window, bad.off, bad.size); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	// A removed function reads as all ones, and so does its identity.
	if err := d.Post(0, 0, 8, ^uint64(0)); err != nil {
		t.Fatal(err)
	}
	if v, err := d.Read(0, 0, 8); err != nil || v != ^uint64(0) {
		t.Errorf("a register of all ones reads %#x, %v", v, err)
	}
	if _, err := d.config.WriteAt([]byte("\xff\xff\xff\xff"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Read(0, 0, 8); !errors.Is(err, ErrGone) || !errors.Is(d.Err(), ErrGone) {
		t.Errorf("a removed function: %v, %v", err, d.Err())
	}
	select {
	case <-d.Done():
	default:
		t.Error("Done is open")
	}
}

// The error of each usual problem has a remedy.
func TestRemedies(t *testing.T) {
	names := []string{"a", "b", "c", "d", "e"}
	for _, c := range []struct {
		name   string
		device string
		files  map[string]string
		want   error
		remedy string
	}{
		{"no name", "../uio0", map[string]string{"sys/": ""}, ErrName, "want uio0"},
		{"no module, a board", "uio0", map[string]string{"sys/": ""}, ErrModule, "modprobe uio_pdrv_genirq of_id=generic-uio"},
		{"no module, PCI", addr, map[string]string{pci + "/": ""}, ErrModule, "modprobe uio_pci_generic, exanetctl bind --driver uio_pci_generic " + addr},
		{"no such device", "uio1", maps(), ErrNoDevice, "ls /sys/class/uio"},
		{"no such function", addr, map[string]string{"sys/": ""}, ErrNoDevice, "lspci -D"},
		{"not bound", addr, map[string]string{pci + "/": "", "sys/bus/pci/drivers/uio_pci_generic/": ""}, ErrUnbound, ": exanetctl bind --driver uio_pci_generic " + addr},
		{"an IOMMU", addr, map[string]string{pci + "/uio/uio0/": "", pci + "/iommu_group/type": "DMA-FQ\n"}, ErrIOMMU, "type is DMA-FQ: exanetctl bind " + addr + ", and pfd --device vfio:" + addr},
		{"no file of UIO", addr, function, ErrNoDevice, "ls /dev/uio*"},
		{"no files of BARs", addr, map[string]string{"dev/uio0": "", pci + "/uio/uio0/": "", pci + "/config": "\x34\x12\xa0\xe4\x02\x00\x00\x00"}, ErrWindows, "exanetctl bind " + addr},
		{"no windows", "uio0", maps("pl"), ErrWindows, "docs/board.dts"},
		{"busy", "uio0", maps(names...), ErrBusy, "fuser -v"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := tree(t, c.files)
			if c.want == ErrBusy {
				first, err := open(root, c.device, wanted()[:1])
				if err != nil {
					t.Fatal(err)
				}
				defer first.Close()
			}
			_, err := open(root, c.device, wanted())
			var e *Error
			if !errors.Is(err, c.want) || !errors.As(err, &e) || !strings.Contains(err.Error(), c.remedy) || !strings.Contains(err.Error(), c.device) {
				t.Errorf("%v: want %v in it, and %q", err, c.want, c.remedy)
			}
		})
	}
	e := explain(tree(t, maps(names...)), "uio0", &os.PathError{Op: "open", Path: "/dev/uio0", Err: unix.EACCES})
	if !errors.Is(e, ErrPermission) || !strings.Contains(e.Error(), "run as root") {
		t.Errorf("no permission: %v", e)
	}
}

// TestBoard: the overlay has the windows of a node under the requested names, and large enough.
func TestBoard(t *testing.T) {
	text, err := os.ReadFile("../../docs/board.dts")
	if err != nil {
		t.Fatal(err)
	}
	list := func(property string) []string {
		_, rest, ok := strings.Cut(string(text), "\t"+property+" = ")
		value, _, closed := strings.Cut(rest, ";")
		if !ok || !closed {
			t.Fatalf("no %s in it", property)
		}
		return strings.Split(value, ",")
	}
	names, regs := list("reg-names"), list("reg")
	files := map[string]string{"sys/class/uio/uio0/": "", "dev/uio0": ""}
	for i, n := range names {
		dir := "sys/class/uio/uio0/maps/map" + strconv.Itoa(i)
		cells := strings.Fields(strings.Trim(strings.TrimSpace(regs[i]), "<>"))
		files[dir+"/name"], files[dir+"/size"], files[dir+"/offset"] = strings.Trim(n, ` "`), cells[3], "0x0"
	}
	p, err := find(tree(t, files), "uio0")
	if err != nil {
		t.Fatal(err)
	}
	if windows, err := p.windows(wanted()); err != nil || len(windows) != len(names) {
		t.Errorf("%+v, %v", windows, err)
	}
}
