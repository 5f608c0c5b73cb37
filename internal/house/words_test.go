package house

import (
	"fmt"
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// literary matches words for which the field has terms: remedy, repair, recover; receive, be
// notified; happen to; take turns.
var literary = regexp.MustCompile(`(?i)\b(mend(s|ed|ing)?|heal(s|ed|ing)?|(un)?heard|hears?|befalls?|befell|whose turn|ha[ds] again|behold|thence|whence|forsake[ns]?)\b`)

// Texts, comments, names and errors use plain technical English.
func TestPlainWords(t *testing.T) {
	read := 0
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != root && (strings.HasPrefix(name, ".") || name == "bin" || name == "fuzz") {
				return filepath.SkipDir
			}
			return nil
		}
		kinds := []string{".go", ".md", ".c", ".h", ".lua", ".sh", ".toml", ".yaml", ".yml", ".json", ".service", ".1", ".3", ".5", ".7", ".8", ".txt", ".table"}
		if name == "words_test.go" || name != "Makefile" && !slices.Contains(kinds, filepath.Ext(name)) {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		read++
		for i, line := range strings.Split(string(text), "\n") {
			if w := literary.FindString(line); w != "" {
				t.Errorf("%s:%d: %q: use a plain term", path, i+1, w)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if read < 100 {
		t.Errorf("only %d files were read", read)
	}
}

// tells matches an idiom for which Go has "reports whether".
var tells = regexp.MustCompile(`(?i)\b(?:tells?|told) whether\b`)

// gives matches "gives" as the verb of a function's comment, where Go says "returns".
var gives = regexp.MustCompile(`^\w+(?: and \w+)? gives\b|\b(?:and|It) gives\b`)

// before matches the beginning of a clause, and words after which who or what has no noun.
const before = `(?:^|[.;:(] |\b(?:of|to|by|from|for|with|than|as|and|or|but|at|on|so|if|when|where|while|not|is|are) )`

// whoever and nameless match clauses whose subject is who, whoever or what without a noun, isWhat
// comments of the form "X is what ...".
var (
	whoever  = regexp.MustCompile(`\b[Ww]hoever\b|` + before + `[Ww]ho\b`)
	nameless = regexp.MustCompile(`(?:^|[.;:(] )What [a-z]+|` + before + `what (?:is|was|are|were|has|had|does|did|can|may|must|will|would|comes|came|goes|went|stays|waits|lies|stands|makes|moves|needs|takes|remains|begins|ends|follows|changes|belongs|sleeps|hangs)\b`)
	isWhat   = regexp.MustCompile(`^\w+(?:\.\w+)? (?:is|are) what\b`)
)

// plain are phrases that the expressions match and that are right in English.
var plain = []string{
	"What to do",
	"What selects the files", // qemu.What
}

// Comments use Go's idioms; in comments and documents the subject of a clause has a noun. Questions
// and headings may begin with who and what.
func TestPlainClauses(t *testing.T) {
	fset, list := sources(t)
	check := func(where, text string, function bool) {
		text = strings.Join(strings.Fields(text), " ")
		for _, re := range []*regexp.Regexp{tells, gives, whoever, nameless, isWhat} {
			if re == gives && !function {
				continue
			}
			for _, at := range re.FindAllStringIndex(text, -1) {
				rest, _, _ := strings.Cut(text[at[0]:], ". ")
				if strings.HasSuffix(rest, "?") || slices.ContainsFunc(plain, func(p string) bool { return strings.Contains(rest, p) }) {
					continue
				}
				t.Errorf("%s: %q: use a plain sentence with a noun as its subject", where, text[at[0]:min(at[1]+30, len(text))])
			}
		}
	}
	for _, s := range list {
		if strings.HasSuffix(s.path, "words_test.go") {
			continue
		}
		functions := map[*ast.CommentGroup]bool{}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch d := n.(type) {
			case *ast.FuncDecl:
				functions[d.Doc] = true
			case *ast.InterfaceType:
				for _, m := range d.Methods.List {
					functions[m.Doc] = true
				}
			}
			return true
		})
		for _, c := range s.file.Comments {
			check(fset.Position(c.Pos()).String(), c.Text(), functions[c])
		}
	}
	for _, name := range documents(t) {
		for i, p := range strings.Split(read(t, name), "\n\n") {
			for _, line := range strings.SplitAfter(p, "|") {
				if !strings.HasPrefix(line, "#") {
					check(fmt.Sprintf("%s, paragraph %d", name, i+1), strings.Trim(line, " -|\n"), false)
				}
			}
		}
	}
}
