package main

import (
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// All threads of a running pfd have the requested slice.
func TestShortSlices(t *testing.T) {
	if own, err := unix.SchedGetAttr(0, 0); err != nil || own.Runtime == 0 {
		t.Skipf("this kernel has no time slices per thread (Linux 6.12 has them): %v", err)
	}
	socket := filepath.Join(t.TempDir(), "s")
	p := startPFD(t, "--socket", socket)
	p.ready(socket)
	for _, status := range threads(t, p.cmd.Process.Pid) {
		tid, err := strconv.Atoi(status["Pid"])
		if err != nil {
			t.Fatal(err)
		}
		attr, err := unix.SchedGetAttr(tid, 0)
		if err == nil && attr.Runtime != uint64(slice) {
			t.Errorf("thread %d has a slice of %d ns, want %v", tid, attr.Runtime, slice)
		}
	}
}
