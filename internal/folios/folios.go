// Package folios reads the kernel's settings for folios: pages that it allocates, maps and reclaims
// as one (Documentation/admin-guide/mm/transhuge.rst). A fault in memory that is advised with
// MADV_HUGEPAGE brings in a whole folio if the settings allow one there.
package folios

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Lines that a root shell executes to allow folios of 64 KiB until the next boot: in shared memory
// (memfd), and in private anonymous memory. contrib/tmpfiles.d/exanet-folios.conf makes the same
// settings at each boot.
const (
	SharedLine  = "echo advise >/" + dir + "/hugepages-64kB/" + sharedFile
	PrivateLine = "echo madvise >/" + dir + "/hugepages-64kB/" + privateFile
)

const (
	dir         = "sys/kernel/mm/transparent_hugepage"
	sharedFile  = "shmem_enabled"
	privateFile = "enabled"
	hugeKB      = 2048
)

// Setting is the setting of one kind of memory.
type Setting struct {
	Known bool   // the kernel has the setting
	Sizes string // folios below 2 MiB that are allowed, such as "64 KiB, 128 KiB"
	Huge  bool   // folios of 2 MiB are allowed, and come first where memory has room for them
}

// Read reads the settings of files below root. Without the files nothing is allowed.
func Read(root string) (shared, private Setting) {
	return read(filepath.Join(root, dir), sharedFile), read(filepath.Join(root, dir), privateFile)
}

func read(top, name string) (s Setting) {
	all := chosen(filepath.Join(top, name))                              // the setting of sizes that have none of their own
	files, _ := filepath.Glob(filepath.Join(top, "hugepages-*kB", name)) // the pattern is valid
	var sizes []int
	for _, file := range files {
		var kb int
		if _, err := fmt.Sscanf(filepath.Base(filepath.Dir(file)), "hugepages-%dkB", &kb); err != nil {
			continue
		}
		s.Known = true
		word := chosen(file)
		if word == "inherit" {
			word = all
		}
		if allows(word) && all != "deny" || all == "force" {
			sizes = append(sizes, kb)
		}
	}
	slices.SortFunc(sizes, cmp.Compare[int])
	var texts []string
	for _, kb := range sizes {
		if kb < hugeKB {
			texts = append(texts, fmt.Sprintf("%d KiB", kb))
		} else {
			s.Huge = true
		}
	}
	s.Sizes = strings.Join(texts, ", ")
	return s
}

func allows(word string) bool {
	return slices.Contains([]string{"always", "within_size", "advise", "madvise"}, word)
}

// chosen returns the word in brackets of a file such as "always [madvise] never", or "".
func chosen(file string) string {
	b, _ := os.ReadFile(file) // a file that cannot be read has no word
	_, rest, _ := strings.Cut(string(b), "[")
	word, _, _ := strings.Cut(rest, "]")
	return word
}
