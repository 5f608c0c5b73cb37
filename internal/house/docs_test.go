package house

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documents returns README.md, CONTRIBUTING.md, SECURITY.md and all of docs/ and docs/spec/.
func documents(t *testing.T) []string {
	t.Helper()
	list := []string{"README.md", "CONTRIBUTING.md", "SECURITY.md"}
	for _, dir := range []string{"docs", "docs/spec"} {
		docs, err := filepath.Glob(filepath.Join(root, dir, "*.md"))
		if err != nil || len(docs) == 0 {
			t.Fatalf("%d documents in %s, %v", len(docs), dir, err)
		}
		for _, path := range docs {
			list = append(list, filepath.Join(dir, filepath.Base(path)))
		}
	}
	return list
}

// The tests and the Go files that documents name exist.
func TestDocsNameTestsThatExist(t *testing.T) {
	_, list := sources(t)
	there := map[string]bool{}
	for _, s := range list {
		there[s.path] = true
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && s.test {
				there[f.Name.Name] = true
			}
		}
	}
	known := 0
	for _, rel := range documents(t) {
		for _, m := range regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9]+|[a-z0-9_/]+/[a-z0-9_]+[.]go)`").FindAllStringSubmatch(read(t, rel), -1) {
			known++
			if !there[m[1]] {
				t.Errorf("%s names %s, which does not exist", rel, m[1])
			}
		}
	}
	if known < 10 {
		t.Errorf("only %d tests and files are named", known)
	}
}

// README.md has a line for each folder at the top, in their order.
func TestREADMENamesEachFolder(t *testing.T) {
	var there, named []string
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		name := e.Name()
		if !e.IsDir() || strings.HasPrefix(name, ".") || name == "bin" {
			continue
		}
		// git leaves an empty folder of a former commit in place.
		if files, err := os.ReadDir(filepath.Join(root, name)); err != nil || len(files) > 0 {
			there = append(there, name)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^\| \[([a-z0-9]+)\]\(([a-z0-9]+)\) \| .`).FindAllStringSubmatch(read(t, "README.md"), -1) {
		if m[1] != m[2] {
			t.Errorf("README.md: the line of %s leads to %s", m[1], m[2])
		}
		named = append(named, m[1])
	}
	if !slices.Equal(there, named) {
		t.Errorf("README.md has lines for the folders %q, want %q", named, there)
	}
}

// docs/security.md has a line for each test of internal/hostile and each of its attackers.
func TestSecurityNamesEachAttack(t *testing.T) {
	_, list := sources(t)
	text := read(t, filepath.Join("docs", "security.md"))
	found := 0
	need := func(name string) {
		found++
		if !strings.Contains(text, "`"+name+"`") {
			t.Errorf("docs/security.md does not name %s", name)
		}
	}
	for _, s := range list {
		if s.dir != "internal/hostile" {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if strings.HasPrefix(n.Name.Name, "Test") && n.Name.Name != "TestMain" {
					need(n.Name.Name)
				}
			case *ast.ValueSpec:
				if n.Names[0].Name != "attackers" {
					return true
				}
				for _, e := range n.Values[0].(*ast.CompositeLit).Elts {
					if key := strings.Trim(e.(*ast.KeyValueExpr).Key.(*ast.BasicLit).Value, `"`); key != "burn" {
						need(key)
					}
				}
			}
			return true
		})
	}
	if found < 50 {
		t.Errorf("only %d tests and attackers found", found)
	}
}

// The metrics that README.md and docs/ name exist: the name without its prefix, or also without
// _total, is in a string of the program.
func TestDocsNameMetricsThatExist(t *testing.T) {
	_, list := sources(t)
	var program strings.Builder
	for _, s := range list {
		if !s.test {
			program.Write(s.text)
		}
	}
	header := read(t, filepath.Join("libexanet", "exanet.h")) + read(t, filepath.Join("libexanet", "exanet_stream.h")) +
		read(t, filepath.Join("libexanet", "exanet_gsas.h")) + read(t, filepath.Join("libexanet", "exanet_dht.h"))
	known := 0
	for _, rel := range documents(t) {
		for _, m := range regexp.MustCompile(`\bexanet_([a-z_0-9]*[a-z0-9])\b`).FindAllStringSubmatch(read(t, rel), -1) {
			if strings.Contains(header, m[0]+"(") || strings.Contains(header, " "+m[0]+";") {
				continue // a function or a type of libexanet
			}
			known++
			if !strings.Contains(program.String(), `"`+m[1]+`"`) && !strings.Contains(program.String(), `"`+strings.TrimSuffix(m[1], "_total")+`"`) {
				t.Errorf("%s names the metric %s, which the program does not have", rel, m[0])
			}
		}
	}
	if known < 10 {
		t.Errorf("only %d metrics are named", known)
	}
}

// A package whose comments cite a paper by its number says where the numbers are defined: go
// doc shows the citation without the document.
func TestCitedPapersAreNamed(t *testing.T) {
	cites := regexp.MustCompile(`\b00[0-9] (§|table|fig)`)
	_, list := sources(t)
	cited, named := map[string]bool{}, map[string]bool{}
	for _, s := range list {
		if s.test {
			continue
		}
		if s.file.Doc != nil && strings.Contains(s.file.Doc.Text(), "docs/papers.md") {
			named[s.dir] = true
		}
		for _, c := range s.file.Comments {
			cited[s.dir] = cited[s.dir] || cites.MatchString(c.Text())
		}
	}
	for dir := range cited {
		if cited[dir] && !named[dir] {
			t.Errorf("package %s cites a paper by its number, and its package comment does not name docs/papers.md", dir)
		}
	}
}
