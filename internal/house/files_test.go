package house

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// oneWay are the packages whose files use each other's declarations in one direction only.
var oneWay = []string{"daemon", "daemon/api"}

// A file may use what other files of its package declare, but none of these may use, directly or
// by others, what it declares. So each package can be read from the bottom up.
func TestFilesPointOneWay(t *testing.T) {
	args := []string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}
	for _, pkg := range oneWay {
		args = append(args, "./"+pkg)
	}
	exports := map[string]string{}
	for line := range strings.Lines(goCommand(t, nil, args...)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		exports[path] = file
	}
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for _, pkg := range oneWay {
		var files []*ast.File
		for name := range strings.FieldsSeq(goCommand(t, nil, "list", "-f", `{{join .GoFiles " "}}`, "./"+pkg)) {
			f, err := parser.ParseFile(fset, filepath.Join(root, pkg, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
		if _, err := (&types.Config{Importer: imports}).Check(module+"/"+pkg, fset, files, info); err != nil {
			t.Fatal(err)
		}
		if circle := circleOf(uses(fset, info, module+"/"+pkg)); circle != nil {
			t.Errorf("files of %s use each other's declarations in a circle: %s", pkg, strings.Join(circle, ", "))
		}
	}
}

// uses returns for each file of a package which other files declare what it uses: types,
// functions, methods, and variables and constants of the package.
func uses(fset *token.FileSet, info *types.Info, pkg string) map[string][]string {
	of := map[string][]string{}
	for id, o := range info.Uses {
		if o.Pkg() == nil || o.Pkg().Path() != pkg {
			continue
		}
		if _, method := o.(*types.Func); !method && o.Parent() != o.Pkg().Scope() {
			continue // a field, a local name
		}
		from, to := filepath.Base(fset.Position(id.Pos()).Filename), filepath.Base(fset.Position(o.Pos()).Filename)
		if from != to && !slices.Contains(of[from], to) {
			of[from] = append(of[from], to)
		}
	}
	return of
}

// circleOf returns the files that are left when those that no other one uses, or that use no
// other one, are removed one after the other; nil: none.
func circleOf(of map[string][]string) (left []string) {
	for {
		removed := false
		for file, to := range of {
			used := false
			for _, list := range of {
				used = used || slices.Contains(list, file)
			}
			to = slices.DeleteFunc(to, func(f string) bool { return of[f] == nil })
			if of[file] = to; !used || len(to) == 0 {
				delete(of, file)
				removed = true
			}
		}
		if !removed {
			break
		}
	}
	for file := range of {
		left = append(left, file)
	}
	slices.Sort(left)
	return left
}
