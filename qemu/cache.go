package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
)

// ErrNotSetUp reports that a Cache lacks files; Setup creates them.
var ErrNotSetUp = errors.New("virtual machines are not set up: exanetctl qemu setup")

// DefaultCache returns $XDG_CACHE_HOME/exanet/qemu (XDG Base Directory Specification).
func DefaultCache() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("cache of virtual machines: %w: name one with --cache", err)
	}
	return filepath.Join(dir, "exanet", "qemu"), nil
}

// Cache is a directory with the files that guests need. Several processes may use it at once:
// methods that change it lock it.
type Cache struct {
	Dir string
	// Programs is a directory with the pfd and exanetctl for guests; its subdirectory arm64 has
	// those for MachineARM.
	Programs string
	// Package is the package of make deb that Debian guests install; "": the newest in
	// Programs.
	Package string
	// Kernel selects the guests' kernel by a prefix of its version: 6.12, or 6.12-amd64 for the
	// kernel with all modules instead of the cloud kernel; "": the newest in the archive.
	Kernel string
	// Say reports the progress; it may be nil.
	Say func(format string, args ...any)

	arm bool // the part for MachineARM
}

// of returns the part of the cache for a machine.
func (c *Cache) of(machine string) *Cache {
	if machine != MachineARM || c.arm {
		return c
	}
	return &Cache{Dir: c.path(MachineARM), Programs: filepath.Join(c.Programs, MachineARM), Kernel: c.Kernel, Say: c.Say, arm: true}
}

// missing returns ErrNotSetUp for this part of the cache.
func (c *Cache) missing() error {
	if c.arm {
		return fmt.Errorf("%w --arm64", ErrNotSetUp)
	}
	return ErrNotSetUp
}

func (c *Cache) path(name ...string) string {
	return filepath.Join(append([]string{c.Dir}, name...)...)
}

// kernelPath is like path, for files that each kernel has separately.
func (c *Cache) kernelPath(name string, more ...string) string {
	return c.path(append([]string{c.kernelName(name)}, more...)...)
}

func (c *Cache) kernelName(name string) string {
	if c.Kernel != "" {
		name += "-" + c.Kernel
	}
	return name
}

func (c *Cache) say(format string, args ...any) {
	if c.Say != nil {
		c.Say(format, args...)
	}
}

// pins are the packages that a cache was resolved to. Later Setups use them even if the archive
// has changed.
type pins struct {
	Programs []archived `json:"programs"` // QEMU if the machine has none, a shell, and bpftool for tests
	Kernel   []archived `json:"kernel"`
	Build    []archived `json:"compiler,omitempty"` // builds its modules and tests
	Debian   []archived `json:"debian,omitempty"`   // system of a guest
}

func (c *Cache) pinsFile() string { return c.kernelPath("pins") + ".json" }

func (c *Cache) readPins() (pins, error) {
	var p pins
	b, err := os.ReadFile(c.pinsFile())
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	if err != nil {
		return p, fmt.Errorf("what the cache holds: %w", err)
	}
	return p, nil
}

func (c *Cache) writePins(p pins) error {
	b, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	return replace(c.pinsFile(), append(b, '\n'))
}

