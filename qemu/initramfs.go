package qemu

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cavaliergopher/cpio"

	"github.com/exanet/pfd/qemu/guest"
)

// ErrProgram reports that a program cannot run in a guest.
var ErrProgram = errors.New("program of a guest")

// content is a file of the initramfs: a directory, a link, a copied file, or a text.
type content struct {
	name string
	mode fs.FileMode
	from string // path, or ""
	text string // if from is "": the content of the file, or the target of the link
}

// contents returns the files of a small guest.
func (c *Cache) contents() ([]content, error) {
	var list []content
	for _, d := range []string{"bin", "dev", "etc", "lib", "proc", "root", "run", "sys", "tmp"} {
		list = append(list, content{name: d, mode: fs.ModeDir | 0o755})
	}
	for _, p := range []string{"pfd", "exanetctl"} {
		path := filepath.Join(c.Programs, p)
		machine := elf.EM_X86_64
		if c.arm {
			machine = elf.EM_AARCH64
		}
		if err := static(path, machine); err != nil {
			return nil, err
		}
		list = append(list, content{name: "bin/" + p, mode: 0o755, from: path})
	}
	list = append(list,
		content{name: "bin/busybox", mode: 0o755, from: c.path("root", "usr", "bin", "busybox")},
		content{name: "etc/passwd", mode: 0o644, text: "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"},
		content{name: "etc/group", mode: 0o644, text: "root:x:0:\nnogroup:x:65534:\n"},
	)
	modules, err := c.moduleContents(guest.Modules)
	return append(list, modules...), err
}

// moduleContents returns the kernel's modules, placed below a directory.
func (c *Cache) moduleContents(below string) ([]content, error) {
	list := []content{{name: below[1:], mode: fs.ModeDir | 0o755}}
	for _, set := range []string{guest.SetStock, guest.SetIOMMUFD} {
		dir := c.modules(set)
		modules, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) && set != guest.SetStock {
			continue // not built
		}
		if err != nil {
			return nil, fmt.Errorf("modules of the guests: %w: %w", err, ErrNotSetUp)
		}
		to := below[1:] + "/" + set
		list = append(list, content{name: to, mode: fs.ModeDir | 0o755})
		for _, m := range modules {
			list = append(list, content{name: to + "/" + m.Name(), mode: 0o644, from: filepath.Join(dir, m.Name())})
		}
	}
	return list, nil
}

// modules returns the path of a set of modules in the cache.
func (c *Cache) modules(set string) string {
	if set == guest.SetStock {
		return c.kernelPath("kernel", "modules")
	}
	return c.kernelPath(set, "modules")
}

// static returns an error for a program of another architecture, or one that needs libraries,
// which guests do not have.
func static(path string, machine elf.Machine) error {
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("%w: %w: name the directory of pfd and exanetctl with --programs (those for arm64 in its directory arm64)", ErrProgram, err)
	}
	defer f.Close()
	if f.Machine != machine {
		return fmt.Errorf("%w: %s is built for %v, want %v: set GOARCH", ErrProgram, path, f.Machine, machine)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%w: %s needs libraries, which guests do not have: build it with CGO_ENABLED=0", ErrProgram, path)
		}
	}
	return nil
}

// initramfs creates the archive of a guest's files, uncompressed because decompression takes a
// guest longer than reading. It returns the file and a key of its content.
func (c *Cache) initramfs(system System) (path, key string, err error) {
	base := "" // the archive before these files
	contents := c.contents
	h := sha256.New()
	if system == Debian {
		base, contents = c.path("debian", "files"), c.debianContents
		if err := copyFile(h, c.path("debian", "key")); err != nil {
			return "", "", fmt.Errorf("files of Debian: %w: %w --debian", err, ErrNotSetUp)
		}
	}
	list, err := contents()
	if err != nil {
		return "", "", err
	}
	for _, f := range list {
		fmt.Fprintf(h, "%s %v %s\n", f.name, f.mode, f.text)
		if f.from != "" {
			if err := copyFile(h, f.from); err != nil {
				return "", "", err
			}
		}
	}
	key = hex.EncodeToString(h.Sum(nil))[:16]
	path = c.path("initramfs-" + key)
	if exists(path) {
		return path, key, nil
	}
	out, err := os.Create(path + ".new")
	if err != nil {
		return "", "", fmt.Errorf("initramfs: %w", err)
	}
	if base != "" {
		err = copyFile(out, base)
	}
	if err == nil {
		err = write(out, list)
	}
	if err = errors.Join(err, out.Close()); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return "", "", fmt.Errorf("initramfs: %w", err)
	}
	return path, key, nil
}

// write writes an archive in the format that the kernel unpacks
// (Documentation/driver-api/early-userspace/buffer-format.rst).
func write(out io.Writer, list []content) error {
	w := cpio.NewWriter(out)
	for _, f := range list {
		if err := writeEntry(w, f); err != nil {
			return err
		}
	}
	return w.Close()
}

func writeEntry(w *cpio.Writer, f content) error {
	h := &cpio.Header{Name: f.name, Mode: cpio.FileMode(f.mode.Perm()), Size: int64(len(f.text)), Links: 1}
	switch f.mode.Type() {
	case fs.ModeDir:
		h.Mode |= cpio.TypeDir
	case fs.ModeSymlink:
		h.Mode |= cpio.TypeSymlink
	default:
		h.Mode |= cpio.TypeReg
	}
	if f.from != "" {
		st, err := os.Stat(f.from)
		if err != nil {
			return err
		}
		h.Size = st.Size()
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	if f.from != "" {
		return copyFile(w, f.from)
	}
	_, err := io.WriteString(w, f.text)
	return err
}

func copyFile(w io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}
