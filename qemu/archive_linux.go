package qemu

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Suites of Debian that are searched. The first QEMU with a vfio-user client is in the second
// (packages.debian.org, 2026-11).
const (
	suite     = "trixie"
	backports = "trixie-backports"
	keyring   = "/usr/share/keyrings/debian-archive-keyring.gpg"
)

// ErrArchive reports that Debian's archive does not provide a needed package.
var ErrArchive = errors.New("archive of Debian")

// archive is Debian's archive, accessed by the host's apt with separate lists: the host's
// installation and sources do not change.
type archive struct {
	cache *Cache
	conf  string // file for apt's -c
}

// archived is a package file of the archive.
type archived struct {
	File string `json:"file"` // NAME_VERSION_ARCH.deb
	Size int64  `json:"size"` // bytes
}

// kernelPackage matches the packages that make up a kernel: one until 7.1, then several.
var kernelPackage = regexp.MustCompile(`^linux-(image|binary|modules)-[0-9]`)

// kernelVersion matches valid values of a Cache's Kernel, which becomes part of file names.
var kernelVersion = regexp.MustCompile(`^(\d+(\.\d+){1,2}(` + generic + `)?)?$`)

// generic is the suffix of a Cache's Kernel that is not the cloud flavour: one with all
// modules.
const generic = "-amd64"

func newArchive(ctx context.Context, c *Cache) (*archive, error) {
	for _, program := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("%w: %w: this machine does not run Debian: run exanetctl qemu setup on one that does, and copy its cache %s", ErrArchive, err, c.Dir)
		}
	}
	mirror, err := hostMirror(ctx)
	if err != nil {
		return nil, err
	}
	dir := c.path("apt")
	for _, d := range []string{"lists/partial", "archives/partial", "none/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, fmt.Errorf("cache: %w", err)
		}
	}
	signed := ""
	if exists(keyring) {
		signed = "[signed-by=" + keyring + "] "
	}
	sources := fmt.Sprintf("deb %[1]s%[2]s %[3]s main\ndeb %[1]s%[2]s %[4]s main\n", signed, mirror, suite, backports)
	others := ""
	if c.arm {
		others = `"arm64"; `
	}
	// With an empty status nothing is installed, so that apt lists every required package.
	// Without the user setting, root's apt drops its rights to a user who cannot access the
	// cache.
	conf := fmt.Sprintf(`Dir::State %[1]q;
Dir::State::lists "%[2]s/lists";
Dir::State::status "%[2]s/status";
Dir::Cache %[1]q;
Dir::Cache::archives "%[2]s/archives";
Dir::Etc::sourcelist "%[2]s/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
APT::Architecture "amd64";
APT::Architectures { "amd64"; %[3]s};
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Acquire::Retries "3";
Acquire::http::Timeout "30";
Acquire::https::Timeout "30";
`, dir, dir, others)
	for name, text := range map[string]string{"sources.list": sources, "apt.conf": conf, "status": ""} {
		if err := replace(filepath.Join(dir, name), []byte(text)); err != nil {
			return nil, fmt.Errorf("cache: %w", err)
		}
	}
	return &archive{cache: c, conf: filepath.Join(dir, "apt.conf")}, nil
}

// hostMirror returns the mirror of Debian that the host's apt uses.
func hostMirror(ctx context.Context) (string, error) {
	out, err := output(exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"))
	if err != nil {
		return "", fmt.Errorf("%w: finding the host's mirror: %w", ErrArchive, err)
	}
	return mirrorOf(string(out))
}

// mirrorOf selects from lines of URI, release and component. Mirrors of Debian have the path
// debian; the archive of security updates is another one.
func mirrorOf(lines string) (string, error) {
	for line := range strings.Lines(lines) {
		f := strings.Fields(line)
		if len(f) != 3 || f[2] != "main" || strings.Contains(f[1], "-") {
			continue
		}
		u, err := url.Parse(f[0])
		if err == nil && strings.HasSuffix(strings.TrimSuffix(u.Path, "/"), "/debian") {
			return f[0], nil
		}
	}
	return "", fmt.Errorf("%w: the host's apt names no mirror of Debian: add one to /etc/apt/sources.list", ErrArchive)
}

// aptTime limits a run of apt-get, however slow the network is; defined by this project.
const aptTime = 15 * time.Minute

func (a *archive) apt(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, aptTime, fmt.Errorf("it took longer than %v", aptTime))
	defer cancel()
	c := exec.CommandContext(ctx, "apt-get", append([]string{"-c", a.conf, "-q", "-y", "-t", backports}, args...)...)
	c.Dir = a.cache.path("apt", "archives")
	c.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	c.WaitDelay = grace // its children may keep the output open
	out, err := output(c)
	if err != nil {
		if ctx.Err() != nil {
			err = errors.Join(context.Cause(ctx), err)
		}
		return nil, fmt.Errorf("%w: %w: check the network and the host's /etc/apt, then run exanetctl qemu setup again: it continues where it stopped", ErrArchive, err)
	}
	return out, nil
}

