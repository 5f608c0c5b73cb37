//go:build man

package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra/doc"
)

// main writes the manual pages into the directory that it is given: make man.
func main() {
	if err := manual(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}

func manual(dir string) error {
	c := command(nil, os.Stderr)
	c.DisableAutoGenTag = true
	return doc.GenManTree(c, &doc.GenManHeader{Section: "8", Source: "ExaNet", Manual: "ExaNet manual"}, dir)
}
