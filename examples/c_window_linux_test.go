package examples

import (
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
)

// A C program opens memory to one of another group, and withdraws it.
func TestWindows(t *testing.T) {
	dir, client := public(t), start(t)
	library(t, dir)
	bin := compile(t, dir, filepath.Join("..", "testdata", "window"))
	t.Run("messages", func(t *testing.T) { windowMessages(t, bin) })
	for _, node := range []string{"0", "1"} {
		t.Run(node, func(t *testing.T) {
			out, err := exec.CommandContext(t.Context(), bin, client.Socket(), node).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			said := strings.Split(strings.TrimSpace(string(out)), "\n")
			want := []string{
				"0 bytes: a memory window of 0 bytes at ", "past the end: a memory window of ", "past the node's end: pfd refused: ", "no right: ", "unknown right: ",
				"drivers' PDID: pfd refused: ", "of nothing: pfd refused: ", "other rights: pfd refused: ", "65th: pfd refused: ", "child opens: ", "child closes: ",
			}
			for i, line := range said {
				if i >= len(want) || !strings.HasPrefix(line, want[i]) || strings.Contains(line, ", want ") {
					t.Fatalf("line %d of %q, want %q", i, said, want)
				}
			}
			if len(said) != len(want) {
				t.Errorf("%q, want %q", said, want)
			}
		})
	}
}

// libexanet writes the bytes of the document, but for the product.
func windowMessages(t *testing.T, bin string) {
	text, err := os.ReadFile(filepath.Join("..", "docs", "attach.md"))
	if err != nil {
		t.Fatal(err)
	}
	for name, typ := range map[string]string{"window": "15", "unwindow": "16"} {
		out, err := exec.CommandContext(t.Context(), bin, "golden", typ, "7f0000001003", "2005", "1234", "10").Output()
		if err != nil {
			t.Fatal(err)
		}
		got, err := hex.DecodeString(string(out))
		if err != nil {
			t.Fatal(err)
		}
		w, err := attach.DecodeWindow(got)
		want := device.MemoryWindow{VA: 0x7f0000001003, Bytes: 0x2005, Peer: 0x1234, Rights: device.RightWrite | device.RightMessages}
		if err != nil || !strings.HasPrefix(w.Product, "libexanet ") || w.MemoryWindow != want {
			t.Errorf("%s: %x: %+v, %v", name, got, w, err)
		}
		block := regexp.MustCompile("(?s)```golden " + name + "\n(.*?)```").FindSubmatch(text)
		if block == nil {
			t.Fatalf("the document has no golden %s", name)
		}
		// The lines before and after the product.
		for _, line := range []string{"0:   " + spaced(got[:8]), "72:  " + spaced(got[72:80]), "80:  " + spaced(got[80:88]), "88:  " + spaced(got[88:90]), "90:  " + spaced(got[90:91])} {
			if !strings.Contains(string(block[1]), line) {
				t.Errorf("golden %s has no line %q", name, line)
			}
		}
	}
}
