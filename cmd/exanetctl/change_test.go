package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/exanet/pfd/daemon/control"
)

func TestGrantAndKick(t *testing.T) {
	d := startDaemon(t, map[string]any{
		control.PathGrant: control.Changed{Version: 1, Domain: control.Domain{Node: 1, Slot: 3, PID: 77, Group: "app", Peers: []uint16{9}}},
		control.PathKick:  control.Changed{Version: 1, Domain: control.Domain{Node: 1, Slot: 3, PID: 77}, Ended: true},
	})
	for _, c := range []struct {
		line, query string
		code        int
		errs        string
	}{
		{"domain grant 1/3 0x9", "POST /v1/domains/grant?node=1&pdid=9&slot=3", exitOK, "domain 1/3 (pid 77, group app) admits 0x0009\n"},
		{"dom g 1/3 9", "POST /v1/domains/grant?node=1&pdid=9&slot=3", exitOK, "admits 0x0009"},
		{"domain kick 1/3", "POST /v1/domains/kick?node=1&slot=3", exitOK, "domain 1/3 (pid 77) is ended\n"},
		{"domain kick 1", "", exitUsage, "NODE/SLOT"},
		{"domain kick", "", exitUsage, "want `exanetctl domain kick NODE/SLOT`"},
		{"domain grant 1/3", "", exitUsage, "want `exanetctl domain grant NODE/SLOT PDID`"},
		{"domain grant 1/3 0", "", exitUsage, "1 to 0xffff"},
		{"domain grant 1/3 0x10000", "", exitUsage, "1 to 0xffff"},
	} {
		d.queries = nil
		code, out, errs := ctl(append(strings.Fields(c.line), "--socket", d.socket)...)
		if code != c.code || !strings.Contains(errs, c.errs) || out != "" {
			t.Errorf("%s: exit code %d, %q, %q", c.line, code, out, errs)
		}
		if got := strings.Join(d.queries, " "); got != c.query {
			t.Errorf("%s asks %q, want %q", c.line, got, c.query)
		}
	}
	code, out, errs := ctl("domain", "kick", "1/3", "-j", "--socket", d.socket)
	if code != exitOK || !strings.Contains(out, `"ended":true`) || errs != "" {
		t.Errorf("-j: exit code %d, %q, %q", code, out, errs)
	}
	refused := startDaemon(t, map[string]any{})
	if code, _, errs := ctl("domain", "kick", "1/3", "--socket", refused.socket); code != exitFailed || errs == "" {
		t.Errorf("refused: exit code %d, %q", code, errs)
	}
}

func TestDrainAndCut(t *testing.T) {
	answer := control.Hosts{Version: 1, SeesAll: true, Hosts: []control.Host{{Name: "b", State: control.HostDraining}}}
	d := startDaemon(t, map[string]any{control.PathDrain: answer, control.PathCut: answer})
	for _, c := range []struct {
		line, query string
		code        int
		errs        string
	}{
		{"host drain b", "POST /v1/hosts/drain?host=b&on=1", exitOK, "host b is draining\n"},
		{"host drain b --undo", "POST /v1/hosts/drain?host=b&on=0", exitOK, "host b is"},
		{"host cut b", "POST /v1/hosts/cut?host=b&ms=1000", exitOK, "host b is cut off for 1s\n"},
		{"host cut b --for 1m", "POST /v1/hosts/cut?host=b&ms=60000", exitOK, "for 1m0s"},
		{"host cut b --for 2h", "", exitUsage, "want 1ms to 1h"},
		{"host cut", "", exitUsage, "want `exanetctl host cut HOST`"},
	} {
		d.queries = nil
		code, out, errs := ctl(append(strings.Fields(c.line), "--socket", d.socket)...)
		if code != c.code || !strings.Contains(errs, c.errs) || out != "" {
			t.Errorf("%s: exit code %d, %q, %q", c.line, code, out, errs)
		}
		if got := strings.Join(d.queries, " "); got != c.query {
			t.Errorf("%s asks %q, want %q", c.line, got, c.query)
		}
	}
}

