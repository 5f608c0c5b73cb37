package examples

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/internal/folios/foliotest"
)

// The library's resources in a process end with the attachment, or with exanet_unshare, even if a
// child lives on. Memory that was unmapped without notice receives no other memory's bytes. A page
// that never arrives delays only itself, or is reported as such.
func TestShares(t *testing.T) {
	dir := public(t)
	library(t, dir)
	bin, client := compile(t, dir, filepath.Join("..", "testdata", "shares")), start(t)
	for _, what := range []string{"close", "stale", "own", "sleeps", "memory", "forks"} {
		for method := pagein.GUP; method <= pagein.Populate; method++ {
			if what == "memory" && method != pagein.Touch {
				continue // only pfd reports it: internal/hostile tests it
			}
			t.Run(fmt.Sprint(what, " ", method), func(t *testing.T) {
				cmd := exec.CommandContext(t.Context(), bin, client.Socket(), what, fmt.Sprint(uint8(method)))
				out, err := cmd.CombinedOutput()
				if cmd.ProcessState.ExitCode() == 77 {
					t.Skip("this kernel has no huge pages")
				}
				if err != nil || len(out) > 0 {
					t.Errorf("%v: %s", err, out)
				}
			})
		}
	}
}

// Threads may be cancelled in the library's functions (pthread_cancel(3)): none ends there with a
// lock held.
func TestCancelledThreads(t *testing.T) {
	dir := public(t)
	library(t, dir)
	bin, client := compile(t, dir, filepath.Join("..", "testdata", "cancel")), start(t)
	if out, err := exec.CommandContext(t.Context(), bin, client.Socket()).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
}

// A program with the thread sanitizer attaches every time: its clone(2) is not the keeper's.
func TestThreadSanitizer(t *testing.T) {
	dir := public(t)
	library(t, dir)
	bin, client := compile(t, dir, filepath.Join("..", "testdata", "cancel"), "-fsanitize=thread", "-DONCE"), start(t)
	for range 20 {
		if out, err := exec.CommandContext(t.Context(), bin, client.Socket()).CombinedOutput(); err != nil || len(out) > 0 {
			t.Fatalf("%v: %s", err, out)
		}
	}
}

// Memory of exanet_alloc comes in by folios with EXANET_FOLIOS where that is possible, else by single
// pages, and exanet_folio says which.
func TestFolios(t *testing.T) {
	for _, flags := range [][]string{nil, {"-fsanitize=address,undefined", "-fno-omit-frame-pointer"}} {
		dir := public(t)
		library(t, dir, flags...)
		bin, client := compile(t, dir, filepath.Join("..", "testdata", "folios"), flags...), start(t)
		for _, c := range []struct {
			kib    int
			method pagein.Method
			want   string // pages of a folio, or words of why there is none
		}{
			{0, pagein.GUP, "hugepages-64kB/shmem_enabled"}, {16, pagein.GUP, "4"}, {64, pagein.GUP, "16"}, {64, pagein.Touch, "16"}, {256, pagein.GUP, "64"},
			{64, pagein.Populate, "16"}, {64, pagein.UFFD, "method uffd"}, {64, pagein.GUP, "this pfd"}, {64, pagein.GUP, "page tables"},
		} {
			t.Run(fmt.Sprint(strings.Join(flags, ""), c.kib, c.method, c.want), func(t *testing.T) {
				foliotest.Set(t, c.kib)
				out, err := exec.CommandContext(t.Context(), bin, client.Socket(), fmt.Sprint(uint8(c.method)), c.want).CombinedOutput()
				if err != nil || len(out) > 0 {
					t.Errorf("%v: %s", err, out)
				}
			})
		}
	}
}
