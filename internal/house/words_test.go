package house

import (
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
