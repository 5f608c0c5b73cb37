package qemu

import (
	"archive/tar"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/ulikunitz/xz"
)

// buildScript builds the modules in a root of its own.
//
//go:embed modules.sh
var buildScript string

// imagePackage tells the release of a kernel, and the first two parts of it.
var imagePackage = regexp.MustCompile(`^linux-image-((\d+\.\d+)\.[^_]+)_([^_]+)_`)

// sourceFiles are what is taken of the kernel's sources.
var sourceFiles = regexp.MustCompile(`^[^/]+/(drivers/iommu/(?:iommufd/)?[^/]+|drivers/vfio/(?:pci/)?[^/]+|lib/interval_tree\.c)$`)

// buildModules builds iommufd and VFIO with devices' own files from the sources
// of the very kernel. They are built in a root of Debian packages, with the
// compiler of the kernel: the host's may be another.
func (c *Cache) buildModules(ctx context.Context, a *archive, p pins, dir string) error {
	release, source, err := kernelOf(p.Kernel)
	if err != nil {
		return err
	}
	if p.Build == nil {
		if err := a.update(ctx); err != nil {
			return err
		}
		if p.Build, err = a.resolve(ctx, "linux-headers-"+release, source, "make", "dash", "coreutils", "sed", "grep", "findutils", "mawk"); err != nil {
			return fmt.Errorf("%w (setup --refresh takes a newer kernel, where the archive has this one's no more)", err)
		}
		if err := c.writePins(p); err != nil {
			return err
		}
	}
	if err := a.download(ctx, "compiler and sources", p.Build); err != nil {
		return err
	}
	root := filepath.Join(dir, "root")
	var packages []archived
	for _, f := range p.Build {
		if strings.HasPrefix(f.File, "linux-source-") {
			if err := c.unpackSources(ctx, a, f, filepath.Join(root, "usr/src/exanet")); err != nil {
				return err
			}
		} else {
			packages = append(packages, f)
		}
	}
	if err := a.extract(ctx, root, packages); err != nil {
		return err
	}
	c.say("building modules")
	script := filepath.Join(dir, "modules.sh")
	if err := os.WriteFile(script, []byte(buildScript), 0o644); err != nil {
		return err
	}
	// Of the host only its shell, mount and chroot are used.
	cmd := exec.CommandContext(ctx, "unshare", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "sh", script, root, release)
	cmd.Env = []string{"PATH=/usr/bin:/usr/sbin:/bin:/sbin", "LC_ALL=C"}
	if _, err := output(cmd); err != nil {
		return fmt.Errorf("%w: it wants namespaces (unshare(1)): run it as root, or allow users theirs: sysctl kernel.unprivileged_userns_clone=1", err)
	}
	if err := takeModules(dir, root, c.path("kernel", "modules")); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(root), os.Remove(script))
}

// kernelOf gives the release of a kernel, and its sources as apt-get takes them.
func kernelOf(list []archived) (release, source string, err error) {
	for _, f := range list {
		if m := imagePackage.FindStringSubmatch(f.File); m != nil {
			return m[1], "linux-source-" + m[2] + "=" + m[3], nil
		}
	}
	return "", "", fmt.Errorf("%w: no linux-image among the kernel's packages", ErrArchive)
}

// unpackSources takes sourceFiles out of a package that has all of the kernel's.
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
			if m == nil || h.Typeflag != tar.TypeReg {
				continue
			}
			found = true
			b, err := io.ReadAll(t)
			if err != nil {
				return err
			}
			path := filepath.Join(to, m[1])
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(path, b, 0o644); err != nil {
				return err
			}
		}
	})
	if err == nil && !found {
		err = fmt.Errorf("%w: %s has no sources of iommufd", ErrArchive, f.File)
	}
	return err
}

// unxz unpacks: by the program xz where the machine has it, which takes a tenth of
// the time.
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

// piped is the output of a program.
type piped struct {
	io.ReadCloser
	cmd *exec.Cmd
}

// Close ends the program. What was read was checked by its reader.
func (p *piped) Close() error {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	return nil
}

// takeModules writes the set from what was built below root and, for what was
// not, from the stock set.
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
