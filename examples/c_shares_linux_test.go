package examples

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/exanet/pfd/device/pagein"
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