func (a *archive) update(ctx context.Context) error {
	a.cache.say("reading Debian's lists of packages (%s, %s)", suite, backports)
	// Otherwise a failed update is only a warning.
	_, err := a.apt(ctx, "-o", "APT::Update::Error-Mode=any", "update")
	return err
}

// resolve returns packages with all their dependencies.
func (a *archive) resolve(ctx context.Context, names ...string) ([]archived, error) {
	// apt lists only what it would fetch. An empty archive directory makes it list all.
	out, err := a.apt(ctx, append([]string{"-o", "Dir::Cache::archives=" + a.cache.path("apt", "none"), "--print-uris", "install"}, names...)...)
	if err != nil {
		return nil, err
	}
	return parseURIs(string(out))
}

// kernelNamed returns the packages of the newest kernel with a version prefix. It does not
// resolve dependencies: the archive no longer has all of those of older kernels.
func (a *archive) kernelNamed(ctx context.Context, version string) ([]archived, error) {
	out, err := output(exec.CommandContext(ctx, "apt-cache", "-c", a.conf, "pkgnames", "linux-"))
	if err != nil {
		return nil, fmt.Errorf("%w: kernels: %w", ErrArchive, err)
	}
	all := strings.Fields(string(out))
	image, err := newest(all, version)
	if err != nil {
		return nil, err
	}
	args := []string{"--print-uris", "download", image}
	for _, n := range all {
		if m := kernelPackage.FindStringSubmatch(n + "-"); n != image && m != nil && strings.TrimPrefix(n, "linux-"+m[1]) == strings.TrimPrefix(image, "linux-image") {
			args = append(args, n)
		}
	}
	out, err = a.apt(ctx, args...)
	if err != nil {
		return nil, err
	}
	return parseURIs(string(out))
}

// imageName matches the package of a kernel: the parts of its version, and its flavour.
var imageName = regexp.MustCompile(`^linux-image-(\d+\.\d+)\.(\d+)\+deb[^-]*(-amd64|-cloud-amd64)$`)

// newest selects from packages of kernels.
func newest(names []string, version string) (string, error) {
	best, found, flavour := -1, "", "-cloud-amd64"
	number, all := strings.CutSuffix(version, generic)
	if all {
		flavour = generic
	}
	for _, n := range names {
		m := imageName.FindStringSubmatch(n)
		if m == nil || m[3] != flavour {
			continue
		}
		last, _ := strconv.Atoi(m[2]) // cannot fail: the digits match
		if (m[1] == number || m[1]+"."+m[2] == number) && last > best {
			best, found = last, n
		}
	}
	if found == "" {
		return "", fmt.Errorf("%w: %s and %s have no kernel %s", ErrArchive, suite, backports, version)
	}
	return found, nil
}

// parseURIs parses the output of apt-get --print-uris: 'URI' FILE SIZE HASH.
func parseURIs(text string) ([]archived, error) {
	var list []archived
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "'") {
			continue
		}
		f := strings.Fields(line)
		if len(f) < 3 || strings.Count(f[1], "_") != 2 || strings.ContainsRune(f[1], '/') {
			return nil, fmt.Errorf("%w: apt-get prints %q", ErrArchive, line)
		}
		size, err := strconv.ParseInt(f[2], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%w: apt-get prints %q: %w", ErrArchive, line, err)
		}
		list = append(list, archived{File: f[1], Size: size})
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%w: apt-get names no package: %q", ErrArchive, text)
	}
	return list, nil
}

