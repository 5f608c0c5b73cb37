package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"image/png"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/exanet/pfd/daemon/control"
)

// Only read requests that have the token and name this host are answered.
func TestUIHandler(t *testing.T) {
	const at = "127.0.0.1:4711"
	c, err := control.New(filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	h := uiHandler("TOKEN", at, fstest.MapFS{"index.html": {Data: []byte("the page")}}, newFeed(t.Context(), c))
	for _, tc := range []struct {
		method, host, path string
		status             int
	}{
		{"GET", at, "/TOKEN/", http.StatusOK},
		{"HEAD", "localhost:4711", "/TOKEN/", http.StatusOK},
		{"GET", at, "/TOKEN", http.StatusMovedPermanently},
		{"GET", at, "/", http.StatusNotFound},
		{"GET", at, "/TOKE/", http.StatusNotFound},
		{"GET", at, "/TOKENS/", http.StatusNotFound},
		{"GET", at, "/events", http.StatusNotFound},
		{"GET", at, "/TOKEN/../../etc/passwd", http.StatusNotFound},
		{"GET", at, "/TOKEN/other", http.StatusNotFound},
		{"POST", at, "/TOKEN/", http.StatusMethodNotAllowed},
		{"PUT", at, "/TOKEN/events", http.StatusMethodNotAllowed},
		{"GET", "attacker.example", "/TOKEN/", http.StatusMisdirectedRequest},
		{"GET", "attacker.example:4711", "/TOKEN/", http.StatusMisdirectedRequest},
		{"GET", "127.0.0.1", "/TOKEN/", http.StatusMisdirectedRequest},
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), tc.method, "http://x"+tc.path, nil)
		r.Host = tc.host
		h.ServeHTTP(w, r)
		if w.Code != tc.status {
			t.Errorf("%s %s of %s: %d %s, want %d", tc.method, tc.path, tc.host, w.Code, w.Body, tc.status)
		}
		if got := w.Header().Get("Content-Security-Policy"); got != uiPolicy || w.Header().Get("Referrer-Policy") != "no-referrer" {
			t.Errorf("%s %s: headers %v", tc.method, tc.path, w.Header())
		}
	}
}

func TestUIUsage(t *testing.T) {
	d := startDaemon(t, fakeAnswers)
	for _, at := range []string{"0.0.0.0:0", "192.0.2.1:80", ":8080", "localhost", "[::]:0", "127.0.0.1"} {
		if code, _, errs := ctl("ui", "--listen", at, "--socket", d.socket); code != exitUsage || !strings.Contains(errs, "loopback") {
			t.Errorf("--listen %s: exit code %d, %s", at, code, errs)
		}
	}
	if code, _, errs := ctl("ui", "--socket", filepath.Join(t.TempDir(), "s")); code != exitNoDaemon || !strings.Contains(errs, "start one with") {
		t.Errorf("no daemon: exit code %d, %s", code, errs)
	}
}

// startUI starts exanetctl ui and returns the address that it prints.
func startUI(t *testing.T, dir, socket string) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(dir, "bin", "exanetctl"), "ui", "--socket", socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("exanetctl ui ends with %v: %s", err, errs.String())
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("%v: %s", err, errs.String())
	}
	url := strings.TrimSpace(line)
	host, _, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
	if at, err := netip.ParseAddrPort(host); err != nil || !at.Addr().IsLoopback() || len(url) < len("http://127.0.0.1:1/")+26 {
		t.Fatalf("the address is %q", url)
	}
	return url
}

// misdrawn is JavaScript that lists illegible text in the page's pictures: smaller than 10
// pixels, outside its picture or its node's box, or over another text.
const misdrawn = `(() => {
	const wrong = [], over = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3;
	const inside = (a, b) => a.left >= b.left && a.right <= b.right + 1 && a.top >= b.top - 1 && a.bottom <= b.bottom + 1;
	for (const svg of document.querySelectorAll('svg')) {
		const texts = [...svg.querySelectorAll('text')].filter((t) => t.textContent), at = (e) => e.getBoundingClientRect();
		texts.forEach((t, i) => {
			const why = parseFloat(getComputedStyle(t).fontSize) * svg.getScreenCTM().a < 9.9 ? 'small' : !inside(at(t), at(svg)) ? 'out of the picture' :
				t.parentNode.classList.contains('node') && !inside(at(t), at(t.parentNode.querySelector('rect'))) ? 'out of its box' :
				texts.slice(i + 1).filter((o) => over(at(t), at(o))).map((o) => 'over ' + o.textContent)[0] ||
				[...svg.querySelectorAll('.node')].filter((g) => g !== t.parentNode && over(at(t), at(g))).map(() => 'over a box')[0];
			if (why) wrong.push(svg.id + ': ' + t.textContent + ': ' + why);
		});
	}
	return wrong.join('\n');
})()`