func TestDomainWindows(t *testing.T) {
	windows := []control.MemoryWindow{
		{Address: 0x7f0000001003, SizeBytes: 0x2005, Peer: 0x1234, Rights: []string{"read", "write"}},
		{Address: 0x7f0000005000, SizeBytes: 4096, Rights: []string{"messages"}},
	}
	d := startDaemon(t, map[string]any{control.PathStatus: control.Status{Version: 1, SeesAll: true}, control.PathDomains: control.Domains{
		Version: 1, SeesAll: true, Domains: []control.Domain{{Node: 0, Slot: 0, PID: 5}, {Node: 1, Slot: 3, PID: 77, Group: "app", Windows: windows}},
	}})
	for _, c := range []struct {
		line string
		out  []string
	}{
		{"domain window", []string{"DOMAIN", "1/3", "77", "app", "0x7f0000001003", "8197 B", "0x1234", "read+write", "0x7f0000005000", "any", "messages"}},
		{"dom w 1/3", []string{"0x1234"}},
		{"domain window 0/0", []string{"no memory windows of node/slot 0/0"}},
		{"domain window 1/3 -j", []string{`"windows":[{"address":"0x7f0000001003","size_bytes":8197,"peer":4660,"rights":["read","write"]}`, `"slot":3`}},
		{"domain window -o csv --columns SIZE,PEER", []string{"8197,0x1234", "4096,any"}},
	} {
		code, out, errs := ctl(append(strings.Fields(c.line), "--socket", d.socket)...)
		if code != exitOK || errs != "" {
			t.Errorf("%s: exit code %d, %q", c.line, code, errs)
		}
		for _, want := range c.out {
			if !strings.Contains(out, want) {
				t.Errorf("%s: %q does not contain %q", c.line, out, want)
			}
		}
	}
}

func TestMonitor(t *testing.T) {
	faults, ok := fakeAnswers[control.PathFaults].(control.Faults)
	if !ok {
		t.Fatal("no faults")
	}
	d := startDaemon(t, map[string]any{control.PathMonitor: []any{
		control.FaultEvent{Version: 1},
		control.FaultEvent{Version: 1, Fault: &faults.Faults[0]},
		control.FaultEvent{Version: 1, Lost: 12},
		control.FaultEvent{Version: 1, Fault: &faults.Faults[1]},
	}})
	code, out, errs := ctl("fault", "monitor", "1", "--socket", d.socket)
	ended := "exanetctl: pfd ended: it was on " + d.socket + "\n"
	if code != exitNoDaemon || errs != "12 faults omitted: they come faster than they can be printed\n"+ended || len(d.queries) != 2 || d.queries[0] != "GET /v1/faults/monitor?node=1" {
		t.Errorf("exit code %d, %q, asked %q", code, errs, d.queries)
	}
	golden(t, "monitor.table", out)
	if out, said := ctlWide("80", "fault", "monitor", "--socket", d.socket); widest(out) > 80 || !strings.Contains(said, "10 columns more: -o wide\n") {
		t.Errorf("on 80 columns, %q:\n%s", said, out)
	}
	code, out, errs = ctl("fault", "monitor", "-j", "--socket", d.socket)
	if code != exitNoDaemon || errs != ended {
		t.Errorf("exit code %d, %q", code, errs)
	}
	golden(t, "monitor.json", out)
}

// --watch repeats the output until it is interrupted, and then ends with exit code 0.
func TestWatch(t *testing.T) {
	for _, args := range []string{"status", "node", "node show -j", "domain show", "fault", "counter --all"} {
		d := startDaemon(t, fakeAnswers)
		ctx, cancel := context.WithCancel(t.Context())
		const times = 3
		asked, each := 0, 0 // requests, and those of one picture
		d.asked = func() { each++ }
		_, once, _ := ctl(append(strings.Fields(args), "--socket", d.socket)...)
		d.asked = func() {
			if asked++; asked > times*each {
				cancel()
			}
		}
		var out, errs bytes.Buffer
		code := run(ctx, append(strings.Fields(args), "--watch", "100ms", "--socket", d.socket),
			streams{in: &bytes.Buffer{}, out: &out, err: &errs, getenv: func(string) string { return "" }})
		cancel()
		between := "\n"
		if strings.Contains(args, "-j") {
			between = ""
		}
		want := strings.Repeat(between+once, times)[len(between):]
		// The request that was interrupted may have begun an output.
		if code != exitOK || errs.Len() != 0 || !strings.HasPrefix(out.String(), want) || strings.Count(out.String(), once) > times+1 {
			t.Errorf("%s: exit code %d, %q, shows\n%s\nwant %d times\n%s", args, code, errs.String(), out.String(), times, once)
		}
	}
	d := startDaemon(t, fakeAnswers)
	if code, _, errs := ctl("status", "--watch", "1ms", "--socket", d.socket); code != exitUsage || !strings.Contains(errs, "100ms or more") {
		t.Errorf("--watch 1ms: exit code %d, %q", code, errs)
	}
	// It ends if the daemon ends.
	if code, _, _ := ctl("status", "--watch", "1s", "--socket", d.socket+".none"); code != exitNoDaemon {
		t.Errorf("without a daemon: exit code %d", code)
	}
}
