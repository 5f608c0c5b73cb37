package house

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// oneWay are the packages whose files use each other's declarations in one direction only.
var oneWay = []string{"daemon", "daemon/api", "daemon/session", "emu", "emu/serve", "fault", "fault/faulttest", "soc", "soc/pldma", "soc/r5"}

// A file may use what other files of its package declare, but none of these may use, directly or
// by others, what it declares. So each package can be read from the bottom up.
func TestFilesPointOneWay(t *testing.T) {
	args := []string{"list", "-export", "-deps", "-f", "{{.ImportPath}}|{{.Export}}|{{join .GoFiles \" \"}}"}
	for _, pkg := range oneWay {
		args = append(args, "./"+pkg)
	}
	exports, files := map[string]string{}, map[string]string{}
	for line := range strings.Lines(goCommand(t, nil, args...)) {
		words := strings.Split(strings.TrimSpace(line), "|")
		exports[words[0]], files[words[0]] = words[1], words[2]
	}
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for _, pkg := range oneWay {
		var list []*ast.File
		for name := range strings.FieldsSeq(files[module+"/"+pkg]) {
			f, err := parser.ParseFile(fset, filepath.Join(root, pkg, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, f)
		}
		for _, line := range circle(uses(t, fset, imports, module+"/"+pkg, list)) {
			t.Errorf("%s: files use each other in a circle: %s", pkg, line)
		}
	}
}

// The test above finds a circle, and names what makes it, but not the files that only use it or
// that it only uses.
func TestFilesInACircle(t *testing.T) {
	fset := token.NewFileSet()
	var list []*ast.File
	for name, text := range map[string]string{
		"low.go":   "type T struct{ x int }",
		"left.go":  "func left(t T) { if t.x > 0 { t.right() } }",
		"right.go": "func (t T) right() { far() }",
		"far.go":   "func far() { left(T{}) }",
		"high.go":  "func high() { left(T{}) }",
	} {
		f, err := parser.ParseFile(fset, name, "package p; "+text, 0)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, f)
	}
	want := []string{"far.go uses left of left.go", "left.go uses right of right.go", "right.go uses far of far.go"}
	if got := circle(uses(t, fset, nil, "p", list)); !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

// uses returns, for each file of a package, what it uses of which other files: types, functions,
// methods, and variables and constants of the package.
func uses(t *testing.T, fset *token.FileSet, imports types.Importer, pkg string, files []*ast.File) map[string]map[string][]string {
	t.Helper()
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	if _, err := (&types.Config{Importer: imports}).Check(pkg, fset, files, info); err != nil {
		t.Fatal(err)
	}
	of := map[string]map[string][]string{}
	for id, o := range info.Uses {
		if o.Pkg() == nil || o.Pkg().Path() != pkg {
			continue
		}
		if _, method := o.(*types.Func); !method && o.Parent() != o.Pkg().Scope() {
			continue // a field, a local name
		}
		from, to := filepath.Base(fset.Position(id.Pos()).Filename), filepath.Base(fset.Position(o.Pos()).Filename)
		if from == to || slices.Contains(of[from][to], o.Name()) {
			continue
		}
		if of[from] == nil {
			of[from] = map[string][]string{}
		}
		of[from][to] = append(of[from][to], o.Name())
	}
	return of
}

// circle describes the uses that are left when the files that use no other one, and those that
// no other one uses, are removed one after the other; none if there is no circle.
func circle(of map[string]map[string][]string) (lines []string) {
	for removed := true; removed; {
		removed = false
		for file, to := range of {
			used := false
			for _, others := range of {
				used = used || others[file] != nil
			}
			maps.DeleteFunc(to, func(other string, _ []string) bool { return of[other] == nil })
			if !used || len(to) == 0 {
				delete(of, file)
				removed = true
			}
		}
	}
	for from, all := range of {
		for to, names := range all {
			slices.Sort(names)
			lines = append(lines, from+" uses "+strings.Join(names, ", ")+" of "+to)
		}
	}
	slices.Sort(lines)
	return lines
}
