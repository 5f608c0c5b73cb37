package packaging

import (
	"os"
	"path/filepath"
	"testing"
)

// systemd-tmpfiles makes the settings of the package's file in a separate system: only those that its
// kernel has, and no others.
func TestFoliosAtBoot(t *testing.T) {
	need(t, "systemd-tmpfiles")
	sys := t.TempDir()
	top := filepath.Join(sys, "sys/kernel/mm/transparent_hugepage")
	want := map[string]string{"shmem_enabled": "never", "hugepages-64kB/shmem_enabled": "advise", "hugepages-128kB/enabled": "never"}
	for name := range want {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(top, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(top, name), []byte("never"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	conf, err := filepath.Abs(filepath.Join(root, "contrib/tmpfiles.d/exanet-folios.conf"))
	if err != nil {
		t.Fatal(err)
	}
	run(t, "systemd-tmpfiles", "--root="+sys, "--create", conf)
	for name, word := range want {
		if b, err := os.ReadFile(filepath.Join(top, name)); err != nil || string(b) != word && string(b) != word+"\n" {
			t.Errorf("%s is %q, want %s: %v", name, b, word, err)
		}
	}
	if _, err := os.Stat(filepath.Join(top, "hugepages-64kB/enabled")); !os.IsNotExist(err) {
		t.Errorf("a setting that the kernel has not was made: %v", err)
	}
}