// replace writes a file atomically.
func replace(path string, b []byte) error {
	if err := os.WriteFile(path+".new", b, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// once creates a directory of the cache unless it exists. make fills a temporary directory,
// which gets the name when it is complete.
func (c *Cache) once(name string, make func(dir string) error) error {
	if exists(c.path(name)) {
		return nil
	}
	tmp := c.path(name + ".new")
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		return err
	}
	if err := make(tmp); err != nil {
		return err
	}
	return os.Rename(tmp, c.path(name))
}

// What selects the files that Fetch fetches.
type What struct {
	Refresh bool // resolve the packages anew
	IOMMUFD bool // build the modules that Debian's kernels lack, and the kernel's tests of VFIO
	Debian  bool // files of Debian guests
	ARM     bool // for MachineARM; excludes IOMMUFD and Debian
}

// part returns the part of the cache that w selects.
func (c *Cache) part(w What) *Cache {
	if w.ARM {
		return c.of(MachineARM)
	}
	return c
}

// Setup creates all that the cache lacks: it calls Fetch, then Prepare.
func (c *Cache) Setup(ctx context.Context, w What) error {
	if err := c.Fetch(ctx, w); err != nil {
		return err
	}
	if w.ARM {
		return c.Prepare(ctx, Small, MachineARM)
	}
	if err := c.Prepare(ctx, Small, MachineX86); err != nil || !w.Debian {
		return err
	}
	return c.Prepare(ctx, Debian, MachineX86)
}

// Fetch fetches the programs and the kernel from the archive. After an error the fetched files
// stay, and the next Fetch continues there. When everything is fetched it needs no network.
func (c *Cache) Fetch(ctx context.Context, w What) error {
	c = c.part(w)
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if w.Refresh {
		for _, name := range []string{c.pinsFile(), c.path("root"), c.kernelPath("kernel"), c.kernelPath("iommufd"), c.kernelPath(selftests()), c.path("build"), c.path("debian")} {
			if err := os.RemoveAll(name); err != nil {
				return fmt.Errorf("cache: %w", err)
			}
		}
	}
	return c.fetch(ctx, w)
}

func (c *Cache) fetch(ctx context.Context, w What) error {
	wanted := map[string]bool{"root": true, c.kernelName("kernel"): true, c.kernelName("iommufd"): w.IOMMUFD, c.kernelName(selftests()): w.IOMMUFD, "debian": w.Debian}
	maps.DeleteFunc(wanted, func(name string, want bool) bool { return !want || exists(c.path(name)) })
	if len(wanted) == 0 {
		return nil
	}
	if c.arm && c.Kernel != "" {
		return fmt.Errorf("%w: the kernel %q: guests for arm64 have that of %s alone", ErrArchive, c.Kernel, suite)
	}
	if !kernelVersion.MatchString(c.Kernel) {
		return fmt.Errorf("%w: the kernel %q: want a prefix of its version, as 6.12", ErrArchive, c.Kernel)
	}
	a, err := newArchive(ctx, c)
	if err != nil {
		return err
	}
	p, err := c.readPins()
	if err != nil {
		if p, err = c.resolve(ctx, a); err != nil {
			return err
		}
		if err := c.writePins(p); err != nil {
			return fmt.Errorf("cache: %w", err)
		}
	}
	if err := c.once("root", func(dir string) error {
		if err := a.download(ctx, "programs", p.Programs); err != nil {
			return err
		}
		return a.extract(ctx, dir, p.Programs)
	}); err != nil {
		return fmt.Errorf("programs for virtual machines: %w", err)
	}
	if err := c.once(c.kernelName("kernel"), func(dir string) error {
		if err := a.download(ctx, "kernel", p.Kernel); err != nil {
			return err
		}
		return a.kernel(ctx, dir, p.Kernel)
	}); err != nil {
		return fmt.Errorf("kernel of the guests: %w", err)
	}
	if wanted[c.kernelName("iommufd")] || wanted[c.kernelName(selftests())] {
		if err := c.build(ctx, a, &p); err != nil {
			return fmt.Errorf("from the kernel's sources: %w", err)
		}
	}
	if wanted["debian"] {
		if err := c.fetchDebian(ctx, a, &p); err != nil {
			return fmt.Errorf("guests with Debian: %w", err)
		}
	}
	return a.clean()
}

// resolve selects the packages.
func (c *Cache) resolve(ctx context.Context, a *archive) (pins, error) {
	var p pins
	if err := a.update(ctx); err != nil {
		return p, err
	}
	programs, qemu, kernel := []string{"busybox-static", "bpftool"}, []string{"qemu-system-x86", "seabios"}, "linux-image-cloud-amd64"
	if c.arm {
		// Linux 7.2 provides no vectors for a node there (VFIO_DEVICE_SET_IRQS: ENOSPC).
		programs, qemu, kernel = []string{"busybox-static:arm64"}, []string{"qemu-system-arm"}, "linux-image-cloud-arm64:arm64/"+suite
	}
	if q, err := c.onPath(ctx); err == nil {
		c.say("QEMU %s is on PATH", q.Version)
	} else {
		c.say("%v: using Debian's", err)
		programs = append(programs, qemu...)
	}
	var err error
	if p.Programs, err = a.resolve(ctx, programs...); err != nil {
		return p, err
	}
	if c.Kernel != "" {
		p.Kernel, err = a.kernelNamed(ctx, c.Kernel)
		return p, err
	}
	all, err := a.resolve(ctx, kernel)
	if err != nil {
		return p, err
	}
	for _, f := range all {
		if kernelPackage.MatchString(f.File) {
			p.Kernel = append(p.Kernel, f)
		}
	}
	return p, nil
}
