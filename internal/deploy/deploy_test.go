package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/exanet/pfd/daemon/control"
)

// TestMainJob runs the transfers of the demonstration, and the largest and the smallest of the
// suite, over the socket. The result has the same keys as with nodes inside pfd.
func TestMainJob(t *testing.T) {
	l := newPlace(t)
	l.serve()
	d := l.daemon([]int{0, 1})
	var keys []string
	for _, args := range [][]string{
		{"--size", "1"}, {"--size", "15", "--offset", "4090"}, {"--size", "4KiB", "--dst", "absent"},
		{"--size", "4097", "--src", "absent", "--dst", "absent", "--policy", "p4"},
		{"--size", "16385", "--dst", "alternate", "--offset", "3"},
		{"--size", "1MiB", "--dst", "absent", "--policy", "pa"},
		{"--size", "1MiB", "--src", "alternate", "--dst", "alternate"},
		{"--size", "4MiB", "--dst", "absent", "--policy", "pa"},
		{"--size", "64KiB", "--from", "1", "--to", "0", "--dst", "absent"},
		{"--size", "64KiB", "--from", "0", "--to", "0", "--dst", "absent"},
	} {
		r := d.good(5, args...)
		// Present memory faults at most once: nothing waits for the device's maps, and a
		// doorbell may overtake one.
		if absent := slices.Contains(args, "absent"); absent && r.Faults == 0 || !absent && r.Faults > 1 && !slices.Contains(args, "alternate") {
			t.Errorf("%v: %d faults", args, r.Faults)
		}
		keys = r.keys
	}
	// A read-only or unmapped destination is an error and affects no other transfer.
	for _, state := range []string{"readonly", "unmapped"} {
		r, code := outcome(d.write("--size", "64KiB", "--dst", state, "--count", "3"))
		if code != 1 || r.Failed != 3 || !r.Verified || r.Error == nil || !strings.Contains(*r.Error, "status 2") {
			t.Errorf("%s: exit code %d, %+v", state, code, r)
		}
	}
	if p := d.metric("exanet_window_shared_bytes"); p != 0 {
		t.Errorf("%v bytes are shared after the last process has ended", p)
	}

	socket := l.file("emu.sock")
	in := newDaemon(t, socket, start(t, "pfd", "--socket", socket))
	in.ready()
	if r := in.good(1, "--dst", "absent"); !slices.Equal(r.keys, keys) {
		t.Errorf("keys %v within pfd, %v over the socket", r.keys, keys)
	}
}

// TestWindow uses a mapped window smaller than one transfer.
func TestWindow(t *testing.T) {
	l := newPlace(t)
	l.serve()
	d := l.daemon([]int{0, 1}, "--window", "65536")
	for _, policy := range []string{"p1", "p4", "pa"} {
		d.good(2, "--size", "1MiB", "--src", "absent", "--dst", "absent", "--policy", policy, "--offset", "100")
	}
	if d.metric("exanet_window_evictions_total") == 0 {
		t.Error("nothing was evicted")
	}
	if w, m := d.metric("exanet_window_bytes"), d.metric("exanet_window_mapped_bytes"); w != 2*65536 || m != 0 {
		t.Errorf("window %v bytes, %v mapped after the end", w, m)
	}
}

// underWay starts large writes and waits until some of them have completed.
func underWay(d *daemon) *process {
	d.t.Helper()
	before := d.counter("rapf_rx_total")
	w := d.write("--size", "1MiB", "--dst", "absent", "--policy", "pa", "--count", "100000")
	until(d.t, "transfers go on", func() bool {
		select {
		case <-w.done:
			d.t.Fatalf("the writes have ended: %s%s", w.out.String(), w.err.String())
		default:
		}
		return d.counter("rapf_rx_total") > before+100
	})
	return w
}

// TestServerStopped stops the device for one second during transfers.
func TestServerStopped(t *testing.T) {
	l := newPlace(t)
	s := l.serve()
	d := l.daemon([]int{0, 1})
	before := d.counter("rapf_rx_total")
	w := d.write("--size", "1MiB", "--dst", "absent", "--policy", "pa", "--count", "60")
	until(t, "transfers go on", func() bool { return d.counter("rapf_rx_total") > before+20 })
	s.signal(syscall.SIGSTOP)
	<-time.After(time.Second)
	s.signal(syscall.SIGCONT)
	if r, code := outcome(w); code != 0 || r.Transfers != 60 || r.Failed != 0 || !r.Verified {
		t.Errorf("exit code %d, %+v", code, r)
	}
}

