//go:build linux

package bench_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/exanet/pfd/internal/workload/bench"
)

// Replace replaces the text between the two lines of a section.
func ExampleReplace() {
	dir, err := os.MkdirTemp("", "exanet")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "doc.md")
	if err := os.WriteFile(file, []byte("before\n<!-- small -->\nold\n<!-- /small -->\nbehind\n"), 0o600); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(bench.Replace(file, "small", "new\n"))
	b, err := os.ReadFile(file)
	fmt.Print(string(b), err, "\n")
	// Output:
	// <nil>
	// before
	// <!-- small -->
	// new
	// <!-- /small -->
	// behind
	// <nil>
}
