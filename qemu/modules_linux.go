package qemu

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	_ "embed" // the scripts
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/ulikunitz/xz"

	"github.com/exanet/pfd/qemu/guest"
)

// Built in a separate root: modules, and the kernel's tests of VFIO with a driver for a node.
var (
	//go:embed modules.sh
	modulesScript string
	//go:embed selftests/build.sh
	selftestsScript string
	//go:embed selftests/exanet.c
	selftestsDriver string
)

// imagePackage matches a kernel's release and the first two parts of it.
var imagePackage = regexp.MustCompile(`^linux-image-((\d+\.\d+)\.[^_]+)_([^_]+)_`)

// sourceFiles matches the needed files of the kernel's sources.
var sourceFiles = regexp.MustCompile(`^[^/]+/(drivers/iommu/(?:iommufd/)?[^/]+|drivers/vfio/(?:pci/)?[^/]+|lib/interval_tree\.c` +
	`|include/linux/pci_ids\.h|scripts/subarch\.include|tools/(?:arch/x86/)?include/.+|tools/testing/selftests/(?:vfio/.+|[^/]+))$`)

// buildTime limits a build; defined by this project.
const buildTime = 15 * time.Minute

// build builds iommufd, VFIO with device files, and the kernel's tests of VFIO, from the
// sources of exactly this kernel. It builds in a root of Debian packages with the kernel's
// compiler, because the host's may differ.
func (c *Cache) build(ctx context.Context, a *archive, p *pins) error {
	release, source, err := kernelOf(p.Kernel)
	if err != nil {
		return err
	}
	if p.Build == nil {
		if err := a.update(ctx); err != nil {
			return err
		}
		if p.Build, err = a.resolve(ctx, "linux-headers-"+release, source, "make", "dash", "coreutils", "sed", "grep", "findutils", "mawk", "libc6-dev", "uuid-dev"); err != nil {
			return fmt.Errorf("%w (if the archive no longer has this kernel's, setup --refresh selects a newer kernel)", err)
		}
		if err := c.writePins(*p); err != nil {
			return err
		}
	}
	if err := c.once("build", func(dir string) error { return c.buildRoot(ctx, a, p.Build, dir) }); err != nil {
		return err
	}
	root := c.path("build")
	if err := c.once(c.kernelName("iommufd"), func(dir string) error {
		c.say("building modules")
		if err := c.runIn(ctx, root, map[string]string{"build.sh": modulesScript}, release); err != nil {
			return err
		}
		return takeModules(dir, root, c.modules(guest.SetStock))
	}); err != nil {
		return fmt.Errorf("modules with iommufd: %w", err)
	}
	if err := c.once(c.kernelName(selftests()), func(dir string) error {
		c.say("building the kernel's tests of VFIO")
		if err := c.runIn(ctx, root, map[string]string{"build.sh": selftestsScript, "exanet.c": selftestsDriver}, ""); err != nil {
			return err
		}
		return takeTests(dir, filepath.Join(root, "usr/src/exanet/tools/testing/selftests/vfio"))
	}); err != nil {
		return fmt.Errorf("the kernel's tests of VFIO: %w", err)
	}
	return os.RemoveAll(root)
}

// buildRoot unpacks the compiler and the sources.
func (c *Cache) buildRoot(ctx context.Context, a *archive, list []archived, root string) error {
	if err := a.download(ctx, "compiler and sources", list); err != nil {
		return err
	}
	var packages []archived
	for _, f := range list {
		if strings.HasPrefix(f.File, "linux-source-") {
			if err := c.unpackSources(ctx, a, f, filepath.Join(root, "usr/src/exanet")); err != nil {
				return err
			}
		} else {
			packages = append(packages, f)
		}
	}
	return a.extract(ctx, root, packages)
}

// runIn runs build.sh, one of files, on a root. It uses only the shell, mount and chroot of the
// host.
func (c *Cache) runIn(ctx context.Context, root string, files map[string]string, arg string) error {
	dir, err := os.MkdirTemp("", "exanet-build-")
	if err != nil {
		return fmt.Errorf("directory for a build: %w", err)
	}
	defer os.RemoveAll(dir)
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, buildTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "sh", filepath.Join(dir, "build.sh"), root, dir, arg)
	cmd.Env = []string{"PATH=/usr/bin:/usr/sbin:/bin:/sbin", "LC_ALL=C"}
	cmd.WaitDelay = grace
	_, err = output(cmd)
	if err != nil && strings.Contains(err.Error(), "unshare failed") {
		err = fmt.Errorf("%w: run it as root, or allow user namespaces: sysctl kernel.unprivileged_userns_clone=1", err)
	}
	return err
}

