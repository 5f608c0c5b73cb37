// Package mutants builds test programs with bugs: each must be noticed by the tests that are to notice such
// bugs.
package mutants

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Mutant is a possible bug: pieces of source that are replaced in a test-only build. In the new text M
// stands for "this mutant is on".
type Mutant struct {
	Name  string
	Edits []Edit
}

// Edit replaces a text, which a file contains once.
type Edit struct{ File, Old, New string }

// Of returns a mutant.
func Of(name string, edits ...Edit) Mutant { return Mutant{name, edits} }

// In returns an edit.
func In(file, old, replacement string) Edit { return Edit{file, old, replacement} }

// Build builds the test program of the package in the current directory with all edits and returns its
// path. root is the module's directory. The program has one mutant on: PFD_MUTANT is its number, from 1.
func Build(t testing.TB, root string, mutants []Mutant) string {
	t.Helper()
	dir := t.TempDir()
	root, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for k, m := range mutants {
		for _, e := range m.Edits {
			text, ok := texts[e.File]
			if !ok {
				b, err := os.ReadFile(filepath.Join(root, e.File))
				if err != nil {
					t.Fatal(err)
				}
				text = string(b)
			}
			if strings.Count(text, e.Old) != 1 {
				t.Fatalf("mutant %q: %s contains its text %d times: update the mutant\n%s", m.Name, e.File, strings.Count(text, e.Old), e.Old)
			}
			on := fmt.Sprintf("device.Mutant == %d", k+1)
			// An edit may apply to another edit's text; M is replaced only as a separate word.
			text = strings.Replace(text, e.Old, word(e.New, "("+on+")"), 1)
			texts[e.File] = text
		}
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	write := func(file, text string) {
		path := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[filepath.Join(root, file)] = path
	}
	for file, text := range texts {
		if imported := `"github.com/exanet/pfd/device"`; !strings.Contains(text, imported) {
			clause := regexp.MustCompile(`(?m)^package \w+$`).FindString(text)
			text = strings.Replace(text, clause, clause+"\n\nimport "+imported, 1)
		}
		write(file, text)
	}
	write("device/mutant.go", "package device\n\nimport (\n\t\"os\"\n\t\"strconv\"\n)\n\n// Mutant is the mutant that is on.\nvar Mutant = func() int {\n\tn, _ := strconv.Atoi(os.Getenv(\"PFD_MUTANT\"))\n\treturn n\n}()\n")
	b, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "mutants.test")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", path, "-o", program, ".")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go test -c: %v\n%s", err, out)
	}
	return program
}

// word replaces the word M.
func word(s, by string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		letter := func(j int) bool {
			return j >= 0 && j < len(s) && (s[j] == '_' || s[j] == '.' || s[j]|0x20 >= 'a' && s[j]|0x20 <= 'z')
		}
		if s[i] == 'M' && !letter(i-1) && !letter(i+1) {
			b.WriteString(by)
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
