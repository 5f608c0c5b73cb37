package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/live"
	"github.com/exanet/pfd/internal/maybe"
)

func TestRate(t *testing.T) {
	for _, c := range []struct {
		n    float64
		want string
	}{
		{0, "0"}, {1, "1"}, {0.5, "0.5"}, {9.94, "9.9"}, {9.96, "10"}, {999.4, "999"}, {999.5, "1.0k"}, {1234, "1.2k"},
		{99949, "100k"}, {1e6, "1.0M"}, {2.5e9, "2.5G"}, {7e15, "7000T"},
	} {
		if got := rate(maybe.Number(c.n)).text; got != c.want {
			t.Errorf("rate(%v) = %q, want %q", c.n, got, c.want)
		}
	}
}

func TestProgressOf(t *testing.T) {
	for _, c := range []struct {
		blocks, acked, inFlight, paused int
		want                            string
	}{
		{10, 0, 0, 0, ".........."},
		{10, 10, 0, 0, "##########"},
		{10, 3, 4, 1, "###>>>!..."},
		{1000, 1, 2, 1, "#>!......."}, // each state that has blocks has a character
		{10, 9, 8, 4, "#########>"},   // and the line never becomes longer
		{0, 0, 0, 0, ".........."},
	} {
		if got := progressOf(&control.Channel{Blocks: c.blocks, Acked: c.acked, InFlight: c.inFlight, Paused: c.paused}, 10); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// If pfd does not show the levels of the FIFOs to a user, top shows "-" and not zero.
func TestTopLine(t *testing.T) {
	v := live.View{Status: control.Status{SeesAll: true}, Time: time.Unix(0, 0).UTC(), FIFOs: []control.FIFO{{Highest: -1}}, Total: live.Rates{Bytes: 2.5e6}}
	const want = "00:00:00 transfers/s=0 failed/s=0 bytes/s=2.5M faults/s=0 p50_us=- channels=0 in_flight=0 paused=0 fifo_highest="
	if got := topLine(&v); got != want+"-" {
		t.Error(got)
	}
	v.FIFOs = append(v.FIFOs, control.FIFO{Highest: 0})
	if got := topLine(&v); got != want+"0" {
		t.Error(got)
	}
}

// The effect of the keys, and the size of the screen.
func TestTopScreen(t *testing.T) {
	channels := []control.Channel{}
	for i := range 20 {
		channels = append(channels, control.Channel{Node: 0, Slot: 3, Channel: i, State: "ongoing", SizeBytes: 1 << 20, Blocks: 64, Acked: 8, InFlight: 8 - i%4, Paused: i % 4, Class: "low", DstNode: 1, AgeNS: int64(i) * 1e6})
	}
	s := &screen{
		a: &app{streams: streams{getenv: func(string) string { return "" }}, format: formatTable}, interval: time.Second,
		view: live.View{
			Seconds: 1, Status: control.Status{SeesAll: true, DaemonVersion: "1.2.3", State: "ready"}, Channels: channels,
			Total:   live.Rates{Transfers: 1234, Bytes: 5e8, Faults: 42},
			Nodes:   []live.Node{{Node: control.Node{Index: 0, FIFODepth: 512}}, {Node: control.Node{Index: 1, FIFODepth: 512}}},
			Domains: []live.Domain{{Domain: control.Domain{Slot: 3, PID: 77, Group: "app"}, Rates: live.Rates{Bytes: 1e6}}, {Domain: control.Domain{Node: 1, PID: 78, Group: "other"}, Rates: live.Rates{Bytes: 3e6}}},
			FIFOs:   []control.FIFO{{Node: 1, Name: "rxfifo", Level: 2, Highest: 17, Depth: 512, Overflow: true}, {Node: 1, Name: "txfifo", Highest: -1}},
			Stages:  live.Stages(fakeAnswers[control.PathFaults].(control.Faults).Faults),
		},
	}
	press := func(keys ...string) {
		for _, k := range keys {
			msg := tea.KeyPressMsg{Text: k, Code: []rune(k)[0]}
			if named, ok := map[string]rune{"esc": tea.KeyEscape, "enter": tea.KeyEnter, "down": tea.KeyDown, "up": tea.KeyUp, "backspace": tea.KeyBackspace, "space": tea.KeySpace, "pgdown": tea.KeyPgDown}[k]; ok {
				msg = tea.KeyPressMsg{Code: named}
			}
			s.Update(msg)
		}
	}
	style := regexp.MustCompile("\x1b\\[[0-9;]*m")
	look := func(want ...string) string {
		t.Helper()
		text := style.ReplaceAllString(s.text(), "")
		lines := strings.Split(text, "\n")
		if len(lines) != s.height {
			t.Errorf("%d lines of %d", len(lines), s.height)
		}
		for _, l := range lines {
			if len([]rune(l)) > s.width {
				t.Errorf("%d columns of %d: %q", len([]rune(l)), s.width, l)
			}
		}
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("no %q in\n%s", w, text)
			}
		}
		return text
	}
	if text := s.text(); text != "" {
		t.Errorf("before its size is known: %q", text)
	}
	for _, size := range [][2]int{{80, 24}, {80, 21}, {100, 40}, {250, 60}} {
		s.Update(tea.WindowSizeMsg{Width: size[0], Height: size[1]})
		look("1.2k transfers/s", "500.0 MB/s", "page_in", "2, 17!", "0/3", "0/3/0", "########", "? help")
	}
	// The head is complete on the narrowest terminal.
	s.view.Status = control.Status{SeesAll: true, DaemonVersion: "0.1.0-dev+0123456789ab.dirty", State: "draining", UptimeNS: 1e15, PinnedBytes: -1}
	s.view.Total = live.Rates{Transfers: 999.5e6, Failed: 999e3, Bytes: 123456e6, Faults: maybe.Unknown(), Retransmits: maybe.Unknown()}
	s.Update(tea.WindowSizeMsg{Width: 80, Height: 24})
	look("pfd: draining, up 277h46m40s, 2 nodes, 2 domains, - pinned ", "- faults/s", "- retransmits/s")
	s.view.Status, s.view.Total = control.Status{SeesAll: true, DaemonVersion: "1.2.3", State: "ready"}, live.Rates{Transfers: 1234, Bytes: 5e8, Faults: 42}
	s.Update(tea.WindowSizeMsg{Width: 79, Height: 24})
	if text := s.text(); !strings.Contains(text, "79x24") || !strings.Contains(text, "Enlarge") {
		t.Errorf("narrow: %q", text)
	}
	s.Update(tea.WindowSizeMsg{Width: 80, Height: 24})
	look("lines below")
	press("pgdown", "pgdown", "pgdown")
	if text := look("0/3/19"); strings.Contains(text, "below") {
		t.Errorf("at the end:\n%s", text)
	}
	press("up")
	look("1 line below")
	press("g", "s") // MB/S, the largest first
	if text := look("by MB/S down"); strings.Index(text, "\n1/0 ") > strings.Index(text, "\n0/3 ") {
		t.Errorf("not sorted:\n%s", text)
	}
	press("S")
	if text := look("by MB/S up"); strings.Index(text, "\n1/0 ") < strings.Index(text, "\n0/3 ") {
		t.Errorf("not sorted the other way round:\n%s", text)
	}
	press("/", "1", "/", "0", "x")
	look("filter: 1/0x_")
	press("backspace", "enter")
	if text := look(`only "1/0"`, "\n1/0 "); strings.Contains(text, "\n0/3 ") {
		t.Errorf("not filtered:\n%s", text)
	}
	press("esc")
	look("\n0/3 ")
	press("?")
	if text := s.text(); !strings.Contains(text, "acknowledged") || len(strings.Split(text, "\n")) > 20 {
		t.Errorf("help:\n%s", text)
	}
	press("x", "space")
	look("PAUSED")
	if _, cmd := s.Update(due{}); cmd == nil || !s.paused {
		t.Error("paused, and no time for the next look is due")
	}
	press("space")
	s.Update(looked{err: errors.New(strings.Repeat("no pfd can be reached ", 10))})
	if text := look("no answer, retrying every 1s", "before that: 1.2k transfers/s"); strings.Contains(text, "ready, up") || strings.Count(strings.ReplaceAll(text, "\n", " "), "no pfd can be reached") != 10 {
		t.Errorf("as if pfd were there:\n%s", text)
	}
	if _, cmd := s.Update(tea.KeyPressMsg{Code: 'q', Text: "q"}); cmd == nil || cmd() != tea.Quit() {
		t.Error("q does not quit")
	}
}

