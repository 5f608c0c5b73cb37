package qemu

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/cavaliergopher/cpio"

	"github.com/exanet/pfd/qemu/guest"
)

// System is the userspace of a guest.
type System string

// Systems.
const (
	// Small has pfd, exanetctl and a shell.
	Small System = ""
	// Debian is Debian with systemd and the package of make deb.
	Debian System = "debian"
)

// ErrPackage reports that the package for Debian guests does not exist.
var ErrPackage = errors.New("package of pfd for Debian")

// debianPackages are installed with their dependencies. dpkg needs the programs of four others
// (lib/dpkg/path.c of dpkg, checkpath).
var debianPackages = []string{
	"base-files", "bpftool", "coreutils", "dash", "diffutils", "dpkg", "findutils", "grep", "libc-bin",
	"procps", "sed", "systemd", "tar", "udev", "util-linux",
}

// unwanted matches files that a guest does not need: the kernel unpacks all others into memory.
var unwanted = regexp.MustCompile(`^(boot|usr/share/(bash-completion|bug|doc|doc-base|fish|gcc|gdb|info|lintian|locale|man|polkit-1|zoneinfo|zsh)|usr/lib/(locale|udev/hwdb\.d|[^/]+/gconv)|usr/include|usr/games)/.`)

// merged are the links of a system whose programs are all below /usr. A package's directory of
// the same name would replace the link.
var merged = []string{"bin", "sbin", "lib", "lib64"}

// unpackDebian combines packages into one archive in dir, in the format that the kernel
// unpacks. It runs none of their scripts: debianContents has their effects as far as a guest
// needs them.
func (a *archive) unpackDebian(ctx context.Context, dir string, list []archived) error {
	a.cache.say("unpacking Debian, %d packages", len(list))
	out, err := os.Create(filepath.Join(dir, "files"))
	if err != nil {
		return err
	}
	sum := sha256.New()
	buffer := bufio.NewWriterSize(io.MultiWriter(out, sum), 1<<20)
	w := cpio.NewWriter(buffer)
	for _, d := range merged {
		if err := writeEntry(w, content{name: d, mode: fs.ModeSymlink | 0o777, text: "usr/" + d}); err != nil {
			return errors.Join(err, out.Close())
		}
	}
	for _, f := range list {
		if err := a.entries(ctx, f, func(h *tar.Header, r io.Reader) error { return unpackEntry(w, h, r) }); err != nil {
			return errors.Join(err, out.Close())
		}
	}
	// Without a trailer: the next archive continues this one.
	err = errors.Join(w.Flush(), buffer.Flush(), out.Close())
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "key"), []byte(hex.EncodeToString(sum.Sum(nil))), 0o644)
	}
	return err
}

// unpackEntry copies a file of a package, owned by root.
func unpackEntry(w *cpio.Writer, h *tar.Header, r io.Reader) error {
	name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
	if name == "" || unwanted.MatchString(name) {
		return nil
	}
	for _, m := range merged {
		if name == m {
			return nil
		}
		if rest, ok := strings.CutPrefix(name, m+"/"); ok { // older packages may use the old paths
			name = "usr/" + m + "/" + rest
		}
	}
	c := content{name: name, mode: fs.FileMode(h.Mode & 0o777)}
	switch h.Typeflag {
	case tar.TypeReg:
		if err := w.WriteHeader(&cpio.Header{Name: name, Mode: cpio.TypeReg | cpio.FileMode(c.mode), Size: h.Size, Links: 1}); err != nil {
			return err
		}
		_, err := io.Copy(w, r)
		return err
	case tar.TypeDir:
		c.mode |= fs.ModeDir
	case tar.TypeSymlink:
		c.mode, c.text = c.mode|fs.ModeSymlink, h.Linkname
	case tar.TypeLink: // within one package; the first link has the data
		c.mode, c.text = fs.ModeSymlink|0o777, path.Clean("/"+h.Linkname)
	default:
		return nil
	}
	return writeEntry(w, c)
}

// agentUnit is the service that runs the host's commands. Its first part makes the guest a
// machine with pfd installed.
const agentUnit = `[Unit]
Description=Commands of this guest's host
After=basic.target

[Service]
Environment=PATH=/usr/bin:/usr/sbin HOME=/root TERM=vt100 SHELL=/bin/sh
ExecStartPre=/usr/bin/dpkg --install /root/exanet.deb
ExecStart=/usr/bin/exanetctl guest agent
StandardError=journal+console
TimeoutStartSec=infinity

[Install]
WantedBy=multi-user.target
`

