package qemu

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/ulikunitz/xz"
)

// ErrModule reports that a kernel lacks a module that guests need.
var ErrModule = errors.New("kernel without a module that guests need")

// wanted is a module of a set. A module that is not needed is included if the kernel has it as
// a module.
type wanted struct {
	name string
	need bool
}

var (
	// The first three are built into Debian's kernels, except virtio_iommu on arm64.
	stockModules = []wanted{{"virtio_pci", false}, {"virtio_console", false}, {"virtio_iommu", false}, {"vfio_iommu_type1", true}, {"vfio_pci", true}, {"uio_pci_generic", false},
		{"rdma_rxe", false}, {"ib_uverbs", false}} // cloud kernels have neither
	iommufdModules = []wanted{{"iommufd", true}, {"vfio_iommu_type1", true}, {"vfio_pci", true}}
)

// kernelFile matches the kernel's image below /boot or, since 7.1, beside its modules.
var kernelFile = regexp.MustCompile(`^/(boot/vmlinuz-|usr/lib/modules/[^/]+/vmlinuz$)`)

// kernel extracts the files that guests need from packages: the image and the uncompressed
// modules, with names in loading order.
func (a *archive) kernel(ctx context.Context, dir string, list []archived) error {
	a.cache.say("unpacking the kernel")
	modules := map[string][]byte{} // compressed
	image := false
	for _, f := range list {
		err := a.files(ctx, f, func(name string, r io.Reader) error {
			base, isModule := strings.CutSuffix(path.Base(name), ".ko.xz")
			switch {
			case kernelFile.MatchString(name):
				image = true
				b, err := io.ReadAll(r)
				if err != nil {
					return err
				}
				return os.WriteFile(filepath.Join(dir, "vmlinuz"), b, 0o644)
			case isModule:
				b, err := io.ReadAll(r)
				modules[moduleName(base)] = b
				return err
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if !image {
		return fmt.Errorf("%w: no image among %d packages of the kernel", ErrArchive, len(list))
	}
	return writeModules(dir, stockModules, func(name string) ([]byte, error) {
		b, ok := modules[name]
		if !ok {
			return nil, fmt.Errorf("%w: %s", ErrModule, name)
		}
		r, err := xz.NewReader(bytes.NewReader(b))
		if err != nil {
			return nil, err
		}
		return io.ReadAll(r)
	})
}

// writeModules writes a set into the directory modules of dir, with names in loading order.
func writeModules(dir string, set []wanted, get func(name string) ([]byte, error)) error {
	order, err := loadOrder(set, get)
	if err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(dir, "modules"), 0o755); err != nil {
		return err
	}
	for i, m := range order {
		if err := os.WriteFile(filepath.Join(dir, "modules", fmt.Sprintf("%02d-%s.ko", i, m.name)), m.bytes, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// moduleName returns a module's name in the kernel's spelling.
func moduleName(s string) string { return strings.ReplaceAll(s, "-", "_") }

// module is an uncompressed module.
type module struct {
	name  string
	bytes []byte
}

// loadOrder returns the modules of a set, each after its dependencies.
func loadOrder(set []wanted, get func(name string) ([]byte, error)) ([]module, error) {
	var order []module
	var add func(name string) error
	add = func(name string) error {
		if slices.ContainsFunc(order, func(m module) bool { return m.name == name }) {
			return nil
		}
		b, err := get(name)
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		needs, err := dependencies(b)
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		for _, n := range needs {
			if err := add(n); err != nil {
				return err
			}
		}
		order = append(order, module{name, b})
		return nil
	}
	for _, w := range set {
		if err := add(w.name); err != nil && (w.need || !errors.Is(err, ErrModule)) {
			return nil, err
		}
	}
	return order, nil
}

// dependencies returns the dependencies of a module: depends= in its section .modinfo
// (linux/module.h, scripts/mod/modpost.c).
func dependencies(b []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	s := f.Section(".modinfo")
	if s == nil {
		return nil, fmt.Errorf("%w: the section .modinfo is missing", ErrModule)
	}
	info, err := s.Data()
	if err != nil {
		return nil, err
	}
	for _, entry := range strings.Split(string(info), "\x00") {
		if list, ok := strings.CutPrefix(entry, "depends="); ok && list != "" {
			var names []string
			for _, n := range strings.Split(list, ",") {
				names = append(names, moduleName(n))
			}
			return names, nil
		}
	}
	return nil, nil
}