func TestTopUsage(t *testing.T) {
	d := startDaemon(t, fakeAnswers)
	for _, c := range []struct {
		args string
		code int
		errs string
	}{
		{"top --interval 1ms", exitUsage, "100ms or more"},
		{"top -n -1", exitUsage, "want 0"},
		{"top -o csv", exitUsage, "text or JSON"},
		{"top 1", exitUsage, `unexpected argument "1"`},
		{"top -n 2 --interval 100ms", exitOK, ""},
	} {
		code, out, errs := ctl(append(strings.Fields(c.args), "--socket", d.socket)...)
		if code != c.code || !strings.Contains(errs, c.errs) {
			t.Errorf("%s: exit code %d, %s", c.args, code, errs)
		}
		if want := 2; c.code == exitOK && strings.Count(out, "channels=1 in_flight=8 paused=3 fifo_highest=7\n") != want {
			t.Errorf("%s:\n%s", c.args, out)
		}
	}
	if code, _, errs := ctl("top", "--socket", filepath.Join(t.TempDir(), "s")); code != exitNoDaemon || !strings.Contains(errs, "start one with") {
		t.Errorf("no daemon: exit code %d, %s", code, errs)
	}
}

// tmux is a terminal for a program, in its own tmux server.
type tmux struct {
	t      *testing.T
	socket string
}

