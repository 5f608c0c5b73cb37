package tracing

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/trace/probe"
)

// apart is two pfds, each with a node that a third process serves.
type apart struct {
	*rig
	target *rig
}

func newApart(t *testing.T) apart {
	t.Helper()
	if refused != "" {
		t.Skip(refused)
	}
	dir, err := os.MkdirTemp("", "exanet") // a short path, for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	serve := exec.Command(filepath.Join(bin, "exanetctl"), "emu", "serve", "--nodes", "2", "--socket-dir", dir)
	serve.Stderr = os.Stderr
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = serve.Process.Signal(unix.SIGTERM)
		_ = serve.Wait()
	})
	groups := filepath.Join(dir, "groups")
	if err := os.WriteFile(groups, fmt.Appendf(nil, "%d app 0x4000\n", os.Getuid()), 0o600); err != nil {
		t.Fatal(err)
	}
	pfd := func(name, pdids string, node int) *rig {
		r := &rig{t: t, socket: filepath.Join(dir, name), dir: filepath.Join(bpffs, t.Name()+name)}
		r.until("the node is served", func() bool {
			_, err := os.Stat(filepath.Join(dir, fmt.Sprintf("node%d.sock", node)))
			return err == nil
		})
		r.start("--device", fmt.Sprintf("vfio-user:%s/node%d.sock", dir, node), "--pdid-range", pdids, "--groups", groups)
		t.Cleanup(func() { _ = probe.Off(r.dir) })
		return r
	}
	return apart{pfd("a", "1-4095", 0), pfd("b", "4096-8191", 1)}
}

func (a apart) transfer(count string) {
	a.t.Helper()
	a.write("--to-socket", a.target.socket, "--group", "app", "--dst", "absent", "--count", count)
}

// Two pfds of one machine and the process that serves their nodes: each fault of one is joined
// to the block of the other, in whatever order they are recorded.
func TestJoinAcross(t *testing.T) {
	a := newApart(t)
	b := a.target
	b.ctl("trace", "on", "--bpffs", b.dir, "--program", filepath.Join(bin, "pfd")+","+filepath.Join(bin, "exanetctl"))
	b.before = b.metrics()
	// The server is known once it has checked whether it is traced.
	b.until("the server is known", func() bool {
		a.transfer("1")
		return b.status().Counters["joined_faults"] > 0
	})
	before := b.status().Counters
	a.transfer("200")
	var c map[string]uint64
	b.until("the faults are joined", func() bool {
		c = b.status().Counters
		return c["faults"] == b.since("exanet_faults_total")-b.since("exanet_faults_duplicate_total") &&
			c["joined_faults"]-before["joined_faults"] == c["faults"]-before["faults"] && c["lone"] == before["lone"]
	})
	if c["faults"]-before["faults"] < 200 || c["halves"] != before["halves"] || c["joined"]-before["joined"] != c["refusals"]-before["refusals"] {
		t.Errorf("%v, before %v", c, before)
	}
	m := b.maps()
	defer m.Close()
	list, err := m.Slowest()
	if err != nil {
		t.Fatal(err)
	}
	whole := 0
	for _, e := range list {
		_, driver := e.StagesNS["page_in"]
		_, sender := e.StagesNS["resend"]
		if driver && sender && e.Half == "" && e.PID == uint32(b.pfd.Process.Pid) {
			whole++
		}
	}
	if whole == 0 {
		t.Errorf("no fault has the stages of both: %+v", list)
	}
}

// Driver and sender are traced separately, as on two machines: each has its half of all faults,
// and a report of both recordings has whole faults.
func TestHalves(t *testing.T) {
	a := newApart(t)
	sender, driver := a.rig, a.target
	sender.ctl("trace", "on", "--bpffs", sender.dir, "--program", filepath.Join(bin, "exanetctl"))
	driver.on()
	record := func(r *rig, name string) (string, func()) {
		t.Helper()
		file := filepath.Join(t.TempDir(), name)
		ctx, cancel := context.WithCancel(t.Context())
		cmd := exec.CommandContext(ctx, filepath.Join(bin, "exanetctl"), "trace", "record", file, "--bpffs", r.dir)
		cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGINT) }
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return file, func() {
			cancel()
			_ = cmd.Wait()
		}
	}
	sent, endSent := record(sender, "sender")
	driven, endDriven := record(driver, "driver")
	for _, r := range []*rig{sender, driver} {
		r.until("the recording has begun", func() bool { return r.status().Reader != 0 })
	}
	a.transfer("100")
	want := driver.since("exanet_faults_total") - driver.since("exanet_faults_duplicate_total")
	driver.until("the faults are shown", func() bool { return driver.status().Counters["faults"] >= want })
	c := driver.status().Counters
	if c["halves"] != c["faults"] || c["joined"] != 0 {
		t.Errorf("the driver's: %v", c)
	}
	sender.until("the blocks are shown", func() bool { return sender.status().Counters["refusals"] >= c["rapfs"] })
	if s := sender.status().Counters; s["lone"] != s["refusals"] || s["faults"] != 0 {
		t.Errorf("the sender's: %v", s)
	}
	m := driver.maps()
	defer m.Close()
	list, err := m.Latencies()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]uint64{}
	for _, l := range list {
		known[l.Stage] += l.Count
	}
	if known["page_in"] != c["faults"] || known["total"] != c["faults"] || known["resend"] != 0 {
		t.Errorf("of %d faults: %v", c["faults"], known)
	}
	endSent()
	endDriven()
	out, err := a.try("trace", "report", "-j", sent, driven)
	if err != nil {
		t.Fatal(err)
	}
	var report struct {
		Stages []struct {
			Stage string `json:"stage"`
			Count int    `json:"count"`
		} `json:"stages"`
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	counts := map[string]int{}
	for _, s := range report.Stages {
		counts[s.Stage] = s.Count
	}
	if counts["page_in"] < 100 || counts["resend"] < 100 || counts["send"] < 100 {
		t.Errorf("%s", out)
	}
	whole, err := os.ReadFile(driven)
	if err != nil || strings.Contains(string(whole), `"half":"sender"`) {
		t.Errorf("the driver's recording has senders' halves: %v", err)
	}
}