// In a browser, with a real pfd and real transfers, the page shows the transfers, loads
// nothing from elsewhere, and can be operated by keys.
func TestUI(t *testing.T) {
	dir := programs(t)
	d := startNodes(t, dir, 8)
	b := openBrowser(t, startUI(t, dir, d.Socket()))
	b.until(`document.getElementById('status').textContent.includes('ready')`)
	ctx, stop := context.WithCancel(t.Context())
	write := exec.CommandContext(ctx, filepath.Join(dir, "bin", "exanetctl"), strings.Fields("write --size 64MiB --parallel 6 --policy p1 --dst absent --count 6000 --socket "+d.Socket())...)
	write.Cancel = func() error { return write.Process.Signal(syscall.SIGTERM) }
	if err := write.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		stop()
		_ = write.Wait() // it was interrupted
	}()
	b.until(`state.faults.length >= 50 && state.one && state.view.stages.length === 5 && state.view.total.faults_per_s > 0`)
	b.until(`document.querySelectorAll('#channels tr').length > 0 && document.querySelectorAll('#faults [role=option]').length === rowsShown`)
	b.until(`document.querySelectorAll('#domains tr').length === 2 && document.getElementById('nodes-text').textContent.includes('in flight')`)
	// The dot moves, and another fault follows.
	b.eval(`window.first = key(state.one), window.places = new Set(), 0`)
	b.until(`places.add(document.getElementById('dot').getAttribute('cx')), places.size > 5`)
	b.until(`key(state.one) !== first`)
	for _, scheme := range []string{"light", "dark"} {
		b.colours(scheme)
		picture, err := png.Decode(bytes.NewReader(b.shot("ui-"+scheme, "png", 0)))
		if err != nil {
			t.Fatal(err)
		}
		r, g, bl, _ := picture.At(2, picture.Bounds().Dy()-2).RGBA()
		if bright := r+g+bl > 3*0x8000; bright != (scheme == "light") {
			t.Errorf("%s: the paper is %x %x %x", scheme, r, g, bl)
		}
	}
	b.colours("light")

	// Use keys only: to the list, to a fault, pause, and back.
	b.press(" ", " ")
	b.until(`state.paused && document.getElementById('pause').getAttribute('aria-pressed') === 'true'`)
	b.until(`!state.dirty`)
	for range 10 {
		if b.eval(`document.activeElement.id === 'faults'`) == true {
			break
		}
		b.press("Tab", "")
	}
	b.press("ArrowDown", "")
	b.press("ArrowDown", "")
	b.until(`document.activeElement.getAttribute('aria-activedescendant') === 'fault-1' && document.querySelector('#faults [aria-selected=true]').id === 'fault-1' && key(state.one) === key(state.faults[1])`)
	b.press("Escape", "")
	b.until(`!state.chosen && !document.querySelector('#faults [aria-selected=true]')`)
	b.press("r", "r")
	b.until(`document.getElementById('stages-note').textContent.startsWith('0 resolved')`)
	b.press("?", "?")
	b.until(`document.getElementById('keys').open`)
	b.press("Escape", "")
	b.until(`!document.getElementById('keys').open`)
	b.press(" ", " ")
	b.until(`!state.paused`)

	// All text is legible for every number of nodes, all figures, and on narrow pages.
	b.eval(`pause(), window.seen = state.view, state.zero = {}, 0`)
	for _, width := range []int{1280, 1150, 420} {
		b.size(width, 900)
		for _, nodes := range []int{1, 2, 3, 4, 8, 20} {
			b.eval(fmt.Sprintf(`window.many = Array.from({length: %d}, (_, i) => seen.nodes[i] || {...seen.nodes[7], node: i, node_id: i}),
				state.view = {...seen, nodes: many.map((n) => ({...n, domains: 16, rates: {...n.rates, faults_per_s: 888888}})),
					fifos: seen.fifos.map((f) => ({...f, level: 512, highest_level: 512})),
					channels: Array(32).fill({node: 0, slot: 15, channel: 31, dst_node_id: many[many.length - 1].node_id, class: 'medium', size_bytes: 64 << 20,
						blocks: 4096, blocks_acked: 1, blocks_in_flight: 4095, blocks_paused: 4095, blocks_retransmitted: 4095, age_ns: 999e9})},
				draw(performance.now()), drawOne(), 0`, nodes))
			if n := b.eval(`document.querySelectorAll('#nodes .box').length`); n != float64(nodes) {
				t.Errorf("%d nodes: %v are drawn", nodes, n)
			}
			if wrong := b.eval(misdrawn); wrong != "" {
				t.Errorf("%d nodes, %d pixels wide:\n%s", nodes, width, wrong)
			}
			if over := b.eval(`document.documentElement.scrollWidth`); over.(float64) > float64(width) {
				t.Errorf("%d nodes, %d pixels wide: a line of %v pixels", nodes, width, over)
			}
			if os.Getenv("PFD_SHOTS") != "" {
				b.shot(fmt.Sprintf("ui-%d-%d", nodes, width), "png", 0)
			}
		}
	}

	// The percentiles match the histogram, in which most times are 1 ms.
	b.until(`window.all = {}, stageNames.concat('total').forEach((s) => { all[s] = Array(192).fill(0); all[s][112] = 98; all[s][40] = 2 }), Math.abs(quantile(all.total, .5) / 1e6 - 1) < .09 && quantile(all.total, .01) < 3e3`)

	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.said) != 0 {
		t.Errorf("the browser complains: %q", b.said)
	}
	for _, r := range b.requests {
		if !strings.HasPrefix(r, "http://127.0.0.1:") && r != "data:," && r != "about:blank" {
			t.Errorf("the page asks %s", r)
		}
	}
}

