package golden

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// Rules reads the cases of one kind from a table: a line a case, the kind its first word, "-" an
// empty one, "#" the beginning of a remark. Each has so many words behind the kind, of which the last
// is what is wanted. f returns what the code makes of the others.
func Rules(t testing.TB, file, kind string, words int, f func(w []string) string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(b)) {
		line, _, _ = strings.Cut(line, "#")
		w := strings.Fields(line)
		if len(w) == 0 || w[0] != kind {
			continue
		}
		n++
		w = w[1:]
		if len(w) != words {
			t.Fatalf("%s: %q has %d words, want %d", file, strings.TrimSpace(line), len(w), words)
		}
		for i := range w {
			if w[i] == "-" {
				w[i] = ""
			}
		}
		if got := f(w[:words-1]); got != w[words-1] {
			t.Errorf("%s: %s: got %q", file, strings.TrimSpace(line), got)
		}
	}
	if n == 0 {
		t.Errorf("%s: no case of %q", file, kind)
	}
}

// Number reads a number of a case.
func Number(t testing.TB, word string) uint32 {
	t.Helper()
	n, err := strconv.ParseUint(word, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(n)
}

// Numbers reads numbers with commas between them.
func Numbers(t testing.TB, word string) (list []uint32) {
	t.Helper()
	for n := range strings.SplitSeq(word, ",") {
		if n != "" {
			list = append(list, Number(t, n))
		}
	}
	return list
}

// YesNo is the word of a case for a truth value.
func YesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}
