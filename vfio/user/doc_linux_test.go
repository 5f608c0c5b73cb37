package user

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDoc: docs/vfio-user.md maps 224 cases to tests and rows that exist.
func TestDoc(t *testing.T) {
	text, err := os.ReadFile("../../docs/vfio-user.md")
	if err != nil {
		t.Fatal(err)
	}
	var source strings.Builder
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		source.Write(b)
	}
	if n := len(regexp.MustCompile(`(?m)^\| test_\w+ \| .+ \|$`).FindAll(text, -1)); n != 224 {
		t.Errorf("%d cases, want 224", n)
	}
	for _, m := range regexp.MustCompile("`((?:Test|Fuzz)\\w+)`(?: \\(([^)]*)\\))?").FindAllStringSubmatch(string(text), -1) {
		if !strings.Contains(source.String(), "func "+m[1]+"(") {
			t.Errorf("no test %s", m[1])
		}
		if m[1] != "TestRefusals" && m[1] != "TestFatal" || m[2] == "" {
			continue
		}
		for _, row := range strings.Split(m[2], ", ") {
			if !strings.Contains(source.String(), `{"`+row+`", `) {
				t.Errorf("%s has no row %q", m[1], row)
			}
		}
	}
}
