package golden

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// Rules runs the cases of one kind from a table. Each line is a case: its kind, then words
// words, the last of which is the expected result. "-" stands for an empty word, and "#" begins
// a comment. f returns the actual result for the other words.
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

// Number parses a number of a case.
func Number(t testing.TB, word string) uint32 {
	t.Helper()
	n, err := strconv.ParseUint(word, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(n)
}

// Numbers parses a comma-separated list of numbers.
func Numbers(t testing.TB, word string) (list []uint32) {
	t.Helper()
	for n := range strings.SplitSeq(word, ",") {
		if n != "" {
			list = append(list, Number(t, n))
		}
	}
	return list
}

// YesNo returns the word for a truth value in a case.
func YesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}