func startTmux(t *testing.T, width, height int, command string) *tmux {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		lacking(t, "no tmux: contrib/scripts/setup.sh test installs it")
	}
	m := &tmux{t, filepath.Join(t.TempDir(), "tmux")}
	m.do("-f", "/dev/null", "new-session", "-d", "-x", strconv.Itoa(width), "-y", strconv.Itoa(height), command+"; echo exit code $?; exec sleep 1000")
	t.Cleanup(func() { m.do("kill-server") })
	return m
}

func (m *tmux) do(args ...string) string {
	m.t.Helper()
	cmd := exec.Command("tmux", append([]string{"-S", m.socket}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		m.t.Fatalf("tmux %q: %v: %s", args, err, out)
	}
	return string(out)
}

// until waits until a pattern is on the screen and returns the screen.
func (m *tmux) until(pattern string) string {
	m.t.Helper()
	want := regexp.MustCompile(pattern)
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) { // tmux does not report changes
		text := m.do("capture-pane", "-p")
		if want.MatchString(text) {
			return text
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("no %s on the screen:\n%s", pattern, text)
		}
	}
}

// On a real terminal, with a real pfd and real transfers, top shows the transfers, its keys
// work, it reports that pfd has ended, and it restores the terminal.
func TestTop(t *testing.T) {
	dir := programs(t)
	d := startPFD(t, dir)
	m := startTmux(t, 80, 24, filepath.Join(dir, "bin", "exanetctl")+" top --interval 200ms --socket "+d.Socket())
	m.until(`no process is attached`)
	write := exec.Command(filepath.Join(dir, "bin", "exanetctl"), strings.Fields("write --size 64MiB --parallel 6 --policy p1 --dst absent --count 6000 --socket "+d.Socket())...)
	write.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := write.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = write.Process.Signal(syscall.SIGTERM)
		_ = write.Wait()
	}()
	text := m.until(`(?s)[1-9][0-9.]*k? faults/s.*page_in +[0-9.]+ +[0-9.]+ +#.*0/0/0 +64 MiB +4096.*#>`)
	t.Logf("\n%s", text)
	if regexp.MustCompile(`(?m)^.{81}`).MatchString(text) {
		t.Error("lines are longer than 80 columns")
	}
	m.do("send-keys", "s")
	m.until(`by MB/S down`)
	m.do("send-keys", "/", "0/0", "Enter")
	m.until(`only "0/0"`)
	if text := m.until(`(?m)^0/0 `); regexp.MustCompile(`(?m)^1/0 `).MatchString(text) {
		t.Errorf("the filter lets pass\n%s", text)
	}
	m.do("send-keys", "Space")
	stands := m.until(`PAUSED [0-9:]{8}`)
	m.do("send-keys", "?")
	m.until(`Press any key`)
	m.do("send-keys", "x")
	if now := m.until(`PAUSED [0-9:]{8}`); now != stands {
		t.Errorf("paused, and changed from\n%sto\n%s", stands, now)
	}
	m.do("send-keys", "Space")
	m.do("resize-window", "-x", "60")
	m.until(`This terminal is 60x24`)
	m.do("resize-window", "-x", "120")
	m.until(`GROUP`)
	if err := d.Stop(); err != nil {
		t.Error(err)
	}
	m.until(`no answer, retrying every 200ms`)
	m.do("send-keys", "q")
	m.until(`exit code 0`)
	if text := m.do("capture-pane", "-p"); strings.Contains(text, "STAGE") {
		t.Errorf("left on the terminal:\n%s", text)
	}
}

