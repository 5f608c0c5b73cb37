package folios_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/exanet/pfd/internal/folios"
)

func TestRead(t *testing.T) {
	const never, shmem = "always inherit madvise [never]", "always inherit within_size advise [never]"
	pick := func(list, word string) string {
		return strings.Replace(strings.NewReplacer("[", "", "]", "").Replace(list), word, "["+word+"]", 1)
	}
	for _, c := range []struct {
		name            string
		files           map[string]string
		shared, private folios.Setting
	}{
		{"a kernel without", nil, folios.Setting{}, folios.Setting{}},
		{"as it comes", map[string]string{
			"enabled": "always [madvise] never", "shmem_enabled": "always within_size advise [never] deny force",
			"hugepages-64kB/enabled": never, "hugepages-64kB/shmem_enabled": shmem,
			"hugepages-2048kB/enabled": pick(never, "inherit"), "hugepages-2048kB/shmem_enabled": pick(shmem, "inherit"),
		}, folios.Setting{Known: true}, folios.Setting{Known: true, Huge: true}},
		{"some sizes", map[string]string{
			"enabled": "always madvise [never]", "shmem_enabled": "always within_size [advise] never deny force",
			"hugepages-128kB/shmem_enabled": pick(shmem, "always"), "hugepages-64kB/shmem_enabled": pick(shmem, "advise"), "hugepages-16kB/shmem_enabled": pick(shmem, "inherit"),
			"hugepages-2048kB/shmem_enabled": pick(shmem, "inherit"), "hugepages-2048kB/enabled": pick(never, "inherit"),
			"hugepages-64kB/enabled": pick(never, "madvise"), "hugepages-x/enabled": pick(never, "always"),
		}, folios.Setting{Known: true, Huge: true, Sizes: "16 KiB, 64 KiB, 128 KiB"}, folios.Setting{Known: true, Sizes: "64 KiB"}},
		{"denied", map[string]string{
			"shmem_enabled": "always within_size advise never [deny] force", "hugepages-64kB/shmem_enabled": pick(shmem, "advise"),
		}, folios.Setting{Known: true}, folios.Setting{}},
		{"forced", map[string]string{
			"shmem_enabled": "always within_size advise never deny [force]", "hugepages-64kB/shmem_enabled": shmem,
		}, folios.Setting{Known: true, Sizes: "64 KiB"}, folios.Setting{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			for name, text := range c.files {
				path := filepath.Join(root, "sys/kernel/mm/transparent_hugepage", name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if shared, private := folios.Read(root); shared != c.shared || private != c.private {
				t.Errorf("shared %+v, private %+v; want %+v, %+v", shared, private, c.shared, c.private)
			}
		})
	}
}

// The lines name files that a kernel with the settings has, and the package's file makes the same settings.
func TestLines(t *testing.T) {
	conf, err := os.ReadFile("../../contrib/tmpfiles.d/exanet-folios.conf")
	if err != nil {
		t.Fatal(err)
	}
	shared, private := folios.Read("/")
	for _, c := range []struct {
		line  string
		known bool
	}{{folios.SharedLine, shared.Known}, {folios.PrivateLine, private.Known}} {
		word, file, _ := strings.Cut(strings.TrimPrefix(c.line, "echo "), " >")
		if want := "w " + file + " - - - - " + word + "\n"; !strings.Contains(string(conf), want) {
			t.Errorf("the file has no line %q:\n%s", want, conf)
		}
		if !c.known {
			t.Logf("this kernel has no setting for %s", c.line)
			continue
		}
		if b, err := os.ReadFile(file); err != nil || !strings.Contains(string(b), word) {
			t.Errorf("%s: %q, %v", c.line, b, err)
		}
	}
}
