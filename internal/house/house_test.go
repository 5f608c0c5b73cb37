package house

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const module = "github.com/exanet/pfd"

// root is the top of the repository.
var root = filepath.Join("..", "..")

// source is one parsed Go file.
type source struct {
	path string // from root, with slashes
	dir  string // of path; "." for the root
	test bool
	file *ast.File
	text []byte
}

func (s *source) imports(path string) bool {
	for _, i := range s.file.Imports {
		if strings.Trim(i.Path.Value, `"`) == path {
			return true
		}
	}
	return false
}

// sources parses all Go files of the repository.
func sources(t *testing.T) (*token.FileSet, []*source) {
	t.Helper()
	fset := token.NewFileSet()
	var list []*source
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(fset, path, text, parser.ParseComments)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		list = append(list, &source{path: rel, dir: filepath.ToSlash(filepath.Dir(rel)), test: strings.HasSuffix(name, "_test.go"), file: f, text: text})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(list) < 10 {
		t.Fatalf("%d Go files below %s: is this the repository?", len(list), root)
	}
	return fset, list
}

// goCommand runs the go command at the root.
func goCommand(t *testing.T, env []string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), env...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s%s", strings.Join(args, " "), err, out, errs.Bytes())
	}
	return string(out)
}