// selftests returns the directory of the kernel's tests, which depends on the driver.
func selftests() string {
	sum := sha256.Sum256([]byte(selftestsScript + selftestsDriver))
	return "selftests-" + hex.EncodeToString(sum[:4])
}

// Selftests returns the directory of the statically linked programs of the kernel's tests of
// VFIO. Errors match ErrNotSetUp.
func (c *Cache) Selftests() (string, error) {
	if dir := c.kernelPath(selftests()); exists(dir) {
		return dir, nil
	}
	return "", fmt.Errorf("the kernel's tests of VFIO: %w --iommufd", ErrNotSetUp)
}

// takeTests copies the programs of the kernel's tests, which the Makefile builds beside their
// sources.
func takeTests(dir, from string) error {
	list, err := filepath.Glob(filepath.Join(from, "*_test"))
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("%w: no test program in %s", ErrArchive, from)
	}
	if err != nil {
		return err
	}
	for _, path := range list {
		b, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(path)), b, 0o755)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// kernelOf returns the release of a kernel, and its sources in the syntax of apt-get.
func kernelOf(list []archived) (release, source string, err error) {
	for _, f := range list {
		if m := imagePackage.FindStringSubmatch(f.File); m != nil {
			return m[1], "linux-source-" + m[2] + "=" + m[3], nil
		}
	}
	return "", "", fmt.Errorf("%w: no linux-image among the kernel's packages", ErrArchive)
}

// unpackSources extracts sourceFiles from the package of the kernel's sources.
func (c *Cache) unpackSources(ctx context.Context, a *archive, f archived, to string) error {
	c.say("unpacking the kernel's sources")
	found := false
	err := a.files(ctx, f, func(name string, r io.Reader) error {
		if !strings.HasSuffix(name, ".tar.xz") {
			return nil
		}
		x, err := unxz(ctx, r)
		if err != nil {
			return err
		}
		defer x.Close()
		for t := tar.NewReader(x); ; {
			h, err := t.Next()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			m := sourceFiles.FindStringSubmatch(h.Name)
			if m == nil {
				continue
			}
			path := filepath.Join(to, m[1])
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
			switch h.Typeflag {
			case tar.TypeSymlink:
				err = os.Symlink(h.Linkname, path)
			case tar.TypeReg:
				found = true
				var b []byte
				if b, err = io.ReadAll(t); err == nil {
					err = os.WriteFile(path, b, 0o644)
				}
			}
			if err != nil {
				return err
			}
		}
	})
	if err == nil && !found {
		err = fmt.Errorf("%w: %s has no sources of iommufd", ErrArchive, f.File)
	}
	return err
}

// unxz decompresses with the program xz if the machine has it, which takes a tenth of the time.
func unxz(ctx context.Context, r io.Reader) (io.ReadCloser, error) {
	cmd := exec.CommandContext(ctx, "xz", "-dc")
	cmd.Stdin = r
	out, err := cmd.StdoutPipe()
	if err == nil && cmd.Start() == nil {
		return &piped{out, cmd}, nil
	}
	x, err := xz.NewReader(r)
	if err != nil {
		return nil, err
	}
	return io.NopCloser(x), nil
}

// piped is the output of a running program.
type piped struct {
	io.ReadCloser
	cmd *exec.Cmd
}

// Close ends the program. Its reader has already checked the data.
func (p *piped) Close() error {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	return nil
}

// takeModules writes the set from the modules built below root, and from the stock set for
// modules that were not built.
func takeModules(dir, root, stock string) error {
	files := map[string]string{}
	list, err := filepath.Glob(filepath.Join(stock, "*.ko"))
	if err != nil {
		return err
	}
	for _, path := range list {
		_, name, _ := strings.Cut(strings.TrimSuffix(filepath.Base(path), ".ko"), "-")
		files[name] = path
	}
	err = filepath.WalkDir(filepath.Join(root, "usr/src/exanet"), func(path string, _ fs.DirEntry, err error) error {
		if base, ok := strings.CutSuffix(filepath.Base(path), ".ko"); ok {
			files[moduleName(base)] = path
		}
		return err
	})
	if err != nil {
		return err
	}
	return writeModules(dir, iommufdModules, func(name string) ([]byte, error) {
		path, ok := files[name]
		if !ok {
			return nil, fmt.Errorf("%w: %s", ErrModule, name)
		}
		return os.ReadFile(path)
	})
}
