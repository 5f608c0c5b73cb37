package house

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The metrics that README.md and docs/ name are made somewhere: the name without
// its prefix, or without _total, too, stands in a string of the program.
func TestDocsNameMetricsThatExist(t *testing.T) {
	_, list := sources(t)
	var program strings.Builder
	for _, s := range list {
		if !s.test {
			program.Write(s.text)
		}
	}
	docs, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(docs) == 0 {
		t.Fatalf("%d documents, %v", len(docs), err)
	}
	known := 0
	for _, path := range append(docs, filepath.Join(root, "README.md")) {
		rel, err := filepath.Rel(root, path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\bexanet_([a-z_0-9]*[a-z0-9])\b`).FindAllStringSubmatch(read(t, rel), -1) {
			known++
			if !strings.Contains(program.String(), `"`+m[1]+`"`) && !strings.Contains(program.String(), `"`+strings.TrimSuffix(m[1], "_total")+`"`) {
				t.Errorf("%s names the metric %s, which nothing makes", rel, m[0])
			}
		}
	}
	if known < 10 {
		t.Errorf("only %d metrics are named", known)
	}
}