// TestServerEnds ends the device by a signal under a pfd. The device names its client and the
// effect on a virtual machine. Without a client it prints nothing.
func TestServerEnds(t *testing.T) {
	l := newPlace(t)
	s := l.serve()
	d := l.daemon([]int{0})
	s.signal(syscall.SIGTERM)
	if code := s.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	says := s.err.String()
	if !strings.Contains(says, "pid="+strconv.Itoa(d.cmd.Process.Pid)) || !strings.Contains(says, "program=pfd") || !strings.Contains(says, "node=0") ||
		!strings.Contains(says, "QEMU aborts") || strings.Contains(says, "node=1") {
		t.Errorf("output %q", says)
	}
	until(t, "pfd says that it waits", func() bool { return d.state() == control.StateReconnecting })
	s = l.serve()
	d.ready()
	d.signal(syscall.SIGTERM)
	d.wait()
	s.signal(syscall.SIGTERM)
	if code := s.wait(); code != 0 || s.err.String() != "" {
		t.Errorf("exit code %d, output %q", code, s.err.String())
	}
}

// TestServerKilled kills the device. Transfers fail with the reason; pfd lives on and uses the
// next device.
func TestServerKilled(t *testing.T) {
	l := newPlace(t)
	s := l.serve()
	d := l.daemon([]int{0, 1})
	fds := descriptors(t, d.cmd.Process.Pid)
	for range 3 {
		w := underWay(d)
		s.kill()
		r, code := outcome(w)
		if code != 1 || r.Error == nil || !strings.Contains(*r.Error, "gone") {
			t.Errorf("exit code %d, %+v: %s", code, r, w.out.String())
		}
		until(t, "pfd says that it waits", func() bool { return d.state() == control.StateReconnecting })
		refused := d.write()
		if refused.wait() == 0 {
			t.Error("a write without a device exits 0")
		}
		s = l.serve()
		d.ready()
		d.good(3, "--size", "1MiB", "--dst", "absent", "--policy", "pa")
	}
	until(t, "as many descriptors as before", func() bool { return descriptors(t, d.cmd.Process.Pid) <= fds })
}

// TestDaemonKilled kills pfd. The next pfd takes the device over and is not disturbed by the
// state of the first.
func TestDaemonKilled(t *testing.T) {
	l := newPlace(t)
	s := l.serve()
	fds := 0
	for i := range 3 {
		d := l.daemon([]int{0, 1}, "--guard-us", "10000")
		d.good(3, "--size", "64KiB", "--dst", "absent")
		w := underWay(d)
		d.kill()
		// 3: pfd ended (docs/exanetctl.md).
		if code := w.wait(); code != 3 {
			t.Errorf("exit code %d: %s", code, w.err.String())
		}
		// The error is the library's, or that of exanetctl's own query of pfd.
		if r, _ := outcome(w); r.Error == nil {
			t.Errorf("output %s%s", w.out.String(), w.err.String())
		}
		next := l.daemon([]int{0, 1}, "--guard-us", "10000")
		if log := next.err.String(); !strings.Contains(log, "domains of an earlier pfd") {
			t.Errorf("the next pfd does not log what it found: %s", log)
		}
		next.good(3, "--size", "1MiB", "--dst", "absent", "--policy", "pa")
		next.signal(syscall.SIGTERM)
		if code := next.wait(); code != 0 {
			t.Errorf("exit code %d", code)
		}
		if i > 0 { // the device closes its connections after pfd has ended
			until(t, "as many descriptors in the device's process as a round before", func() bool { return descriptors(t, s.cmd.Process.Pid) <= fds })
		}
		fds = descriptors(t, s.cmd.Process.Pid)
	}
}

