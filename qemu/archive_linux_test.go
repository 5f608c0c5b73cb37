package qemu

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestMirror(t *testing.T) {
	for _, c := range []struct{ name, lines, want string }{
		{"a mirror", "http://mirror.invalid/debian/ bookworm main\n", "http://mirror.invalid/debian/"},
		{"behind others", "http://x.invalid/apt stable main\nhttp://m.invalid/debian-security bookworm-security main\nhttp://m.invalid/debian bookworm-updates main\nhttp://m.invalid/debian bookworm main\n", "http://m.invalid/debian"},
		{"no mirror", "http://x.invalid/apt stable main\n", ""},
		{"nothing", "", ""},
	} {
		got, err := mirrorOf(c.lines)
		if got != c.want || (err != nil) != (c.want == "") || err != nil && !errors.Is(err, ErrArchive) {
			t.Errorf("%s: %q, %v, want %q", c.name, got, err, c.want)
		}
	}
}

func TestParseURIs(t *testing.T) {
	const text = `Reading package lists...
'http://m.invalid/q/qemu_1%3a11.1.3%2bds_amd64.deb' qemu-system-x86_1%3a11.1.3+ds-1_amd64.deb 10377056 SHA256:00
'http://m.invalid/l/libc6_2.41_amd64.deb' libc6_2.41_amd64.deb 12 MD5Sum:00
`
	list, err := parseURIs(text)
	want := []archived{{"qemu-system-x86_1%3a11.1.3+ds-1_amd64.deb", 10377056}, {"libc6_2.41_amd64.deb", 12}}
	if err != nil || !slices.Equal(list, want) {
		t.Fatalf("%+v, %v", list, err)
	}
	if s := list[0].spec(); s != "qemu-system-x86=1:11.1.3+ds-1" {
		t.Errorf("the first is %q for apt-get", s)
	}
}

// The newest kernel of a version is selected, of the right flavour only.
func TestNewestKernel(t *testing.T) {
	names := []string{
		"linux-image-6.12.94+deb13-cloud-amd64", "linux-image-6.12.107+deb13-cloud-amd64", "linux-image-6.12.108+deb13-amd64",
		"linux-image-6.18.9+deb13-cloud-amd64", "linux-image-6.18.15+deb13-cloud-amd64", "linux-image-6.1.200+deb13-cloud-amd64",
	}
	for _, c := range []struct{ version, want string }{
		{"6.12", names[1]}, {"6.12.94", names[0]}, {"6.18", names[4]}, {"6.1", names[5]}, {"6.17", ""}, {"6", ""}, {"6.12-amd64", names[2]}, {"6.12.108-amd64", names[2]}, {"6.18-amd64", ""},
	} {
		got, err := newest(names, c.version)
		if got != c.want || (err != nil) != (c.want == "") || err != nil && !errors.Is(err, ErrArchive) {
			t.Errorf("%s: %q, %v, want %q", c.version, got, err, c.want)
		}
	}
}

func FuzzParseURIs(f *testing.F) {
	f.Add("'u' a_1_b.deb 3 h\n")
	f.Add("'u' ../a_1_b 3\n'")
	f.Fuzz(func(t *testing.T, text string) {
		list, err := parseURIs(text)
		if (err == nil) == (len(list) == 0) {
			t.Errorf("%d packages and error %v", len(list), err)
		}
		for _, a := range list {
			if filepath.Base(a.File) != a.File { // it becomes a file name in the cache
				t.Errorf("file %q", a.File)
			}
		}
	})
}

func TestKernelOf(t *testing.T) {
	release, source, err := kernelOf([]archived{{File: "linux-modules-7.3.4+deb13-cloud-amd64_7.3.4-1~bpo13+1_amd64.deb"}, {File: "linux-image-7.3.4+deb13-cloud-amd64_7.3.4-1~bpo13+1_amd64.deb"}})
	if err != nil || release != "7.3.4+deb13-cloud-amd64" || source != "linux-source-7.3=7.3.4-1~bpo13+1" {
		t.Errorf("%q, %q, %v", release, source, err)
	}
	if _, _, err := kernelOf(nil); !errors.Is(err, ErrArchive) {
		t.Errorf("of no packages: %v", err)
	}
}

// object creates an ELF-64 file whose section .modinfo contains text.
func object(text string) []byte {
	names := "\x00.modinfo\x00.shstrtab\x00"
	var b bytes.Buffer
	put := func(v any) { _ = binary.Write(&b, binary.LittleEndian, v) } // into memory
	const head, section = 64, 64
	put(elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)}, Type: uint16(elf.ET_REL), Machine: uint16(elf.EM_X86_64), Version: 1,
		Shoff: head, Ehsize: head, Shentsize: section, Shnum: 3, Shstrndx: 2,
	})
	put(elf.Section64{})
	put(elf.Section64{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: head + 3*section, Size: uint64(len(text))})
	put(elf.Section64{Name: 10, Type: uint32(elf.SHT_STRTAB), Off: head + 3*section + uint64(len(text)), Size: uint64(len(names))})
	b.WriteString(text + names)
	return b.Bytes()
}

func TestLoadOrder(t *testing.T) {
	modules := map[string][]byte{
		"vfio_pci":      object("license=GPL\x00depends=vfio-pci-core,vfio\x00"),
		"vfio_pci_core": object("depends=vfio,irqbypass\x00"),
		"vfio":          object("depends=\x00"),
		"irqbypass":     object("license=GPL\x00"),
		"broken":        []byte("no ELF file"),
	}
	get := func(name string) ([]byte, error) {
		if b, ok := modules[name]; ok {
			return b, nil
		}
		return nil, fmt.Errorf("%w: %s", ErrModule, name)
	}
	for _, c := range []struct {
		name, set, want string
		fails           bool
	}{
		{"each after what it needs", "vfio_pci", "vfio irqbypass vfio_pci_core vfio_pci", false},
		{"one that there need not be", "(uio) vfio", "vfio", false},
		{"one that must be", "uio", "", true},
		{"no module", "broken", "", true},
	} {
		var set []wanted
		for _, w := range strings.Fields(c.set) {
			name := strings.Trim(w, "()")
			set = append(set, wanted{name, name == w})
		}
		order, err := loadOrder(set, get)
		var got []string
		for _, m := range order {
			got = append(got, m.name)
		}
		if strings.Join(got, " ") != c.want || (err != nil) != c.fails {
			t.Errorf("%s: %q, %v, want %q", c.name, got, err, c.want)
		}
	}
}

// A directory of the cache exists completely or not at all.
func TestOnce(t *testing.T) {
	c := &Cache{Dir: t.TempDir()}
	broken := errors.New("broken off")
	for i, fail := range []error{broken, nil, broken} {
		made := false
		err := c.once("part", func(dir string) error {
			made = true
			if list, err := os.ReadDir(dir); err != nil || len(list) != 0 {
				t.Errorf("the directory has %v, %v", list, err)
			}
			if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
				t.Error(err)
			}
			return fail
		})
		if made != (i < 2) || (i == 0) != errors.Is(err, broken) || exists(c.path("part", "file")) != (i > 0) {
			t.Errorf("call %d: made %v, error %v", i, made, err)
		}
	}
}
