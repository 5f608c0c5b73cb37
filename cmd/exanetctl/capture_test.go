package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/exanet/pfd/internal/outfile"
	"github.com/exanet/pfd/internal/pcapng"
)

// capture writes the packets of the transfers that write makes, ends after --count packets,
// and writes only whole blocks.
func TestCapture(t *testing.T) {
	dir := programs(t)
	d := startPFD(t, dir)
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	file := filepath.Join(dir, "links.pcapng")
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "bin", "exanetctl"), "capture", "--socket", d.Socket(), "--count", "40", "--snap", "60", "--write", file)
	var errs strings.Builder
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var err error
	for running := true; running; {
		if code, _, errs := execute(t, dir, "bin/exanetctl write --size 64KiB --dst absent --socket "+d.Socket()); code != exitOK {
			t.Errorf("write: exit code %d, %s", code, errs)
			stop()
		}
		select {
		case err = <-ended:
			running = false
		default:
		}
	}
	if err != nil || !strings.Contains(errs.String(), "40 packets captured, 0 lost") {
		t.Fatalf("%v: %s", err, errs.String())
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	packets := 0
	for len(b) > 0 {
		n, block, err := pcapng.Blocks(b, true)
		if err != nil {
			t.Fatal(err)
		}
		if pcapng.TypeOf(block) == pcapng.TypePacket {
			packets++
		}
		b = b[n:]
	}
	if packets != 40 {
		t.Errorf("%d packets in the file", packets)
	}
}

// After capture an existing file that other users could read is readable by its owner only.
func TestCreatePrivate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "links.pcapng")
	if err := os.WriteFile(file, []byte("of before"), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := outfile.Await(t.Context(), file, outfile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || st.Mode().Perm() != 0o600 || st.Size() != 0 {
		t.Errorf("%v, %d bytes, %v", st.Mode(), st.Size(), err)
	}
	// The mode of something other than a file does not change.
	null, err := outfile.Await(t.Context(), os.DevNull, outfile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if st, err := null.Stat(); err != nil || st.Mode().Perm() == 0o600 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
}
