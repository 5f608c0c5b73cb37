package daemon

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/rdma"
)

// Transfers are counted by outcome, with their bytes and their time.
func TestTransferMetrics(t *testing.T) {
	d, client, _ := startEngine(t)
	selfWrite(t, client.Socket())
	e, err := rdma.Attach(t.Context(), rdma.Options{Socket: client.Socket(), Group: "files"})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	const size = 64 << 10
	src := make([]byte, size)
	dst, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	remote, err := e.Export(dst)
	if err != nil {
		t.Fatal(err)
	}
	// Not unmapped: something else could be mapped there before the write.
	if err := unix.Mprotect(dst, unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	tr, err := e.Write(t.Context(), rdma.WriteRequest{Src: src, Dst: remote})
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.Wait(t.Context()); !errors.Is(err, rdma.ErrAddress) {
		t.Fatalf("a write to memory without rights ends with %v", err)
	}
	text := metrics(t, d)
	labels := func(class, outcome string) string {
		return fmt.Sprintf(`{class=%q,direction="write",node="0",outcome=%q}`, class, outcome)
	}
	done, failed := labels("high", "completed"), labels("medium", "bad_address")
	if targetSize > 16<<10 {
		done = labels("medium", "completed")
	}
	for _, want := range []string{
		"exanet_transfers_total" + done + " 1",
		"exanet_transfer_bytes_total" + done + fmt.Sprintf(" %d", targetSize),
		"exanet_transfer_seconds_count" + done + " 1",
		"exanet_transfers_total" + failed + " 1",
		"exanet_transfer_bytes_total" + failed + fmt.Sprintf(" %d", size),
		// A counter starts at 0 if a rate is taken of it.
		"exanet_transfers_total" + labels("low", "completed") + " 0",
		`exanet_nacks_total{code="7",node="0"} 0`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("the metrics miss %s", want)
		}
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "# HELP") && strings.Contains(line, "hardware counter ") {
			t.Errorf("a help that says nothing: %s", line)
		}
		if strings.HasPrefix(line, "exanet_transfer_seconds_sum"+done+" ") && strings.HasSuffix(line, " 0\n") {
			t.Error("a transfer took no time")
		}
	}
	if t.Failed() {
		for line := range strings.Lines(text) {
			if strings.Contains(line, "transfer") || strings.Contains(line, "nacks") {
				t.Log(line)
			}
		}
	}
}