// descriptors counts a process's open descriptors.
func descriptors(t *testing.T, pid int) int {
	t.Helper()
	list, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestTwoDaemons runs one pfd per node on one device.
func TestTwoDaemons(t *testing.T) {
	l := newPlace(t)
	l.serve()
	groups := l.file("groups")
	text := "# groups of both\n" + strconv.Itoa(os.Getuid()) + " app 0x4000\n"
	if err := os.WriteFile(groups, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	a := l.daemon([]int{0}, "--pdid-range", "1-4095", "--groups", groups)

	// Overlapping ranges of PDIDs are refused, however they overlap.
	for _, pdids := range []string{"", "4095-5000", "1-65534", "100-200"} {
		var args []string
		if pdids != "" {
			args = []string{"--pdid-range", pdids}
		}
		p := l.starting([]int{1}, args...)
		if code := p.wait(); code != 1 || !strings.Contains(p.err.String(), "--pdid-range") || !strings.Contains(p.err.String(), "1 to 4095") {
			t.Errorf("range %q beside 1-4095: exit code %d: %s", pdids, code, p.err.String())
		}
	}

	b := l.daemon([]int{1}, "--pdid-range", "4096-8191", "--groups", groups)
	across := []string{"--to-socket", b.socket, "--dst", "absent"}
	a.good(3, append(across, "--group", "app", "--size", "1MiB", "--policy", "pa")...)
	a.good(3, append(across, "--group", "app", "--size", "1")...)
	b.good(3, "--to-socket", a.socket, "--dst", "absent", "--group", "app", "--size", "64KiB")

	// perf measures between the two pfds, by a group name.
	name := fmt.Sprintf("deploy-%d", os.Getpid())
	end := start(t, "exanetctl", "--socket", b.socket, "perf", "serve", name, "--node", "1")
	until(t, "perf serves", func() bool { return strings.Contains(end.err.String(), "serving") })
	for _, args := range [][]string{{"lat", "--policy", "p1", "-s", "4096", "--absent", "dst"}, {"bw", "-s", "64KiB"}, {"rate", "--read", "-s", "64"}} {
		before := b.metric("exanet_faults_total")
		p := start(t, "exanetctl", append([]string{"--socket", a.socket, "perf", args[0], name, "--group", "app", "-n", "50", "-j"}, args[1:]...)...)
		var lines []struct {
			Iterations int   `json:"iterations"`
			Pinned     int64 `json:"pinned_bytes"`
		}
		if code := p.wait(); code != 0 || json.Unmarshal(p.out.Bytes(), &lines) != nil || len(lines) != 1 || lines[0].Iterations < 50 || lines[0].Pinned != 0 {
			t.Errorf("perf %v: exit code %d: %s%s", args, code, p.out.String(), p.err.String())
		}
		if n := b.metric("exanet_faults_total") - before; args[0] == "lat" && n < 50 {
			t.Errorf("perf %v: %v faults at the other pfd", args, n)
		}
	}

	// A group that is not in the file has members of one pfd only.
	r, code := outcome(a.write(append(across, "--group", "other", "--count", "2")...))
	if code != 1 || r.Failed != 2 || r.Error == nil || !strings.Contains(*r.Error, "status 5") || !r.Verified {
		t.Errorf("a group of each: exit code %d, %+v", code, r)
	}

	// Kill and restart one pfd; the other continues.
	b.kill()
	a.good(3, "--from", "0", "--to", "0", "--dst", "absent")
	l.daemon([]int{1}, "--pdid-range", "4096-8191", "--groups", groups, "--guard-us", "10000")
	a.good(3, append(across, "--group", "app", "--size", "1MiB", "--policy", "pa")...)
}

// Over links that delay and lose frames all bytes arrive, with the nodes in pfd and served.
func TestLinks(t *testing.T) {
	link := []string{"--link-delay", "20us", "--link-loss", "0.02", "--link-seed", "1"}
	l := newPlace(t)
	l.serve(link...)
	elsewhere := l.daemon([]int{0, 1}, "--timeout-us", "2000", "--guard-us", "2000")
	socket := l.file("own.sock")
	own := newDaemon(t, socket, start(t, "pfd", append(link, "--socket", socket, "--timeout-us", "2000", "--guard-us", "2000")...))
	for _, d := range []*daemon{elsewhere, own} {
		d.good(5, "--size", "1MiB", "--dst", "absent", "--policy", "pa")
		d.good(50, "--size", "4KiB", "--dst", "absent", "--src", "absent")
		if n := d.metric("exanet_retransmits_total"); n == 0 {
			t.Error("no block was retransmitted")
		}
	}
	if p := start(t, "exanetctl", "emu", "serve", "--socket-dir", l.file("none"), "--link-loss", "1"); p.wait() != 2 || !strings.Contains(p.err.String(), "--link-loss 1: must be 0 to less than 1") {
		t.Errorf("a link that loses all frames: exit code %d, %s", p.wait(), p.err.String())
	}
}

// Memory that `exanetctl perf` drops is absent for the device, too, and other memory is in the
// device's tables. Each transfer faults in the first case, and only the completion words fault
// in the second.
func TestPerf(t *testing.T) {
	l := newPlace(t)
	l.serve()
	d := l.daemon([]int{0, 1})
	run := func(args ...string) float64 {
		t.Helper()
		before := d.metric("exanet_faults_total")
		p := start(t, "exanetctl", append([]string{"--socket", d.socket, "perf", "lat", "-s", "4096", "-n", "100", "--policy", "p1"}, args...)...)
		if code := p.wait(); code != 0 {
			t.Fatalf("%v: exit code %d: %s%s", args, code, p.out.String(), p.err.String())
		}
		return d.metric("exanet_faults_total") - before
	}
	if n := run(); n > 8 {
		t.Errorf("present: %v faults", n)
	}
	if n := run("--absent", "dst"); n < 100 {
		t.Errorf("absent: %v faults of 100 transfers and more", n)
	}
	p := start(t, "exanetctl", "--socket", d.socket, "perf", "lat", "--memory", "any")
	if code := p.wait(); code != 4 || !strings.Contains(p.err.String(), `(SVA), so transfers can access only shared memory: use "shared"`) {
		t.Errorf("memory that is not shared: exit code %d: %s", code, p.err.String())
	}
}