// idle are units that take time and are useless in a guest: devices are plugged in after its
// boot.
var idle = []string{
	"dev-mqueue.mount", "getty.target", "ldconfig.service", "proc-sys-fs-binfmt_misc.automount", "run-lock.mount",
	"systemd-binfmt.service", "systemd-hwdb-update.service", "systemd-journal-catalog-update.service", "systemd-journal-flush.service",
	"systemd-network-generator.service", "systemd-random-seed.service", "systemd-udev-trigger.service",
}

// debianContents returns the files of a Debian guest that are not in packages.
func (c *Cache) debianContents() ([]content, error) {
	deb, err := c.deb()
	if err != nil {
		return nil, err
	}
	const units = "etc/systemd/system/"
	list := []content{
		{name: "etc/passwd", mode: 0o644, text: "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"},
		{name: "etc/group", mode: 0o644, text: "root:x:0:\nnogroup:x:65534:\n"},
		{name: "etc/shadow", mode: 0o600, text: "root:*:1:0:99999:7:::\nnobody:*:1:0:99999:7:::\n"},
		{name: "etc/hostname", mode: 0o644, text: "guest\n"},
		// Without an id this would be a first boot, which enables all services.
		{name: "etc/machine-id", mode: 0o444, text: "e4a0e4a0e4a0e4a0e4a0e4a0e4a0e4a0\n"},
		{name: "var/lib/dpkg/status", mode: 0o644},
		{name: "root/exanet.deb", mode: 0o644, from: deb},
		{name: units + "exanet-guest.service", mode: 0o644, text: agentUnit},
		{name: units + "multi-user.target.wants", mode: fs.ModeDir | 0o755},
		{name: units + "multi-user.target.wants/exanet-guest.service", mode: fs.ModeSymlink | 0o777, text: "../exanet-guest.service"},
	}
	for _, u := range idle {
		list = append(list, content{name: units + u, mode: fs.ModeSymlink | 0o777, text: "/dev/null"})
	}
	modules, err := c.moduleContents("/usr" + guest.Modules)
	return append(list, modules...), err
}

// deb returns the path of the package that Debian guests install.
func (c *Cache) deb() (string, error) {
	if c.Package != "" {
		return c.Package, nil
	}
	list, err := filepath.Glob(filepath.Join(c.Programs, "exanet_*_amd64.deb"))
	if err != nil {
		return "", err
	}
	newest := ""
	for _, f := range list {
		if newest == "" || changed(f).After(changed(newest)) {
			newest = f
		}
	}
	if newest == "" {
		return "", fmt.Errorf("%w: none in %s: build it with make deb, or name it with --package", ErrPackage, c.Programs)
	}
	return newest, nil
}

// How a Debian guest boots, and the command that ends when it has booted.
const debianBoot = "rdinit=/usr/lib/systemd/systemd systemd.unit=multi-user.target"

var debianReady = []string{"sh", "-c", "systemctl is-system-running --wait || { systemctl --failed --no-pager; exit 1; }"}

// debianPFD starts the service. pfd's arguments, pairs of a flag and its value, become its
// configuration (docs/service.md).
const debianPFD = `while [ $# -gt 0 ]; do
	echo "${1#--} = \"$2\""
	shift 2
done >/etc/exanet/pfd.toml
udevadm settle # the devices' files become the service's
systemctl start pfd || { journalctl --no-pager --unit pfd; exit 1; }`

// fetchDebian creates the files of a Debian guest.
func (c *Cache) fetchDebian(ctx context.Context, a *archive, p *pins) error {
	if p.Debian == nil {
		if err := a.update(ctx); err != nil {
			return err
		}
		var err error
		if p.Debian, err = a.resolve(ctx, debianPackages...); err != nil {
			return err
		}
		if err := c.writePins(*p); err != nil {
			return err
		}
	}
	return c.once("debian", func(dir string) error {
		if err := a.download(ctx, "Debian", p.Debian); err != nil {
			return err
		}
		return a.unpackDebian(ctx, dir, p.Debian)
	})
}
