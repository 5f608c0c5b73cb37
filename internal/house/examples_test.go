package house

import (
	"go/ast"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every public package has an Example, which go test runs. Programs and packages for tests have
// none.
func TestEachPackageHasAnExample(t *testing.T) {
	_, list := sources(t)
	has, public := map[string]bool{}, map[string]bool{}
	for _, s := range list {
		if s.test {
			for _, d := range s.file.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Example") {
					has[s.dir] = true
				}
			}
			continue
		}
		if s.file.Name.Name != "main" && !strings.HasSuffix(s.dir, "test") && s.dir != "examples" && !strings.HasPrefix(s.dir, "internal") {
			public[s.dir] = true
		}
	}
	for dir := range public {
		if !has[dir] {
			t.Errorf("package %s has no Example: write one in %s/example_test.go", dir, dir)
		}
	}
	if len(public) < 40 {
		t.Errorf("only %d public packages were found", len(public))
	}
}

// The output of `go doc` for a package is self-contained: documents that it names are in the
// repository.
func TestPackageCommentsNameWhatIsThere(t *testing.T) {
	_, list := sources(t)
	comments := 0
	for _, s := range list {
		if s.test || s.file.Doc == nil {
			continue
		}
		comments++
		for _, word := range strings.FieldsFunc(s.file.Doc.Text(), func(r rune) bool { return strings.ContainsRune(" \t\n(),;:\"'`", r) }) {
			word = strings.TrimRight(word, ".")
			if strings.HasSuffix(word, ".md") && !exists(word) && !exists("docs/"+word) && !exists("docs/spec/"+word) {
				t.Errorf("%s: the package's comment names %s, which does not exist", s.path, word)
			}
		}
	}
	if comments < 60 {
		t.Errorf("only %d packages have a comment", comments)
	}
}

func exists(path string) bool {
	_, err := os.Stat(filepath.Join(root, path))
	return err == nil
}