// spec returns a package in the syntax of apt-get: NAME=VERSION, or NAME:ARCH=VERSION for
// another architecture.
func (f archived) spec() string {
	name, rest, _ := strings.Cut(f.File, "_")
	version, arch, _ := strings.Cut(rest, "_")
	if arch == "arm64.deb" {
		name += ":arm64"
	}
	return name + "=" + strings.ReplaceAll(version, "%3a", ":")
}

func (a *archive) file(f archived) string { return a.cache.path("apt", "archives", f.File) }

// download makes apt fetch and check the missing packages.
func (a *archive) download(ctx context.Context, what string, list []archived) error {
	var total int64
	args := []string{"download"}
	for _, f := range list {
		if st, err := os.Stat(a.file(f)); err != nil || st.Size() != f.Size {
			total += f.Size
			args = append(args, f.spec())
		}
	}
	if total == 0 {
		return nil
	}
	// The packages may have been resolved before another setup cleaned up.
	if lists, err := filepath.Glob(a.cache.path("apt", "lists", "*Packages*")); err == nil && len(lists) == 0 {
		if err := a.update(ctx); err != nil {
			return err
		}
	}
	a.cache.say("fetching %s: %d packages, %d MB", what, len(args)-1, total>>20)
	over := make(chan struct{})
	defer close(over)
	go func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(5 * time.Second):
				var there int64
				for _, f := range list {
					if st, err := os.Stat(a.file(f)); err == nil {
						there += st.Size()
					}
				}
				a.cache.say("fetching %s: %d of %d MB", what, there>>20, total>>20)
			}
		}
	}()
	_, err := a.apt(ctx, args...)
	return err
}

// extract unpacks packages below dir.
func (a *archive) extract(ctx context.Context, dir string, list []archived) error {
	a.cache.say("unpacking %d packages", len(list))
	// Like base-files: older packages may use the old paths.
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.MkdirAll(filepath.Join(dir, "usr", d), 0o755); err != nil {
			return err
		}
		if err := os.Symlink("usr/"+d, filepath.Join(dir, d)); err != nil {
			return err
		}
	}
	for _, f := range list {
		if _, err := output(exec.CommandContext(ctx, "dpkg-deb", "-x", a.file(f), dir)); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrArchive, f.File, err)
		}
	}
	return nil
}

// files calls take for each regular file of a package, with its name without the leading dot.
func (a *archive) files(ctx context.Context, f archived, take func(name string, r io.Reader) error) error {
	return a.entries(ctx, f, func(h *tar.Header, r io.Reader) error {
		if h.Typeflag != tar.TypeReg {
			return nil
		}
		return take(strings.TrimPrefix(h.Name, "."), r)
	})
}

// entries calls take for each file, directory and link of a package.
func (a *archive) entries(ctx context.Context, f archived, take func(h *tar.Header, r io.Reader) error) error {
	c := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", a.file(f))
	pipe, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	var said bytes.Buffer
	c.Stderr = &said
	if err := c.Start(); err != nil {
		return err
	}
	read := func() error {
		for r := tar.NewReader(pipe); ; {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			if err := take(h, r); err != nil {
				return err
			}
		}
	}
	err = read()
	_, _ = io.Copy(io.Discard, pipe) // the rest after the archive's end
	if err := errors.Join(err, c.Wait()); err != nil {
		return fmt.Errorf("%w: %s: %w: %s", ErrArchive, f.File, err, strings.TrimSpace(said.String()))
	}
	return nil
}

// clean removes the archive's files.
func (a *archive) clean() error {
	if err := os.RemoveAll(a.cache.path("apt")); err != nil {
		return fmt.Errorf("cache: %w", err)
	}
	return nil
}

// output runs a program; its error includes the last of the program's output.
func output(c *exec.Cmd) ([]byte, error) {
	var out, said bytes.Buffer
	c.Stdout, c.Stderr = &out, &said
	if err := c.Run(); err != nil {
		text := strings.TrimSpace(said.String())
		if text == "" {
			text = strings.TrimSpace(out.String())
		}
		const most = 600
		if len(text) > most {
			text = "..." + text[len(text)-most:]
		}
		return nil, fmt.Errorf("%s: %w: %s", filepath.Base(c.Path), err, text)
	}
	return out.Bytes(), nil
}