// TestPictures makes the picture of the page for README.md, during real transfers between two
// nodes. `make pictures` runs it.
func TestPictures(t *testing.T) {
	if os.Getenv("PFD_SHOTS") == "" {
		t.Skip("make pictures runs this")
	}
	dir := programs(t)
	d := startPFD(t, dir)
	b := openBrowser(t, startUI(t, dir, d.Socket()))
	ctx, stop := context.WithCancel(t.Context())
	write := exec.CommandContext(ctx, filepath.Join(dir, "bin", "exanetctl"), strings.Fields("perf bw --size 4MiB --depth 8 --absent dst --duration 1m --socket "+d.Socket())...)
	write.Cancel = func() error { return write.Process.Signal(syscall.SIGTERM) }
	if err := write.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		stop()
		_ = write.Wait() // it was interrupted
	}()
	b.size(1280, 860)
	b.until(`state.batch.seen > 3000 && state.view.total.faults_per_s > 0 && state.view.channels.length > 3 && state.view.channels.some((c) => c.blocks_paused > 0) && (state.paused = true)`)
	b.eval(`draw(performance.now())`)
	b.shot("ui", "webp", int(b.eval(`document.getElementById('transfers').getBoundingClientRect().bottom`).(float64))+10)
}

// A page receives all of more than a thousand faults. A page that is opened later has the
// newest ones. Both report that pfd has ended.
func TestUIKeepsUp(t *testing.T) {
	dir := programs(t)
	d := startPFD(t, dir)
	url := startUI(t, dir, d.Socket())
	b := openBrowser(t, url)
	b.until(`state.batch !== null`)
	const faults = 3000 // one a transfer
	code, _, errs := execute(t, dir, "bin/exanetctl write --size 4KiB --count 3000 --dst absent --socket "+d.Socket())
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	b.until(`state.batch.seen + state.batch.lost >= 3000`)
	if seen, lost, skipped := b.eval(`state.batch.seen`), b.eval(`state.batch.lost`), b.eval(`state.skipped`); seen.(float64) < faults || lost != 0.0 || skipped != 0.0 {
		t.Errorf("%v faults seen, %v lost, %v batches skipped", seen, lost, skipped)
	}
	b.until(`document.getElementById('faults-note').textContent.includes('3,0')`)
	later := openBrowser(t, url)
	later.until(`state.faults.length >= 100 && state.batch.seen >= 3000`)
	if err := d.Stop(); err != nil {
		t.Error(err)
	}
	later.until(`!document.getElementById('trouble').hidden && document.getElementById('trouble').textContent.includes('no pfd can be reached')`)
	later.until(`document.getElementById('status').textContent.startsWith('pfd does not answer') && document.querySelector('#totals dd').textContent === '-'`)
	later.shot("ui-silent", "png", 0)
}