// Without a terminal top prints a line per interval, or a JSON value. It ends if pfd ends.
func TestTopLines(t *testing.T) {
	dir := programs(t)
	d := startPFD(t, dir)
	at := " --interval 100ms --socket " + d.Socket()
	code, out, errs := execute(t, dir, "bin/exanetctl top -n 3 -o json"+at)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var v live.View
	if err := json.Unmarshal([]byte(lines[0]), &v); code != exitOK || errs != "" || len(lines) != 3 || err != nil || v.Version != 1 || len(v.Nodes) != 2 || v.Seconds <= 0 {
		t.Fatalf("exit code %d, %s%v\n%s", code, errs, err, out)
	}
	cmd := exec.Command(filepath.Join(dir, "bin", "exanetctl"), strings.Fields("top"+at)...)
	var text, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &complaint
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := execute(t, dir, "bin/exanetctl write --count 20 --dst absent --socket "+d.Socket()); code != exitOK {
		t.Error(errs)
	}
	if code, out, errs := execute(t, dir, "bin/exanetctl node -o json --socket "+d.Socket()); code != exitOK || !strings.Contains(out, `"transfers":{"completed_total":20,"failed_total":0,"bytes_total":81920}`) {
		t.Errorf("exit code %d, %s%s", code, out, errs)
	}
	if err := d.Stop(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != exitNoDaemon || !strings.Contains(complaint.String(), "pfd") {
		t.Errorf("%v, %s, after\n%s", err, complaint.String(), text.String())
	}
}

// The commands of docs/service.md print the output that it shows. Those that run until
// interrupted are interrupted after their first line and end with exit code 0.
func TestWatchingOfTheDocs(t *testing.T) {
	text, err := os.ReadFile("../../docs/service.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Watching it\n")
	_, section, _ = strings.Cut(section, "```sh\n")
	commands, _, _ := strings.Cut(section, "```")
	dir := programs(t)
	d := startPFD(t, dir)
	const rates = `\d\d:\d\d:\d\d transfers/s=0 failed/s=0 bytes/s=0 faults/s=0 p50_us=- channels=0 in_flight=0 paused=0 fifo_highest=0\n`
	prints := map[string]string{
		"exanetctl top":              rates,
		"exanetctl top -n 3":         "(" + rates + "){3}",
		"exanetctl top -n 1 -o json": `\{"version":1,[^\n]*"device":"emu",[^\n]*\n`,
		"exanetctl ui":               `http://127\.0\.0\.1:\d+/[0-9A-Za-z_-]{22,}/\n`,
	}
	lines := 0
	for line := range strings.Lines(commands) {
		words := strings.Fields(line)
		cmd := exec.Command(filepath.Join(dir, "bin", words[0]), words[1:]...)
		cmd.Env = append(os.Environ(), "RUNTIME_DIRECTORY="+filepath.Dir(d.Socket()))
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(out)
		first, err := r.ReadString('\n')
		if err != nil {
			t.Errorf("%s: %v", line, err)
		}
		if !strings.Contains(line, " -n ") {
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		}
		rest, err := io.ReadAll(r)
		if err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v, %s", line, err, errs.String())
		}
		want := prints[strings.TrimSpace(line)]
		if !strings.Contains(line, " -n ") {
			rest = nil // it may have begun another line
		}
		if all := first + string(rest); want == "" || !regexp.MustCompile("^"+want+"$").MatchString(all) {
			t.Errorf("%s prints\n%swant %s", line, all, want)
		}
		lines++
	}
	if lines != 4 {
		t.Errorf("%d commands", lines)
	}
}
