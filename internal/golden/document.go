package golden

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// Document reads the golden bytes in a document: blocks that start with ```golden NAME, of lines of
// hexadecimal bytes after "OFFSET:", with a remark after "#"; "NN*COUNT" repeats a byte.
func Document(t testing.TB, file string) map[string][]byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for _, block := range regexp.MustCompile("(?s)```golden ([a-z0-9-]+)\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		var b []byte
		for line := range strings.Lines(block[2]) {
			line, _, _ = strings.Cut(line, "#")
			for i, f := range strings.Fields(line) {
				if i == 0 {
					var off int
					if _, err := fmt.Sscanf(f, "%v:", &off); err != nil || off != len(b) {
						t.Fatalf("golden %s: line at offset %q, %d bytes so far", block[1], f, len(b))
					}
					continue
				}
				hexByte, count, times := strings.Cut(f, "*")
				n := 1
				if times {
					if _, err := fmt.Sscan(count, &n); err != nil {
						t.Fatalf("golden %s: %q", block[1], f)
					}
				}
				v, err := hex.DecodeString(hexByte)
				if err != nil {
					t.Fatalf("golden %s: %q: %v", block[1], f, err)
				}
				b = append(b, bytes.Repeat(v, n)...)
			}
		}
		all[block[1]] = b
	}
	return all
}
