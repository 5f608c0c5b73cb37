// Package golden reads the golden vectors in testdata/: bytes and words worked out by hand from
// the tables of the specification, with the working beside them.
//
// A line "case NAME" begins a vector. Each further line is a key and its value. "#" begins a
// comment, also at the end of a line. The values of a repeated key are joined with a space.
package golden

import (
	"encoding/hex"
	"os"
	"strconv"
	"strings"
	"testing"
)

// Case is one golden vector.
type Case struct {
	Name   string
	values map[string]string
	used   map[string]bool
}

// Read reads a file of vectors. It fails the test if the file has none.
func Read(t testing.TB, file string) []*Case {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var cases []*Case
	for n, line := range strings.Split(string(b), "\n") {
		line, _, _ = strings.Cut(line, "#")
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		key, value, _ := strings.Cut(line, " ")
		value = strings.TrimSpace(value)
		if key == "case" {
			cases = append(cases, &Case{Name: value, values: map[string]string{}, used: map[string]bool{}})
			continue
		}
		if len(cases) == 0 {
			t.Fatalf("%s:%d: %q before the first case", file, n+1, key)
		}
		c := cases[len(cases)-1]
		if old, ok := c.values[key]; ok {
			value = old + " " + value
		}
		c.values[key] = value
	}
	if len(cases) == 0 {
		t.Fatalf("%s: no cases", file)
	}
	return cases
}

// Has reports whether the vector has a key.
func (c *Case) Has(key string) bool {
	_, ok := c.values[key]
	return ok
}

// Text returns a value as text.
func (c *Case) Text(t testing.TB, key string) string {
	t.Helper()
	v, ok := c.values[key]
	if !ok {
		t.Fatalf("case %s has no %s", c.Name, key)
	}
	c.used[key] = true
	return v
}

// Uint returns a number, decimal or 0x….
func (c *Case) Uint(t testing.TB, key string) uint64 {
	t.Helper()
	v, err := strconv.ParseUint(c.Text(t, key), 0, 64)
	if err != nil {
		t.Fatalf("case %s: %s: %v", c.Name, key, err)
	}
	return v
}

// Bool returns a truth value.
func (c *Case) Bool(t testing.TB, key string) bool {
	t.Helper()
	v, err := strconv.ParseBool(c.Text(t, key))
	if err != nil {
		t.Fatalf("case %s: %s: %v", c.Name, key, err)
	}
	return v
}

// Words returns a list of hexadecimal numbers.
func (c *Case) Words(t testing.TB, key string) []uint64 {
	t.Helper()
	var words []uint64
	for _, s := range strings.Fields(c.Text(t, key)) {
		v, err := strconv.ParseUint(s, 16, 64)
		if err != nil {
			t.Fatalf("case %s: %s: %v", c.Name, key, err)
		}
		words = append(words, v)
	}
	return words
}

// Bytes returns hexadecimal bytes; spaces between them are ignored.
func (c *Case) Bytes(t testing.TB, key string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(c.Text(t, key)), ""))
	if err != nil {
		t.Fatalf("case %s: %s: %v", c.Name, key, err)
	}
	return b
}

// Done fails the test if the test did not read all keys of the vector.
func (c *Case) Done(t testing.TB) {
	t.Helper()
	for k := range c.values {
		if !c.used[k] {
			t.Errorf("case %s: the test did not read %s", c.Name, k)
		}
	}
}
