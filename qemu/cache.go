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

// ErrNotSetUp says that a Cache misses something: Setup makes it.
var ErrNotSetUp = errors.New("virtual machines are not set up: exanetctl qemu setup")

// DefaultCache gives $XDG_CACHE_HOME/exanet/qemu (XDG Base Directory
// Specification).
func DefaultCache() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("cache of virtual machines: %w: name one with --cache", err)
	}
	return filepath.Join(dir, "exanet", "qemu"), nil
}

// Cache is a directory with what guests need. Its methods may be called by
// several processes at once: those that change it lock it.
type Cache struct {
	Dir string
	// Programs is a directory with the pfd and exanetctl that guests get, and in its
	// directory arm64 those of MachineARM.
	Programs string
	// Package is the package of make deb that guests with Debian install; "": the
	// newest in Programs.
	Package string
	// Kernel is which one the guests have, as the beginning of its version: 6.12, or
	// 6.12-amd64 for the one with all modules instead of that for clouds; "": the archive's
	// newest.
	Kernel string
	// Say tells what is done and how far it is; nil: nobody.
	Say func(format string, args ...any)

	arm bool // it is the part for MachineARM
}

// of gives the part of the cache for a machine.
func (c *Cache) of(machine string) *Cache {
	if machine != MachineARM || c.arm {
		return c
	}
	return &Cache{Dir: c.path(MachineARM), Programs: filepath.Join(c.Programs, MachineARM), Kernel: c.Kernel, Say: c.Say, arm: true}
}

// missing is ErrNotSetUp for the part of the cache.
func (c *Cache) missing() error {
	if c.arm {
		return fmt.Errorf("%w --arm64", ErrNotSetUp)
	}
	return ErrNotSetUp
}

func (c *Cache) path(name ...string) string {
	return filepath.Join(append([]string{c.Dir}, name...)...)
}

// kernelPath is path of what each kernel has of its own.
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

// pins is what a cache was resolved to; Setup goes by it from then on, whatever
// the archive has meanwhile.
type pins struct {
	Programs []archived `json:"programs"` // QEMU, where the machine has none, a shell, and bpftool for tests
	Kernel   []archived `json:"kernel"`
	Build    []archived `json:"compiler,omitempty"` // what builds modules and tests for it
	Debian   []archived `json:"debian,omitempty"`   // the system of a guest
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

// replace writes a file that is there as a whole or not at all.
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

// once makes a directory of the cache unless it is there: in a new one, which
// takes its name when it is complete.
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

// What says what Fetch has to fetch.
type What struct {
	Refresh bool // have packages resolved anew
	IOMMUFD bool // build the modules that Debian's kernels lack, and the kernel's tests of VFIO
	Debian  bool // guests with Debian
	ARM     bool // for MachineARM, instead: neither of the two before
}

// part gives the part of the cache that is meant.
func (c *Cache) part(w What) *Cache {
	if w.ARM {
		return c.of(MachineARM)
	}
	return c
}

// Setup makes whatever the cache misses: Fetch, and then Prepare.
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

// Fetch has the programs and the kernel from the archive. What was fetched stays
// where it fails, and the next Fetch goes on there; once all is there it needs no
// network.
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
		return fmt.Errorf("%w: the kernel %q: want the first numbers of its version, as 6.12", ErrArchive, c.Kernel)
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

// resolve chooses packages.
func (c *Cache) resolve(ctx context.Context, a *archive) (pins, error) {
	var p pins
	if err := a.update(ctx); err != nil {
		return p, err
	}
	programs, qemu, kernel := []string{"busybox-static", "bpftool"}, []string{"qemu-system-x86", "seabios"}, "linux-image-cloud-amd64"
	if c.arm {
		// Linux 7.2 gives a node no vectors there (VFIO_DEVICE_SET_IRQS: ENOSPC).
		programs, qemu, kernel = []string{"busybox-static:arm64"}, []string{"qemu-system-arm"}, "linux-image-cloud-arm64:arm64/"+suite
	}
	if q, err := c.onPath(ctx); err == nil {
		c.say("QEMU %s is on PATH", q.Version)
	} else {
		c.say("%v: taking Debian's", err)
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
