package hosts

import (
	"bytes"
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/exanet/pfd/internal/procstatus"
	"github.com/exanet/pfd/rdma"
)

// pattern returns n bytes that depend on a seed.
func pattern(n int, seed uint64) []byte {
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(key).Read(b) // never fails
	return b
}

// unpinned fails the test if a process has pinned or locked memory.
func (h *host) unpinned() {
	h.t.Helper()
	for _, pid := range []int{os.Getpid(), h.pfd.cmd.Process.Pid} {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
		if err != nil {
			h.t.Fatal(err)
		}
		if n, err := procstatus.Bytes(text, "VmLck", "VmPin"); err != nil || n != 0 {
			h.t.Errorf("process %d has %d bytes pinned or locked, %v", pid, n, err)
		}
	}
}

// A write from a process of one host into absent memory of a process of another.
func TestWriteIntoAbsentMemory(t *testing.T) {
	c := start(t, 2, 2)
	a, b := c.hosts[0], c.hosts[1]
	from, to := a.attach(1, rdma.Options{}), b.attach(0, rdma.Options{})
	const size = 1<<20 + 17
	dst, err := to.Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	remote, err := to.Export(dst.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	src := pattern(size, 1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tr, err := from.Write(ctx, rdma.WriteRequest{Src: src, Dst: remote})
	if err == nil {
		err = tr.Wait(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(dst.Bytes(), src) {
		t.Error("other bytes arrived")
	}
	s, err := b.client.Status(ctx)
	if err != nil || s.Faults == 0 || s.PinnedBytes != 0 {
		t.Errorf("%d faults, %d bytes pinned, %v", s.Faults, s.PinnedBytes, err)
	}
	a.unpinned()
	b.unpinned()
}

// The same by exanetctl, whose test processes are on both hosts.
func TestExanetctlWrite(t *testing.T) {
	c := start(t, 2, 2)
	a, b := c.hosts[0], c.hosts[1]
	const years = 10 * 365 * 24 * time.Hour // of the certificates of exanetctl host init
	if r, err := a.client.Hosts(t.Context()); err != nil || r.Certificate != "of the authority" || (years-time.Duration(r.CertificateLeftNS)).Abs() > 7*24*time.Hour {
		t.Errorf("the certificate %s ends in %v, %v", r.Certificate, time.Duration(r.CertificateLeftNS), err)
	}
	for _, verb := range []string{"write", "read"} {
		cmd := command("exanetctl", verb, "--socket", a.socket, "--to-socket", b.socket, "--from", "1", "--to", "2", "--group", group,
			"--dst", "absent", "--src", "absent", "--size", "256KiB", "--count", "5", "-o", "json")
		out, err := cmd.Output()
		var r struct {
			Verified bool  `json:"verified"`
			Bytes    int   `json:"bytes"`
			Faults   int   `json:"faults"`
			Pinned   int64 `json:"pinned_bytes"`
		}
		if e := json.Unmarshal(out, &r); err != nil || e != nil || !r.Verified || r.Bytes != 5<<18 || r.Faults == 0 || r.Pinned != 0 {
			t.Errorf("%s: %v, %v\n%s", verb, err, e, out)
		}
	}
}
