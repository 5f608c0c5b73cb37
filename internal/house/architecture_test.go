package house

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	backticked = regexp.MustCompile("`([A-Za-z0-9_./]+)`")
	cFunction  = regexp.MustCompile(`(?m)^[a-z][a-z0-9_ *]*[ *]([a-z][a-z0-9_]*)\(`)
)

// Every name in docs/architecture.md exists, and every package is named there. The names after
// a package's name, or a C file's, are declared in it.
func TestArchitectureNames(t *testing.T) {
	_, list := sources(t)
	declared := declarations(list)
	named := map[string]bool{}
	pkg := ""
	for _, m := range backticked.FindAllStringSubmatch(read(t, "docs/architecture.md"), -1) {
		word := m[1]
		first, rest, _ := strings.Cut(word, ".")
		switch {
		case declared[word] != nil:
			pkg = word
			named[pkg] = true
		case declared[first] != nil: // attach.Pages
			pkg = first
			if !declared[pkg][rest] {
				t.Errorf("docs/architecture.md names %s: package %s declares no %s", word, pkg, rest)
			}
		case strings.Contains(word, "/"):
			if _, err := os.Stat(filepath.Join(root, word)); err != nil {
				t.Errorf("docs/architecture.md names %s: %v", word, err)
			} else if strings.HasSuffix(word, ".c") {
				pkg, declared[word], named[word] = word, map[string]bool{}, true
				for _, f := range cFunction.FindAllStringSubmatch(read(t, word), -1) {
					declared[word][f[1]] = true
				}
			}
		case word == "unsafe", word == "pfd":
		default: // Engine.access, or access
			if !declared[pkg][word] {
				t.Errorf("docs/architecture.md names %s after %s, which does not declare it", word, pkg)
			}
		}
	}
	rows := packageRows(t, declared)
	for _, s := range list {
		from, ok := rows[s.dir]
		for _, i := range s.file.Imports {
			pkg, _ := strings.CutPrefix(strings.Trim(i.Path.Value, `"`), module+"/")
			if to, there := rows[pkg]; ok && there && !s.test && to < from {
				t.Errorf("%s imports %s, which docs/architecture.md lists on an earlier line", s.path, pkg)
			}
		}
	}
	for dir := range declared {
		if !named[dir] {
			t.Errorf("docs/architecture.md does not name package %s: add it to the table of packages", dir)
		}
	}
}

// declarations returns the names that each package declares: functions, types, and methods as
// Type.Method and Method.
func declarations(list []*source) map[string]map[string]bool {
	declared := map[string]map[string]bool{}
	for _, s := range list {
		names := declared[s.dir]
		if names == nil {
			names = map[string]bool{}
			declared[s.dir] = names
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				names[d.Name.Name] = true
				if d.Recv != nil {
					names[receiver(d.Recv.List[0].Type)+"."+d.Name.Name] = true
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if ts, ok := spec.(*ast.TypeSpec); ok {
						names[ts.Name.Name] = true
						methods(ts, names)
					}
				}
			}
		}
	}
	return declared
}

// packageRows returns the line of each package in the table of packages, without the lines for
// tests.
func packageRows(t *testing.T, packages map[string]map[string]bool) map[string]int {
	t.Helper()
	_, table, ok := strings.Cut(read(t, "docs/architecture.md"), "| what it is | packages |")
	if !ok {
		t.Fatal("docs/architecture.md has no table of packages")
	}
	rows := map[string]int{}
	for i, line := range strings.Split(table, "\n") {
		what, words, _ := strings.Cut(strings.TrimPrefix(line, "|"), "|")
		if i > 0 && !strings.HasPrefix(line, "|") {
			break
		}
		for _, m := range backticked.FindAllStringSubmatch(words, -1) {
			if packages[m[1]] != nil && !strings.Contains(what, "for tests") && !strings.Contains(what, "tests of") {
				rows[m[1]] = i
			}
		}
	}
	return rows
}

// receiver returns the name of a receiver's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// methods adds the methods of an interface.
func methods(ts *ast.TypeSpec, names map[string]bool) {
	i, ok := ts.Type.(*ast.InterfaceType)
	if !ok {
		return
	}
	for _, m := range i.Methods.List {
		for _, n := range m.Names {
			names[n.Name], names[ts.Name.Name+"."+n.Name] = true, true
		}
	}
}
